"""Repeated copies: a warning, shown once, if a large private array is sent again while an earlier copy lives.

Each message has its own copy, since each receiver may write to it. For N workers through N messages that is N times the
memory, which `share_memory` saves. The launcher knows all receivers in advance and copies once.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from mp_core.sharing.backend import handle_alive
from mp_core.system.errors import RepeatedCopyWarning, warn_user, was_told

# Bytes; smaller arrays are not tracked. `native.h` has the same number.
LARGE = 32 << 20
_SUBJECT = "repeated copy"

# By the address of an array object: the array, and the handle of its last copy.
_sent: dict[int, tuple[weakref.ref[Any], bytes]] = {}


def notice(a: np.ndarray[Any, Any], handle: bytes) -> None:
    """Record that *a* was copied for a message; warn, once, if the copy before is still alive."""
    if was_told(_SUBJECT):
        return
    key = id(a)
    before = _sent.get(key)
    if before is not None and before[0]() is a and handle_alive(before[1]):
        _sent.clear()
        warn_user(
            _SUBJECT,
            f"an array of {a.nbytes} bytes was copied again for another message while an earlier copy is in use: "
            "after a = mp.share_memory(a) all receivers use one memory, and see each other's writes",
            RepeatedCopyWarning,
        )
        return
    _sent[key] = weakref.ref(a, lambda _: _sent.pop(key, None)), handle
