"""Failing calls, interrupted steps, races and deaths at the worst moment."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import peer as p
import pytest
from device import Stub
from support.processes import stopped
from support.waiting import until

import mp_cuda
from mp_cuda.driver import finalizer_queue
from mp_cuda.driver.functions import live_exports, set_hooks
from mp_cuda.sharing import ipc_events

# Seconds for a second thread to enter code that only one may be in.
RACE_S = 0.3


class Work:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.done = error, threading.Event()
        finalizer_queue.expect()

    def task(self) -> finalizer_queue.Task:
        return finalizer_queue.Task(0, self.run, None)

    def run(self, device: int, arguments: list[None]) -> None:
        self.done.set()
        if self.error is not None:
            raise self.error


def test_the_tasks_after_a_failing_one_still_run(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):  # the thread survives
        failing, next_one = Work(OSError("no room")), Work()
        finalizer_queue.put(failing.task())
        finalizer_queue.put(next_one.task())
        assert next_one.done.wait(p.WAIT_S) and failing.done.is_set()
    assert until(lambda: caplog.text.count("no room") == 2)


def test_an_interrupted_task_loses_no_later_task() -> None:
    with finalizer_queue._draining:  # keep the thread out
        first, second = Work(KeyboardInterrupt()), Work()
        finalizer_queue.put(first.task())
        finalizer_queue.put(second.task())
        with pytest.raises(KeyboardInterrupt):
            finalizer_queue.drain()
        assert not second.done.is_set()
    assert second.done.wait(p.WAIT_S)


def test_arrays_are_received_and_closed_when_no_thread_can_start(mortal: p.Peer) -> None:
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


@pytest.mark.needs_stub
def test_memory_that_the_driver_fails_to_close_stays_referenced_until_it_is_closed(mortal: p.Peer, stub: Stub) -> None:
    mortal.call(p.keep, "a", mp_cuda.from_host(b"stuck"))
    mortal.call(p.fail, "cuIpcCloseMemHandle", 1, 1 << 30)
    mortal.call(p.drop, "a")
    # It is still open there, so freeing it here would be a violation, which the stub counts.
    assert mortal.call(p.stats)["mappings"] == 1
    assert not mp_cuda.wait_released(0.3)
    mortal.call(p.fail, "", 0)  # it tries again
    assert mp_cuda.wait_released(p.WAIT_S)


@pytest.mark.needs_stub
def test_memory_that_stays_open_is_tried_again_if_the_thread_looked_meanwhile(mortal: p.Peer) -> None:
    mortal.call(p.keep, "a", mp_cuda.from_host(b"stuck"))
    mortal.call(refuse_to_close_while_the_thread_looks)
    mortal.call(p.drop, "a")
    mortal.call(p.fail, "", 0)
    assert mp_cuda.wait_released(p.WAIT_S)


def refuse_to_close_while_the_thread_looks() -> None:
    look = finalizer_queue._looked
    begun, refused, looked = threading.Event(), threading.Event(), threading.Event()

    def looked_late() -> bool:
        begun.set()
        refused.wait(p.WAIT_S)
        try:
            return look()
        finally:
            looked.set()

    def told(code: int) -> None:
        refused.set()
        assert looked.wait(p.WAIT_S)

    set_hooks(stays_open=told)
    finalizer_queue._looked = looked_late
    assert begun.wait(p.WAIT_S)
    p.fail("cuIpcCloseMemHandle", 1, 1 << 30)


@pytest.mark.needs_stub
def test_an_equal_handle_of_another_process_is_another_allocation(
    peer: p.Peer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pids are reused, and the driver's handle may contain nothing else."""
    monkeypatch.setenv("MP_CUDA_STUB_STRICT", "0")
    before = stub.counters()["opens"]
    received = []
    for nonce in b"-first--", b"-second-", b"-first--":
        function, (offers, table, layout, *more) = peer.call(parts_of_message, "equal")
        own = table[12 + 12 : 12 + 20]  # after the head, in the first lease
        assert table.count(own) == 2  # and in the key of the allocation
        received.append(function(offers, table.replace(own, nonce), layout, *more))
    assert stub.counters()["opens"] == before + 2
    assert [r.copy_to_host() for r in received] == [b"equal"] * 3
    del received
    gc.collect()
    mp_cuda.ipc_collect()
    assert mp_cuda.ipc_stats()["mappings"] == 0


def parts_of_message(name: str) -> Any:
    if name not in p.KEPT:
        p.make(name, b"equal")
    return mp_cuda.share(p.KEPT[name]).__reduce__()


class LeaseOf:
    """A lease of a process that lives."""

    owner_alive = True

    def __init__(self, owner: tuple[int, bytes]) -> None:
        self.owner = owner


def test_an_equal_event_of_another_process_is_another_event(peer: p.Peer) -> None:
    handle = peer.call(event_handle, "e")
    one, another = (LeaseOf((7, nonce)) for nonce in (b"-first--", b"-second-"))
    first = ipc_events.open_event(0, one, handle)
    assert ipc_events.open_event(0, another, handle) is not first
    assert ipc_events.open_event(0, one, handle) is first
    del first
    ipc_events.close_all()
    gc.collect()
    mp_cuda.ipc_collect()


def event_handle(name: str) -> bytes:
    p.KEPT[name] = mp_cuda.Event(interprocess=True, device=0)
    handle: bytes = p.KEPT[name].ipc_handle()
    return handle


def at_once(messages: list[bytes]) -> list[Any]:
    """Unpickle the messages, each in its own thread."""
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


def opened_later(stub: Stub, function: str, gate: int, messages: list[bytes]) -> list[Any]:
    """Unpickle the messages, each in its own thread, which are in the driver's function at the same time."""
    stub.pause(function, gate)
    timer = threading.Timer(RACE_S, stub.open_gate, (gate,))
    timer.start()
    results = at_once(messages)
    timer.join()
    return results


@pytest.mark.needs_stub
def test_two_threads_that_receive_one_allocation_at_once_open_it_once(peer: p.Peer, stub: Stub, gate: int) -> None:
    messages = peer.call(made_and_shared, "a", b"at once", 2)
    before = stub.counters()["opens"]
    one, two = opened_later(stub, "cuIpcOpenMemHandle_v2", gate, messages)
    assert one.ptr == two.ptr and one.copy_to_host() == b"at once"
    assert stub.counters()["opens"] == before + 1


@pytest.mark.needs_stub
def test_memory_that_is_being_closed_is_opened_again_afterwards(peer: p.Peer, stub: Stub, gate: int) -> None:
    array, again = (pickle.loads(message) for message in peer.call(made_and_shared, "a", b"again", 2))
    stub.pause("cuIpcCloseMemHandle", gate)
    closing = threading.Thread(target=mp_cuda.ipc_collect)
    del array, again
    closing.start()
    (message,) = peer.call(shared_again, "a")
    (received,) = opened_later(stub, "cuIpcCloseMemHandle", gate, [message])
    closing.join(p.WAIT_S)
    assert received.copy_to_host() == b"again"


def shared_again(name: str) -> list[bytes]:
    return [pickle.dumps(mp_cuda.share(p.KEPT[name]))]


@pytest.mark.needs_stub
def test_two_threads_that_receive_one_event_at_once_get_one_event(peer: p.Peer, stub: Stub, gate: int) -> None:
    messages = peer.call(event_shared_twice, "e")
    one, two = opened_later(stub, "cuIpcOpenEventHandle", gate, messages)
    assert isinstance(one, mp_cuda.Event)
    assert one is two


def event_shared_twice(name: str) -> list[bytes]:
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
    peer.call(revoke_in_flight)
    work = mp_cuda.Stream(0)
    stub.stop_at(work.ptr, gate)
    event.wait(work)
    del event
    gc.collect()
    assert not until(lambda: peer.call(p.stats)["live_sends"] == 0, 0.3)
    stub.open_gate(gate)
    assert until(lambda: peer.call(p.stats)["live_sends"] == 0, p.WAIT_S)


def revoke_in_flight() -> None:
    mp_cuda.ipc_collect(in_flight_older_than=0)


@pytest.mark.needs_stub
def test_waiting_for_receivers_respects_its_timeout_while_this_process_works(
    peer: p.Peer, stub: Stub, gate: int
) -> None:
    theirs, ours = peer.call(p.make, "theirs", b"theirs"), mp_cuda.from_host(b"ours")
    peer.call(p.keep, "ours", ours)
    work = mp_cuda.Stream(0)
    stub.stop_at(work.ptr, gate)
    del theirs  # it cannot be closed before the gate opens
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(mp_cuda.wait_released(timeout=0.1)))
    thread.start()
    thread.join(5)
    still_there = thread.is_alive()
    stub.open_gate(gate)
    thread.join(p.WAIT_S)
    assert not still_there and answers == [False]


SENDING = ["cuPointerGetAttributes", "cuIpcGetMemHandle", "cuEventRecord"]
RECEIVING = ["cuIpcOpenMemHandle_v2", "cuStreamWaitEvent"]


@pytest.mark.needs_stub
@pytest.mark.parametrize("function", SENDING)
def test_a_send_that_fails_half_way_keeps_no_event(stub: Stub, function: str) -> None:
    def in_use() -> int:
        made, free, _ = ipc_events.counts()
        return made - free

    array = mp_cuda.from_host(b"half")
    before = in_use()
    stub.fail(function, 1, 1)
    with pytest.raises(mp_cuda.DriverError, match=function):
        mp_cuda.share(array)
    assert until(lambda: not live_exports(), p.WAIT_S)
    assert in_use() == before
    mp_cuda.share(array)


def test_a_receiver_killed_before_it_reads_leaves_a_message_that_can_be_revoked(mortal: p.Peer) -> None:
    pid = mortal.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped(pid))  # a thread that runs on the other core reads on until then
    mortal.begin(p.keep, "a", mp_cuda.from_host(b"unread"))
    mortal.process.kill()
    mortal.process.join(p.WAIT_S)
    assert not mp_cuda.wait_released(0.1)  # closing the connection now would revoke it: no reader is left
    mp_cuda.ipc_collect(in_flight_older_than=0)
    assert mp_cuda.wait_released(p.WAIT_S)


@pytest.mark.needs_stub
@pytest.mark.parametrize("function", SENDING)
def test_a_sender_killed_at_any_step_leaves_nothing(mortal: p.Peer, function: str) -> None:
    mortal.call(p.die_in, function)
    mortal.begin(p.make, "a", b"exported")
    mortal.process.join(p.WAIT_S)
    assert mortal.process.exitcode == -9
    with pytest.raises(EOFError):
        mortal.connection.recv()


@pytest.mark.needs_stub
@pytest.mark.parametrize("function", RECEIVING)
def test_a_receiver_killed_at_any_step_releases_everything(mortal: p.Peer, function: str) -> None:
    mortal.call(p.die_in, function)
    mortal.begin(p.keep, "a", mp_cuda.from_host(b"waiting"))
    mortal.process.join(p.WAIT_S)
    assert mortal.process.exitcode == -9
    assert mp_cuda.wait_released(p.WAIT_S)


@pytest.mark.needs_stub
@pytest.mark.parametrize("how", ["alone", "few", "beside a pickle"])
def test_a_message_whose_event_cannot_be_recorded_is_not_sent(stub: Stub, how: str) -> None:
    array = mp_cuda.from_host(b"work")
    thing = {"alone": array, "few": [array, 1], "beside a pickle": [array, {1}]}[how]
    stub.fail("cuEventRecord", 1, 2)
    with pytest.raises(mp_cuda.DriverError, match="cuEventRecord"):
        ForkingPickler.dumps(thing)
    stub.fail("", 0, 0)
    assert mp_cuda.wait_released(p.WAIT_S)
    ForkingPickler.loads(ForkingPickler.dumps(thing))


def test_a_process_that_waits_at_exit_stays_until_its_receivers_are_done(mortal: p.Peer) -> None:
    mortal.call(wait_at_exit, 60.0)
    array = mortal.call(p.make, "a", b"patient")
    mortal.connection.close()  # this ends it
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
