"""Views of shared arrays travel without a pickler, in whatever layout, and those of one base share it on arrival."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from support import tasks
from support.arrays import differences
from support.carriers import Carrier

import mp_all as mp
from mp_core.sharing import backend
from mp_reductions import _functions
from mp_reductions.inline import reduce_inline

SHAPE = (4, 5, 1000)  # large enough for the shared allocator


def of_block() -> Any:
    a = mp.shared.zeros(SHAPE, "i4")
    a[...] = np.arange(a.size).reshape(SHAPE)
    return a


def of_allocator() -> Any:
    with mp.shared_allocator():
        a = np.zeros(SHAPE, "i4")
    a[...] = np.arange(a.size).reshape(SHAPE)
    return a


BASES = {"a Block": of_block, "the shared allocator": of_allocator}


def in_flight() -> int:
    return mp.memory_stats()["in_flight_bytes"]


@pytest.mark.parametrize("base", BASES)
@given(st.data())
def test_any_view_arrives_as_it_left_by_c_and_by_pickle(base: str, data: st.DataObject) -> None:
    a = BASES[base]()
    view = a[data.draw(basic_indices(SHAPE, allow_ellipsis=True))]
    if not isinstance(view, np.ndarray):
        return
    if data.draw(st.booleans()):
        view = view.T
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (2, *view.shape))
    view.flags.writeable = data.draw(st.booleans()) and view.flags.writeable
    for loads in (backend.loads, pickle.loads):
        message = backend.plain_pickle([view])
        if view.size and mp.is_shared(view):
            assert message is not None
        if message is None:
            message = bytes(ForkingPickler.dumps([view]))
        (got,) = loads(message)
        assert differences(view, got, mp.is_shared(view)) == []
    del got
    assert in_flight() == 0


@given(st.data())
def test_a_small_private_array_of_any_layout_travels_as_the_path_in_python_sends_it(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4).map(tuple))
    numbers = np.arange(np.prod(shape, dtype=int))
    private = numbers.astype(data.draw(st.sampled_from(["i2", "f8", ">i4", "U3", "S5"])))
    view = private.reshape(shape, order=data.draw(st.sampled_from("CF")))
    view = view[data.draw(basic_indices(shape, allow_ellipsis=True))]
    if not isinstance(view, np.ndarray) or not view.size:
        return
    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (3, *view.shape))
    if data.draw(st.booleans()):
        view.flags.writeable = False
    rebuild, args = reduce_inline(view)
    expected = rebuild(*args)
    message = backend.plain_pickle([view, 1])
    for loads in (backend.loads, pickle.loads):
        got = loads(message)[0]
        assert (got.dtype, got.shape, got.tobytes()) == (view.dtype, view.shape, view.tobytes())
        if not _native_is_whole(view):
            assert (got.strides, str(got.flags)) == (expected.strides, str(expected.flags))
        assert not np.shares_memory(got, view)


def _native_is_whole(a: Any) -> bool:
    return a.flags.c_contiguous and a.flags.writeable


def test_an_array_with_gaps_sends_none_of_the_bytes_in_them() -> None:
    secret = np.frombuffer(bytearray(b"a secret" * 16), "u1").copy()
    for view in (secret[::8], secret[::-8], secret.reshape(8, 16)[:, 3], secret.reshape(4, 4, 8)[::2, :, 1]):
        message = backend.plain_pickle(view)
        assert b"secret" not in message
        assert backend.loads(message).tolist() == view.tolist()


def test_small_views_beside_a_pickle_are_copied_when_the_pickler_meets_them() -> None:
    buffer = np.zeros((4, 6))
    made = []

    class Chunk:
        def __init__(self, number: int) -> None:
            self.number = number

        def __reduce__(self) -> Any:
            buffer[:] = self.number
            made.append(buffer.T[1:3])
            return list, ([made[-1]],)

    got = ForkingPickler.loads(ForkingPickler.dumps([Chunk(k) for k in range(40)]))
    assert [each[0][0, 0] for each in got] == list(range(40))
    got[20][0][...] = 5
    assert got[21][0][0, 0] == 21


@pytest.mark.parametrize("base", BASES)
def test_views_of_one_base_have_one_block_and_its_memory(echo: Carrier, base: str) -> None:
    a = BASES[base]()
    sent = (a[0], [a[1, ::2], {"x": a[:, :, 1]}], np.ones(3), a[2:], 5)
    here = backend.loads(backend.plain_pickle(sent))  # it needs no pickler
    assert here[0].base is here[1][0].base is here[1][1]["x"].base is here[3].base
    for _ in range(3):
        got = echo.call(tasks.echo, sent)
        first, (second, others), private, last, five = got
        assert five == 5 and private.tolist() == [1, 1, 1]
        first[0, 0] += 100
        assert a[0, 0, 0] == first[0, 0]
        for got_view, view in ((first, a[0]), (second, a[1, ::2]), (others["x"], a[:, :, 1]), (last, a[2:])):
            assert np.array_equal(got_view, view)
    del got, first, second, others, last, here
    assert in_flight() == 0


def test_the_whole_and_a_part_in_one_message_share_the_memory(echo: Carrier) -> None:
    a = of_block()
    for sent in ((a, a[1]), (a[1], a), [a[0], a, a[0]]):
        got = echo.call(tasks.echo, sent)
        got[0][...] = 7
        assert all((np.asarray(each) == 7).any() for each in got) and (a == 7).any()
        a[...] = 0


def test_many_views_and_views_beside_a_pickle_arrive() -> None:
    a = mp.shared.zeros((500, 8))
    a[...] = np.arange(500)[:, None]
    for sent in ([a[k] for k in range(500)], {k: a[k : k + 1] for k in range(500)}, [*a[:50], {1, 2}]):
        message = ForkingPickler.dumps(sent)
        got = ForkingPickler.loads(message)
        rows = list(got.values()) if isinstance(got, dict) else [each for each in got if not isinstance(each, set)]
        assert [int(row.flat[0]) for row in rows] == list(range(len(rows)))
        assert all(mp.is_shared(row) for row in rows)
    del got, rows
    assert in_flight() == 0


def test_a_field_beside_python_objects_is_a_copy() -> None:
    with mp.shared_allocator():
        a = np.zeros(5000, [("i", "i8"), ("o", "O")])
    a["i"] = 7
    for sent in (a["i"], [a["i"], 1], a["i"][:3], [a["i"], {1}]):
        got = ForkingPickler.loads(ForkingPickler.dumps(sent))
        got = got[0] if isinstance(got, list) else got
        got[...] = 5
        assert (a["i"] == 7).all()
    assert in_flight() == 0


def test_a_read_only_view_stays_read_only_and_shared(echo: Carrier) -> None:
    a = of_block()
    view = a[1]
    view.flags.writeable = False
    got = echo.call(tasks.echo, view)
    assert not got.flags.writeable and mp.is_shared(got)
    a[1] = 9
    assert (got == 9).all()


@pytest.mark.parametrize(
    ("shape", "offset", "strides"),
    [
        ((5,), 0, (8,)),
        ((4,), 8, (8,)),
        ((4,), -8, (8,)),
        ((2,), 0, (-8,)),
        ((2,), 16, (1 << 62,)),
        ((1 << 62,), 0, (0,)),
        ((2, 2), 8, (8,)),
        ((1,), 1 << 62, (8,)),
        ((3,), 0, (-(2**63),)),
    ],
)
def test_a_view_that_leads_out_of_its_block_is_an_error(shape: Any, offset: int, strides: Any) -> None:
    block = mp.Block(32)
    assert _functions.rebuild_view(block, "d", (4,), 0, (8,), True).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="damaged"):
        _functions.rebuild_view(block, "d", shape, offset, strides, True)
    with pytest.raises(ValueError, match="damaged"):
        _functions.rebuild_strided(bytes(32), "d", shape, offset, strides, True)
    for other in (b"", bytearray(32), None):
        with pytest.raises(ValueError, match="damaged"):
            _functions.rebuild_view(other, "d", (4,), 0, (8,), True)  # type: ignore[arg-type]


def test_a_message_of_views_that_fails_keeps_no_memory() -> None:
    a = of_block()
    message = backend.plain_pickle([a[1], a[2]])
    backend.discard_unread(message)
    assert in_flight() == 0
    for cut in range(len(message) - 40, len(message) - 1, 7):
        whole = backend.plain_pickle([a[1], a[2]])
        with pytest.raises((ValueError, mp.ReceiveError, EOFError, pickle.UnpicklingError)):
            ForkingPickler.loads(whole[:cut])
        assert in_flight() == 0
