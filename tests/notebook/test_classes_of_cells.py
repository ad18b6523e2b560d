"""Classes that no file has arrive whole: bound methods, enumerations, structures of ctypes."""

from __future__ import annotations

import pytest
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")

# A forked pool is older than the classes: they travel as their definitions.
PROGRAM = """
import ctypes, dataclasses, datetime, decimal, enum, functools, ipaddress, sys, threading
import mp_all as mp

pool = mp.get_context(sys.argv[1]).Pool(1)
"""
ASK = """

with pool:
    for _ in range(2):
        told = pool.apply(ask)
        assert (told, str(told)) == (ask(), str(ask())), (told, ask())
print("as here")
"""


def ask(method: str, program: str) -> str:
    return succeeded(run_python("-", method, stdin=PROGRAM + program + ASK))


METHODS_IN_CLASSES = """
class Table:
    @classmethod
    def name(cls, x): return cls.__name__, x
Table.handlers = {"name": Table.name}

class Default:
    def go(self): return type(self).__name__
Default.default = Default()
Default.go_by_default = Default.default.go

class Part:
    @classmethod
    def name(cls): return cls.__name__
Part.part = functools.partial(Part.name)

class One:
    @classmethod
    def name(cls): return cls.__name__
class Other:
    theirs = One.name
    @classmethod
    def name(cls): return cls.__name__
One.theirs = Other.name

def ask():
    return Table.handlers["name"](3), Default.go_by_default(), Part.part(), One.theirs(), Other.theirs()
"""

SUBCLASSES = """
names = []
class Named:
    def __init_subclass__(cls, *, name, **more):
        super().__init_subclass__(**more)
        cls.name = name
        names.append(name)
class First(Named, name="first"): pass

class Registered:
    def __init_subclass__(cls): functools.seen = [*getattr(functools, "seen", []), cls.__name__]
class One(Registered): pass
class Two(One): pass

def ask():
    return First.name, names, Two.__mro__[1].__name__, functools.seen  # of a module that is not ours
"""

ENUMERATIONS = """
class Planet(enum.Enum):
    EARTH = (5.976e+24, 6.37814e6)
    TERRA = (5.976e+24, 6.37814e6)
    MARS = (6.421e+23, 3.3972e6)
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius

class Coordinate(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
    PX = (0, "P.X")
    PY = (1, "P.Y")

class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2
Side.LEFT.other, Side.RIGHT.other = Side.RIGHT, Side.LEFT

class Access(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3

class Kept(enum.IntFlag, boundary=enum.KEEP):
    FIRST = 1
    FOURTH = 8

class Text(enum.StrEnum):
    A = enum.auto()
    B = "bee"

class Number(enum.IntEnum):
    FIVE = 5
    SIX = enum.auto()

class Pair(tuple, enum.Enum):
    A = (1, 2)
    B = (3, 4)

class Sums(enum.Enum):
    def __init__(self, a, b): self.sum = a + b
class Sum(Sums):
    X = (1, 2)
    Y = (3, 4)

class Span(datetime.timedelta, enum.Enum):
    DAY = 1
    WEEK = 7

class Price(decimal.Decimal, enum.Enum):
    LOW = "1.5"

class Day(datetime.date, enum.Enum):
    FIRST = 2020, 1, 2

class Letters(frozenset, enum.Enum):
    VOWELS = "aeiou"

class Numbers(list, enum.Enum):
    A = [1, 2]

class Names(dict, enum.Enum):
    A = {"x": 1}

@dataclasses.dataclass(slots=True)
class Body:
    mass: float
class Bodies(Body, enum.Enum):
    EARTH = 5.9

class Address(ipaddress.IPv4Address, enum.Enum):
    HERE = "127.0.0.1"

class Meta(enum.EnumMeta):
    def hello(cls): return cls.__name__
class Resource(enum.Enum, metaclass=Meta):
    A = 1
    def __init__(self, value): self._label_, self.lock = f"number {value}", threading.Lock()

class Empty(enum.Enum):
    pass

def of(kind):
    return list(kind.__members__.items())

def ask():
    assert Planet["TERRA"] is Planet.TERRA is Planet.EARTH is Planet((5.976e+24, 6.37814e6))
    assert Side.LEFT.other is Side.RIGHT and Coordinate(1) is Coordinate.PY and Text("bee") is Text.B
    assert Access.READ | Access.WRITE is Access.BOTH and Kept(12) and Pair((1, 2)) is Pair.A
    mixed = bytes(Coordinate.PY), Coordinate.PY.label, str(Text.A), Number.SIX + 1, Pair.B[1], isinstance(Text.A, str)
    data = [Span.WEEK.days, len({Span.DAY, Span.WEEK}), Price.LOW + 1, Day.FIRST.year, "a" in Letters.VOWELS]
    data += [list(Numbers.A), dict(Names.A), Bodies.EARTH.mass, int(Address.HERE), Resource.hello(), Resource.A._label_]
    return data + [
        *map(of, (Planet, Side, Access, Kept, Text, Number, Pair, Sum, Empty)),
        [planet.mass / planet.radius for planet in Planet], Sum.Y.sum, mixed, list(Access),
    ]
"""

SLOTS = """
class Vector:
    __slots__ = ("x", "__hidden")
    def __init__(self, x): self.x, self.__hidden = x, 5
    def hidden(self): return self.__hidden
class Weak(Vector):
    __slots__ = ("w", "__weakref__")
class Only:
    __slots__ = "only"
@dataclasses.dataclass(slots=True)
class Data:
    a: int
    b: int = 2
class Row(__import__("typing").NamedTuple):
    a: int = 3

def same(*things): return things

def ask():
    if mp.parent_process() is None:
        first, second, third = pool.apply(same, (Vector(1), Weak(2), Data(3)))
        assert (first.x, second.x, third, type(first)) == (1, 2, Data(3), Vector)
    thing = Vector(1)
    return thing.x, thing.hidden(), hasattr(thing, "__dict__"), hasattr(Only(), "__dict__"), Data(1), Row()
"""

STRUCTURES = """
class Point(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # which Python 3.14 wants to be said
    _fields_ = [("x", ctypes.c_char), ("y", ctypes.c_double), ("z", ctypes.c_int * 3)]
    def total(self): return self.y + sum(self.z)

class Line(ctypes.Structure):
    _fields_ = [("begin", Point), ("end", Point)]

class Either(ctypes.Union):
    _fields_ = [("whole", ctypes.c_uint32), ("parts", ctypes.c_uint8 * 4)]

class Header(ctypes.BigEndianStructure):
    _fields_ = [("number", ctypes.c_uint32)]

class Empty(ctypes.Structure):
    _fields_ = []

class Node(ctypes.Structure): pass
Node._fields_ = [("value", ctypes.c_int), ("next", ctypes.POINTER(Node))]
Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)

class CField:  # no field of ctypes
    def __get__(self, *_): return 5
class Model:
    x = CField()

def others():
    second = Node(2, ctypes.pointer(Node(1))).next.contents
    return bytes(Header(2)), Empty.__name__, second.value, Function(abs)(-3), Model.x

def ask():
    line = Line(Point(b"a", 1.5, (1, 2, 3)), Point(b"b", 2.5, (4, 5, 6)))
    sizes = [ctypes.sizeof(kind) for kind in (Point, Line, Either)]
    return line.begin.total() + line.end.total(), Either(0x01020304).parts[0], sizes, Point.y.offset, others()
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "program",
    [METHODS_IN_CLASSES, SUBCLASSES, ENUMERATIONS, SLOTS, STRUCTURES],
    ids=["methods", "subclasses", "enums", "slots", "ctypes"],
)
def test_a_class_of_a_program_without_a_file_is_the_same_in_its_worker(method: str, program: str) -> None:
    assert ask(method, program) == "as here\n"


@pytest.mark.parametrize("method", METHODS)
def test_objects_of_such_classes_come_back_as_objects_of_the_same_class(method: str) -> None:
    program = ENUMERATIONS.partition("def ask")[0] + STRUCTURES.partition("def ask")[0]
    program += """
def same(*things): return things

def ask():
    if mp.parent_process() is None:
        things = Coordinate.PY, Access.BOTH, Sum.X, Planet.MARS
        assert all(map(lambda a, b: a is b, pool.apply(same, things), things))
        (point,) = pool.apply(same, (Point(b"a", 1.5, (1, 2, 3)),))
        assert type(point) is Point and point.total() == 7.5
    return 0
"""
    assert ask(method, program) == "as here\n"


CHANGES = """
import sys
import mp_all as mp

context = mp.get_context(sys.argv[1])
old = context.Pool(1)
old.apply(abs, (1,))

class Base:
    unit = "m"
class Length(Base):
    unit, limit = "cm", 5
class Sized: pass
import ctypes
class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int)]
class Plain:
    "what it is"
    def __repr__(self): return "plain"
class Rich(Plain):
    __doc__ = Plain.__doc__
    def __repr__(self): return "rich"
class First:
    def who(self): return 1
class Second:
    def who(self): return 2
class Heir(First):
    class Part:
        class Most: pass
def said():
    "one"

scale = 1
def other(): return "other"
def look():
    units = [getattr(each, "unit", None) for each in (Length, Sized, Point)]
    names = Heir.__name__, Heir.__qualname__, Heir.Part.Most.__qualname__, Heir().who()
    shown = Rich.__repr__ is object.__repr__, repr(Rich())[:5], Rich.__doc__, said.__doc__, said.__name__
    return units, hasattr(Length, "limit"), bool(Sized()), names, shown, said.__qualname__

young = context.Pool(1)

def compare():
    for pool in (old, young):
        for _ in range(2):
            assert (pool.apply(look), look()) == (look(), pool.apply(look)), (pool.apply(look), look())
            assert pool.apply(other) == "other"

compare()
del Length.unit, Length.limit
compare()
Sized.__len__ = lambda self: 0
Sized.unit = Point.unit = "cm"
compare()
del Sized.__len__, Sized.unit, Point.unit
Heir.__bases__ = (Second,)
said.__doc__ = "two"
compare()
Rich.__repr__ = object.__repr__
said.__name__ = "told"
Heir.__name__ = "Other"
compare()
del Rich.__repr__
said.__qualname__ = "told.also"
Heir.__qualname__ = "Other.One"
compare()
ours, theirs = context.Pipe()
ours.send(Point(7))
assert theirs.recv().x == 7
print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_is_added_to_a_class_and_deleted_reaches_its_workers_and_harms_no_other_task(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=CHANGES)) == "as here\n"


PROXY = """
import sys
import mp_all as mp

class Thing: pass

def child(mapping): mapping["a thing"] = Thing()

context = mp.get_context(sys.argv[1])
with context.Manager() as manager:
    mapping = manager.dict()
    process = context.Process(target=child, args=(mapping,))
    process.start()
    process.join()
    assert type(mapping["a thing"]) is Thing
    print("as here")
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_has_only_a_proxy_sends_definitions_to_the_manager(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=PROXY)) == "as here\n"


PATCHED = """
import sys
import mp_all as mp

class Tool:
    def use(self): return "original"

def call(function): return function()

def patch(): Tool.use = lambda self: "patched"

with mp.get_context(sys.argv[1]).Pool(1, patch) as pool:
    print(pool.apply(Tool().use), pool.apply(call, (Tool().use,)))
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_an_argument_is_the_one_that_an_initializer_has_made(method: str) -> None:
    assert succeeded(run_python("-", method, stdin=PATCHED)) == "patched patched\n"
