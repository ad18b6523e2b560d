"""A message that is one array: written and read in C, and read by any unpickler."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from support.damage import damaged, outcome
from support.readers import by_unpickler, in_c

import mp_all as mp
from mp_core.sharing import backend

F = mp.reduction.ForkingPickler

DTYPES = st.sampled_from("?bBhHiIlLqQefdgFDG")
SHAPES = of_numpy.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=5)


@given(DTYPES, SHAPES, st.randoms())
def test_it_arrives_as_it_left(dtype: str, shape: tuple[int, ...], chance: Any) -> None:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    sent = np.frombuffer(chance.randbytes(size), dtype).reshape(shape).copy()
    for loads in by_unpickler, in_c:
        data = backend.plain_pickle(sent)  # for one receiver each: a larger array is in a block
        assert data is not None
        pickletools.dis(data, out=io.StringIO())  # the standard library finds no mistake in it
        got = loads(data)
        assert type(got) is np.ndarray
        assert (got.dtype, got.shape, got.flags.writeable) == (sent.dtype, sent.shape, True)
        assert got.tobytes() == sent.tobytes()


@pytest.mark.parametrize("n", [255, 256, 4095])
def test_every_width_of_a_number_of_its_shape_arrives(n: int) -> None:
    for shape in ((n,), (1, n), (n, 1, 1, 1)):
        assert backend.loads(backend.plain_pickle(np.ones(shape, "b"))).shape == shape
    for n in (100_000, 2**31 - 1, 2**31, 2**40):
        assert backend.loads(backend.plain_pickle(np.ones((0, n)))).shape == (0, n)


@given(DTYPES, SHAPES, st.data())
def test_a_damaged_one_is_no_other_array_than_for_the_unpickler(
    dtype: str, shape: tuple[int, ...], choose: st.DataObject
) -> None:
    whole = backend.plain_pickle(np.zeros(shape, dtype))
    if b"rebuild_from_block" in whole:  # a larger array goes into a block
        backend.discard_unread(whole)
        assume(False)
    data = damaged(whole, choose)
    assert outcome(in_c, data, described) == outcome(by_unpickler, data, described)


def described(got: Any) -> Any:
    return (got.dtype, got.shape, got.tobytes()) if isinstance(got, np.ndarray) else repr(got)


class Sub(np.ndarray):
    pass


def others() -> Iterator[Any]:
    small = np.arange(12.0).reshape(3, 4)
    yield from (small.view(Sub), small.astype(np.dtype("f8", metadata={"unit": "m"})))
    yield from (np.array([None, 1]), np.zeros(3, "i,d"), np.ones((100, 100)).T)


@pytest.mark.parametrize("array", [*others()], ids=lambda array: f"{type(array).__name__} {array.dtype} {array.shape}")
def test_other_arrays_take_the_reducer(array: Any) -> None:
    assert backend.plain_pickle(array) is None


def test_a_reducer_of_the_program_comes_first() -> None:
    table: Any = F._extra_reducers
    before = table[np.ndarray]
    F.register(np.ndarray, lambda array: (str, ("mine",)))
    try:
        assert backend.plain_pickle(np.ones(3)) is None
    finally:
        F.register(np.ndarray, before)
    assert backend.plain_pickle(np.ones(3)) is not None


def test_a_message_by_value_is_numpys_own() -> None:
    mp.set_sharing(False)
    try:
        assert backend.plain_pickle(np.ones(3)) is None
    finally:
        mp.set_sharing(True)
    ours, theirs = mp.Pipe()
    mp.set_sharing(False, ours)
    for _ in range(2):
        ours.send(np.ones(3))
        assert b"mp_reductions" not in theirs.recv_bytes()
    mp.set_sharing(True, ours)
    for _ in range(2):
        ours.send(np.ones(3))
        assert b"rebuild_from_bytes" in theirs.recv_bytes()
    ours.close()
    theirs.close()


def test_the_inline_limit_is_kept() -> None:
    before = mp.get_inline_limit()
    mp.set_inline_limit(100)
    try:
        for size, place in (12, b"rebuild_from_bytes"), (40, b"rebuild_from_block"):
            data = backend.plain_pickle(np.ones(size))
            assert place in data
            assert backend.loads(data).size == size
    finally:
        mp.set_inline_limit(before)


def test_pickle_itself_reads_it() -> None:
    np.testing.assert_array_equal(pickle.loads(backend.plain_pickle(np.arange(5))), np.arange(5))
