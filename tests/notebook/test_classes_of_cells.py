"""Classes that no file has arrive whole: bound methods, enumerations, structures of ctypes, aliases of types."""

from __future__ import annotations

import sys

import pytest
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")

# A forked pool is older than the classes: they travel as their definitions.
PROGRAM = """
import ctypes, enum, functools, sys
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
    seen = []
    def __init_subclass__(cls): Registered.seen.append(cls.__name__)
class One(Registered): pass
class Two(One): pass

def ask():
    return First.name, names, Two.seen, Two.__mro__[1].__name__

def again():
    class Three(Registered): pass
    return Registered.seen[-1]
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

class Empty(enum.Enum):
    pass

def of(kind):
    return list(kind.__members__.items())

def ask():
    assert Planet["TERRA"] is Planet.TERRA is Planet.EARTH is Planet((5.976e+24, 6.37814e6))
    assert Side.LEFT.other is Side.RIGHT and Coordinate(1) is Coordinate.PY and Text("bee") is Text.B
    assert Access.READ | Access.WRITE is Access.BOTH and Kept(12) and Pair((1, 2)) is Pair.A
    mixed = bytes(Coordinate.PY), Coordinate.PY.label, str(Text.A), Number.SIX + 1, Pair.B[1], isinstance(Text.A, str)
    return [
        *map(of, (Planet, Side, Access, Kept, Text, Number, Pair, Sum, Empty)),
        [planet.mass / planet.radius for planet in Planet], Sum.Y.sum, mixed, list(Access),
    ]
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

def ask():
    line = Line(Point(b"a", 1.5, (1, 2, 3)), Point(b"b", 2.5, (4, 5, 6)))
    sizes = [ctypes.sizeof(kind) for kind in (Point, Line, Either)]
    return line.begin.total() + line.end.total(), Either(0x01020304).parts[0], sizes, Point.y.offset
"""

ALIASES = """
type Names[T] = list[T] | int

def ask(given: Names[str] = 3) -> Names[str]:
    return str(Names[str]), str(ask.__annotations__["given"])
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "program",
    [METHODS_IN_CLASSES, SUBCLASSES, ENUMERATIONS, STRUCTURES],
    ids=["methods", "subclasses", "enums", "ctypes"],
)
def test_a_class_of_a_program_without_a_file_is_the_same_in_its_worker(method: str, program: str) -> None:
    assert ask(method, program) == "as here\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_subclass_that_is_made_in_a_worker_calls_the_hook_of_its_base(method: str) -> None:
    told = ask(method, SUBCLASSES.replace("def again", "print(pool.apply(ask)[0])\n\ndef again") + "\nask = again\n")
    assert told == "first\nas here\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` is new in Python 3.12")
@pytest.mark.parametrize("method", METHODS)
def test_an_alias_of_a_type_goes_with_the_function_that_names_it(method: str) -> None:
    assert ask(method, ALIASES) == "as here\n"


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
