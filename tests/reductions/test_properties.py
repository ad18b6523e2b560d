"""Properties of any array: whatever its dtype, shape, order and strides, it arrives as it left."""

from __future__ import annotations

import random
from multiprocessing.reduction import ForkingPickler
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings
from support import tasks
from support.arrays import differences
from support.carriers import Carrier

import mp_all as mp

# The same examples on each run and each machine; a fixture's value does not change between them.
properties = settings(
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(max_len=20),
    hnp.unicode_string_dtypes(max_len=20),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    st.integers(1, 20).map(lambda n: np.dtype(f"V{n}")),
)
dtypes = st.one_of(
    scalars,
    hnp.nested_dtypes(scalars, max_leaves=5),
    hnp.array_dtypes(scalars, max_size=4, allow_subarrays=True),
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)


@st.composite
def contiguous(draw: st.DrawFn) -> np.ndarray:
    """Draw random bytes as an array of any dtype in C or F order."""
    dtype, shape = draw(dtypes), draw(shapes)
    count = int(np.prod(shape, dtype=int))
    seed = draw(st.integers(0, 2**32 - 1))
    size = count * dtype.itemsize
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype:
        dtype = np.dtype([("field", dtype)])
    raw = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    # Any bytes are no valid text or truth value; ASCII and 0 or 1 are.
    if any(kind in "U?" for kind in kinds(dtype)):
        raw[:] = 0
    return np.ndarray(shape, dtype, raw.tobytes(), order=draw(st.sampled_from("CF"))).copy(order="K")


def kinds(dtype: np.dtype) -> set[str]:
    if dtype.subdtype:
        return kinds(dtype.subdtype[0])
    if dtype.names:
        return set().union(*(kinds(dtype[name]) for name in dtype.names))
    return {dtype.kind, dtype.char}


@st.composite
def way_to_look(draw: st.DrawFn, a: np.ndarray) -> list[tuple[str, Any]]:
    """Draw steps from an array to a view of it: slices, a permutation of axes, repetition, read-only."""
    steps: list[tuple[str, Any]] = []
    if a.ndim and draw(st.booleans()):
        steps.append(("slice", draw(hnp.basic_indices(a.shape, allow_ellipsis=False, allow_newaxis=True))))
    if draw(st.booleans()):
        steps.append(("transpose", draw(st.integers(0, 1000))))
    if draw(st.booleans()):
        steps.append(("broadcast", draw(st.integers(1, 3))))
    if draw(st.booleans()):
        steps.append(("read-only", None))
    return steps


def look(a: np.ndarray, steps: list[tuple[str, Any]]) -> np.ndarray:
    for step, how in steps:
        if step == "slice":
            a = a[how] if isinstance(a[how], np.ndarray) else a
        elif step == "transpose":
            axes = list(range(a.ndim))
            random.Random(how).shuffle(axes)
            a = a.transpose(axes)
        elif step == "broadcast":
            a = np.broadcast_to(a, (how, *a.shape))
        else:
            a = a.view()
            a.flags.writeable = False
    return a


@st.composite
def arrays_and_views(draw: st.DrawFn) -> tuple[np.ndarray, list[tuple[str, Any]]]:
    a = draw(contiguous())
    return a, draw(way_to_look(a))


inline_limits = st.sampled_from([0, 10, 4 * 1024])


@properties
@given(arrays_and_views(), inline_limits)
def test_a_private_array_goes_round_in_one_process(strategy: str, drawn: tuple, limit: int) -> None:
    sent = look(*drawn)
    before = mp.get_inline_limit()
    mp.set_inline_limit(limit)
    try:
        received = ForkingPickler.loads(ForkingPickler.dumps(sent))
    finally:
        mp.set_inline_limit(before)
    assert differences(sent, received, shared=False) == []
    assert not np.shares_memory(sent, received)


@properties
@given(arrays_and_views())
def test_a_shared_array_goes_round_in_one_process(strategy: str, drawn: tuple) -> None:
    sent = look(mp.shared.array(drawn[0]), drawn[1])
    received = ForkingPickler.loads(ForkingPickler.dumps(sent))
    assert differences(sent, received, shared=True) == []
    assert received.size == 0 or received.itemsize == 0 or np.shares_memory(sent, received)


@properties
@given(arrays_and_views(), inline_limits)
def test_a_private_array_goes_to_a_child_and_back(echo: Carrier, drawn: tuple, limit: int) -> None:
    sent = look(*drawn)
    before = mp.get_inline_limit()
    mp.set_inline_limit(limit)
    try:
        received = echo.call(tasks.echo, sent)
    finally:
        mp.set_inline_limit(before)
    assert differences(sent, received, shared=False) == []


@properties
@given(arrays_and_views())
def test_a_shared_array_goes_to_a_child_and_back(echo: Carrier, drawn: tuple) -> None:
    sent = look(mp.shared.array(drawn[0]), drawn[1])
    received = echo.call(tasks.echo, sent)
    assert differences(sent, received, shared=True) == []
    assert received.size == 0 or received.itemsize == 0 or np.shares_memory(sent, received)


@properties
@given(st.lists(arrays_and_views(), max_size=5), st.booleans())
def test_many_arrays_go_in_one_message(echo: Carrier, drawn: list, shared: bool) -> None:
    sent = [look(mp.shared.array(a) if shared else a, steps) for a, steps in drawn]
    received = echo.call(tasks.echo, sent)
    assert [differences(s, r, shared) for s, r in zip(sent, received, strict=True)] == [[]] * len(sent)


@properties
@given(arrays_and_views())
def test_two_views_of_one_base_still_share_it_after_receipt(strategy: str, drawn: tuple) -> None:
    base = mp.shared.array(drawn[0])
    view = look(base, drawn[1])
    both = ForkingPickler.loads(ForkingPickler.dumps((base, view)))
    assert np.shares_memory(*both) == np.shares_memory(base, view)


@properties
@given(contiguous())
def test_share_memory_in_place_changes_nothing_visible(strategy: str, drawn: np.ndarray) -> None:
    array = drawn.copy(order="K")
    expected = tasks.describe_with_bytes(array)
    mp.share_memory_(array)
    assert mp.is_shared(array)
    assert tasks.describe_with_bytes(array) == expected


@st.composite
def without_elements(draw: st.DrawFn) -> np.ndarray:
    """Draw a view without elements of an array in shared memory: by slices of any step, a field, or a part."""
    whole = mp.shared.zeros(draw(shapes), draw(st.sampled_from(["f8", "c16", "u1", [("x", "f8"), ("y", "i4")]])))
    steps = st.sampled_from([-2, -1, 1, 2])
    index = draw(hnp.basic_indices(whole.shape, allow_newaxis=True))
    view = np.asarray(whole[index])
    if view.dtype.names:
        view = view[draw(st.sampled_from(view.dtype.names))]
    elif view.dtype.kind == "c":
        view = draw(st.sampled_from([view.real, view.imag]))
    if view.size:
        view = view.reshape(-1)[draw(st.integers(0, view.size)) :][:0] if view.ndim else np.broadcast_to(view, (0, 3))
    return view[tuple(slice(None, None, draw(steps)) for _ in view.shape)]


@given(view=without_elements())
@properties
def test_a_view_without_elements_arrives(view: np.ndarray) -> None:
    assert view.size == 0
    for thing in (view, [view, {"again": view, "more": object}]):
        got = ForkingPickler.loads(ForkingPickler.dumps(thing))
        found = got if isinstance(got, np.ndarray) else got[0]
        assert (type(found), found.shape, found.dtype) == (np.ndarray, view.shape, view.dtype)
