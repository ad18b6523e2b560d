"""Exhaustion of shared memory: private data then travels in the message, and a warning says so once."""

from __future__ import annotations

from mp_core.errors import SharedMemoryWarning, warn_user

__all__ = ["warn_once"]


def warn_once(nbytes: int, error: Exception) -> None:
    """Warn, the first time, that *nbytes* bytes go through the pipe because of *error*."""
    warn_user(
        "sent by value",
        f"shared memory ran out, so an array of {nbytes} bytes (and maybe others) travels through the pipe: {error}",
        SharedMemoryWarning,
    )
