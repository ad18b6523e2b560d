"""Leases: the owner learns of the last release, in whatever way the reference ended."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

import mp_all as mp

WAIT_S = 30


def hold_until_told(inbox: Any, ready: Any, go: Any) -> None:
    reference = inbox.get()
    ready.set()
    go.wait(WAIT_S)
    reference.release()
    assert reference.released


@pytest.fixture
def ended() -> threading.Event:
    return threading.Event()


def test_a_lease_ends_when_its_receiver_releases_it(ctx: Any, strategy: str, ended: threading.Event) -> None:
    inbox, ready, go = ctx.SimpleQueue(), ctx.Event(), ctx.Event()
    lease = mp.Lease(ended.set)
    child = ctx.Process(target=hold_until_told, args=(inbox, ready, go))
    child.start()
    inbox.put(lease)
    assert ready.wait(WAIT_S)
    assert lease.references == 1
    assert not ended.is_set()
    go.set()
    assert ended.wait(WAIT_S)
    assert lease.ended
    child.join(WAIT_S)
    assert child.exitcode == 0
    inbox.close()


def test_a_lease_ends_when_its_receiver_is_killed(ctx: Any, strategy: str, ended: threading.Event) -> None:
    inbox, ready, go = ctx.SimpleQueue(), ctx.Event(), ctx.Event()
    lease = mp.Lease(ended.set)
    child = ctx.Process(target=hold_until_told, args=(inbox, ready, go))
    child.start()
    inbox.put(lease)
    assert ready.wait(WAIT_S)
    os.kill(child.pid, signal.SIGKILL)
    assert ended.wait(WAIT_S)
    assert lease.references == 0
    child.join(WAIT_S)
    inbox.close()


def test_an_in_flight_reference_keeps_a_lease_and_can_be_revoked(ended: threading.Event) -> None:
    lease = mp.Lease(ended.set)
    message = ForkingPickler.dumps(lease)
    assert lease.references == 1
    mp.collect_leases()
    assert not ended.is_set()
    lease.revoke()
    assert ended.wait(WAIT_S)
    with pytest.raises(mp.ReceiveError, match="used before"):
        ForkingPickler.loads(message)


def test_a_lease_reference_can_be_sent_on(ended: threading.Event) -> None:
    lease = mp.Lease(ended.set)
    first = ForkingPickler.loads(ForkingPickler.dumps(lease))
    second = ForkingPickler.dumps(first)
    first.release()
    assert lease.references == 1
    reference = ForkingPickler.loads(second)
    with pytest.raises(mp.ReceiveError, match="used before"):
        ForkingPickler.loads(second)
    reference.release()
    assert ended.wait(WAIT_S)


def test_a_callback_that_raises_is_reported_and_other_leases_still_end(
    ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    heard = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: (told.append(args.exc_value), heard.set()))
    mp.receive_lease(mp.Lease(lambda: 1 / 0).offer()).release()
    assert heard.wait(30)
    assert [type(error) for error in told[0].exceptions] == [ZeroDivisionError]
    mp.receive_lease(mp.Lease(ended.set).offer()).release()
    assert ended.wait(30)


def test_an_offer_fails_without_a_thread_and_the_next_offer_is_watched(
    ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    while mp.collect_leases():  # until no watcher is left
        pass
    for thread in threading.enumerate():
        if thread.name == "lease-watcher":
            thread.join(30)
    lease = mp.Lease(ended.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no thread")))
        with pytest.raises(RuntimeError, match="no thread"):
            lease.offer()
    assert lease.references == 0
    mp.receive_lease(lease.offer()).release()
    assert ended.wait(30)


def test_a_lease_that_has_ended_cannot_be_sent(ended: threading.Event) -> None:
    lease = mp.Lease(ended.set)
    ForkingPickler.loads(ForkingPickler.dumps(lease)).release()
    assert ended.wait(WAIT_S)
    with pytest.raises(ValueError, match="has ended"):
        ForkingPickler.dumps(lease)


def test_a_message_that_cannot_be_pickled_leaks_no_memory(strategy: str) -> None:
    block = mp.Block(1000)
    with pytest.raises(Exception, match="lambda"):
        ForkingPickler.dumps((block, lambda: 0))
    assert block._others() == 0
    assert mp.memory_stats()["in_flight_bytes"] == 0


def test_segments_are_listed_with_their_holders(strategy: str) -> None:
    block = mp.Block(12345)
    mine = [s for s in mp.list_segments() if s.owner == os.getpid() and s.strategy == strategy]
    assert sum(s.live_bytes for s in mine) >= block.nbytes
    assert all(os.getpid() in s.holders for s in mine if s.live_blocks)


def answer_about_the_owner(inbox: Any, outbox: Any, requests: Any) -> None:
    reference = inbox.get()
    memory = reference.memory
    memory[1] = memory[0] + 1
    outbox.put("written")
    while requests.get():
        outbox.put(reference.owner_alive)


def own_a_lease(inbox: Any, shared: Any) -> None:
    lease = mp.Lease(lambda: None, 2)
    lease.memory[0] = 4
    inbox.put(lease)
    shared.put("sent")
    threading.Event().wait(WAIT_S)


def test_holders_of_a_lease_share_its_memory_and_know_whether_its_owner_lives(ctx: Any, strategy: str) -> None:
    inbox, outbox, requests, started = (ctx.SimpleQueue() for _ in range(4))
    owner = ctx.Process(target=own_a_lease, args=(inbox, started))
    holder = ctx.Process(target=answer_about_the_owner, args=(inbox, outbox, requests))
    owner.start()
    assert started.get() == "sent"
    holder.start()
    assert outbox.get() == "written"
    requests.put(True)
    assert outbox.get() is True
    owner.kill()
    owner.join(WAIT_S)
    requests.put(True)
    assert outbox.get() is False
    requests.put(False)
    holder.join(WAIT_S)
    assert holder.exitcode == 0
    for queue in inbox, outbox, requests, started:
        queue.close()


def test_the_owner_of_a_lease_reads_what_a_holder_has_written() -> None:
    lease = mp.Lease(lambda: None, 3)
    reference = mp.receive_lease(lease.offer())
    assert bytes(lease.memory) == bytes(3)
    reference.memory[2] = 9
    assert bytes(lease.memory) == b"\0\0\x09"
    assert reference.owner_alive
    reference.release()
    with pytest.raises(ValueError, match="was released"):
        _ = reference.owner_alive
    with pytest.raises(ValueError, match="was released"):
        _ = reference.memory


def test_a_lease_has_no_negative_size() -> None:
    with pytest.raises(ValueError, match="a lease cannot have -1 bytes; give 0 or more"):
        mp.Lease(print, -1)
