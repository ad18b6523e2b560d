"""Subclasses of ndarray go through shared memory and keep type, attributes and permission, whatever pickles them."""

from __future__ import annotations

import copyreg
import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support import tasks
from support.carriers import Carrier

import mp_all as mp

SMALL, LARGE = 10, 1 << 14
MAKES: dict[str, Callable[[int], np.ndarray]] = {
    "private": lambda count: np.arange(float(count)),
    "shared": lambda count: mp.shared.array(np.arange(float(count))),
    "a view of shared": lambda count: mp.shared.array(np.arange(2.0 * count))[::-2],
    "fortran order": lambda count: np.asfortranarray(np.arange(2.0 * count).reshape(count, 2)),
}
makes = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
sizes = pytest.mark.parametrize("count", [SMALL, LARGE], ids=["small", "large"])


class Plain(np.ndarray):
    """Pickled as NumPy does it."""


class Strict(np.ndarray):
    """Its `__array_finalize__` knows None and its own kind, nothing else."""

    def __array_finalize__(self, source: Any) -> None:
        if source is not None and type(source) is not np.ndarray:
            self.unit = source.unit


class Slotted(np.ndarray):
    __slots__ = ("unit",)


class Summed(np.ndarray):
    """Pickled by methods of its own, one of which computes with the bytes."""

    def __array_finalize__(self, source: Any) -> None:
        self.unit = getattr(source, "unit", None)

    def __reduce__(self) -> tuple:
        rebuild, arguments, state = super().__reduce__()
        return rebuild, arguments, (*state, self.unit)

    def __setstate__(self, state: tuple) -> None:
        *state, self.unit = state
        super().__setstate__(tuple(state))
        self.total = float(np.asarray(self).sum())


class Nested(Summed):
    """Has NumPy's state in a tuple, as a quantity of astropy."""

    def __reduce__(self) -> tuple:
        rebuild, arguments, state = np.ndarray.__reduce__(self)
        return rebuild, arguments, (state, self.__dict__)

    def __setstate__(self, state: tuple) -> None:
        super().__setstate__((*state[0], None))
        self.__dict__.update(state[1], total=self.total)


class Prefixed(Summed):
    """Has NumPy's state after its own, as an array of unyt."""

    def __reduce__(self) -> tuple:
        rebuild, arguments, state = np.ndarray.__reduce__(self)
        return rebuild, arguments, ((self.unit,), *state)

    def __setstate__(self, state: tuple) -> None:
        super().__setstate__((*state[1:], *state[0]))


class State(NamedTuple):
    unit: Any
    array: tuple


class Named(Summed):
    """Has NumPy's state in a field, and beside it what looks like one and cannot be compared."""

    def __reduce__(self) -> tuple:
        rebuild, arguments, state = np.ndarray.__reduce__(self)
        odd = 1, (np.arange(3),), np.arange(3), np.arange(3), bytes(self.nbytes)
        return rebuild, arguments, State(self.unit, state) if self.unit else (odd, state)

    def __setstate__(self, state: Any) -> None:
        array, unit = (state.array, state.unit) if isinstance(state, State) else (state[1], None)
        super().__setstate__((*array, unit))


class Negated(np.ndarray):
    """Has other bytes after unpickling than before."""

    def __reduce__(self) -> tuple:
        return super().__reduce__()

    def __setstate__(self, state: tuple) -> None:
        super().__setstate__(state)
        np.negative(self, out=self)


class Windowed(np.ndarray):
    """Keeps a view of itself."""

    def __setstate__(self, state: tuple) -> None:
        super().__setstate__(state)
        self.window = np.ndarray.view(self, np.ndarray)[1:3]


def there_and_back(thing: Any) -> Any:
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def is_home(sent: np.ndarray, received: np.ndarray) -> bool:
    return bool(np.shares_memory(np.asarray(sent), np.asarray(received)))


@makes
@sizes
@pytest.mark.parametrize("kind", [Plain, Strict, Slotted, Summed, Nested, Prefixed])
def test_type_attributes_and_values_are_kept_and_large_ones_arrive_shared(
    strategy: str, make: Callable, count: int, kind: type
) -> None:
    base = make(count)
    sent = base.view(kind)
    sent.unit = {"name": "m", "scale": base[:2]}
    received = there_and_back(sent)
    assert type(received) is kind
    assert received.unit["name"] == "m"
    assert received.unit["scale"].tolist() == base[:2].tolist()
    assert np.array_equal(np.asarray(received), base)
    assert received.flags.f_contiguous == sent.flags.f_contiguous
    assert mp.is_shared(received) == (mp.is_shared(base) or base.nbytes > mp.get_inline_limit())
    assert is_home(sent, received) == mp.is_shared(base)
    if issubclass(kind, Summed):
        assert received.total == base.sum()


@sizes
@pytest.mark.parametrize("is_named", [False, True], ids=["shared", "named"])
@pytest.mark.parametrize("kind", [Plain, Summed, Nested, Prefixed])
def test_a_subclass_of_a_shared_array_is_shared_with_a_child(
    echo: Carrier, kind: type, is_named: bool, count: int
) -> None:
    name = f"mp-test-{os.getpid()}"
    base = mp.shared.named(name, count, create=True) if is_named else mp.shared.zeros(count)
    try:
        before = mp.memory_stats()["copied_bytes"]
        echo.call(tasks.fill, base[::2].view(kind), 5)
        assert base.reshape(-1, 2).T.tolist() == [[5] * (count // 2), [0] * (count // 2)]
        assert mp.memory_stats()["copied_bytes"] == before
    finally:
        if is_named:
            mp.shared.unlink(name)


@makes
@sizes
@pytest.mark.parametrize("unit", [None, "m"])
def test_a_state_of_another_form_is_the_affair_of_its_class(
    strategy: str, make: Callable, count: int, unit: Any
) -> None:
    sent = make(count).view(Named)
    sent.unit = unit
    received = there_and_back(sent)
    assert (type(received), received.unit) == (Named, unit)
    assert np.array_equal(np.asarray(received), np.asarray(sent))


@makes
@sizes
def test_a_class_may_change_its_bytes(strategy: str, make: Callable, count: int) -> None:
    sent = make(count).view(Negated)
    received = there_and_back(sent)
    assert np.array_equal(np.asarray(received), -np.asarray(sent))
    assert np.asarray(sent).min() >= 0
    assert not is_home(sent, received)


def test_a_class_that_keeps_a_view_of_itself_still_sees_its_memory(strategy: str) -> None:
    received = there_and_back(np.arange(float(LARGE)).view(Windowed))
    received[1] = 77
    assert received.window[0] == 77


@pytest.mark.parametrize("kind", [Plain, Summed])
@sizes
def test_a_read_only_shared_one_stays_read_only(strategy: str, kind: type, count: int) -> None:
    sent = mp.shared.zeros(count).view(kind)
    sent.flags.writeable = False
    assert not there_and_back(sent).flags.writeable


def test_an_attribute_may_refer_to_its_array(strategy: str) -> None:
    sent = np.zeros(LARGE).view(Plain)
    sent.owner = [sent]
    received = there_and_back(sent)
    assert received.owner[0] is received


def test_attributes_that_cannot_be_pickled_are_dropped_as_pickle_drops_them(strategy: str) -> None:
    before = mp.memory_stats()["in_flight_bytes"]
    sent = np.zeros(LARGE).view(Plain)
    sent.callback, sent.name, sent.more = (lambda: None), "kept", [mp.shared.zeros(5), lambda: None]
    assert vars(there_and_back(sent)) == {"name": "kept"}
    assert vars(pickle.loads(pickle.dumps(sent))) == {}
    assert mp.memory_stats()["in_flight_bytes"] == before


@sizes
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_a_masked_array_keeps_its_mask_and_attributes(echo: Carrier, count: int, shared: bool) -> None:
    data = (mp.shared.array if shared else np.array)(np.arange(float(count)))
    sent = np.ma.array(data, mask=np.arange(count) % 3 == 0, fill_value=-1.5, hard_mask=True, copy=False)
    received = echo.call(tasks.echo, sent)
    assert type(received) is np.ma.MaskedArray
    assert (received.fill_value, received.hardmask) == (-1.5, True)
    assert np.array_equal(received.mask, sent.mask)
    assert np.array_equal(received.data, sent.data)
    assert mp.is_shared(received) == (shared or count == LARGE)
    assert is_home(sent, received) == shared
    received[0] = 5
    assert received.mask[0]


def test_no_mask_stays_no_mask_and_masked_is_one_object(strategy: str) -> None:
    assert there_and_back(np.ma.array(np.zeros(LARGE))).mask is np.ma.nomask
    assert there_and_back(np.ma.masked) is np.ma.masked
    structured = np.ma.array([(1, 2.0), (3, 4.0)], mask=[(0, 1), (0, 0)], dtype="i4,f8", fill_value=(7, 8))
    received = there_and_back(structured)
    assert received.tolist() == [(1, None), (3, 4.0)]
    assert received.fill_value == structured.fill_value
    assert there_and_back(structured[0]).tolist() == (1, None)


def test_records_and_matrices_keep_their_types(echo: Carrier) -> None:
    records = np.rec.fromarrays([np.arange(LARGE), np.arange(LARGE) / 2], names="a,b")
    sent = [records, records[::2], np.ones((200, 100)).view(np.matrix)]
    for before, after in zip(sent, echo.call(tasks.echo, sent), strict=True):
        assert type(after) is type(before)
        assert after.dtype == before.dtype
        assert after.dtype.type is before.dtype.type
        assert mp.is_shared(after)
        assert np.asarray(after).tobytes() == np.asarray(before).tobytes()


def test_a_subclass_with_objects_and_one_registered_by_its_author_are_left_alone(strategy: str) -> None:
    class Registered(np.ndarray):
        pass

    objects = np.array([None, "x"], dtype=object).view(Plain)
    assert there_and_back(objects).tolist() == [None, "x"]
    copyreg.pickle(Registered, lambda a: (list, ((1, 2),)))
    try:
        assert there_and_back(np.zeros(LARGE).view(Registered)) == [1, 2]
    finally:
        del copyreg.dispatch_table[Registered]


@settings(
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from([Plain, Summed, Nested, Prefixed]),
    st.lists(st.tuples(st.integers(-3, 3).filter(bool), st.integers(1, 9)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([0, 1 << 15]),
)
def test_any_view_goes_round(strategy: str, kind: type, axes: list, shared: bool, limit: int) -> None:
    shape = tuple(abs(step) * length for step, length in axes)
    base = np.arange(float(np.prod(shape))).reshape(shape)
    base = mp.shared.array(base) if shared else base
    sent = base[tuple(slice(None, None, step) for step, _ in axes)].view(kind)
    before = mp.get_inline_limit()
    mp.set_inline_limit(limit)
    try:
        received = there_and_back(sent)
    finally:
        mp.set_inline_limit(before)
    assert type(received) is kind
    assert np.array_equal(np.asarray(received), np.asarray(sent))
    assert is_home(sent, received) == shared
