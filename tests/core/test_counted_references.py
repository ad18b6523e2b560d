"""Compiled code counts the references to None, True and False that it returns, whichever headers it was built with."""

from __future__ import annotations

import sys

import pytest

import mp_all as mp
from mp_core.sharing import backend

CALLS = 2000


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="these objects are immortal in this Python, and not counted")
def test_calls_into_compiled_code_lose_no_reference_to_none_true_and_false() -> None:
    lock, shared = backend.TryLock(), mp.Lock()
    ours, theirs = mp.Pipe()
    before = [sys.getrefcount(each) for each in (None, True, False)]
    for _ in range(CALLS):
        lock.acquire()  # True
        lock.acquire()  # False
        lock.release()  # None
        lock.release()
        shared.acquire()
        shared.release()
        ours.send_bytes(b"")
        theirs.poll()
        theirs.recv_bytes()
        backend.share(True)
    after = [sys.getrefcount(each) for each in (None, True, False)]
    ours.close()
    theirs.close()
    assert all(abs(a - b) < CALLS / 2 for a, b in zip(after, before, strict=True)), (before, after)
