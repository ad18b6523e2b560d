"""Processes: a pid with a random number, so that a reused pid, and a forked child, is another process."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Process", "me"]


class Process(NamedTuple):
    """A process. Whether it lives is known by its leases."""

    pid: int
    nonce: bytes


_me: Process | None = None


def me() -> Process:
    """Return this process."""
    global _me
    if _me is None:
        _me = Process(os.getpid(), os.urandom(8))
    return _me


def _forget() -> None:
    global _me
    _me = None


os.register_at_fork(after_in_child=_forget)
