"""The table of docs/when-shared.md is true: each row is sent to a child, and its copies counted."""

from __future__ import annotations

import os
import re
import uuid
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp

PAGE = Path(__file__).parents[2] / "docs" / "when-shared.md"
COUNT = 1 << 14  # of 8 bytes


class Yours(np.ndarray):
    """A subclass without methods."""


@dataclass
class Box:
    held: Any


class Text:
    """Offers pickle a buffer."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce_ex__(self, protocol: int) -> tuple:
        return Text, (PickleBuffer(self.memory) if protocol >= 5 else bytes(self.memory),)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.frombuffer(self.memory, "u1")


def itself(thing: Any) -> Any:
    return thing


def first(thing: Any) -> Any:
    return thing[0]


def last(thing: Any) -> Any:
    return thing[-1]


def boxed(thing: Any) -> Any:
    return thing["box"][0].held


def values(frame: Any) -> Any:
    array = frame.to_numpy()
    array.flags.writeable = True  # pandas hands out its own memory read-only
    return array


def data(sparse: Any) -> Any:
    return sparse.data


def tensor_bytes(tensor: Any) -> Any:
    return tensor.numpy()


def write(thing: Any, pick: Callable) -> bool:
    """Write to the received array; return whether that was allowed."""
    try:
        pick(thing)[...] = 5
    except ValueError as error:
        assert "read-only" in str(error)
        return False
    return True


def numbers() -> np.ndarray:
    return np.arange(1.0, COUNT + 1)


def shared() -> np.ndarray:
    return mp.shared.array(numbers())


def received(echo: Carrier, thing: Any) -> Any:
    return echo.call(tasks.echo, thing)


def read_only() -> np.ndarray:
    view = shared()[:]
    view.flags.writeable = False
    return view


def mapped(folder: Path) -> np.ndarray:
    return np.memmap(folder / "numbers", np.float64, "w+", shape=(COUNT,))


def standard() -> np.ndarray:
    memory = SharedMemory(create=True, size=8 * COUNT)
    array: np.ndarray = np.frombuffer(memory.buf)
    array[:] = numbers()
    weakref.finalize(array.base.obj, memory.unlink)
    memory._buf = memory._mmap = None  # type: ignore[attr-defined]  # its close() would refuse, for the array is over it
    return array


def named() -> np.ndarray:
    name = f"test {uuid.uuid4().hex}"
    array = mp.shared.named(name, COUNT, create=True)
    array[:] = numbers()
    weakref.finalize(array.base, mp.shared.unlink, name)
    return array


def objects() -> np.ndarray:
    return np.array([None, 1.5] * COUNT, dtype=object)


def frame(array: np.ndarray) -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: nox -s containers")
    return pandas.DataFrame(array.reshape(-1, 2), columns=["a", "b"], copy=False)


def sparse() -> Any:
    module = pytest.importorskip("scipy.sparse", reason="SciPy is not installed: nox -s containers")
    return module.coo_array(module.diags_array(numbers()))


def table() -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: nox -s containers")
    return pyarrow.table({"a": numbers()})


def polars_frame() -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed: nox -s containers")
    return polars.DataFrame({"a": numbers()})


def jax_array() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    numpy = pytest.importorskip("jax.numpy", reason="JAX is not installed: nox -s containers")
    return numpy.asarray(numbers().view(np.int32))


def texts() -> Any:
    kind = getattr(np.dtypes, "StringDType", None)
    return np.array(["a text", None] * COUNT, dtype=object if kind is None else kind(na_object=None))


@pytest.fixture(scope="module", autouse=True)
def manager_of_torch() -> None:
    """torch starts a process for its own file_system strategy at its first use; the leak check is to know it."""
    if find_spec("torch") is not None:
        import torch

        torch.ones(1).untyped_storage()._share_filename_cpu_()


def tensor(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed: nox -s torch")
    torch.set_num_threads(1)
    return torch.from_numpy(array)


def shared_allocated(make: Callable[[], Any]) -> Any:
    with mp.shared_allocator():
        return make()


def joined() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: nox -s containers")
    half = pandas.DataFrame({"a": np.arange(1.0, COUNT / 2 + 1)})
    return pandas.concat([half, half]) * 2.0


class Row(NamedTuple):
    make: Callable[[Carrier, Path], Any]
    pick: Callable[[Any], Any] | None = itself  # the array in it that is written to; None: there is none
    nbytes: int = 8 * COUNT
    messages: int = 1


ROWS: dict[str, Row] = {
    "an array made by `shared.zeros` or another `shared` constructor": Row(lambda echo, tmp: shared()),
    "a slice, a transpose, every second element of one": Row(lambda echo, tmp: shared().reshape(-1, 2).T[:, ::2]),
    "an array that was received through shared memory, on or back": Row(lambda echo, tmp: received(echo, numbers())),
    "a read-only view of a shared array": Row(lambda echo, tmp: read_only()),
    "a private array of more than 4 KiB": Row(lambda echo, tmp: numbers()),
    "a private array of 4 KiB or less": Row(lambda echo, tmp: np.ones(512)),
    # 1 in the message, 199 copied into one block and out of it
    "a private array of up to 4 KiB, the 17th of its message or in a list of more than 16, beyond 4 KiB in all": Row(
        lambda echo, tmp: [np.ones(512) for _ in range(200)], last, nbytes=199 * 4096
    ),
    "a slice of a private array (its own bytes, not its base's)": Row(
        lambda echo, tmp: numbers()[1::2], nbytes=4 * COUNT
    ),
    "the same private array, twice in one message": Row(lambda echo, tmp: [numbers()] * 2, first),
    "the same private array, in two messages": Row(lambda echo, tmp: numbers(), messages=2),
    "an array inside a list, dict, dataclass or object of yours": Row(
        lambda echo, tmp: {"box": [Box(numbers())]}, boxed
    ),
    "a shared array inside a list, dict, dataclass or object of yours": Row(
        lambda echo, tmp: {"box": [Box(shared())]}, boxed
    ),
    "a `np.memmap` of mode `r+` or `w+`": Row(lambda echo, tmp: mapped(tmp)),
    "an array over the buffer of a `multiprocessing.shared_memory.SharedMemory`": Row(lambda echo, tmp: standard()),
    "an array of `shared.named`": Row(lambda echo, tmp: named()),
    "an array of Python objects": Row(lambda echo, tmp: objects()),
    "a subclass of `np.ndarray` (masked, record, matrix, yours), over shared memory": Row(
        lambda echo, tmp: shared().view(Yours)
    ),
    "a private subclass of `np.ndarray` of more than 4 KiB": Row(lambda echo, tmp: numbers().view(Yours)),
    "`bytes`, `bytearray`, `str` of 64 KiB and more": Row(
        lambda echo, tmp: [bytes(4 * COUNT), {"b": bytearray(2 * COUNT) * 2}], None
    ),
    "an `array.array` of 64 KiB and more": Row(lambda echo, tmp: array("d", range(COUNT)), None),
    "`bytes`, `bytearray`, `str` below 64 KiB": Row(lambda echo, tmp: [bytes(COUNT // 2), bytearray(COUNT // 2)], None),
    "an object that offers pickle a buffer (`PickleBuffer`) of 32 KiB and more": Row(
        lambda echo, tmp: Text(bytearray(8 * COUNT)), np.asarray
    ),
    "such an object that was received, on or back": Row(
        lambda echo, tmp: received(echo, Text(bytearray(8 * COUNT))), np.asarray
    ),
    "a pandas `DataFrame` or `Series` of numbers or dates": Row(lambda echo, tmp: frame(numbers()), values),
    "a pandas `DataFrame` over a shared array (`copy=False`)": Row(lambda echo, tmp: frame(shared()), values),
    # Its data and one or two indices of four bytes each.
    "a SciPy sparse matrix that consists of arrays": Row(lambda echo, tmp: sparse(), data, nbytes=16 * COUNT),
    "an Arrow table": Row(lambda echo, tmp: table(), None),
    "a polars `DataFrame` or `Series`": Row(lambda echo, tmp: polars_frame(), None),
    "a JAX array of more than 4 KiB, on the CPU": Row(lambda echo, tmp: jax_array(), None),
    "a NumPy array of `StringDType`": Row(lambda echo, tmp: texts(), None),
    "`torch.from_numpy` of a shared array": Row(lambda echo, tmp: tensor(shared()), tensor_bytes),
    "any other tensor of torch": Row(lambda echo, tmp: tensor(numbers()), tensor_bytes),
    "an array of more than 32 KiB made inside `with shared_allocator():`, by whatever function": Row(
        lambda echo, tmp: shared_allocated(lambda: np.cumsum(numbers()) * 2)
    ),
    "a slice, a transpose, every second element of such an array": Row(
        lambda echo, tmp: shared_allocated(numbers).reshape(-1, 2).T[:, ::2]
    ),
    "an array of 4 KiB or less made there": Row(lambda echo, tmp: shared_allocated(lambda: np.ones(512))),
    "a pandas `DataFrame` of shared-allocated columns, its `concat` and arithmetic done there": Row(
        lambda echo, tmp: shared_allocated(joined), values
    ),
}


def promises() -> dict[str, tuple[str, str]]:
    """Return the table of the page: for each object, its number of copies and who sees writes."""
    section = PAGE.read_text().split("## Number of copies")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {what: (copies, seen) for what, copies, seen in rows if what != "you send"}


def test_each_row_of_the_page_is_tested_and_each_test_is_a_row() -> None:
    assert list(promises()) == list(ROWS)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("what", ROWS)
def test_a_row_holds(echo: Carrier, tmp_path: Path, what: str) -> None:
    row, (copies, seen) = ROWS[what], promises()[what]
    sent = row.make(echo, tmp_path)
    before = mp.memory_stats()["copied_bytes"], echo.call(tasks.copied_bytes)
    for _ in range(row.messages):
        if row.pick is None:
            echo.call(tasks.keep, sent)
        else:
            assert echo.call(write, sent, row.pick) == ("read-only" not in seen)
    counted = mp.memory_stats()["copied_bytes"] - before[0] + echo.call(tasks.copied_bytes) - before[1]
    assert counted == (int(copies) * row.nbytes if copies.isdigit() else 0)
    if row.pick is not None and seen != "as it allows":
        here = np.asarray(row.pick(sent)).reshape(-1)
        assert (here[0] == 5, here[-1] == 5) == ((True, True) if seen.startswith("yes") else (False, False))
