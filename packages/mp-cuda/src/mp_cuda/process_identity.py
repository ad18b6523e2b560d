"""Processes: a pid with a random number, so that a reused pid, and a forked child, is another process."""

from __future__ import annotations

import os
from typing import NamedTuple

from mp_cuda._functions import set_process

__all__ = ["Process", "me"]


class Process(NamedTuple):
    """A process. Whether it lives is known by its leases."""

    pid: int
    nonce: bytes


_me: Process


def me() -> Process:
    """Return this process."""
    return _me


def _renew() -> None:
    global _me
    _me = Process(os.getpid(), os.urandom(8))
    set_process(*_me)


_renew()
os.register_at_fork(after_in_child=_renew)
