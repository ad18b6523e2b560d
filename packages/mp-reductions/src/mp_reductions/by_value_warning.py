"""The warning for private data that travels in the message, because it cannot go through shared memory: shown once."""

from __future__ import annotations

import errno

from mp_core import _platform
from mp_core.errors import SharedMemoryWarning, warn_user

__all__ = ["warn_once"]


def warn_once(nbytes: int, error: Exception) -> None:
    """Warn, the first time, that *nbytes* bytes go through the pipe because of *error*."""
    if isinstance(error, OSError) and error.errno == errno.ENOSYS:
        message = (
            f"mp-core has no shared memory on {_platform.name()}, so an array of {nbytes} bytes (and all others) "
            "travels by pickle, as with multiprocessing"
        )
    else:
        message = (
            f"shared memory ran out, so an array of {nbytes} bytes (and maybe others) travels through the pipe: {error}"
        )
    warn_user("sent by value", message, SharedMemoryWarning)
