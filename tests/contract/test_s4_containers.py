"""S4: containers move their arrays too, with nothing registered."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp

LARGE = 1 << 17


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Sample:
    picture: np.ndarray
    labels: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("array",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


class Own:
    """A class with a reducer of its own."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __reduce__(self) -> tuple:
        return Own, (self.array,)


BOXES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (lambda a: [a], lambda box: box[0]),
    "tuple": (lambda a: (1, (a,)), lambda box: box[1][0]),
    "dict": (lambda a: {"a": {"b": a}}, lambda box: box["a"]["b"]),
    "ordered dict": (lambda a: OrderedDict(a=a), lambda box: box["a"]),
    "deque": (lambda a: deque([a], maxlen=3), lambda box: box[0]),
    "named tuple": (lambda a: Pair(1, a), lambda box: box.second),
    "dataclass": (lambda a: Sample(np.zeros(1), {"x": a}), lambda box: box.labels["x"]),
    "slots": (Slotted, lambda box: box.array),
    "own reducer": (Own, lambda box: box.array),
}


@pytest.mark.parametrize(("put", "take"), BOXES.values(), ids=BOXES)
def test_an_array_in_a_container_is_moved_like_any_other(echo: Carrier, put: Callable, take: Callable) -> None:
    shared, private = mp.shared.zeros(10), np.ones(LARGE)
    before = mp.memory_stats()["copied_bytes"]
    got_shared, got_private = echo.call(tasks.echo, (put(shared), put(private)))
    take(got_shared)[...] = 5
    assert shared.tolist() == [5] * 10
    assert mp.is_shared(take(got_private))
    assert take(got_private).sum() == LARGE
    assert (private == 1).all()
    assert mp.memory_stats()["copied_bytes"] == before + private.nbytes


def test_an_array_that_holds_itself_by_way_of_a_list_arrives(echo: Carrier) -> None:
    box: list[Any] = [mp.shared.zeros(3)]
    box.append(box)
    result = echo.call(tasks.echo, box)
    assert result[1] is result
    result[0][...] = 1
    assert box[0].tolist() == [1] * 3


def test_a_sparse_matrix_is_moved(echo: Carrier) -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    matrix = sparse.random(300, 300, density=0.5, format="csr", random_state=1)
    before = mp.memory_stats()["copied_bytes"]
    result = echo.call(tasks.echo, matrix)
    assert (result != matrix).nnz == 0
    assert mp.is_shared(result.data)
    assert mp.memory_stats()["copied_bytes"] >= before + matrix.data.nbytes
