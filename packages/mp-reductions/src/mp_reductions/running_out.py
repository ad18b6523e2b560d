"""When there is no shared memory left, what is private travels in the message, and that is said once."""

from __future__ import annotations

import warnings

__all__ = ["warn_once"]

_warned = False


def warn_once(nbytes: int, error: Exception) -> None:
    """Say, the first time, that *nbytes* bytes go through the pipe because of *error*."""
    global _warned
    if _warned:
        return
    _warned = True
    try:
        warnings.warn(
            f"shared memory ran out, so an array of {nbytes} bytes (and maybe others) travels through the "
            f"pipe: {error}",
            ResourceWarning,
            stacklevel=4,
        )
    except ResourceWarning:
        pass  # a filter that makes errors of warnings must not make a lost message of a slow one
