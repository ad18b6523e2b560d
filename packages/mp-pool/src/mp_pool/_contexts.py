"""`Pool` as a method of multiprocessing's contexts: `get_context("spawn").Pool(4)` is a `mp_pool.Pool`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext

from mp_core import imports

TYPE_CHECKING = False  # importing typing takes time, see docs/performance.md
if TYPE_CHECKING:
    from typing import Any

    from mp_pool.pool import Pool

__all__ = ["install"]


def _pool(
    self: BaseContext,
    processes: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    maxtasksperchild: int | None = None,
    **options: Any,
) -> Pool:
    """Return a `mp_pool.Pool` whose processes are of this context."""
    return imports.load("mp_pool.pool").Pool(  # type: ignore[no-any-return]
        processes, initializer, initargs, maxtasksperchild, context=self.get_context(), **options
    )


_pool.__name__ = "Pool"


def install() -> None:
    """
    Make `Pool` of every context return a `mp_pool.Pool`. `multiprocessing.Pool` itself stays unchanged.
    """
    BaseContext.Pool = _pool  # type: ignore[method-assign]
