"""Readers wait for writers: on streams, by events, without blocking a thread."""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import threading
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any

import peer as p
import pytest
from device import Stub
from support.waiting import until

import mp_cuda
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.driver import cuda_driver, stream
from mp_cuda.driver.functions import synchronize


def fill(stub: Stub, on: Any, array: DeviceArray, value: int) -> None:
    with cuda_driver.guard(array.device):
        stub.library.mpstub_fill(
            ctypes.c_void_p(stream.stream_number(on)),
            ctypes.c_uint64(array.ptr),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(array.nbytes),
        )


@pytest.mark.needs_stub
@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_receiver_waits_for_the_stream_that_was_named(
    peer: p.Peer, stub: Stub, gate: int, non_blocking: bool
) -> None:
    work = mp_cuda.Stream(0, non_blocking=non_blocking)
    array = mp_cuda.from_host(b"early")
    stub.stop_at(work.ptr, gate)
    fill(stub, work, array, ord("L"))
    peer.begin(p.bytes_of, mp_cuda.share(array, stream=work))
    # Neither this thread nor the sending blocked; the receiver blocks in its copy.
    assert not work.query()
    assert not peer.connection.poll(0.2)
    stub.open_gate(gate)
    assert peer.answer() == b"LLLLL"


@pytest.mark.needs_stub
def test_a_receiver_waits_for_the_default_stream_when_none_is_named(peer: p.Peer, stub: Stub, gate: int) -> None:
    work = mp_cuda.Stream(0, non_blocking=False)
    array = mp_cuda.from_host(b"early")
    stub.stop_at(work.ptr, gate)
    fill(stub, work, array, ord("D"))
    peer.begin(p.bytes_of, array)
    assert not peer.connection.poll(0.2)
    stub.open_gate(gate)
    assert peer.answer() == b"DDDDD"


@pytest.mark.needs_stub
def test_a_queue_waits_for_the_whole_device_when_the_stream_is_unknown(peer: p.Peer, stub: Stub, gate: int) -> None:
    inbox = multiprocessing.get_context("spawn").Queue()  # a thread of it pickles; one with a ring pickles in put()
    try:
        work = mp_cuda.Stream(0)  # the default stream does not wait for it
        array = mp_cuda.from_host(b"early")
        stub.stop_at(work.ptr, gate)
        fill(stub, work, array, ord("Q"))
        inbox.put(array)
        with pytest.raises(queue.Empty):
            inbox.get(timeout=0.2)
        stub.open_gate(gate)
        assert inbox.get(timeout=p.WAIT_S).copy_to_host() == b"QQQQQ"
    finally:
        inbox.close()
        inbox.join_thread()


@pytest.mark.needs_stub
@pytest.mark.parametrize("how", ["limit", "driver"])
def test_without_events_the_sender_waits_instead(mortal: p.Peer, stub: Stub, how: str) -> None:
    if how == "limit":
        mortal.call(no_events)
    else:
        mortal.call(p.fail, "cuEventCreate", 2, 1)
    assert mortal.call(filled).copy_to_host() == b"WWWWW"
    assert mortal.call(p.stats)["pool_events"] == 0


def no_events() -> None:
    mp_cuda.set_policy(event_pool=0)


def filled() -> Any:
    work = p.KEPT["work"] = mp_cuda.Stream(0)
    array = mp_cuda.from_host(b"early")
    with cuda_driver.guard(0):
        cuda_driver.call("cuMemsetD8Async", array.ptr, ord("W"), array.nbytes, stream.as_stream(work))
    shared = mp_cuda.share(array, stream=work)
    assert work.query()
    return shared


@pytest.mark.needs_stub
def test_memory_that_is_sent_on_waits_for_the_work_of_both_senders(peer: p.Peer, stub: Stub, gate: int) -> None:
    array = peer.call(p.make, "a", b"early")
    work = mp_cuda.Stream(0)
    stub.stop_at(work.ptr, gate)
    fill(stub, work, array, ord("F"))
    peer.begin(p.bytes_of, mp_cuda.share(array, stream=work))
    assert not peer.connection.poll(0.2)
    stub.open_gate(gate)
    assert peer.answer() == b"FFFFF"


@pytest.mark.needs_stub
def test_other_threads_run_while_one_waits_in_the_driver(peer: p.Peer, stub: Stub, gate: int) -> None:
    """The bindings 12.9.0 hold the interpreter lock meanwhile, although the awaited work may need it."""
    work = mp_cuda.Stream(0)
    stub.stop_at(work.ptr, gate)
    waiting = threading.Thread(target=synchronize, args=(0,))
    peer.begin(open_later, gate, 0.5)
    waiting.start()
    steps = 0
    while waiting.is_alive():
        steps += 1
        waiting.join(0.01)
    peer.answer()
    assert steps > 5


def open_later(gate: int, seconds: float) -> None:
    time.sleep(seconds)
    ctypes.CDLL("libcuda.so.1").mpstub_open_gate(gate)


@pytest.mark.needs_stub
def test_memory_is_released_after_the_work_on_it(peer: p.Peer, stub: Stub, gate: int) -> None:
    array = peer.call(p.make, "a", b"busy")
    work = mp_cuda.Stream(0)
    stub.stop_at(work.ptr, gate)
    fill(stub, work, array, 1)
    del array
    # Dropping it does not wait; the memory stays open until the work is done.
    assert until(lambda: peer.call(p.stats)["live_sends"] == 0, 0.3) is False
    stub.open_gate(gate)
    assert until(lambda: peer.call(p.stats)["live_sends"] == 0, p.WAIT_S)


def test_the_stream_of_a_dlpack_consumer_waits(peer: p.Peer) -> None:
    array = peer.call(p.make, "a", b"pack")
    consumer = mp_cuda.Stream(0)
    capsule = array.__dlpack__(stream=consumer.ptr, max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    consumer.synchronize()


# ---- events ----------------------------------------------------------------------------------------------------------


@pytest.mark.needs_stub
def test_a_sent_event_tells_when_work_here_is_done(peer: p.Peer, stub: Stub, gate: int) -> None:
    event = mp_cuda.Event(interprocess=True)
    peer.call(p.keep, "e", event)
    assert peer.call(p.query, "e")
    stub.stop_at(1, gate)
    event.record()
    assert not event.query() and not peer.call(p.query, "e")
    stub.open_gate(gate)
    event.synchronize()
    assert event.query() and peer.call(p.query, "e")


@pytest.mark.needs_stub
def test_work_in_another_process_waits_for_an_event(peer: p.Peer, stub: Stub, gate: int) -> None:
    array, event = mp_cuda.from_host(b"12345"), mp_cuda.Event(interprocess=True)
    peer.call(p.keep, "a", array)
    peer.call(p.keep, "e", event)
    stub.stop_at(1, gate)
    event.record()
    peer.begin(double_after, "a", "e")
    assert not peer.connection.poll(0.2)
    stub.open_gate(gate)
    assert peer.answer() == b"12345"


def double_after(array: str, event: str) -> bytes:
    work = mp_cuda.Stream(0)
    p.KEPT[event].wait(work)
    return p.KEPT[array].copy_to_host(stream=work)


def test_a_receiver_records_an_event_of_the_sender(peer: p.Peer) -> None:
    event = mp_cuda.Event(interprocess=True)
    peer.call(p.keep, "e", event)
    peer.call(p.record, "e")
    event.synchronize()
    assert event.query()


def test_an_event_arrives_twice_as_one_object_and_in_its_own_process_as_itself(peer: p.Peer) -> None:
    event = mp_cuda.Event(interprocess=True)
    assert ForkingPickler.loads(ForkingPickler.dumps(event)) is event
    peer.call(p.keep, "e", event)
    peer.call(p.keep, "f", event)
    assert peer.call(same, "e", "f")


def same(a: str, b: str) -> bool:
    return p.KEPT[a] is p.KEPT[b]


def test_an_event_lives_while_another_process_uses_it(peer: p.Peer) -> None:
    peer.call(p.keep, "e", mp_cuda.Event(interprocess=True))
    mp_cuda.ipc_collect()
    assert peer.call(p.query, "e")
    peer.call(p.record, "e")


@pytest.mark.parametrize("device", [0, 1])
def test_a_handle_of_64_bytes_is_opened_by_another_process(peer: p.Peer, device: int) -> None:
    if mp_cuda.device_count() <= device:
        pytest.skip(f"needs {device + 1} devices")
    event = mp_cuda.Event(interprocess=True, device=device)
    handle = event.ipc_handle()
    assert len(handle) == 64
    peer.call(open_event, "e", device, handle)
    event.record(mp_cuda.Stream(device))
    event.synchronize()
    assert peer.call(p.query, "e")
    peer.call(p.drop, "e")


def open_event(name: str, device: int, handle: bytes) -> None:
    p.KEPT[name] = mp_cuda.Event.from_ipc_handle(device, handle)


def test_an_event_that_cannot_be_sent_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match="interprocess=True"):
        ForkingPickler.dumps(mp_cuda.Event())
    with pytest.raises(ValueError, match="cannot measure time"):
        mp_cuda.Event(enable_timing=True, interprocess=True)
    with pytest.raises(ValueError, match="size 64, not 3"):
        mp_cuda.Event.from_ipc_handle(0, b"abc")


def test_an_event_is_on_the_device_of_the_first_stream_that_records_it() -> None:
    if mp_cuda.device_count() < 2:
        pytest.skip("needs two devices")
    event = mp_cuda.Event()
    assert event.device is None and event.query()
    event.record(mp_cuda.Stream(1))
    assert event.device == 1


def test_time_is_measured_between_two_events() -> None:
    start, end = mp_cuda.Event(enable_timing=True), mp_cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0


def test_streams_of_every_library_are_accepted() -> None:
    class Torch:
        cuda_stream = 0x70

    class Numba:
        class handle:
            value = 0x60

    class Core:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0x50

    numbers = [stream.stream_number(s) for s in (None, 0, 1, 2, Torch(), Numba(), Core())]
    assert numbers == [1, 1, 1, 2, 0x70, 0x60, 0x50]
    with pytest.raises(TypeError, match="is not a stream"):
        stream.stream_number("fast")
    ours = mp_cuda.Stream()
    assert mp_cuda.Stream.from_external(ours).ptr == ours.ptr
    assert ours.query()
