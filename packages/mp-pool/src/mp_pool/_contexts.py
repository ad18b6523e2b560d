"""`Pool` of multiprocessing's contexts: `get_context("spawn").Pool(4)` is a pool of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
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
    return Pool(processes, initializer, initargs, maxtasksperchild, context=self.get_context(), **options)


_pool.__name__ = "Pool"


def install() -> None:
    """
    Let every context make pools of ours. `multiprocessing.Pool` itself stays what it was.
    """
    BaseContext.Pool = _pool  # type: ignore[method-assign]
