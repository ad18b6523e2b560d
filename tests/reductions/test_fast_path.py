"""The fast path reduces arrays as `reduce_ndarray` does, and only those that it knows."""

from __future__ import annotations

import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from support.arrays import differences
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_reductions.array import _plain, reduce_ndarray

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
def test_the_fast_path_and_reduce_ndarray_give_the_same_array(strategy: str, name: str) -> None:
    private = ARRAYS[name]
    for a in [private] if private.dtype.hasobject else [private, mp.share_memory(private)]:
        for reduce in (_plain.reduce_plain, reduce_ndarray):
            rebuild, args, *state = ForkingPickler.loads(ForkingPickler.dumps(reduce(a)))
            got = rebuild(*args)
            for rest in state:
                got.__setstate__(rest)
            assert differences(a, got, mp.is_shared(got)) == []


def test_an_array_over_foreign_memory_is_copied(strategy: str) -> None:
    owner = bytearray(b"abcd" * 50_000)
    a = np.frombuffer(owner, "u1")
    got = ForkingPickler.loads(ForkingPickler.dumps(a))
    owner[0] = 0
    assert bytes(got[:4]) == b"abcd"


def test_a_numpy_with_another_array_layout_does_not_use_the_fast_path(tmp_path: Path, strategy: str) -> None:
    program = """
        import numpy as np
        import mp_all as mp
        from multiprocessing.reduction import ForkingPickler
        from mp_reductions import array

        real = array._plain.knows
        array._plain.knows = lambda a, address, *rest: real(a, address + 8, *rest)
        array.init_reductions()
        assert ForkingPickler._extra_reducers[np.ndarray] is array.reduce_ndarray
        sent = [np.arange(10), np.arange(100_000), mp.shared.ones(5)]
        got = ForkingPickler.loads(ForkingPickler.dumps(sent))
        assert all((a == b).all() for a, b in zip(sent, got, strict=True))
        early = array._plain.rebuild_carried(bytes(16), "d", (2,))
        assert early.sum() == 0 and early.flags.writeable
        print([mp.is_shared(a) for a in got])
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "[False, True, True]\n"


def test_a_process_that_has_imported_nothing_can_receive(strategy: str) -> None:
    message = bytes(ForkingPickler.dumps([np.arange(3), np.arange(100_000), mp.shared.ones(5), mp.Block(7)]))
    program = "import pickle, sys; a, b, c, d = pickle.load(sys.stdin.buffer); print(a[-1], b[-1], c[-1], d.nbytes)"
    done = subprocess.run([sys.executable, "-c", program], input=message, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"2 99999 1.0 7\n", b"")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((b"12345678", "d", (2,)), "8 bytes and not 16"),
        ((b"", "O", (0,)), "no dtype is called 'O'"),
        ((b"", "\u20ac", (0,)), "no dtype is called"),
        ((b"", "dd", (0,)), "no dtype is called"),
        ((b"", b"d", (0,)), "no dtype is called"),
        ((b"", "d", (-1, 0)), "its shape is"),
        ((b"", "d", (1 << 40, 1 << 40)), "its shape is"),
        ((b"", "d", (1 << 70,)), "its shape is"),
        ((b"", "d", 0), "its shape is"),
        ((b"", "d", ("0",)), "its shape is"),
    ],
)
def test_a_damaged_message_is_a_value_error_that_says_what_is_wrong(args: tuple, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _plain.rebuild_carried(*args)
    memory = mp.Block(8) if args[0] else mp.Block(0)
    with pytest.raises(ValueError, match="do not fit in a block of 8" if args[0] else said):
        _plain.rebuild_shared(memory, *args[1:])


@pytest.mark.parametrize("memory", [None, "text", 5, bytearray(56)])
def test_an_array_needs_a_block_or_a_handle(memory: object) -> None:
    with pytest.raises(ValueError, match="no block"):
        _plain.rebuild_shared(memory, "d", (1,))
    with pytest.raises(ValueError, match="damaged"):
        _plain.rebuild_shared(bytes(56), "d", (1,))
