"""Memory lives until the last receiver has closed it, and no longer, even if processes are killed."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import peer as p
import pytest
from device import Stub
from doubles import OnlyDLPack
from support.waiting import until

import mp_all as mp
import mp_cuda
from mp_cuda.driver.functions import live_exports


def test_a_sender_can_wait_until_its_receivers_have_released_its_memory(peer: p.Peer) -> None:
    peer.call(p.keep, "a", mp_cuda.from_host(b"kept"))
    assert not mp_cuda.wait_released(timeout=0)
    assert mp_cuda.ipc_stats()["live_sends"] == 1
    peer.call(p.drop, "a")
    assert mp_cuda.wait_released(p.WAIT_S)


@pytest.mark.needs_stub
def test_memory_is_freed_after_the_last_receiver_and_not_before(peer: p.Peer, third: p.Peer, stub: Stub) -> None:
    before = stub.counters()["frees"]
    array = mp_cuda.from_host(b"both")
    peer.call(p.keep, "a", array)
    third.call(p.keep, "a", array)
    del array
    peer.call(p.drop, "a")
    mp_cuda.ipc_collect()
    assert stub.counters()["frees"] == before
    third.call(p.drop, "a")
    assert mp_cuda.wait_released(p.WAIT_S)
    mp_cuda.ipc_collect()
    assert stub.counters()["frees"] == before + 1


def test_the_death_of_a_receiver_releases_its_reference(mortal: p.Peer) -> None:
    mortal.call(p.keep, "a", mp_cuda.from_host(b"victim"))
    mortal.kill()
    assert mp_cuda.wait_released(p.WAIT_S)


@pytest.mark.parametrize("way", ["before it was sent on", "after"])
def test_memory_is_sent_on_and_its_second_receiver_keeps_it(mortal: p.Peer, third: p.Peer, way: str) -> None:
    ours, theirs = mp.get_context("spawn").Pipe()
    array = mp_cuda.from_host(b"onward")
    mortal.call(p.keep, "a", array)
    mortal.call(p.keep, "pipe", theirs)
    theirs.close()
    mortal.call(send_on, "pipe", "a")
    if way == "after":
        third.call(p.keep, "pipe", ours)
        third.call(receive_from, "pipe", "a")
        mortal.kill()
    else:
        mortal.kill()
        third.call(p.keep, "pipe", ours)
        third.call(receive_from, "pipe", "a")
    ours.close()
    assert third.call(p.content, "a") == b"onward"
    third.call(p.write, "a", b"return")
    assert array.copy_to_host() == b"return"
    assert not mp_cuda.wait_released(timeout=0)
    third.call(p.drop, "a", "pipe")
    assert mp_cuda.wait_released(p.WAIT_S)


def send_on(pipe: str, name: str) -> None:
    p.KEPT[pipe].send(p.KEPT[name])


def receive_from(pipe: str, name: str) -> None:
    p.KEPT[name] = p.KEPT[pipe].recv()


def test_memory_sent_back_later_uses_the_lease_of_its_own_message(mortal: p.Peer) -> None:
    """The receiver has had the memory open since an earlier message, which was released in between."""
    ours, theirs = mp.get_context("spawn").Pipe()
    mortal.call(p.keep, "pipe", theirs)
    theirs.close()
    array = mp_cuda.from_host(b"later")
    mortal.call(p.keep, "first", mp_cuda.as_device_array(OnlyDLPack(array)))  # another owner, so another lease
    mortal.call(p.keep, "second", array)
    assert len(live_exports()) == 2
    mortal.call(p.drop, "first")
    assert until(lambda: len(live_exports()) == 1, p.WAIT_S)
    mortal.call(send_on, "pipe", "second")
    assert ours.recv().ptr == array.ptr
    ours.close()


def test_a_message_is_good_for_one_receiver(peer: p.Peer, third: p.Peer) -> None:
    message = pickle.dumps(mp_cuda.share(mp_cuda.from_host(b"once")))
    peer.call(load, "a", message)
    with pytest.raises(mp_cuda.StaleHandleError, match="1 receiver and"):
        third.call(load, "a", message)
    with pytest.raises(mp_cuda.StaleHandleError):
        pickle.loads(message)
    assert peer.call(p.content, "a") == b"once"


def load(name: str, message: bytes) -> None:
    p.KEPT[name] = pickle.loads(message)


def test_a_message_for_two_is_good_for_two(peer: p.Peer, third: p.Peer) -> None:
    message = pickle.dumps(mp_cuda.share(mp_cuda.from_host(b"twice"), receivers=2))
    for one in peer, third:
        one.call(load, "a", message)
    with pytest.raises(mp_cuda.StaleHandleError, match="2 receivers"):
        pickle.loads(message)
    peer.call(p.drop, "a")
    assert not mp_cuda.wait_released(timeout=0)
    assert third.call(p.content, "a") == b"twice"


def test_a_message_that_no_process_reads_can_be_revoked() -> None:
    array = mp_cuda.from_host(b"lost")
    message = bytes(ForkingPickler.dumps(array))
    assert mp_cuda.ipc_collect() == 0
    assert mp_cuda.ipc_collect(in_flight_older_than=3600) == 0
    mp_cuda.ipc_collect(in_flight_older_than=0)
    assert mp_cuda.wait_released(p.WAIT_S)
    with pytest.raises(mp_cuda.StaleHandleError):
        ForkingPickler.loads(message)


def test_a_shared_array_that_was_never_pickled_is_revoked() -> None:
    shared = mp_cuda.share(mp_cuda.from_host(b"unsent"))
    assert mp_cuda.ipc_stats()["live_sends"] == 1
    del shared
    assert mp_cuda.wait_released(p.WAIT_S)


def test_a_message_that_cannot_be_pickled_keeps_nothing() -> None:
    array = mp_cuda.from_host(b"failed")
    with pytest.raises(Exception, match="lambda"):
        ForkingPickler.dumps((array, lambda: 0))
    assert mp_cuda.wait_released(p.WAIT_S)


def test_memory_of_a_process_that_was_killed_is_not_opened(mortal: p.Peer) -> None:
    message = mortal.call(dumped, b"too late")
    mortal.kill()
    with pytest.raises(mp_cuda.ProducerGoneError, match="8 bytes, has ended"):
        pickle.loads(message)


def dumped(data: bytes) -> bytes:
    p.KEPT["sent"] = mp_cuda.from_host(data)
    return pickle.dumps(mp_cuda.share(p.KEPT["sent"]))


def is_orphan(array: Any) -> bool:
    return not array.producer_alive


def test_a_receiver_outlives_a_sender_that_was_killed(mortal: p.Peer) -> None:
    array = mortal.call(p.make, "a", b"short")
    assert array.producer_alive
    mortal.kill()
    assert until(functools.partial(is_orphan, array), p.WAIT_S)
    del array
    gc.collect()
    mp_cuda.ipc_collect()
    assert mp_cuda.ipc_stats()["mappings"] == 0


def test_damaged_messages_are_errors() -> None:
    function, (offers, table, layout, *more) = mp_cuda.share(mp_cuda.from_host(b"whole")).__reduce__()
    for parts in (
        (offers, table, layout),
        (offers, b"", layout, *more),
        (offers[:0], table, layout, *more),
        ((b"short",), table, layout, *more),
        (offers, None, layout, *more),
    ):
        with pytest.raises(ValueError, match="damaged"):
            function(*parts)
    with pytest.raises(ValueError, match="version 99"):
        function(offers, b"\x63" + table[1:], layout, *more)
    mp_cuda.ipc_collect(in_flight_older_than=0)


@pytest.mark.parametrize("damage", ["no end", "a lease too many", "an array outside of its memory", "half a layout"])
def test_a_message_that_is_damaged_behind_its_lease_keeps_no_reference(peer: p.Peer, damage: str) -> None:
    _, (offers, table, layout, *more) = mp_cuda.share(mp_cuda.from_host(b"whole")).__reduce__()
    if damage == "no end":
        table = table[:-1]
    elif damage == "a lease too many":
        at = 12 + 24  # of the first allocation
        table = table[:at] + b"\7" + table[at + 1 :]
    elif damage == "half a layout":
        layout = layout[:-8]
    else:
        layout = layout[:16] + (1).to_bytes(8, "little") + layout[24:]
    with pytest.raises(ValueError, match="damaged"):
        peer.call(rebuilt, (offers, table, layout, *more))
    assert mp_cuda.wait_released(p.WAIT_S)


def rebuilt(parts: tuple[Any, ...]) -> None:
    from mp_cuda.libraries.reduce import rebuild_alone

    rebuild_alone(*parts)


@pytest.mark.needs_stub
def test_a_failed_opening_keeps_no_reference(stub: Stub) -> None:
    with_peer = p.Peer()
    array = mp_cuda.from_host(b"fails")
    with_peer.call(p.fail, "cuIpcOpenMemHandle_v2", 2)
    with pytest.raises(mp_cuda.DriverError, match=r"cuIpcOpenMemHandle.*OUT_OF_MEMORY"):
        with_peer.call(p.keep, "a", array)
    assert mp_cuda.wait_released(p.WAIT_S)
    with_peer.call(p.keep, "a", array)
    with_peer.close()


@pytest.mark.needs_stub
def test_released_memory_is_collected_when_an_allocation_fails(peer: p.Peer, stub: Stub) -> None:
    stub.fail("cuMemAlloc_v2", 2, 1)
    assert mp_cuda.from_host(b"second try").copy_to_host() == b"second try"
    stub.fail("cuMemAlloc_v2", 2, 2)
    with pytest.raises(mp_cuda.DeviceMemoryError, match="cannot allocate 12 bytes on device 0"):
        mp_cuda.empty(12, "uint8")


def test_finalizers_run_anywhere_without_a_deadlock(peer: p.Peer) -> None:
    """Garbage is collected every few allocations, also while our locks are held and other threads send and drop."""
    failures = []

    def churn() -> None:
        try:
            for i in range(15):
                array = mp_cuda.from_host(bytes([i]))
                back = ForkingPickler.loads(ForkingPickler.dumps(array))
                cycle: list[Any] = [array, back]
                cycle.append(cycle)
        except BaseException as error:
            failures.append(error)

    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(15):
            peer.call(p.keep, "a", mp_cuda.from_host(bytes([i])))
        for thread in threads:
            thread.join(p.WAIT_S)
            assert not thread.is_alive()
    finally:
        gc.set_threshold(*before)
    assert not failures


@pytest.mark.needs_stub
def test_many_arrays_leave_nothing_behind(peer: p.Peer, stub: Stub) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = mp_cuda.ipc_stats()["pool_events"]
    total = 0
    for i in range(300):
        total += sum(peer.call(p.bytes_of, mp_cuda.from_host(bytes([i % 251, 1]))))
        if i % 50 == 49:
            assert mp_cuda.wait_released(p.WAIT_S)
    assert total == sum(i % 251 + 1 for i in range(300))
    assert not live_exports()
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    # Events return to the pool: no more are made than are in flight at one time.
    assert mp_cuda.ipc_stats()["pool_events"] <= made + 50
    assert until(lambda: peer.call(p.stats)["mappings"] == 0)


@pytest.mark.needs_stub
def test_a_message_with_any_wrong_byte_is_an_error_or_arrives() -> None:
    """Each byte of the table and of the layout, in turn; no reference is left behind in any case."""
    from mp_cuda.libraries.reduce import rebuild_alone

    array = mp_cuda.from_host(b"wrong")
    _, (_, table, layout, *_) = mp_cuda.share(array).__reduce__()
    mp_cuda.ipc_collect(in_flight_older_than=0)
    errors = (ValueError, mp_cuda.MpCudaError, OverflowError)
    for at in range(len(table) + len(layout)):
        _, (offers, table, layout, *more) = mp_cuda.share(array).__reduce__()
        if at < len(table):
            table = table[:at] + bytes([table[at] ^ 0x41]) + table[at + 1 :]
        else:
            at -= len(table)
            layout = layout[:at] + bytes([layout[at] ^ 0x41]) + layout[at + 1 :]
        try:
            rebuild_alone(offers, table, layout, *more)
        except errors:
            pass
    mp_cuda.ipc_collect(in_flight_older_than=0)
