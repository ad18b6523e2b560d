"""The fast path gives the same arrays as the path in Python, and takes only the arrays that it can describe."""

from __future__ import annotations

import math
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.arrays import differences
from support.carriers import Carrier
from support.other_table import importing_with_another_table
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_core.sharing import backend
from mp_reductions import _native
from mp_reductions.array import reduce_ndarray

ARRAYS = {
    "empty": np.empty((3, 0)),
    "0-d": np.array(5),
    "bool": np.array([True, False]),
    "grid": np.arange(24.0).reshape(2, 3, 4),
    "large": np.arange(500_000),
    "row of a larger one": np.arange(200_000.0).reshape(2, -1)[1],
    "complex": np.array([1 + 2j]),
    "datetime": np.array(["2020-01-01"], "M8[D]"),
    "text": np.array(["a", "bcd"]),
    "big-endian": np.arange(5, dtype=">i4"),
    "with metadata": np.zeros(3, np.dtype("f8", metadata={"unit": "m"})),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "read-only": np.frombuffer(b"12345678", "f8"),
    "structured": np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "objects": np.array([None, True], object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_both_paths_give_the_same_array(strategy: str, name: str) -> None:
    private = ARRAYS[name]
    for a in [private] if private.dtype.hasobject else [private, mp.share_memory(private)]:
        for reduce in (_native.reduce_array, reduce_ndarray):
            rebuild, args, *state = ForkingPickler.loads(ForkingPickler.dumps(reduce(a)))
            got = rebuild(*args)
            for rest in state:
                got.__setstate__(rest)
            assert differences(a, got, mp.is_shared(got)) == []


NAMED = ["M8[ns]", "m8[25us]", "M8", "U5", "S3", "V7", ">f8", ">i2", ">U2", ">M8[D]", "?", "f2", "F"]


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("count", [3, 5000])
def test_a_dtype_with_a_name_needs_no_pickler(echo: Carrier, name: str, count: int) -> None:
    bits = np.arange(count * np.dtype(name).itemsize, dtype="u1") % 100
    for a in (bits.view(name), mp.share_memory(bits.view(name))):
        a = a.copy() if a.base is bits else a
        data = backend.plain_pickle([a, 1])
        assert data is not None
        for got in (backend.loads(data)[0], echo.call(tasks.echo, a)):
            assert (got.dtype, got.dtype.str, got.tobytes()) == (a.dtype, a.dtype.str, a.tobytes())
            assert differences(a, got, mp.is_shared(got)) == []


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("f8", metadata={"unit": "m"}),
        np.dtype("M8[ns]", metadata={"unit": "m"}),
        np.dtype([("a", "i4")]),
        np.dtype("O"),
    ],
    ids=str,
)
def test_a_dtype_that_its_name_does_not_describe_arrives_whole(dtype: Any) -> None:
    a = np.zeros(1, dtype)
    got = ForkingPickler.loads(ForkingPickler.dumps([a]))[0]
    assert (got.dtype, got.shape, got.dtype.metadata) == (a.dtype, a.shape, a.dtype.metadata)
    assert backend.plain_pickle(a) is None


def test_more_dtypes_than_there_is_room_for_and_new_objects_of_one_dtype_arrive() -> None:
    arrays = [np.full(2, "x" * k, f"U{k}") for k in range(1, 600)]
    arrays += [np.full(2, k, np.dtype(f"m8[{1 + k % 3}us]")) for k in range(600)]
    for _ in range(2):
        for a, got in zip(arrays, ForkingPickler.loads(ForkingPickler.dumps(arrays)), strict=True):
            assert got.dtype == a.dtype and got.tobytes() == a.tobytes()


def test_a_receiver_knows_any_number_of_dtypes_that_it_has_not_sent() -> None:
    for k in range(1000, 1600):
        for kind in "US":
            dtype = np.dtype(f"{kind}{k}")
            got = _native.rebuild_from_bytes(bytes(dtype.itemsize), dtype.str, (1,))
            assert (got.dtype, got.tolist()) == (dtype, np.zeros(1, dtype).tolist())


def test_an_array_over_foreign_memory_is_copied(strategy: str) -> None:
    owner = bytearray(b"abcd" * 50_000)
    a = np.frombuffer(owner, "u1")
    got = ForkingPickler.loads(ForkingPickler.dumps(a))
    owner[0] = 0
    assert bytes(got[:4]) == b"abcd"


def test_another_version_of_mp_cores_table_is_refused(tmp_path: Path) -> None:
    said = succeeded(run_script(tmp_path, importing_with_another_table("mp_reductions")))
    assert "two installations are mixed; reinstall mp-core and mp-reductions" in said


def test_a_process_that_has_imported_nothing_can_receive(strategy: str) -> None:
    message = bytes(ForkingPickler.dumps([np.arange(3), np.arange(100_000), mp.shared.ones(5), mp.Block(7)]))
    program = "import pickle, sys; a, b, c, d = pickle.load(sys.stdin.buffer); print(a[-1], b[-1], c[-1], d.nbytes)"
    done = subprocess.run([sys.executable, "-c", program], input=message, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"2 99999 1.0 7\n", b"")


@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 1), (2, 3), (3, 0, 2), (1, 5), (5, 1), (2, 1, 3)])
def test_a_received_array_has_the_flags_and_strides_that_numpy_gives(shape: tuple[int, ...]) -> None:
    private = _native.rebuild_from_bytes(bytes(8 * math.prod(shape)), "d", shape)
    block = mp.Block(8 * math.prod(shape))
    over_block = _native.rebuild_from_block(block, "d", shape)
    memory: Any = block
    for a, expected in ((private, np.ndarray(shape, "d")), (over_block, np.ndarray(shape, "d", memory))):
        assert (str(a.flags), a.strides, a.shape) == (str(expected.flags), expected.strides, expected.shape)
        assert a.base is expected.base


def test_memory_is_exchanged_between_arrays_of_one_shape_only() -> None:
    a, b = np.arange(3.0), mp.shared.zeros(3)
    _native.swap_memory(a, b)
    assert mp.is_shared(a) and not mp.is_shared(b) and b.tolist() == [0, 1, 2]
    for other in (np.zeros(4), np.zeros((3, 1))):
        with pytest.raises(ValueError, match="same shape"):
            _native.swap_memory(a, other)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((b"12345678", "d", (2,)), "8 bytes and not 16"),
        ((b"", "O", (0,)), "no dtype is called 'O'"),
        ((b"", "\u20ac", (0,)), "no dtype is called"),
        ((b"", "dd", (0,)), "no dtype is called"),
        ((b"", "i4,f8", (0,)), "no dtype is called"),
        ((b"", "O8", (0,)), "no dtype is called"),
        ((b"", "float64", (0,)), "no dtype is called"),
        ((b"", "<U" + "1" * 30, (0,)), "no dtype is called"),
        ((b"", b"d", (0,)), "no dtype is called"),
        ((b"", "d", (-1, 0)), "its shape is"),
        ((b"", "d", (1 << 40, 1 << 40)), "its shape is"),
        ((b"", "d", (1 << 70,)), "its shape is"),
        ((b"", "d", 0), "its shape is"),
        ((b"", "d", ("0",)), "its shape is"),
        ((b"", "d", (1,) * 65), "its shape is"),
    ],
)
def test_a_damaged_message_is_a_value_error_that_says_what_is_wrong(args: tuple, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _native.rebuild_from_bytes(*args)
    memory = mp.Block(8) if args[0] else mp.Block(0)
    with pytest.raises(ValueError, match="do not fit in a block of 8" if args[0] else said):
        _native.rebuild_from_block(memory, *args[1:])


@pytest.mark.parametrize("memory", [None, "text", 5, bytearray(56)])
def test_an_array_needs_a_block_or_a_handle(memory: object) -> None:
    with pytest.raises(ValueError, match="no block"):
        _native.rebuild_from_block(memory, "d", (1,))
    with pytest.raises(ValueError, match="damaged"):
        _native.rebuild_from_block(bytes(56), "d", (1,))
