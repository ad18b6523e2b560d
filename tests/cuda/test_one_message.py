"""What a message costs: one lease, one event for a stream, one handle for an allocation; and none of it again."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import peer as p
import pytest
from device import Stub
from support.scripts import run_script, succeeded
from support.waiting import until
from test_order import fill

import mp_all as mp
import mp_cuda
from mp_cuda.arrays.array import DeviceArray
from mp_cuda.arrays.dtype import dtype_of
from mp_cuda.driver import cuda_driver, finalizer_queue
from mp_cuda.driver.functions import live_exports
from mp_cuda.sharing import ipc_events

pytestmark = pytest.mark.needs_stub

BYTE = dtype_of("uint8")
CALLS = [
    "cuEventCreate", "cuEventRecord", "cuIpcCloseMemHandle", "cuIpcGetEventHandle", "cuIpcGetMemHandle",
    "cuIpcOpenEventHandle", "cuIpcOpenMemHandle_v2", "cuMemGetAddressRange_v2", "cuPointerGetAttribute",
    "cuPointerGetAttributes", "cuStreamWaitEvent",
]  # fmt: skip


class Calls(dict[str, int]):
    """How often the driver's functions were called, in all processes."""


@contextmanager
def counted(stub: Stub) -> Iterator[Calls]:
    before = {name: stub.calls(name) for name in CALLS}
    calls = Calls()
    yield calls
    calls.update({name: stub.calls(name) - before[name] for name in CALLS if stub.calls(name) != before[name]})


def part(base: DeviceArray, at: int, nbytes: int) -> DeviceArray:
    return DeviceArray(base.ptr + at, (nbytes,), BYTE, 0, owner=base._owner)


def state_dict() -> dict[str, DeviceArray]:
    """Make 100 arrays of 16 KiB in two allocations."""
    bases = [mp_cuda.from_host(bytes([i]) * 50 * 16384) for i in range(2)]
    return {f"{i}.{at}": part(bases[i], at * 16384, 16384) for i in range(2) for at in range(50)}


def total(arrays: dict[str, Any]) -> int:
    return sum(sum(array.copy_to_host()) for array in arrays.values())


def length(things: Any) -> int:
    return len(things)


def test_a_state_dict_has_one_lease_one_event_and_a_handle_for_each_allocation(peer: p.Peer, stub: Stub) -> None:
    state = state_dict()
    with counted(stub) as calls:
        peer.call(p.keep, "state", state)
    assert len(live_exports()) == 1
    assert mp_cuda.ipc_stats()["claims"] == 1
    assert calls["cuIpcGetMemHandle"] == calls["cuIpcOpenMemHandle_v2"] == 2
    assert calls["cuEventRecord"] == calls["cuStreamWaitEvent"] == 1
    assert calls.get("cuIpcOpenEventHandle", 0) <= 1
    assert peer.call(given_total, "state") == 50 * 16384


def given_total(name: str) -> int:
    return total(p.KEPT[name])


def test_an_array_that_is_sent_again_costs_one_record_and_one_wait(peer: p.Peer, stub: Stub) -> None:
    array = mp_cuda.from_host(b"again")
    for _ in range(3):  # events and openings of the first time
        assert peer.call(length, [array]) == 1
    with counted(stub) as calls:
        for _ in range(10):
            assert peer.call(length, [array]) == 1
    assert calls == {"cuEventRecord": 10, "cuStreamWaitEvent": 10}
    assert len(live_exports()) == 1


def test_an_allocation_is_described_once_for_all_arrays_on_it(peer: p.Peer, stub: Stub) -> None:
    base = mp_cuda.from_host(bytes(4000))
    peer.call(p.keep, "first", mp_cuda.as_device_array(base))
    views = [DeviceArray(base.ptr + 40 * i, (40,), BYTE, 0, owner=[base]) for i in range(100)]  # each its own owner
    with counted(stub) as calls:
        assert peer.call(length, views) == 100
    assert calls.get("cuPointerGetAttributes", 0) == calls.get("cuMemGetAddressRange_v2", 0) == 0
    assert calls.get("cuIpcGetMemHandle", 0) == 0


class Computed:
    """Gives the device work while it is pickled: it sends an array that it only then fills."""

    def __init__(self, array: DeviceArray, work: Any, start: Any) -> None:
        self.array, self.work, self.start = array, work, start

    def __reduce__(self) -> Any:
        self.start()
        return identity, (self.array._replace(stream=self.work.ptr),)


def identity(thing: Any) -> Any:
    return thing


def last_of(arrays: list[Any]) -> bytes:
    content: bytes = arrays[-1].copy_to_host()
    return content


def test_readers_wait_for_work_that_was_begun_while_the_message_was_pickled(
    peer: p.Peer, stub: Stub, gate: int
) -> None:
    work = mp_cuda.Stream(0)
    early, late = mp_cuda.from_host(b"early"), mp_cuda.from_host(b"early")

    def start() -> None:
        stub.stop_at(work.ptr, gate)
        fill(stub, work, late, ord("L"))

    peer.begin(last_of, [early._replace(stream=work.ptr), Computed(late, work, start)])
    assert not peer.connection.poll(0.2)
    stub.open_gate(gate)
    assert peer.answer() == b"LLLLL"


# ---- lingering -------------------------------------------------------------------------------------------------------


def lingering(peer: p.Peer) -> tuple[int, int]:
    stats = peer.call(p.stats)
    return stats["mappings"], stats["lingering"]


def dropped(peer: p.Peer, array: DeviceArray) -> None:
    """Send an array, which the receiver drops."""
    assert peer.call(length, [array]) == 1
    assert until(lambda: lingering(peer) == (1, 1), p.WAIT_S)


def test_memory_lingers_while_its_sender_has_it_and_is_closed_when_the_sender_drops_it(
    peer: p.Peer, stub: Stub
) -> None:
    peer.call(set_linger, 3600)
    array = mp_cuda.from_host(b"linger")
    dropped(peer, array)
    before = stub.counters()["frees"]
    with counted(stub) as calls:
        dropped(peer, array)
    assert "cuIpcOpenMemHandle_v2" not in calls and "cuIpcCloseMemHandle" not in calls
    assert stub.counters()["frees"] == before
    del array
    gc.collect()
    assert until(lambda: stub.counters()["frees"] == before + 1, p.WAIT_S)  # in order, or it were a violation
    assert lingering(peer) == (0, 0)
    peer.call(set_linger, 1)


def set_linger(seconds: float) -> None:
    mp_cuda.set_policy(linger=seconds)


def test_memory_that_no_message_needs_for_a_while_is_closed(peer: p.Peer) -> None:
    peer.call(set_linger, 0.1)
    array = mp_cuda.from_host(b"a while")
    assert peer.call(length, [array]) == 1
    assert until(lambda: lingering(peer) == (0, 0), p.WAIT_S)
    assert until(lambda: not live_exports(), p.WAIT_S)
    assert array.copy_to_host() == b"a while"
    peer.call(set_linger, 1)


def test_memory_is_closed_at_once_if_nothing_is_to_linger(peer: p.Peer, stub: Stub) -> None:
    peer.call(set_linger, 0)
    array = mp_cuda.from_host(b"at once")
    for _ in range(3):
        assert peer.call(length, [array]) == 1
        assert until(lambda: lingering(peer) == (0, 0), p.WAIT_S)
    peer.call(set_linger, 1)


@pytest.mark.parametrize("asks", ["ipc_collect", "wait_released", "allocation"])
def test_lingering_memory_is_given_back_on_request(peer: p.Peer, stub: Stub, asks: str) -> None:
    peer.call(set_linger, 3600)
    array = mp_cuda.from_host(b"request")
    dropped(peer, array)
    if asks == "ipc_collect":
        mp_cuda.ipc_collect()
    elif asks == "wait_released":
        assert mp_cuda.wait_released(p.WAIT_S)
    else:
        stub.fail("cuMemAlloc_v2", 2, 1)
        mp_cuda.empty(3)
        assert not live_exports()
    assert until(lambda: lingering(peer) == (0, 0), p.WAIT_S)
    assert array.copy_to_host() == b"request"
    peer.call(set_linger, 1)


def test_a_receiver_killed_while_memory_lingers_releases_it(mortal: p.Peer) -> None:
    mortal.call(set_linger, 3600)
    array = mp_cuda.from_host(b"killed")
    dropped(mortal, array)
    mortal.kill()
    assert until(lambda: not live_exports(), p.WAIT_S)
    assert array.copy_to_host() == b"killed"


def test_memory_that_lingers_is_closed_when_its_sender_was_killed(mortal: p.Peer) -> None:
    mp_cuda.set_policy(linger=3600)
    array = mortal.call(p.make, "a", b"orphan")
    del array
    assert until(lambda: mp_cuda.ipc_stats()["lingering"] == 1, p.WAIT_S)
    mortal.kill()
    assert until(lambda: mp_cuda.ipc_stats()["mappings"] == 0, p.WAIT_S)
    mp_cuda.set_policy(linger=1)


def test_a_sender_that_ends_while_its_memory_lingers_warns_about_nothing(tmp_path: Path) -> None:
    text = """
        import mp_all as mp
        import mp_cuda

        def receiver(inbox, outbox):
            mp_cuda.set_policy(linger=3600)
            while inbox.get() is not None:
                outbox.put(1)

        def sender(inbox, outbox):
            array = mp_cuda.from_host(b"sent")
            inbox.put(array)
            outbox.get()

        if __name__ == "__main__":
            ctx = mp.get_context("spawn")
            inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
            processes = [ctx.Process(target=function, args=(inbox, outbox)) for function in (receiver, sender)]
            for process in processes:
                process.start()
            processes[1].join(60)
            inbox.put(None)
            processes[0].join(60)
            print(*(process.exitcode for process in processes))
    """
    assert succeeded(run_script(tmp_path, text, PYTHONWARNINGS="always")) == "0 0\n"


def close_recalled() -> None:
    finalizer_queue.drain()


def test_a_stream_of_new_arrays_keeps_few_of_them(peer: p.Peer, stub: Stub) -> None:
    """
    Each is dropped by its sender at once, so none lingers for long.

    The receiver closes what is recalled before the next message. Its thread does that only when it next runs, and a
    hundred messages take less.
    """
    peer.call(set_linger, 3600)
    most = 0
    for i in range(100):
        assert peer.call(length, [mp_cuda.from_host(bytes([i]))]) == 1
        peer.call(close_recalled)
        most = max(most, len(live_exports()))
    assert most <= 8, f"{most} of 100"
    peer.call(set_linger, 1)


def test_the_thread_of_a_receiver_closes_a_stream_of_new_arrays(peer: p.Peer) -> None:
    peer.call(set_linger, 3600)
    for i in range(100):
        assert peer.call(length, [mp_cuda.from_host(bytes([i]))]) == 1
    assert until(lambda: not live_exports(), p.WAIT_S), live_exports()
    peer.call(set_linger, 1)


# ---- owners that die -------------------------------------------------------------------------------------------------


def message_of(name: str, data: bytes) -> bytes:
    return bytes(ForkingPickler.dumps(p.make(name, data)))


def test_memory_whose_owner_dies_while_it_is_opened_is_not_given_out(mortal: p.Peer, stub: Stub, gate: int) -> None:
    message = mortal.call(message_of, "a", b"moment")
    before = stub.counters()
    stub.pause("cuIpcOpenMemHandle_v2", gate)

    def die() -> None:
        assert until(lambda: stub.calls("cuIpcOpenMemHandle_v2") > calls, p.WAIT_S)
        mortal.kill()
        stub.open_gate(gate)  # the driver does not refuse

    calls = stub.calls("cuIpcOpenMemHandle_v2")
    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(mp_cuda.ProducerGoneError, match="has ended"):
        ForkingPickler.loads(message)
    thread.join()
    mp_cuda.ipc_collect()
    after = stub.counters()
    assert after["opens"] - before["opens"] == after["closes"] - before["closes"] == 1


def test_the_driver_opens_the_memory_of_a_dead_process(mortal: p.Peer) -> None:
    """If this fails, the stub behaves otherwise than an H100."""
    memory = mortal.call(handle_of, b"ghost")
    mortal.kill()
    with cuda_driver.guard(0):
        given = cuda_driver.handle_from("CUipcMemHandle", memory)
        cuda_driver.call("cuIpcCloseMemHandle", cuda_driver.call("cuIpcOpenMemHandle", given, 1))


def handle_of(data: bytes) -> bytes:
    array = p.make("a", data)
    with cuda_driver.guard(0):
        return cuda_driver.bytes_of(cuda_driver.call("cuIpcGetMemHandle", array.ptr))


# ---- events ----------------------------------------------------------------------------------------------------------


def test_messages_that_wait_to_be_read_have_an_event_each_and_return_them(peer: p.Peer) -> None:
    ours, theirs = mp.get_context("spawn").Pipe()
    array = mp_cuda.from_host(b"waiting")
    made = mp_cuda.ipc_stats()["pool_events"]
    for _round in range(3):
        for _ in range(20):
            ours.send(array)
        assert mp_cuda.ipc_stats()["pool_events"] <= max(made, 30)
        peer.call(p.keep, "pipe", theirs)
        peer.call(read, "pipe", 20)
    theirs.close()
    ours.close()


def read(pipe: str, count: int) -> None:
    for _ in range(count):
        p.KEPT[pipe].recv()


def test_a_process_with_as_many_events_as_the_driver_allows_sends_on(tmp_path: Path) -> None:
    text = """
        import mp_all as mp
        import mp_cuda

        if __name__ == "__main__":
            ours, theirs = mp.get_context("spawn").Pipe()
            mine = [mp_cuda.Event(interprocess=True, device=0) for _ in range(5)]
            for event in mine:
                event.record()
            arrays = [mp_cuda.from_host(bytes([i])) for i in range(10)]
            for array in arrays:
                ours.send(array)
            print(*(theirs.recv().copy_to_host()[0] for _ in arrays))
            del event, mine[0]
            mp_cuda.Event(interprocess=True, device=0).record()
    """
    assert succeeded(run_script(tmp_path, text, MP_CUDA_STUB_EVENTS="6")) == " ".join(map(str, range(10))) + "\n"


def test_the_events_of_other_processes_make_room_for_new_ones(peer: p.Peer, stub: Stub) -> None:
    array = peer.call(p.make, "a", b"crowded")
    del array
    ipc_events.close_all()
    mp_cuda.ipc_collect()
    stub.fail("cuIpcOpenEventHandle", 2, 1)
    assert peer.call(p.give, "a").copy_to_host() == b"crowded"


# ---- memory that is sent on ------------------------------------------------------------------------------------------


def test_an_array_that_another_library_sends_on_keeps_all_messages_that_may_have_brought_it(
    peer: p.Peer, third: p.Peer
) -> None:
    base = mp_cuda.from_host(b"onetwo")
    for name, at in ("a", 0), ("b", 3):  # each has an owner of its own, and so a lease
        peer.call(p.keep, name, DeviceArray(base.ptr + at, (3,), BYTE, 0, owner=[base]))
    assert len(live_exports()) == 2
    ours, theirs = mp.get_context("spawn").Pipe()
    peer.call(p.keep, "pipe", theirs)
    third.call(p.keep, "pipe", ours)
    ours.close()
    theirs.close()
    peer.call(send_by_another_library, "pipe", "a")
    third.call(receive, "pipe", "a")
    peer.call(p.drop, "a", "b", "pipe")
    mp_cuda.ipc_collect()
    assert len(live_exports()) == 2
    assert third.call(p.content, "a") == b"one"


def send_by_another_library(pipe: str, name: str) -> None:
    from doubles import OnlyDLPack

    p.KEPT[pipe].send(mp_cuda.share(OnlyDLPack(p.KEPT[name])))


def receive(pipe: str, name: str) -> None:
    p.KEPT[name] = p.KEPT[pipe].recv()


def test_the_stub_counts_the_calls_of_all_processes(peer: p.Peer, stub: Stub) -> None:
    before = stub.calls("cuMemAlloc_v2")
    peer.call(p.make, "a", b"counted")
    assert stub.calls("cuMemAlloc_v2") == before + 1
    assert os.getpid() != peer.process.pid and ctypes.sizeof(ctypes.c_uint64) == 8
