"""Aliases and parameters of types that no file has arrive whole, and are the same objects when they come back."""

from __future__ import annotations

import sys

import pytest
from support.scripts import run_python, succeeded

pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")

METHODS = ("spawn", "forkserver", "fork")
has_statements = pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` is new in Python 3.12")

# A forked pool is older than the definitions.
PROGRAM = """
import sys, typing
import mp_all as mp

pool = mp.get_context(sys.argv[1]).Pool(1)
"""
ASK = """

def same(thing): return thing

with pool:
    for _ in range(2):
        told = pool.apply(ask)
        assert (told, str(told)) == (ask(), str(ask())), (told, ask())
    for each in things:
        found = pool.apply(same, (each,))
        assert found is each or (found == each and type(each).__name__.startswith("ParamSpec")), each
print("as here")
"""


def ask(method: str, program: str) -> str:
    return succeeded(run_python("-", method, stdin=PROGRAM + program + ASK))


PARAMETERS = """
class User: pass
Id, Number = typing.NewType("Id", User), typing.NewType("Number", int)
P, Ts = typing.ParamSpec("P"), typing.TypeVarTuple("Ts")
T, S = typing.TypeVar("T", bound=User, covariant=True), typing.TypeVar("S", int, str)

class Calls(typing.Generic[P, T]):
    call: typing.Callable[P, Id]
    def use(self, *args: P.args, **more: P.kwargs) -> Number: return Number(1)
class Row(typing.Generic[typing.Unpack[Ts]]): pass

def ask():
    own = Id.__supertype__ is User, Id.__module__, P.__module__, S.__constraints__, T.__bound__ is User, T.__covariant__
    parameters = Calls.__parameters__, Row.__parameters__, Calls[[int], User], Row[int, str]
    return own, str(parameters), str(Calls.use.__annotations__), Calls().use(), Calls[[int], User]().use()
things = [Id, Number, P, Ts, T, S, typing.AnyStr, P.args, P.kwargs]
"""

ALIASES = """
type Names[T] = list[T] | int

type Json = dict[str, Json] | list[Json] | int
type Unknown = NotThere

def ask(given: Names[str] = 3, other: Json = 4, third: Unknown = 5) -> Names[str]:
    return str(Names[str]), str(ask.__annotations__["given"]), str(Json.__value__), Json.__value__.__args__[2].__name__
things = []
"""

STATEMENTS = """
class Node[T: Node]:
    def up(self) -> T: return 5
class Table[K: (int, str), *Ts, **P]:
    def up(self) -> K: return 6
class User:
    def find[M: User](self: M) -> M: return 4
def first[Q: Node[int]](x: Q) -> Q: return x

def ask():
    (t,), (k, *more), (m,), (q,) = (each.__type_params__ for each in (Node, Table, User.find, first))
    bounds = t.__bound__ is Node, k.__constraints__, k.__infer_variance__, m.__bound__ is User, str(q.__bound__)
    return Node().up(), Table().up(), User().find(), first(3), bounds, str((Node[int], Table[int, str, [int]], more))
things = [*Node.__type_params__, *Table.__type_params__, *User.find.__type_params__, *first.__type_params__]
"""

DEFAULTS = """
class Box[T = Box, **P = [int, str]]: pass
class Row[*Ts = *tuple[int, str]]: pass
def ask(): return str([each.__default__ for each in Box.__type_params__ + Row.__type_params__]), str(Box[str])
things = [*Box.__type_params__, *Row.__type_params__, typing.TypeVar("T", default=int), typing.TypeVar("T")]
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_the_module_typing_makes_goes_with_what_names_it(method: str) -> None:
    assert ask(method, PARAMETERS) == "as here\n"


@has_statements
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("program", [ALIASES, STATEMENTS], ids=["aliases", "parameters"])
def test_what_a_statement_makes_goes_with_what_names_it(method: str, program: str) -> None:
    assert ask(method, program) == "as here\n"


@pytest.mark.skipif(sys.version_info < (3, 13), reason="parameters of types have defaults from Python 3.13 on")
@pytest.mark.parametrize("method", METHODS)
def test_a_parameter_keeps_its_default(method: str) -> None:
    assert ask(method, DEFAULTS) == "as here\n"
