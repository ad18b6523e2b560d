"""What a function is made of: the objects that it has of its own, and the globals that it uses by their names."""

from __future__ import annotations

import weakref
from opcode import opmap
from types import CodeType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

READS = frozenset(opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in opmap)
USES = READS | {opmap["STORE_GLOBAL"], opmap["DELETE_GLOBAL"]}
_LOAD, _MORE = opmap["LOAD_GLOBAL"], opmap["EXTENDED_ARG"]
_names: weakref.WeakKeyDictionary[CodeType, dict[frozenset[int], frozenset[str]]] = weakref.WeakKeyDictionary()


def function_parts(function: Any) -> list[Any]:
    """Return the code of a function, what it says of itself, and its defaults, attributes and closure."""
    parts = [function.__code__, *words_of(function), *(function.__defaults__ or ()), ...]
    for each in (function.__kwdefaults__, function.__dict__):
        if each:
            parts += [part for item in each.items() for part in item]
        parts.append(...)
    if function.__closure__:
        parts += [content_of(cell) for cell in function.__closure__]
    return parts


def words_of(function: Any) -> tuple[Any, Any, Any]:
    return function.__name__, function.__qualname__, function.__doc__


def content_of(cell: Any) -> Any:
    """Return what is in a cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code, and that of the functions in it."""
    yield code
    for each in code.co_consts:
        if type(each) is CodeType:
            yield from codes(each)


def names_of_globals(code: CodeType, operations: frozenset[int] = USES) -> frozenset[str]:
    """Return the names of the globals on which the code, and the functions in it, do one of these *operations*."""
    known = _names.setdefault(code, {})
    if operations not in known:
        known[operations] = frozenset(name for each in codes(code) for name in _named_in(each, operations))
    return known[operations]


def _named_in(code: CodeType, operations: frozenset[int]) -> Iterator[str]:
    more, instructions = 0, code.co_code
    for operation, argument in zip(instructions[::2], instructions[1::2], strict=True):
        argument |= more
        if operation in operations:
            yield code.co_names[argument >> 1 if operation == _LOAD else argument]  # its last bit says something else
        more = argument << 8 if operation == _MORE else 0
