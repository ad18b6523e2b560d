"""What a worker calls for a chunk of items.

The standard library's are in multiprocessing.pool: a worker would import that module, and with it traceback, tokenize
and a dozen more, before its first chunk.
"""

from __future__ import annotations

import itertools
from operator import length_hint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any


def map_chunk(chunk: tuple[Callable[..., Any], Sequence[Any]]) -> list[Any]:
    """Call the function of *chunk* with each of its items."""
    function, items = chunk
    left = iter(items)
    try:
        return _complete(list(map(function, left)), items)
    except BaseException:
        _note_item(items, left)
        raise


def starmap_chunk(chunk: tuple[Callable[..., Any], Sequence[Iterable[Any]]]) -> list[Any]:
    """Call the function of *chunk* with the arguments in each of its items."""
    function, items = chunk
    left = iter(items)
    try:
        return _complete(list(itertools.starmap(function, left)), items)
    except BaseException:
        _note_item(items, left)
        raise


_failed = 0


def _note_item(items: Sequence[Any], left: Iterator[Any]) -> None:
    global _failed
    _failed = max(0, len(items) - length_hint(left) - 1)


def take_failed() -> int:
    """Return the place, in its chunk, of the item that has just failed; 0 for a task without a chunk."""
    global _failed
    place, _failed = _failed, 0
    return place


def _complete(results: list[Any], items: Sequence[Any]) -> list[Any]:
    """Return *results*, if there is one for each of *items*: a `StopIteration` of the function ends `map` silently."""
    if len(results) < len(items):
        raise RuntimeError(f"the function raised StopIteration for item {len(results)} of a chunk of {len(items)}")
    return results
