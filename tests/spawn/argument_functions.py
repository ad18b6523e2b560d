"""Functions and arguments of ranks, for the tests of arguments."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from rank_functions import raise_value_error, take_byte


class WaitsWhenUnpickled:
    """Sends a message when it is unpickled, and waits for a byte."""

    def __init__(self, here: Connection, go: Connection) -> None:
        self._pipes = here, go

    def __reduce__(self) -> Any:
        return wait_when_unpickled, self._pipes


def wait_when_unpickled(here: Connection, go: Connection) -> None:
    here.send("here")
    take_byte(go)


class RaisingFunction:
    """An `fn` that can be pickled, and raises an exception when it is unpickled."""

    def __call__(self, rank: int) -> None: ...

    def __reduce__(self) -> Any:
        return raise_value_error, ("the target",)


def sums(rank: int, counted: Any, shared: Any, queue: Any, private: Any, block: Any) -> int:
    total = int(shared.sum() + private.sum() + sum(bytes(block)))
    queue.put(total)
    return total


def sum_of(rank: int, array: Any) -> int:
    return int(array.sum())


def description(array: Any) -> tuple[Any, ...]:
    """Return everything but the strides: gaps between elements are removed by pickling."""
    order = (
        [stride > 0 for stride in array.strides if array.size],
        bool(array.flags.f_contiguous and array.ndim > 1 and array.size),
    )
    return array.dtype, array.shape, order, array.flags.writeable, array.tolist()


def describe_and_change(rank: int, array: Any) -> tuple[Any, bool]:
    seen = description(array)
    if not array.flags.writeable or not array.size:
        return seen, True
    array[...] = array.flat[-1]
    return seen, bool((array == array.flat[-1]).all())


def describe_and_change_all(rank: int, arrays: dict[str, Any]) -> dict[str, tuple[Any, bool]]:
    return {name: describe_and_change(rank, array) for name, array in arrays.items()}


def write_and_read_again(rank: int, array: Any, here: Connection, go: Connection) -> None:
    array += rank + 1
    here.send(rank)
    take_byte(go)
    assert (array == rank + 1).all()


def is_writable(rank: int, array: Any) -> bool:
    return bool(array.flags.writeable)


def overlap(rank: int, one: Any, other: Any) -> bool:
    one[500] += 1
    import numpy as np

    return np.shares_memory(one, other) and other[100] > 0
