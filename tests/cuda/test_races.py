"""What another thread, a finalizer or a fork sees in the middle of a change, each time at the worst moment."""

from __future__ import annotations

import os
import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import peer as p
import pytest
from device import Stub
from support.scripts import run_script, succeeded
from support.waiting import until
from test_failures import event_shared_twice

import mp_cuda
from mp_cuda.driver import finalizer_queue
from mp_cuda.driver.functions import set_hooks
from mp_cuda.sharing import ipc_events
from mp_cuda.sharing.holders import list_holders

pytestmark = pytest.mark.needs_stub

# ---- exports that end meanwhile --------------------------------------------------------------------------------------


def test_an_export_may_end_while_its_library_is_asked_whether_the_program_uses_the_memory(tmp_path: Path) -> None:
    text = """
        from multiprocessing.reduction import ForkingPickler
        import mp_all, mp_cuda
        from mp_cuda.arrays.array import DeviceArray
        from mp_cuda.sharing.exports import in_use

        class Owner(list):
            pass

        asked = []

        def revoked(owner):
            asked.append(owner)
            if len(asked) == 1:
                mp_cuda.ipc_collect(in_flight_older_than=0)
            return False

        def array():
            return DeviceArray(base.ptr, (8,), base.dtype, 0, owner=Owner([base]))

        base = mp_cuda.from_host(bytes(8))
        in_use[Owner] = revoked
        for _ in range(4):
            ForkingPickler.dumps([array(), array()])
        mp_cuda.ipc_collect(in_flight_older_than=0)
        print(len(asked) > 0, mp_cuda.ipc_stats()["live_sends"])
    """
    assert succeeded(run_script(tmp_path, text)) == "True 0\n"


def test_a_message_may_be_revoked_while_it_is_being_pickled(tmp_path: Path) -> None:
    text = """
        import ctypes
        from multiprocessing.reduction import ForkingPickler
        import mp_all, mp_cuda

        class Revokes:
            def __init__(self, array):
                self.array = array

            def __reduce__(self):
                mp_cuda.ipc_collect(in_flight_older_than=0)
                return list, ((self.array,),)

        def recorded():
            return library.mpstub_calls(b"cuEventRecord")

        first, second = mp_cuda.from_host(b"first"), mp_cuda.from_host(b"second")
        library = ctypes.CDLL("libcuda.so.1")
        before = recorded()
        message = ForkingPickler.dumps([first, Revokes(second)])
        print(recorded() - before)  # the event of the first is in the pool again, and another message may have it
        try:
            ForkingPickler.loads(message)
        except mp_cuda.StaleHandleError:
            print("revoked")
        mp_cuda.ipc_collect(in_flight_older_than=0)
    """
    assert succeeded(run_script(tmp_path, text)) == "1\nrevoked\n"


def test_exports_may_end_while_they_are_counted(tmp_path: Path) -> None:
    """Before Python 3.12, a new tuple may collect garbage, and so execute any code."""
    text = """
        import gc, math
        import mp_cuda
        from mp_cuda.driver.functions import live_exports, look_at_exports

        messages = [mp_cuda.share(mp_cuda.from_host(bytes([i]))) for i in range(60)]
        used_up = [(i, i, i) for i in range(5000)]  # the tuples that Python keeps for reuse
        count = 0

        def revoked(phase, info):
            global count
            count += phase == "start"
            if count == 5:
                look_at_exports(False, math.inf)

        gc.collect()
        gc.callbacks.append(revoked)
        gc.set_threshold(1, 1, 1)
        live_exports()
        gc.set_threshold(700, 10, 10)
        gc.callbacks.clear()
        mp_cuda.ipc_collect(in_flight_older_than=0)
        print(len(live_exports()))
    """
    assert succeeded(run_script(tmp_path, text)) == "0\n"


# ---- memory that is taken meanwhile ----------------------------------------------------------------------------------


def test_memory_that_is_taken_while_its_device_is_asked_for_its_size_is_held_once(mortal: p.Peer) -> None:
    array = mp_cuda.from_host(b"taken")
    messages = [pickle.dumps(mp_cuda.share(array)) for _ in range(2)]
    assert mortal.call(allocations_held, *messages) == [1, 0]


def allocations_held(first: bytes, second: bytes) -> list[int]:
    """Count them when the second message was received in the middle of the first one's end, and at the end."""
    taken = []

    def size(device: int) -> int:
        taken.append(pickle.loads(second))
        return 1 << 30

    def held() -> int:
        return sum(holder.held_allocations for holder in list_holders([os.getpid()]))

    array = pickle.loads(first)
    set_hooks(memory_of=size)
    del array
    assert until(lambda: taken, p.WAIT_S)
    finalizer_queue.drain()
    counts = [held()]
    taken.clear()
    mp_cuda.ipc_collect()
    return [*counts, held()]


# ---- forks -----------------------------------------------------------------------------------------------------------


OPENED_OR_CLOSED = """
            mp_cuda.set_policy(linger=0)
            kept = mp_cuda.from_host(b"ready")
            library = ctypes.CDLL("libcuda.so.1")
            library.mpstub_calls.restype = ctypes.c_uint64
            before = library.mpstub_calls(FUNCTION)
            library.mpstub_close_gate(5)
            library.mpstub_pause(FUNCTION, 5)
            thread = threading.Thread(target=inbox.get)  # which drops the array at once
            thread.start()
            wait_until(lambda: library.mpstub_calls(FUNCTION) != before)

            def go_on():
                library.mpstub_open_gate(5)
                thread.join()
"""
LINGERS = """
            mp_cuda.set_policy(linger=3600)
            inbox.get()
            wait_until(lambda: mp_cuda.ipc_stats()["lingering"])

            def go_on():
                assert mp_cuda.ipc_stats()["lingering"] == 1
"""


@pytest.mark.parametrize(
    ("moment", "function"),
    [
        pytest.param(LINGERS, "", id="lingering"),
        *((OPENED_OR_CLOSED, name) for name in ("cuIpcOpenMemHandle_v2", "cuCtxSynchronize", "cuIpcCloseMemHandle")),
    ],
)
def test_a_child_that_is_forked_while_memory_lingers_or_is_opened_or_closed_does_not_hold_it(
    tmp_path: Path, moment: str, function: str
) -> None:
    text = f"""
        import ctypes, os, threading, time
        import mp_all as mp
        import mp_cuda

        FUNCTION = b"{function}"

        def wait_until(condition):
            while not condition():
                time.sleep(0.01)

        def receiver(inbox, outbox):
            {moment.strip()}

            ready, go = os.pipe(), os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(ready[1], b"1")
                os.read(go[0], 1)
                os._exit(0)
            os.read(ready[0], 1)
            go_on()
            outbox.put(1)
            inbox.get()
            os.write(go[1], b"1")
            print(os.waitpid(pid, 0)[1])

        if __name__ == "__main__":
            ctx = mp.get_context("spawn")
            inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
            process = ctx.Process(target=receiver, args=(inbox, outbox))
            process.start()
            array = mp_cuda.from_host(b"abc")
            inbox.put(array)
            print(outbox.get(), mp_cuda.wait_released(30), flush=True)
            inbox.put(None)
            process.join(60)
            print(process.exitcode)
    """
    assert succeeded(run_script(tmp_path, text)).split() == ["1", "True", "0", "0"]


# ---- events ----------------------------------------------------------------------------------------------------------


def test_an_event_without_a_handle_is_destroyed(stub: Stub) -> None:
    before = stub.counters()
    stub.fail("cuIpcGetEventHandle", 1, 1)
    assert ipc_events.make_event(0) is None
    after = stub.counters()
    assert after["events_made"] - before["events_made"] == after["events_gone"] - before["events_gone"] == 1


# ---- owners that are dead --------------------------------------------------------------------------------------------


def test_memory_and_events_of_a_dead_process_are_not_even_opened(mortal: p.Peer, stub: Stub) -> None:
    """The driver would open both, and each opening takes time."""
    memory, event = mortal.call(messages_of, b"dead")
    first, again = mortal.call(event_shared_twice, "open")
    known = ForkingPickler.loads(first)
    assert known.query()
    mortal.kill()
    before = stub.calls("cuIpcOpenMemHandle_v2"), stub.calls("cuIpcOpenEventHandle")
    for message in memory, event, again:
        with pytest.raises(mp_cuda.ProducerGoneError, match="has ended"):
            ForkingPickler.loads(message)
    assert (stub.calls("cuIpcOpenMemHandle_v2"), stub.calls("cuIpcOpenEventHandle")) == before


def messages_of(data: bytes) -> tuple[bytes, bytes]:
    p.KEPT["event"] = mp_cuda.Event(interprocess=True, device=0)
    return bytes(ForkingPickler.dumps(p.make("a", data))), bytes(ForkingPickler.dumps(p.KEPT["event"]))


def test_an_event_whose_owner_dies_while_it_is_opened_is_not_given_out(mortal: p.Peer, stub: Stub, gate: int) -> None:
    _, message = mortal.call(messages_of, b"moment")
    before = stub.counters()
    calls = stub.calls("cuIpcOpenEventHandle")
    stub.pause("cuIpcOpenEventHandle", gate)

    def die() -> None:
        assert until(lambda: stub.calls("cuIpcOpenEventHandle") > calls, p.WAIT_S)
        mortal.kill()
        stub.open_gate(gate)  # the driver does not refuse

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(mp_cuda.ProducerGoneError, match="has ended"):
        ForkingPickler.loads(message)
    thread.join()
    mp_cuda.ipc_collect()
    after = stub.counters()
    assert after["event_opens"] - before["event_opens"] == after["event_closes"] - before["event_closes"] == 1
