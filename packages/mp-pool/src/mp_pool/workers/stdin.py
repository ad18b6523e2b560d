"""A forked worker must not wait for the lock of `sys.stdin`, which another thread of the parent may hold for ever."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_inherited: Any = None


@contextmanager
def left_alone(process: Any) -> Iterator[None]:
    """
    Have *process*, if it is forked in the block, begin with another `sys.stdin` than its parent's.

    The first act of a child is to close `sys.stdin`. This takes a lock, which in a forked child nobody releases if a
    thread of the parent was in ``sys.stdin.readline()``: the child would never be ready.
    """
    process._bootstrap = functools.partial(_begin, process._bootstrap)
    try:
        yield
    finally:
        del process._bootstrap


def _begin(bootstrap: Any, *args: Any, **options: Any) -> Any:
    leave_alone()
    return bootstrap(*args, **options)


def leave_alone() -> None:
    """In a forked child: go on with another `sys.stdin`."""
    global _inherited
    # Kept, since the last reference would also close it.
    _inherited, sys.stdin = sys.stdin, open(os.devnull, encoding="utf-8")  # noqa: SIM115 - the process closes it
