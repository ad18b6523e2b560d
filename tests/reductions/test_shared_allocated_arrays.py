"""Shared-allocated arrays are plain arrays in every respect, except that sending them copies nothing."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support import tasks
from support.arrays import FORMS, differences, same_values
from support.carriers import Carrier
from support.scripts import run_script, succeeded
from support.waiting import until
from test_properties import kinds, scalars

import mp_all as mp

pytestmark = pytest.mark.usefixtures("strategy")

LEAST = 32 * 1024 + 1  # bytes of the smallest array that is allocated in shared memory


@pytest.fixture
def scope() -> Iterator[None]:
    with mp.shared_allocator():
        yield


def copied_by(action: Callable[[], Any]) -> int:
    before = mp.memory_stats()["copied_bytes"]
    action()
    return mp.memory_stats()["copied_bytes"] - before


def address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def sent(a: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(a))


# ---- NumPy's handler ----


def test_the_handler_is_numpys_own_until_the_allocator_is_used(tmp_path: Path) -> None:
    program = """
        import numpy as np
        from mp_reductions import _native

        own = _native.get_handler()

        import mp_all as mp
        from mp_reductions import allocator_scope

        assert _native.get_handler() is own and not allocator_scope.ever
        mp.uninstall_shared_allocator()
        assert _native.get_handler() is own and not allocator_scope.ever
        assert not mp.is_shared(np.ones(100_000))
        with mp.shared_allocator():
            assert _native.get_handler() is _native.shared_handler() is not own
        assert _native.get_handler() is own
    """
    assert succeeded(run_script(tmp_path, program)) == ""


# ---- which arrays, and where ----


def test_arrays_of_up_to_32_kib_are_private_and_larger_ones_shared(scope: None) -> None:
    assert not mp.is_shared(np.empty(LEAST - 1, np.uint8))
    assert mp.is_shared(np.empty(LEAST, np.uint8))
    assert LEAST - 1 == 32 * 1024


def test_every_array_that_numpy_makes_is_shared(scope: None, tmp_path: Path) -> None:
    a = np.arange(20_000.0)
    np.save(tmp_path / "a.npy", a)
    made = {
        "arange": a,
        "zeros": np.zeros((100, 100)),
        "arithmetic": a * 2 + 1,
        "concatenate": np.concatenate([a, a]),
        "random": np.random.default_rng(0).random(20_000),
        "sort": np.sort(a),
        "take": a[np.arange(10_000)],
        "copy": a.copy(),
        "astype": a.astype(np.float32),
        "load": np.load(tmp_path / "a.npy"),
        "fft": np.fft.rfft(a),
        "a matrix": np.ones((200, 200)).view(np.matrix) * 2,
    }
    assert [name for name, array in made.items() if not mp.is_shared(array)] == []


def test_memory_is_aligned_to_pages_and_apart(scope: None) -> None:
    arrays = [np.full(LEAST + 1000 * i, i % 256, np.uint8) for i in range(50)]
    assert [address(a) % 4096 for a in arrays] == [0] * 50
    assert all((a == i % 256).all() for i, a in enumerate(arrays))


def test_an_empty_array_is_not_shared_and_does_no_harm(scope: None) -> None:
    big = np.ones(10_000)
    for a in np.empty(0), np.empty((2, 0, 2)), np.zeros((0, 10**6)):
        a.resize((3, 0), refcheck=False)
        assert not mp.is_shared(a)
        assert sent(a).shape == (3, 0)
    assert sent(big[10_000:]).shape == (0,)


def test_zeros_are_zero_in_memory_that_was_used_before(scope: None) -> None:
    for nbytes in LEAST, 100_000, 1 << 20, 5 << 20:
        for _ in range(3):
            a = np.full(nbytes, 0xFF, np.uint8)
            del a
            assert not np.zeros(nbytes, np.uint8).any()


def test_untouched_zeros_use_no_memory(scope: None, needs_memory: Callable[[int], None]) -> None:
    needs_memory(1 << 28)
    before = resident()
    a = np.zeros(1 << 28, np.uint8)
    a[:: 1 << 26] = 1
    assert mp.is_shared(a)
    assert resident() - before < 1 << 26


def resident() -> int:
    """Return the bytes of memory that this process has touched."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=8), st.booleans())
def test_resizing_keeps_what_there_was_and_zeroes_the_rest(sizes: list[int], shared: bool) -> None:
    expected = np.arange(10_000) % 251
    a = np.ones(1, np.uint8)
    if shared:
        with mp.shared_allocator():
            a = expected.astype(np.uint8)
    else:
        a = expected.astype(np.uint8)
    expected = a.copy()
    with mp.shared_allocator():
        for size in sizes:
            a.resize(size, refcheck=False)
            expected.resize(size, refcheck=False)
            assert (a == expected).all()


def test_a_resized_array_leaves_its_old_memory_to_its_receivers(scope: None) -> None:
    a = np.full(10_000, 3.0)
    other = sent(a)
    a.resize(10_001, refcheck=False)
    a[:] = 4
    assert (other == 3).all() and len(other) == 10_000
    assert mp.is_shared(a) and not np.shares_memory(a, other)


def test_without_shared_memory_arrays_are_private_and_travel_all_the_same(tmp_path: Path) -> None:
    program = """
        import resource, sys
        import numpy as np
        import mp_all as mp
        from multiprocessing.reduction import ForkingPickler

        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        with mp.shared_allocator():
            a = np.arange(100_000)
        assert not mp.is_shared(a)
        a.resize(200_000, refcheck=False)  # from CPython 3.14 on, NumPy cannot tell that only `a` refers to it
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        assert a[99_999] == 99_999 and not a[100_000:].any()
        print("private")
    """
    done = run_script(tmp_path, program, MP_SHARING_STRATEGY=mp.get_sharing_strategy())
    assert succeeded(done) == "private\n"


def test_an_array_larger_than_memory_is_a_memory_error(scope: None) -> None:
    with pytest.raises(MemoryError):
        np.empty(1 << 62, np.uint8)
    with pytest.raises(MemoryError):
        np.zeros(1 << 55)


# ---- lifetime ----


def test_memory_comes_back_whoever_drops_it() -> None:
    before = mp.memory_stats()["live_bytes"]
    with mp.shared_allocator():
        arrays = [np.ones(50_000) for _ in range(10)]
    assert mp.memory_stats()["live_bytes"] == before + 10 * 400_000
    with ThreadPoolExecutor(1) as executor:
        executor.submit(arrays.clear).result()
    assert until(lambda: mp.memory_stats()["live_bytes"] == before)


def test_many_threads_make_send_and_drop_arrays_of_each_other() -> None:
    shelf: list[Any] = [None] * 8

    def body(seed: int) -> None:
        random = np.random.default_rng(seed)
        with mp.shared_allocator():
            for turn in range(300):
                place = int(random.integers(8))
                a = np.full(int(random.integers(5_000, 40_000)), turn + 1000 * seed)
                shelf[place], taken = (a, sent(a) if turn % 3 == 0 else a), shelf[place]
                assert (a == turn + 1000 * seed).all()
                if taken is not None:
                    assert (taken[0] == taken[0][0]).all()
                    assert np.array_equal(*taken)

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(body, range(4)))
    shelf.clear()


def test_sent_memory_is_not_reused_while_its_message_is_in_flight(scope: None) -> None:
    message = bytes(ForkingPickler.dumps(np.full(10_000, 5.0)))
    others = [np.zeros(10_000) for _ in range(5)]
    assert (ForkingPickler.loads(message) == 5).all()
    assert not any(a.any() for a in others)


# ---- sending ----

LARGE: dict[str, Callable[[], np.ndarray]] = {
    "whole": lambda: np.arange(10_000.0),
    "a slice": lambda: np.arange(30_000.0)[7:20_000],
    "a small slice": lambda: np.arange(30_000.0)[7:9],
    "one element": lambda: np.arange(30_000.0)[29_999:],
    "every third": lambda: np.arange(30_000.0)[::3],
    "backwards": lambda: np.arange(30_000.0)[::-1],
    "transposed": lambda: np.arange(30_000.0).reshape(100, 30, 10).transpose(2, 0, 1),
    "a view of a view": lambda: np.arange(30_000.0)[10:][::2].reshape(-1, 5)[:, 1:3].T,
    "another dtype": lambda: np.arange(30_000.0).view(np.uint8)[3:-5],
    "zero strides": lambda: np.broadcast_to(np.arange(10_000.0), (3, 10_000)),
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(np.arange(10_000.0), 3),
    "through a memoryview": lambda: np.frombuffer(memoryview(np.arange(10_000.0))),
    "read-only": lambda: read_only(np.arange(10_000.0)),
    "fortran order": lambda: np.asfortranarray(np.arange(30_000.0).reshape(100, 300)),
    "dates": lambda: np.arange(10_000).astype("M8[s]"),
    "text": lambda: np.arange(10_000).astype("U5"),
    "structured": lambda: np.zeros(10_000, [("x", "f8"), ("y", ">i2", (2,))])[1:],
}


def read_only(a: np.ndarray) -> np.ndarray:
    a.flags.writeable = False
    return a


@pytest.mark.parametrize("form", LARGE)
def test_sending_it_or_a_view_of_it_copies_nothing(form: str) -> None:
    with mp.shared_allocator():
        a = LARGE[form]()
    assert mp.is_shared(a)
    assert mp.share_memory(a) is a and mp.share_memory_(a) is a
    messages: list[bytes] = []
    assert copied_by(lambda: messages.append(bytes(ForkingPickler.dumps(a)))) == 0
    assert len(messages[0]) < 1000
    arrived = ForkingPickler.loads(messages[0])
    assert differences(a, arrived, shared=True) == []
    assert address(arrived) == address(a)


def test_two_views_in_one_message_share_memory_after_receipt(scope: None) -> None:
    a = np.zeros(20_000)
    left, right, whole = sent([a[:15_000], a[5_000:], a])
    left[6_000] = 7
    assert right[1_000] == whole[6_000] == a[6_000] == 7


@pytest.mark.parametrize("form", FORMS)
def test_a_shared_allocated_array_arrives_as_it_left(form: str) -> None:
    with mp.shared_allocator():
        a = FORMS[form](np.array)
        b = sent(a)
    assert differences(a, b, shared=mp.is_shared(a)) == []


def test_both_sides_see_each_others_writes(echo: Carrier) -> None:
    with mp.shared_allocator():
        a = np.zeros(10_000)
    assert copied_by(lambda: echo.call(tasks.keep_and_fill, a[1:], 5)) == 0
    assert a[0] == 0 and (a[1:] == 5).all()
    a[1:] = 6
    assert echo.again(tasks.kept_values)[0] == [6] * 9_999


def test_arrays_of_objects_travel_by_pickle_element_by_element(echo: Carrier) -> None:
    with mp.shared_allocator():
        a = np.array([{"n": i} for i in range(5_000)], object)
        b = np.array([(i, str(i)) for i in range(5_000)], [("n", "i8"), ("text", "O")])
    assert not mp.is_shared(a) and not mp.is_shared(b) and not mp.is_shared(b["n"])
    for array in a, a[::-2], b:
        assert echo.call(tasks.echo, array).tolist() == array.tolist()
    with pytest.raises(TypeError):
        mp.share_memory(a)


def test_plain_pickles_and_copies_are_plain(scope: None) -> None:
    a = np.arange(10_000.0)
    for other in pickle.loads(pickle.dumps(a)), copy.deepcopy(a), copy.copy(a):
        assert same_values(a, other) and not np.shares_memory(a, other)
    assert len(pickle.dumps(a)) > a.nbytes


@st.composite
def shared_allocated_arrays(draw: st.DrawFn) -> np.ndarray:
    """Any bytes, seen as any dtype, in any order, whole or in part."""
    dtype = draw(st.one_of(scalars, hnp.nested_dtypes(scalars, max_leaves=4)))
    if dtype.kind in "USV" and dtype.itemsize == 0:
        dtype = np.dtype("f4")
    rows = LEAST // dtype.itemsize // 4 + draw(st.integers(1, 50))
    raw = np.random.default_rng(rows).integers(0, 256, rows * 5 * dtype.itemsize, np.uint8)
    if kinds(dtype) & set("U?"):  # any bytes are no valid text or truth value
        raw[:] = 0
    a = np.ndarray((rows, 5), dtype, raw.tobytes(), order=draw(st.sampled_from("CF"))).copy(order="K")
    start, step = draw(st.integers(0, rows - 1)), draw(st.sampled_from([1, 2, 7, -1, -3]))
    part = a[start::step, draw(st.sampled_from([slice(None), slice(1, 4), slice(None, None, -2), 3]))]
    return draw(st.sampled_from([a, part, part.T, a.T]))


@settings(derandomize=True, database=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_shared_allocated_array_arrives_as_it_left_without_a_copy(data: st.DataObject) -> None:
    with mp.shared_allocator():
        a = data.draw(shared_allocated_arrays())
    assert mp.is_shared(a) or a.size == 0
    arrived: list[np.ndarray] = []
    assert copied_by(lambda: arrived.append(sent(a))) == 0
    assert differences(a, arrived[0], shared=True) == []
