"""What a worker calls for a chunk of items.

The standard library's are in multiprocessing.pool: a worker would import that module, and with it traceback, tokenize
and a dozen more, before its first chunk.
"""

from __future__ import annotations

import itertools

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

__all__ = ["map_chunk", "starmap_chunk"]


def map_chunk(chunk: tuple[Callable[..., Any], Sequence[Any]]) -> list[Any]:
    """Call the function of *chunk* with each of its items."""
    function, items = chunk
    return _complete(list(map(function, items)), items)


def starmap_chunk(chunk: tuple[Callable[..., Any], Sequence[Iterable[Any]]]) -> list[Any]:
    """Call the function of *chunk* with the arguments in each of its items."""
    function, items = chunk
    return _complete(list(itertools.starmap(function, items)), items)


def _complete(results: list[Any], items: Sequence[Any]) -> list[Any]:
    """Return *results*, if there is one for each of *items*: a `StopIteration` of the function ends `map` silently."""
    if len(results) < len(items):
        raise RuntimeError(f"the function raised StopIteration for item {len(results)} of a chunk of {len(items)}")
    return results
