"""Objects with attributes in messages: written and made without a pickler where it would do the same."""

from __future__ import annotations

import abc
import argparse
import collections
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import io
import ipaddress
import logging
import operator
import pathlib
import pickle
import pickletools
import re
import types
import uuid
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import damaged, outcome
from support.readers import by_unpickler, in_c

from mp_core.sharing import backend

T = TypeVar("T")


@dataclasses.dataclass
class Point:
    """An ordinary dataclass."""

    x: Any = 1
    y: Any = "two"


class Empty:
    """Has no attribute."""


class Abstract(abc.ABC):
    """Its metaclass is not type."""

    def __init__(self) -> None:
        self.a = 1

    @abc.abstractmethod
    def method(self) -> None: ...


class Concrete(Abstract):
    """Has the same metaclass."""

    def method(self) -> None: ...


class Typed(Generic[T]):
    """Its base has slots, none."""

    def __init__(self) -> None:
        self.a = 1


class Made:
    """Its __new__ has a part in making it."""

    def __new__(cls) -> Made:
        made = super().__new__(cls)
        made.made = True  # type: ignore[attr-defined]
        return made


class Setting:
    """Takes its state itself."""

    def __init__(self) -> None:
        self.a = 1

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, was_set=True)


class Finding:
    """Finds each attribute that it does not have."""

    def __init__(self) -> None:
        self.a = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


PLAIN: list[Callable[[], Any]] = [
    Point,
    Empty,
    Concrete,
    Typed,
    Made,
    Setting,
    lambda: argparse.Namespace(a=1, b=[1, 2]),
    lambda: logging.makeLogRecord({"msg": "text", "args": (1, "two")}),
]


class Slots:
    """Its attributes are not in its __dict__."""

    __slots__ = ("a",)


class SlotsAndMore(Slots):
    """Some of its attributes are."""

    def __init__(self) -> None:
        self.b = 1


class Listed(list):  # type: ignore[type-arg]
    """Has items."""


class Color(enum.Enum):
    """Has a reduction of the standard library's."""

    RED = 1
    DEEP = ("a", (2, frozenset({3})))
    DEEPER = ("a", (2, frozenset({frozenset()})))


class Access(enum.Flag):
    """Likewise."""

    READ = 1
    WRITE = 2


class Corner(NamedTuple):
    """Likewise."""

    x: Any
    y: Any = 2


class CornerWithState(Corner):
    """Has a dict as well."""

    @classmethod
    def made(cls) -> Any:
        corner = cls(1)
        corner.color = "red"  # type: ignore[attr-defined]
        return corner


class CornerWithChoice(Corner):
    """Chooses what it is made of."""

    def __getnewargs__(self) -> Any:
        return (8, 9)


class Day(datetime.date):
    """Is one of the program's."""


class Reduced:
    """Has a reduction of its own."""

    def __reduce__(self) -> Any:
        return int, ("7",)


class WithState:
    """Chooses its state."""

    def __getstate__(self) -> Any:
        return {"chosen": 1}


class WithArguments:
    """Is made of arguments."""

    def __init__(self, a: int = 1) -> None:
        self.a = a

    def __getnewargs__(self) -> Any:
        return ()


class OwnOrdered(collections.OrderedDict):  # type: ignore[type-arg]
    """Is the program's, which may put items in by a method of its own."""


@dataclasses.dataclass(slots=True)
class SlotPoint:
    """Has slots, and no dict."""

    x: Any = 1
    y: Any = None


@dataclasses.dataclass(slots=True, frozen=True)
class FrozenPoint:
    """Has a state of the standard library's."""

    x: Any = 1
    y: Any = None


class PairOfSlots(Slots):
    """Has slots of its base, slots of its own, and a dict."""

    __slots__ = ("__dict__", "c")

    def __eq__(self, other: object) -> bool:
        return type(other) is PairOfSlots and (self.a, self.c, vars(self)) == (other.a, other.c, vars(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PairOfSlots({self.a}, {self.c}, {vars(self)})"


def pair_of_slots() -> PairOfSlots:
    made = PairOfSlots()
    made.a, made.c, made.d = [1], 2, 3  # type: ignore[attr-defined]
    return made


OTHERS: list[Callable[[], Any]] = [
    lambda: Listed([1]),
    lambda: Color.DEEPER,  # it has a set of sets
    lambda: CornerWithChoice(1),
    lambda: Day(2026, 1, 2),
    lambda: OwnOrdered(a=1),
    lambda: collections.OrderedDict({Point: 1, NOON: 2}),  # its keys have a hash that may be a program's
    Reduced,
    WithState,
    WithArguments,
    Finding,
    object,
]


def described(thing: Any) -> Any:
    return type(thing), getattr(thing, "__dict__", None)


def pickled(thing: Any) -> bytes:
    """Return the message, when a pickler has met the class before."""
    ForkingPickler.dumps(thing)
    data = backend.plain_data(thing)
    assert data is not None
    return data


@pytest.mark.parametrize("make", PLAIN, ids=lambda each: getattr(each, "__name__", "one of the library"))
def test_a_plain_object_needs_no_pickler_and_arrives_as_it_left(make: Callable[[], Any]) -> None:
    sent = make()
    data = pickled(sent)
    pickletools.dis(data, out=io.StringIO())  # the standard library finds no mistake in it
    expected = described(pickle.loads(pickle.dumps(sent)))
    assert described(pickle.loads(data)) == described(in_c(data)) == expected


@pytest.mark.parametrize("make", OTHERS, ids=lambda each: getattr(each, "__name__", "made"))
def test_another_one_is_left_to_the_pickler(make: Callable[[], Any]) -> None:
    sent = make()
    for _ in range(2):
        got = ForkingPickler.loads(ForkingPickler.dumps(sent))
        assert backend.plain_data(sent) is None
    assert described(got) == described(pickle.loads(pickle.dumps(sent)))


def noted() -> ValueError:
    error = ValueError("x")
    error.add_note("a note")
    return error


class OwnError(ValueError):
    """An exception of the program, with an attribute."""

    def __init__(self, code: int, *more: Any) -> None:
        super().__init__(code, *more)
        self.code = code


class NoFileHereError(FileNotFoundError):
    """One of the program whose base keeps what it was made of in its own way."""


class ReducedError(Exception):
    """One that says itself how it is pickled."""

    def __reduce__(self) -> Any:
        return ReducedError, ("reduced",)


class StatefulError(Exception):
    """Its state is not asked for: an exception has a `__reduce__` that does not."""

    def __getstate__(self) -> Any:
        raise AssertionError("no pickler asks")


class UnmadeError(Exception):
    """Cannot be made of what it was made of, as many that programs write."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")


NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 5, datetime.UTC)
CALLS = [
    Color.RED,
    Access.READ | Access.WRITE,
    Corner(1),
    Corner([Color.RED], NOON),
    NOON,
    NOON.replace(tzinfo=None, fold=1),
    NOON.date(),
    NOON.timetz(),
    datetime.timedelta(1, 2, 3),
    datetime.timezone(datetime.timedelta(hours=2), "there"),
    decimal.Decimal("-1.50"),
    decimal.Decimal(1) / 7,
    fractions.Fraction(2, 3),
    pathlib.Path("a", "b"),
    pathlib.PureWindowsPath("c:/d"),
    collections.Counter("aab"),
    CornerWithState.made(),
    collections.deque(),
    collections.deque([1, [2.5], NOON], maxlen=5),
    collections.OrderedDict(b=1, a=[2]),
    collections.defaultdict(list, a=[1]),
    collections.defaultdict(None, {1: NOON}),
    uuid.UUID(int=1 << 127),
    ipaddress.ip_address("10.0.0.1"),
    operator.itemgetter(1, "a"),
    types.SimpleNamespace(a=1, b=[2]),
    slice(1, None, 2),
    range(3, 10, 2),
    Slots(),
    pair_of_slots(),
    SlotPoint([1], NOON),
    FrozenPoint([1], NOON),
    1 << 100,
    -(1 << 1000),
    complex(1.5, -2),
]


def is_alike(got: Any, sent: Any) -> bool:
    if type(got) is not type(sent):
        return False
    if isinstance(sent, operator.itemgetter | Slots) and not isinstance(sent, PairOfSlots):
        return bool(got.__reduce_ex__(4) == sent.__reduce_ex__(4))
    return bool(got == sent and repr(got) == repr(sent))


@pytest.mark.parametrize("sent", CALLS, ids=lambda sent: re.sub(" at 0x.*", "", repr(sent))[:40])
def test_times_paths_decimals_enums_and_named_tuples_need_no_pickler(sent: Any) -> None:
    whole = [sent, Point(sent, np.arange(3)), sent, {"again": (sent,)}]
    for loads in in_c, by_unpickler:
        data = pickled(sent)
        pickletools.dis(data, out=io.StringIO())
        assert is_alike(loads(data), sent)
        message = backend.plain_pickle(whole)
        assert message is not None
        got = ForkingPickler.loads(message)
        assert is_alike(got[0], sent) and is_alike(got[1].x, sent)
        if not isinstance(sent, int):  # a number is written as often as it occurs
            assert got[0] is got[1].x is got[2] is got[3]["again"][0]


ERRORS: list[Callable[[], BaseException]] = [
    lambda: ValueError(3, [4]),
    lambda: FileNotFoundError(2, "nothing there", "name"),
    lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "why"),
    lambda: ExceptionGroup("both", [ValueError(1), KeyError("k")]),
    lambda: ImportError("none", name="a", path="b"),
    KeyboardInterrupt,
    noted,
    lambda: OwnError(3, [4]),
    lambda: NoFileHereError(2, "nothing there", "name"),
    lambda: StatefulError("x"),
]


@pytest.mark.parametrize("make", ERRORS)
def test_exceptions_need_no_pickler(make: Callable[[], BaseException]) -> None:
    sent = make()
    data = pickled(sent)
    for loads in in_c, by_unpickler:
        got = loads(data)
        assert type(got) is type(sent) and repr(got) == repr(sent) and vars(got) == vars(sent)
        assert getattr(got, "filename", None) == getattr(sent, "filename", None)


def test_an_exception_that_reduces_itself_is_asked() -> None:
    for _ in range(2):
        got = ForkingPickler.loads(ForkingPickler.dumps([ReducedError("sent")]))
        assert got[0].args == ("reduced",)


def test_an_exception_that_cannot_be_made_again_fails_as_with_pickle() -> None:
    sent = UnmadeError(1, "why")
    for _ in range(2):
        message = ForkingPickler.dumps(sent)
        with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'why'"):
            ForkingPickler.loads(message)


def test_a_reducer_of_the_program_for_complex_numbers_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ForkingPickler.loads(ForkingPickler.dumps([1j])) == [1j]
    for table in copyreg.dispatch_table, ForkingPickler._extra_reducers:  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setitem(table, complex, lambda each: (int, ("9",)))
            assert ForkingPickler.loads(ForkingPickler.dumps([1j])) == [9]


class Adding:
    """Has a method."""

    def __init__(self) -> None:
        self.a = 1

    def add(self, b: int) -> int:
        return self.a + b

    @classmethod
    def made(cls) -> None: ...


def test_partial_functions_and_methods_need_no_pickler() -> None:
    partial = functools.partial(pickled, [1], thing=np.arange(3))
    sent = [partial, Adding().add, partial, list.append, Adding.made]
    ForkingPickler.dumps(sent)
    message = backend.plain_pickle(sent)
    assert message is not None
    got, add, again, append, made = ForkingPickler.loads(message)
    assert made == Adding.made and got is again and got.func is pickled and got.args == ([1],) and append is list.append
    assert got.keywords["thing"].tolist() == [0, 1, 2] and add(2) == 3


@pytest.mark.parametrize("text", ["2026-01-02 03:04:05.000000006", "2026-01-02T03:04+00:00"])
def test_the_times_of_pandas_need_no_pickler(text: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: nox -s containers")
    sent = [pandas.Timestamp(text), pandas.Timedelta(5)]
    for loads in in_c, by_unpickler:
        got = loads(pickled(sent))
        assert got == sent and [type(each) for each in got] == [type(each) for each in sent]
        assert repr(got) == repr(sent)


def test_a_reducer_of_the_program_for_methods_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(Adding().add)
    monkeypatch.setitem(ForkingPickler._extra_reducers, kind, lambda each: (int, ("9",)))  # type: ignore[attr-defined]
    assert ForkingPickler.loads(ForkingPickler.dumps([Adding().add])) == [9]


def test_objects_with_items_may_contain_themselves() -> None:
    sent: Any = collections.deque([1])
    sent.append(sent)
    for loads in in_c, by_unpickler:
        got = loads(pickled(sent))
        assert got[0] == 1 and got[1] is got
    ordered: Any = collections.OrderedDict(a=1)
    ordered["self"] = ordered
    got = in_c(pickled(ordered))
    assert got["self"] is got and list(got) == ["a", "self"]


def test_what_a_program_changes_of_them_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled([Color.RED, Corner(1)])
    for kind in (Color, Corner):
        sent: Any = Color.RED if kind is Color else Corner(1)
        with monkeypatch.context() as patch:
            patch.setattr(kind, "__reduce_ex__", lambda self, protocol: (int, ("7",)), raising=False)
            assert ForkingPickler.loads(ForkingPickler.dumps([sent])) == [7]
        with monkeypatch.context() as patch:
            patch.setitem(ForkingPickler._extra_reducers, kind, lambda each: (int, ("9",)))  # type: ignore[attr-defined]
            assert ForkingPickler.loads(ForkingPickler.dumps([sent])) == [9]
        assert ForkingPickler.loads(ForkingPickler.dumps([sent])) == [sent]


def test_many_of_them_are_one_message_without_a_pickler() -> None:
    sent = [NOON + datetime.timedelta(seconds=i) for i in range(5000)]
    assert in_c(pickled(sent)) == sent


def test_slots_that_are_set_later_are_seen() -> None:
    sent = SlotsAndMore()
    ForkingPickler.dumps(sent)
    sent.a = 5
    assert ForkingPickler.loads(ForkingPickler.dumps(sent)).a == 5


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=100),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=30,
)


@given(st.builds(Point, VALUES, VALUES))
def test_each_content_arrives_as_it_left(sent: Point) -> None:
    data = bytes(ForkingPickler.dumps(sent))
    assert in_c(data) == by_unpickler(data) == sent


@given(st.builds(Point, VALUES, VALUES), st.data())
def test_a_damaged_one_is_no_other_value_than_for_the_unpickler(sent: Point, choose: st.DataObject) -> None:
    whole = backend.plain_pickle(sent)
    if whole is None:
        return  # it is too deep, or its class is new
    data = damaged(whole, choose)
    assert outcome(in_c, data) == outcome(by_unpickler, data)


def test_an_object_that_contains_itself_arrives_once() -> None:
    sent = Point()
    sent.x, sent.y = [sent, {"me": sent}], sent
    for loads in in_c, by_unpickler:
        got = loads(pickled(sent))
        assert got.y is got.x[0] is got.x[1]["me"] is got


def test_one_that_occurs_twice_arrives_once() -> None:
    shared = Point()
    for loads in in_c, by_unpickler:
        got = loads(pickled([shared, Point(shared, shared)]))
        assert got[0] is got[1].x is got[1].y


def test_the_dict_of_an_object_beside_it_is_another_copy_as_for_pickle() -> None:
    sent = Point()
    for loads in in_c, pickle.loads:
        got = loads(pickled([sent, sent.__dict__]))
        assert got[0].__dict__ == got[1]
        assert got[0].__dict__ is not got[1]


def test_many_objects_with_arrays_arrive(ends: Any) -> None:
    reader, writer = ends
    ForkingPickler.dumps(Point())
    sent = [Point(i, np.full(i % 40, i)) for i in range(500)]
    data = backend.plain_pickle(sent)
    assert data is not None
    backend.discard_unread(data)
    writer.send(sent)
    for i, got in enumerate(reader.recv()):
        assert got.x == i
        np.testing.assert_array_equal(got.y, sent[i].y)


def test_an_attribute_of_the_object_may_be_what_pickle_asks_for() -> None:
    sent = Point()
    ForkingPickler.dumps(sent)
    sent.__reduce_ex__ = lambda protocol: (int, ("7",))  # type: ignore[method-assign]
    assert ForkingPickler.loads(ForkingPickler.dumps(sent)) == 7


def test_a_class_may_change_after_its_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class_of: Any = Point
    assert pickled(Point()) is not None
    with monkeypatch.context() as patch:
        patch.setattr(class_of, "__reduce__", lambda self: (int, ("7",)), raising=False)
        assert ForkingPickler.loads(ForkingPickler.dumps(Point())) == 7
    with monkeypatch.context() as patch:
        patch.setattr(class_of, "__getstate__", lambda self: {"x": 9}, raising=False)
        assert ForkingPickler.loads(ForkingPickler.dumps(Point())).x == 9
    with monkeypatch.context() as patch:
        patch.setitem(copyreg.dispatch_table, class_of, lambda point: (int, ("8",)))
        assert ForkingPickler.loads(ForkingPickler.dumps(Point())) == 8
    with monkeypatch.context() as patch:
        patch.setitem(ForkingPickler._extra_reducers, class_of, lambda point: (int, ("9",)))  # type: ignore[attr-defined]
        assert ForkingPickler.loads(ForkingPickler.dumps(Point())) == 9
    assert ForkingPickler.loads(ForkingPickler.dumps(Point())) == Point()


def test_an_error_of_a_setstate_is_raised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickled([Setting(), np.float64(1)])
    calls = []

    def refuse(self: Any, state: Any) -> None:
        calls.append(state)
        raise KeyboardInterrupt

    monkeypatch.setattr(Setting, "__setstate__", refuse)
    with pytest.raises(KeyboardInterrupt):
        in_c(data)
    assert len(calls) == 1


class Ordered:
    """Its __dict__ is not its attributes, but a dict of another kind."""

    def __init__(self) -> None:
        self.a = 1

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return collections.OrderedDict()


def test_state_goes_into_a_dict_of_any_kind_and_code_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(Setting, "__setstate__", lambda self, state: calls.append(state))
    data = pickled([Setting(), np.ones(3).tolist(), Ordered()])
    assert type(in_c(data)[2]) is Ordered
    assert len(calls) == 1


class SetByInstance:
    """Has its __setstate__ from the start."""

    def __new__(cls) -> SetByInstance:
        made = super().__new__(cls)
        made.__dict__["__setstate__"] = [].append
        return made


def test_a_setstate_of_the_object_is_called() -> None:
    sent = SetByInstance()
    del sent.__dict__["__setstate__"]
    sent.a = 1  # type: ignore[attr-defined]
    data = pickled([sent, sent])
    for loads in in_c, pickle.loads:
        assert not hasattr(loads(data)[0], "a")


def test_attributes_arrive_with_interned_names() -> None:
    got = in_c(pickled(Point()))
    assert all(a is b for a, b in zip(vars(got), vars(Point()), strict=True))


def test_a_local_class_is_an_error_as_for_pickle() -> None:
    class Local:
        pass

    for _ in range(2):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            ForkingPickler.dumps(Local())
        assert backend.plain_data(Local()) is None


def test_a_class_is_not_kept_alive() -> None:
    kind = type("Passing", (), {"__module__": __name__})
    globals()["Passing"] = kind
    try:
        assert pickled(kind()) is not None
    finally:
        del globals()["Passing"]
    gone = weakref.ref(kind)
    del kind
    gc.collect()
    assert gone() is None
