"""What must hold when something goes wrong half-way: failing calls, interrupted steps, races, deaths in between."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from typing import Any

import peer as p
import pytest
from device import Stub
from support.waiting import until

import mp_cuda
from mp_core import Lease
from mp_cuda import driver, export, janitor, opened, process, signals
from mp_cuda.dtype import dtype_of
from mp_cuda.transports import handle as by_handle
from mp_cuda.wire import Memory, Message

# How long two threads are given to meet where only one may be.
MEETING_S = 0.3


class Chore:
    device, after_work = 0, False

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.done = error, threading.Event()
        janitor.expect()

    def finish(self) -> None:
        self.done.set()
        if self.error is not None:
            raise self.error


def test_a_chore_that_fails_does_not_keep_the_others_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):  # and the thread lives on
        failing, next_one = Chore(OSError("no room")), Chore()
        janitor.drop(failing)
        janitor.drop(next_one)
        assert next_one.done.wait(p.WAIT_S) and failing.done.is_set()
    assert until(lambda: caplog.text.count("no room") == 2)


def test_an_interrupted_chore_loses_none_of_those_behind_it() -> None:
    with janitor._working:  # the thread keeps out
        first, second = Chore(KeyboardInterrupt()), Chore()
        janitor.drop(first)
        janitor.drop(second)
        with pytest.raises(KeyboardInterrupt):
            janitor.drain()
        assert not second.done.is_set()
    assert second.done.wait(p.WAIT_S)


def test_without_a_thread_to_be_had_arrays_are_received_and_closed(mortal: p.Peer) -> None:
    mortal.call(no_more_threads)
    mortal.call(p.keep, "a", mp_cuda.from_host(b"alone"))
    assert mortal.call(p.content, "a") == b"alone"
    mortal.call(p.drop, "a")
    assert mortal.call(p.stats)["mappings"] == 0
    assert mp_cuda.wait_released(p.WAIT_S)


def no_more_threads() -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start  # type: ignore[method-assign]


def test_what_was_opened_for_an_array_that_was_never_made_is_closed_before_its_claim_goes(mortal: p.Peer) -> None:
    array = mp_cuda.from_host(b"nearly")
    mortal.call(no_memory_for_arrays)
    with pytest.raises(MemoryError):
        mortal.call(p.keep, "a", array)
    assert mortal.call(p.stats)["mappings"] == 0
    assert mp_cuda.wait_released(p.WAIT_S)


def no_memory_for_arrays() -> None:
    def fail(*args: Any) -> None:
        raise MemoryError

    opened.Received.__init__ = fail  # type: ignore[assignment, method-assign]


@pytest.mark.needs_stub
def test_what_the_driver_does_not_close_stays_claimed_until_it_is(mortal: p.Peer, stub: Stub) -> None:
    mortal.call(p.keep, "a", mp_cuda.from_host(b"stuck"))
    mortal.call(p.fail, "cuIpcCloseMemHandle", 1)
    mortal.call(p.drop, "a")
    # Still open there, so not to be freed here: the stub counts that as a violation.
    assert mortal.call(p.stats)["mappings"] == 1
    assert not mp_cuda.wait_released(0.3)
    mortal.close()  # at its end it closes it after all
    assert mp_cuda.wait_released(p.WAIT_S)


def test_an_equal_handle_of_another_process_is_another_allocation(
    peer: p.Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pid is used again, and the driver's handle may have nothing else in it."""
    pointers = iter([0x7000_0000, 0x7000_1000])
    monkeypatch.setattr(by_handle, "open", lambda *args: (next(pointers), None))
    monkeypatch.setattr(by_handle, "close", lambda *args: None)
    one, another = (process.me()._replace(nonce=nonce) for nonce in (b"-first--", b"-second-"))
    received = []
    for owner, offer in zip((one, another, one), peer.call(offers, "lease", 3), strict=True):
        memory = Memory("handle", driver.uuid_of(0), owner, 1, b"equal" * 12 + b"----", 100)
        message = Message("", (1,), (1,), dtype_of("|u1"), False, b"", 0, memory, (offer,))
        received.append(opened.receive(message))
    assert [r.mapping.ptr for r in received] == [0x7000_0000, 0x7000_1000, 0x7000_0000]
    del received
    gc.collect()
    mp_cuda.ipc_collect()
    assert mp_cuda.ipc_stats()["mappings"] == 0


def offers(name: str, count: int) -> list[bytes]:
    p.KEPT[name] = Lease(lambda: None)
    return [p.KEPT[name].offer() for _ in range(count)]


def test_an_equal_event_of_another_process_is_another_event(peer: p.Peer) -> None:
    handle = peer.call(event_handle, "e")
    one, another = (process.me()._replace(nonce=nonce) for nonce in (b"-first--", b"-second-"))
    first = signals.open_signal(0, one, handle)
    assert signals.open_signal(0, another, handle) is not first
    assert signals.open_signal(0, one, handle) is first
    del first
    signals.close_all()
    gc.collect()
    mp_cuda.ipc_collect()


def event_handle(name: str) -> bytes:
    p.KEPT[name] = mp_cuda.Event(interprocess=True, device=0)
    handle: bytes = p.KEPT[name].ipc_handle()
    return handle


def meeting(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, when: Any = lambda *args: True) -> None:
    """Whoever calls this waits for a second one to call it as well, for a moment."""
    barrier, original = threading.Barrier(2), getattr(where, name)

    def wait_for_another(*args: Any) -> Any:
        if when(*args):
            try:
                barrier.wait(MEETING_S)
            except threading.BrokenBarrierError:
                pass
        return original(*args)

    monkeypatch.setattr(where, name, wait_for_another)


def at_once(messages: list[bytes]) -> list[Any]:
    """What the messages are, each read in a thread of its own."""
    results: list[Any] = [None] * len(messages)

    def load(i: int) -> None:
        try:
            results[i] = pickle.loads(messages[i])
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=load, args=(i,)) for i in range(len(messages))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(p.WAIT_S)
        assert not thread.is_alive()
    return results


def made_and_shared(name: str, data: bytes, times: int) -> list[bytes]:
    array = p.make(name, data)
    return [pickle.dumps(mp_cuda.share(array)) for _ in range(times)]


@pytest.mark.needs_stub
def test_two_threads_that_receive_one_allocation_at_once_open_it_once(
    peer: p.Peer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = peer.call(made_and_shared, "a", b"at once", 2)
    meeting(monkeypatch, by_handle, "open")
    before = stub.counters()["opens"]
    one, two = at_once(messages)
    assert one.ptr == two.ptr and one.copy_to_host() == b"at once"
    assert stub.counters()["opens"] == before + 1


def test_two_threads_that_receive_one_event_at_once_get_one_event(
    peer: p.Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = peer.call(event_shared_twice, "e")
    meeting(monkeypatch, driver, "call", lambda name, *args: name == "cuIpcOpenEventHandle")
    one, two = at_once(messages)
    assert isinstance(one, mp_cuda.Event)
    assert one is two


def event_shared_twice(name: str) -> list[bytes]:
    from multiprocessing.reduction import ForkingPickler

    p.KEPT[name] = mp_cuda.Event(interprocess=True, device=0)
    return [bytes(ForkingPickler.dumps(p.KEPT[name])) for _ in range(2)]


def test_an_event_of_a_process_that_was_killed_is_not_opened(mortal: p.Peer) -> None:
    message, _ = mortal.call(event_shared_twice, "e")
    mortal.kill()
    with pytest.raises(mp_cuda.ProducerGoneError, match="made the event, has ended"):
        pickle.loads(message)


@pytest.mark.needs_stub
def test_an_event_lives_while_a_stream_here_waits_for_it(peer: p.Peer, stub: Stub, gate: int) -> None:
    message, _ = peer.call(event_shared_twice, "e")
    event = pickle.loads(message)
    peer.call(p.drop, "e")
    peer.call(take_back_what_is_under_way)
    work = mp_cuda.Stream(0)
    stub.hold(work.ptr, gate)
    event.wait(work)
    del event
    gc.collect()
    assert not until(lambda: peer.call(p.stats)["live_sends"] == 0, 0.3)
    stub.open(gate)
    assert until(lambda: peer.call(p.stats)["live_sends"] == 0, p.WAIT_S)


def take_back_what_is_under_way() -> None:
    mp_cuda.ipc_collect(in_flight_older_than=0)


@pytest.mark.needs_stub
def test_waiting_for_receivers_keeps_to_its_timeout_while_this_process_works(
    peer: p.Peer, stub: Stub, gate: int
) -> None:
    theirs, ours = peer.call(p.make, "theirs", b"theirs"), mp_cuda.from_host(b"ours")
    peer.call(p.keep, "ours", ours)
    work = mp_cuda.Stream(0)
    stub.hold(work.ptr, gate)
    del theirs  # cannot be closed before the gate opens
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(mp_cuda.wait_released(timeout=0.1)))
    thread.start()
    thread.join(5)
    still_there = thread.is_alive()
    stub.open(gate)
    thread.join(p.WAIT_S)
    assert not still_there and answers == [False]


def test_a_send_that_fails_half_way_keeps_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_use() -> int:
        return signals._made - sum(len(free) for free in signals._free.values())

    def fail(*args: Any, **more: Any) -> Any:
        raise OSError(24, "Too many open files")

    array = mp_cuda.from_host(b"half")
    before = in_use()
    for broken in "allocate", "_offer":
        with monkeypatch.context() as patch:
            patch.setattr(f"mp_core.lease.{broken}", fail)
            with pytest.raises(OSError, match="Too many"):
                mp_cuda.share(array)
    assert in_use() == before
    assert not export.exports


def test_a_receiver_killed_before_it_reads_leaves_a_message_that_can_be_taken_back(mortal: p.Peer) -> None:
    pid = mortal.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    mortal.begin(p.keep, "a", mp_cuda.from_host(b"unread"))
    mortal.kill()
    assert not mp_cuda.wait_released(0.1)
    mp_cuda.ipc_collect(in_flight_older_than=0)
    assert mp_cuda.wait_released(p.WAIT_S)


def test_a_sender_killed_between_export_and_send_leaves_nothing(mortal: p.Peer) -> None:
    mortal.call(die_when_packing)
    mortal.begin(p.make, "a", b"exported")
    mortal.process.join(p.WAIT_S)
    assert mortal.process.exitcode == -9
    with pytest.raises(EOFError):
        mortal.connection.recv()


def die_when_packing() -> None:
    from mp_cuda import reduce

    def die(message: Message) -> Any:
        assert message.offers
        os.kill(os.getpid(), signal.SIGKILL)

    reduce.pack = die  # type: ignore[assignment]


def test_a_process_that_may_wait_at_its_exit_stays_until_its_receivers_are_done(mortal: p.Peer) -> None:
    mortal.call(wait_at_exit, 60.0)
    array = mortal.call(p.make, "a", b"patient")
    mortal.connection.close()  # and so it ends
    mortal.process.join(0.5)
    assert mortal.process.exitcode is None
    assert array.producer_alive and array.copy_to_host() == b"patient"
    del array
    mp_cuda.ipc_collect()
    mortal.process.join(p.WAIT_S)
    assert mortal.process.exitcode == 0
    mortal.process.close()


def wait_at_exit(seconds: float) -> None:
    mp_cuda.set_policy(exit_wait=seconds)
