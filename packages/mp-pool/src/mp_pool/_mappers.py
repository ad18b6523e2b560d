"""What a worker calls for a chunk of items.

The standard library's are in multiprocessing.pool: a worker would import that module, and with it traceback, tokenize
and a dozen more, before its first chunk.
"""

from __future__ import annotations

import itertools

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["map_chunk", "starmap_chunk"]


def map_chunk(chunk: tuple[Callable[..., Any], Iterable[Any]]) -> list[Any]:
    """Call the function of *chunk* with each of its items."""
    function, items = chunk
    return list(map(function, items))


def starmap_chunk(chunk: tuple[Callable[..., Any], Iterable[Iterable[Any]]]) -> list[Any]:
    """Call the function of *chunk* with the arguments in each of its items."""
    function, items = chunk
    return list(itertools.starmap(function, items))
