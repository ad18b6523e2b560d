"""Whether this process is ending by an error.

A finalizer of `multiprocessing.util` is told nothing about the end that calls it. Up to Python 3.14.9 it runs while
the exception is being handled; since 3.14.10 it runs after `_bootstrap` has returned the exit code, without one.
"""

from __future__ import annotations

import functools
import sys
from multiprocessing.process import BaseProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_code = 0


def watch() -> None:
    """Note the exit code of each process that begins from now on. A child unpickles its arguments before it begins."""
    original: Any = vars(BaseProcess)["_bootstrap"]
    if getattr(original, "_noted", False):
        return

    @functools.wraps(original)
    def bootstrap(self: BaseProcess, *args: Any, **options: Any) -> int:
        global _code
        code: int = original(self, *args, **options)
        _code = code
        return code

    bootstrap._noted = True  # type: ignore[attr-defined]
    BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]


def is_error() -> bool:
    """Return whether this process ends by an error, for a finalizer that runs at its end."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        return bool(error.code)
    return error is not None or _code != 0
