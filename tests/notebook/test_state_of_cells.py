"""What a program without a file has is what its workers use: also in odd places, and after it has changed."""

from __future__ import annotations

import pytest
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")

CHANGES = """
import dataclasses, enum, functools, sys, typing, weakref
from typing import *
import mp_all as mp

context = mp.get_context(sys.argv[1])
old = context.Pool(1)  # forked, it has none of the definitions

scale = 1
def in_a_class_body():
    class Local:
        found = scale
    @dataclasses.dataclass
    class Item:
        number: Optional[int] = None
    return Local.found, Item()

class Config(enum.Enum):
    A = {"rate": 1}
Config.A.note = 1
def in_a_member(): return Config.A.value["rate"], getattr(Config.A, "note", None)

space = {"__name__": "made", "given": 1}
exec("def inner(): return given", space)
nameless = {}
exec("def plus(x): return x + 1", nameless)
inner, plus = space["inner"], nameless["plus"]
def in_another_namespace(): return inner(), plus(1)

@dataclasses.dataclass
class Point:
    x: int
    y: int = 5
def without_default(): return [each.name for each in dataclasses.fields(Point) if each.default is dataclasses.MISSING]

class Thing: pass
one, other = Thing(), Thing()
some = weakref.WeakSet([one])
def in_a_weak_set(): return one in some, other in some

class Meta(type): tag = "first"
class Later(Meta): tag = "second"
class Made(metaclass=Meta): pass
def of_a_metaclass(): return Made.tag

__private = 1
def of_a_private_global(): return __private if "__private" in globals() else None

def named(x): return x
partial = functools.update_wrapper(functools.partial(named, 3), named)
partial.note = 1
def of_a_partial(): return partial.__name__, partial.note, partial()

class described(property):
    def __get__(self, thing, kind): return self.fget(kind)
class Described:
    @described
    def name(kind): return kind.__name__
def by_a_descriptor(): return Described.name

T = TypeVar("T", bound="Node")
class Node(Generic[T]): kind = T
def of_a_parameter(): return str(Node[Any]), T.__name__, str(T.__bound__), str(Node.kind)

young = context.Pool(1)
asked = [in_a_class_body, in_a_member, in_another_namespace, without_default, in_a_weak_set, of_a_metaclass]
asked += [of_a_private_global, of_a_partial, by_a_descriptor, of_a_parameter]
def compare():
    for pool in (old, young):
        for each in asked:
            assert str(pool.apply(each)) == str(each()), (each, pool.apply(each), each())

compare()
scale, space["given"] = 2, 3
Config.A.value["rate"] = 2
del Config.A.note, __private
some.discard(one)
some.add(other)
Made.__class__ = Later
partial.note = 2
Point.more = 1
compare()
assert young.apply(named, (T,)) is T and old.apply(named, (T,)) is T
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_use_what_the_program_has_now(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=CHANGES)) == "as here\n"


EXTENDED = """
import sys
import mp_all as mp
from typing import Generic
from typing_extensions import ParamSpec, TypeVar, TypeVarTuple, Unpack

pool = mp.get_context(sys.argv[1]).Pool(1)
T, P, Ts = TypeVar("T", default=int), ParamSpec("P", default=[int]), TypeVarTuple("Ts", default=Unpack[tuple[int]])
class Box(Generic[T]): pass
def ask(): return str(Box.__parameters__), T.has_default(), T.__default__, P.__default__, str(Ts.__default__)
assert pool.apply(ask) == ask()
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_parameters_of_typing_extensions_keep_their_defaults(method: str) -> None:
    pytest.importorskip("typing_extensions")
    assert succeeded(run_python("-", method, stdin=EXTENDED)) == "as here\n"


INITIALIZED = """
import sys
import mp_all as mp

def memo(function):
    cache = {}
    def remembered(x):
        if x not in cache:
            cache[x] = function(x), len(cache)
        return cache[x]
    return remembered
@memo
def power(x): return x * x
def count(start=[0]):
    start[0] += 1
    return start[0]
class Outer:
    class Inner:
        class Deep: y = 1

def begin():
    power(7), count()
    Outer.Inner.Deep.y = 5
    Outer.__call__ = lambda self: 3
def ask(): return power(7), power(3), count(), Outer.Inner.Deep.y, Outer()()

with mp.get_context(sys.argv[1]).Pool(1, begin) as pool:
    assert [pool.apply(ask) for _ in range(2)] == [((49, 0), (9, 1), count, 5, 3) for count in (2, 3)]
    ask.changed = True  # it travels by its definition now
    assert pool.apply(ask) == ((49, 0), (9, 1), 4, 5, 3)
    @memo
    def power(x): return x * x * x
    assert pool.apply(ask) == ((343, 0), (27, 1), 5, 5, 3)
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_an_initializer_has_changed_in_functions_and_inner_classes_stays(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=INITIALIZED)) == "as here\n"


SENTINELS = """
import sys
import mp_all as mp

MISSING = object()
class Holder:
    EMPTY = object()
def default(x=MISSING): return x is MISSING
def begin():
    global kept
    kept = {"missing": MISSING, "empty": Holder.EMPTY}
def ask(): return kept["missing"] is MISSING, kept["empty"] is Holder.EMPTY, default(), default(1)
def same(x): return x

with mp.get_context(sys.argv[1]).Pool(1, begin) as pool:
    for _ in range(2):
        assert pool.apply(ask) == (True, True, True, False), pool.apply(ask)
        assert pool.apply(same, (MISSING,)) is MISSING and pool.apply(lambda: Holder.EMPTY) is Holder.EMPTY
        assert pool.apply(lambda x: x is MISSING, (MISSING,))
        ask.changed = True  # it travels by its definition now
    MISSING = object()
    assert pool.apply(ask)[0] is False
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_sentinel_is_one_object_in_each_process(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=SENTINELS)) == "as here\n"


USED = """
import functools, sys, threading, typing
import mp_all as mp

def scaled(factor):
    cache = {}
    def times(x):
        if x not in cache:
            cache[x] = x * factor
        return cache[x]
    return times
times = scaled(10)
def clip(x, limit=5, _seen={}):
    _seen[x] = True
    return min(x, limit)

class Runs(typing.Protocol):
    def run(self): ...
class Base:
    def __init__(self): self.n = 1
class Runner(Runs, Base):
    value = 1
    def run(self): return self.value
class Net:
    rate = 1
    def __call__(self, x, _cache={}):
        _cache[x] = 1
        return x * self.rate
class Model: pass

class tagged(property):
    def __init__(self, function, tag):
        super().__init__(function)
        self.tag = tag
    def __get__(self, thing, kind=None): return self if thing is None else (self.fget(thing), self.tag)
class Tagged:
    name = tagged(lambda self: 1, "a tag")
class ByName(type):
    table = {"a": 1}
    def __getattr__(cls, name): return cls.table[name]
class Named(metaclass=ByName): pass

add = functools.partial(lambda a, b: a + b, 1)
add.lock = threading.Lock()
rows = [iter("ab")]
def in_a_body():
    class Local:
        if sys.version_info[0] == 2:
            number = 0
        found = number
    return Local.found
number = 1

def begin():
    times(1), clip(1), Runner(), Net()(1)
    Model.__connection__ = "open"
def ask():
    used = times(1), clip(9), Runner().run(), Net()(1), Model.__connection__, Tagged().name, Named.a, add(1)
    return (*used, in_a_body())

with mp.get_context(sys.argv[1]).Pool(1, begin) as pool:
    assert pool.apply(ask) == (10, 5, 1, 1, "open", (1, "a tag"), 1, 2, 1)
    times = scaled(20)
    def clip(x, limit=7, _seen={}):
        _seen[x] = True
        return min(x, limit)
    Runner.value, Net.rate, number = 2, 3, 4
    for _ in range(2):
        assert pool.apply(ask) == (20, 7, 2, 3, "open", (1, "a tag"), 1, 2, 4), pool.apply(ask)
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_an_initializer_only_uses_is_the_programs(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=USED)) == "as here\n"
