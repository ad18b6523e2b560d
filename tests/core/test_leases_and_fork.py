"""A forked child has no reference to its parent's leases, whenever they are sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import mp_all as mp

WAIT_S = 60


@contextmanager
def forked_child() -> Iterator[None]:
    """A child that lives until the end of the block."""
    reader, writer = os.pipe()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(writer)
            os.write(told, b"x")
            os.read(reader, 1)
        finally:
            os._exit(0)
    try:
        os.close(reader)
        os.close(told)
        os.read(ready, 1)
        yield
        # The child must not have ended, or the test would show nothing.
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    finally:
        os.close(writer)
        os.close(ready)
        os.waitpid(pid, 0)


@pytest.fixture
def ended() -> threading.Event:
    return threading.Event()


def test_a_lease_made_before_a_fork_and_sent_after_it_ends_while_the_child_lives(
    strategy: str, ended: threading.Event
) -> None:
    lease = mp.Lease(ended.set)
    with forked_child():
        assert lease.references == 0
        ForkingPickler.loads(ForkingPickler.dumps(lease)).release()
        assert ended.wait(WAIT_S)


def test_a_lease_in_flight_at_the_fork_ends_too(strategy: str, ended: threading.Event) -> None:
    lease = mp.Lease(ended.set)
    message = ForkingPickler.dumps(lease)
    with forked_child():
        assert lease.references == 1
        ForkingPickler.loads(message).release()
        assert ended.wait(WAIT_S)


def test_a_fork_while_other_threads_make_leases_inherits_none(strategy: str) -> None:
    stop = threading.Event()
    made: list[mp.Lease] = []

    def make() -> None:
        while not stop.is_set():
            made.append(mp.Lease(int))

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            before = len(made)
            with forked_child():
                assert [lease.references for lease in made[:before]] == [0] * before
                while len(made) < before + 3:
                    threading.Event().wait(0.001)
                # Including those that a thread was making at the fork.
                assert [lease.references for lease in made[before : before + 3]] == [0] * 3
            del made[:before]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    made.clear()


def test_a_child_can_make_and_send_leases_of_its_own(strategy: str) -> None:
    def child(out: Any) -> None:
        ended = threading.Event()
        mp.receive_lease(mp.Lease(ended.set).offer()).release()
        out.put(ended.wait(WAIT_S))

    ctx = mp.get_context("fork")
    kept = mp.Lease(int)
    out = ctx.SimpleQueue()
    process = ctx.Process(target=child, args=(out,))
    process.start()
    assert out.get() is True
    process.join(WAIT_S)
    out.close()
    assert kept.references == 0
