"""Imports: allocations of other processes, each opened once here, and closed after the last array on it is gone.

The driver demands this order: wait for this process's work on the device, close the memory, and only then release the
lease reference. Finalizers leave all three to the finalizer queue.

Note [Lingering]
----------------
Opening an allocation and closing it takes 70 µs, and a queue of messages with the same array would pay it for each. So
an allocation without arrays stays open for a while, with the delivery of its last message: the sender keeps the memory.

                     message                            array dropped, work on the device done
    closed ------------------------> in use <-------------------------------------> lingers
       ^                               |               message                         |
       |    recalled, or no room       |                                               |
       +-------------------------------+-----------------------------------------------+
                                             recalled; not used for a second; its sender
                                             has ended; ipc_collect(); exit; fork

Recalled: the sender's program has dropped the memory too, or needs it (`exports.py`, Note [Memory that is given back on
request]). Room: all that lingers on a device is at most an eighth of its memory.

A receiver that is killed in any of these states: the kernel closes its memory, and the reaper of mp-core releases its
references. A sender that is killed: its memory has ended with it, and the receiver closes what lingers when it looks
the next time. No state waits for an answer of the other process.
"""

from __future__ import annotations

import bisect
import errno
import logging
import threading
import time
import weakref
from typing import Any, NamedTuple

from mp_core import LeaseReference, ReceiveError, receive_lease
from mp_cuda import at_exit, cuda_driver, finalizer_queue, ipc_events, policy, transports
from mp_cuda.errors import DriverError, MpCudaError, ProducerGoneError, StaleHandleError
from mp_cuda.exports import LINGERS, NO_SLOT, RECALLED, exports
from mp_cuda.pointer import AllocationInfo
from mp_cuda.process_identity import Process, me
from mp_cuda.stream import LEGACY
from mp_cuda.wire import Memory, MemoryKey, Ready, split

__all__ = [
    "Delivery",
    "Mapping",
    "Received",
    "find",
    "mappings",
    "receive_memory",
    "receive_message",
    "receive_reference",
    "wait_ready",
]

SHARE_OF_DEVICE = 8
NO_DEVICE = -1

_log = logging.getLogger("mp_cuda")
_lock = threading.RLock()
_closing = False
mappings: dict[tuple[MemoryKey, int], Mapping] = {}
"""Open allocations, by their key and device."""
_starts: dict[int, list[tuple[int, Mapping]]] = {}


# ---- messages --------------------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """In the process that has sent a message: what it has sent."""

    owners: list[Any]
    allocations: dict[int, tuple[AllocationInfo, Memory]]


class Delivery:
    """A lease of a message that was received."""

    __slots__ = ("__weakref__", "also", "flags", "opened", "owner", "reference", "sent", "serial")

    def __init__(self, owner: Process, serial: int, reference: LeaseReference, sent: Sent | None) -> None:
        self.owner, self.serial, self.reference = owner, serial, reference
        self.also: tuple[Delivery, ...] = ()
        """More leases for the same memory."""
        self.flags = reference.memory
        self.sent = sent
        self.opened = False
        """Whether arrays on its memory have been made."""

    @property
    def owner_alive(self) -> bool:
        """Whether the process that owns the memory is still running."""
        return not self.reference.released and self.reference.owner_alive

    def release(self) -> None:
        """Release the reference at once, even if something refers to this object."""
        self.flags.release()
        self.reference.release()
        for delivery in self.also:
            delivery.release()


def receive_reference(offers: tuple[bytes, ...]) -> LeaseReference:
    """
    Receive one of a message's lease references. `StaleHandleError` if all were received or revoked.
    """
    problem: Exception | None = None
    for offer in offers:
        try:
            return receive_lease(offer)
        except ReceiveError as error:
            if error.errno != errno.ESTALE:
                raise
            problem = error
    raise StaleHandleError(
        f"this message was made for {len(offers)} receiver{'s' * (len(offers) != 1)} and has been received by as many, "
        "or its sender has revoked it; share(obj, receivers=n) makes one for more"
    ) from problem


def receive_message(pid: int, nonce: bytes, serial: int, offers: bytes) -> Delivery:
    """Receive the lease of a message."""
    owner = Process(pid, nonce)
    # Retain what was sent before the reference is released: the export drops it with the last one.
    export = exports.get(serial) if owner == me() else None
    sent = Sent(export.owners[:], export.allocations) if export is not None else None
    reference = receive_reference(split(offers))
    if owner != me():
        return Delivery(owner, serial, reference, None)
    if sent is None:
        reference.release()
        raise StaleHandleError("this process sent the array of this message and has released it since")
    return Delivery(owner, serial, reference, sent)


def wait_ready(ready: Ready, device: int) -> None:
    """Make the legacy default stream wait for an event of the message, once, and let its sender use it again."""
    home: Delivery | None = ready.home
    if home is None:
        return
    if home.owner == me():
        ipc_events.wait_on_own(ready.handle, LEGACY)
    else:
        event = ipc_events.open_event(device, home.owner, ready.handle, lambda: home.owner_alive)
        if event is not None:  # otherwise the work on the device has ended with its process
            event.wait_on(LEGACY)
    if ready.slot != NO_SLOT:
        home.flags[ready.slot] = 0
    ready.home = None


# ---- memory ----------------------------------------------------------------------------------------------------------


class Mapping:
    """An allocation of another process, open at *ptr* on *device*, for *users* messages."""

    __slots__ = (
        "device", "key", "last_used", "lingers", "nbytes", "ptr", "received", "refused", "state", "transport", "users",
        "uuid",
    )  # fmt: skip

    def __init__(self, device: int, memory: Memory) -> None:
        self.device, self.key, self.nbytes, self.uuid = device, memory.key, memory.nbytes, memory.uuid
        self.transport = memory.transport
        with cuda_driver.guard(device):
            self.ptr, self.state = transports.of(memory.transport).open(device, memory.key.handle, memory.extra)
        self.users = 0
        self.lingers: Delivery | None = None
        self.last_used = 0.0
        self.refused = False
        """Whether the driver has refused to close it."""
        self.received: weakref.WeakSet[Received] = weakref.WeakSet()
        mappings[self.key, device] = self
        bisect.insort(_starts.setdefault(device, []), (self.ptr, self), key=lambda pair: pair[0])

    def memory(self) -> Memory:
        """Describe it for a message that sends it on."""
        return Memory(self.transport, self.uuid, self.key, self.nbytes)

    def drop_user(self, delivery: Delivery) -> None:
        """Count one message less. Call it under the lock, with the device idle."""
        self.users -= 1
        if self.users:
            return
        self.lingers, self.last_used = delivery, time.monotonic()
        if not self._may_linger(delivery) and self.close_unless_refused():
            return
        finalizer_queue.wake_watch()

    def _may_linger(self, delivery: Delivery) -> bool:
        if _closing or not policy.linger or delivery.flags[RECALLED] or not delivery.owner_alive:
            return False
        lingering = sum(m.nbytes for m in mappings.values() if m.lingers is not None and m.device == self.device)
        return lingering <= cuda_driver.memory_of(self.device) // SHARE_OF_DEVICE

    def close_unless_refused(self) -> bool:
        """
        Close the memory. If the driver refuses, it lingers on, with its lease, because the owner must not free it.

        Call it under the lock.
        """
        try:
            self.close()
        except DriverError as error:
            if not self.refused:
                _log.warning("memory of another process stays open: %s", error)
            self.refused = True
            return False
        return True

    def close(self) -> None:
        """Close the memory. Call it under the lock."""
        with cuda_driver.guard(self.device):
            transports.of(self.transport).close(self.ptr, self.state)
        self.lingers = None
        del mappings[self.key, self.device]
        _starts[self.device].remove((self.ptr, self))


def _close_expired() -> bool:
    """Close what nobody needs any more. Return whether to look again."""
    _close_lingering(time.monotonic() - policy.linger)
    return bool(mappings)


def _close_all_lingering() -> None:
    _close_lingering(None)


finalizer_queue.watch(_close_expired)
finalizer_queue.closes(_close_all_lingering)


def _close_lingering(used_before: float | None) -> None:
    with _lock:
        for mapping in [m for m in mappings.values() if m.lingers is not None]:
            delivery = mapping.lingers
            assert delivery is not None
            if (
                used_before is None
                or mapping.last_used <= used_before
                or mapping.refused
                or delivery.flags[RECALLED]
                or not delivery.owner_alive
            ):
                mapping.close_unless_refused()
            del delivery


class _Close:
    """Close the memory if no other array needs it, or let it linger; then release the lease reference."""

    after_work = True

    def __init__(self, mapping: Mapping, delivery: Delivery) -> None:
        self.device, self.mapping, self.delivery = mapping.device, mapping, delivery

    def run(self) -> None:
        with _lock:
            self.mapping.drop_user(self.delivery)
        del self.delivery  # and with it, the reference
        _close_expired()


class Received:
    """What the arrays of one message on one allocation share: open memory, and the message's lease for it."""

    __slots__ = ("__weakref__", "_task", "delivery", "mapping")

    def __init__(self, mapping: Mapping, delivery: Delivery) -> None:
        self.mapping, self.delivery = mapping, delivery
        finalizer_queue.expect()
        finalizer_queue.wake_watch()
        delivery.opened = True  # from here on the task releases it, also if this is interrupted
        self._task = _Close(mapping, delivery)
        mapping.users += 1
        mapping.lingers = None
        delivery.flags[LINGERS] = 0
        _close_recalled_soon()
        mapping.received.add(self)

    def __del__(self, put: Any = finalizer_queue.put, lingers: int = LINGERS, recalled: int = RECALLED) -> None:
        task = getattr(self, "_task", None)
        if task is not None:
            # Memory that its owner still uses may wait for the next look: that wakes no thread for each message.
            flags = task.delivery.flags
            flags[lingers] = 1
            put(task, soon=bool(flags[recalled]))


class _CloseRecalled:
    device, after_work = 0, False

    def run(self) -> None:
        _close_expired()


def _close_recalled_soon() -> None:
    """With each message: of a stream of new arrays, which their sender drops at once, few stay open for long."""
    task = finalizer_queue.oldest()
    if isinstance(task, _Close) and task.delivery.flags[RECALLED]:
        finalizer_queue.wake()
        return
    for mapping in list(mappings.values()):
        delivery = mapping.lingers
        if delivery is not None and delivery.flags[RECALLED]:
            finalizer_queue.expect()
            finalizer_queue.put(_CloseRecalled())
            return


def receive_memory(delivery: Delivery, memory: Memory) -> Received:
    """
    Open an allocation of another process, which *delivery* holds a lease for.

    Raises `ProducerGoneError`, `DeviceNotVisibleError`, or `DriverError` if the driver refuses.
    """
    received: Received | None = memory.received
    if received is not None and received.delivery is delivery:
        return received
    device = NO_DEVICE
    try:
        device = cuda_driver.ordinal_of(memory.uuid)
        with _lock:
            mapping = mappings.get((memory.key, device))
            if mapping is None:
                # The driver opens memory of a process that has ended: so ask the owner, before and afterwards.
                if not delivery.owner_alive:
                    raise _gone(memory)
                mapping = Mapping(device, memory)
            else:
                if memory.extra is not None:
                    transports.of(memory.transport).skip(memory.extra)
            if not delivery.owner_alive:
                raise _gone(memory)
            received = memory.received = Received(mapping, delivery)
    except BaseException as error:
        explained = _explained(error, memory, delivery)
        _close_unused(memory, device)  # before the reference is released, as always
        if not delivery.opened:  # the exception may keep this frame, and the delivery, for long
            delivery.release()
        if explained is error:
            raise
        raise explained from error
    return received


def _close_unused(memory: Memory, device: int) -> None:
    """Close memory that was opened for an array that could not be made."""
    with _lock:
        mapping = mappings.get((memory.key, device))
        if mapping is not None and not mapping.users and mapping.lingers is None:
            mapping.close()


def _gone(memory: Memory) -> ProducerGoneError:
    return ProducerGoneError(
        f"process {memory.key.owner.pid}, which owns the {memory.nbytes} bytes, has ended, and device memory ends with "
        "its process; keep it running until its arrays have arrived (mp_cuda.wait_released)"
    )


def _explained(error: BaseException, memory: Memory, delivery: Delivery) -> BaseException:
    if isinstance(error, MpCudaError) and not delivery.owner_alive:
        return _gone(memory)
    if isinstance(error, DriverError) and error.code == 201:
        return MpCudaError(
            f"the driver takes process {memory.key.owner.pid} for this one ({error}): both have the same pid, in "
            "different containers; run them in one pid namespace (docker run --pid=host or --pid=container:...)"
        )
    return error


def find(ptr: int, device: int) -> Received | None:
    """Find a received message whose memory contains *ptr*. Return None if no other process owns that memory."""
    if not mappings:
        return None
    with _lock:
        starts = _starts.get(device)
        if not starts:
            return None
        at = bisect.bisect_right(starts, ptr, key=lambda pair: pair[0]) - 1
        if at < 0:
            return None
        mapping = starts[at][1]
        if ptr >= mapping.ptr + mapping.nbytes:
            return None
        for received in mapping.received:
            if not received.delivery.reference.released:
                return received
    return None


def close_all() -> None:
    """Close all memory at exit, even if arrays still use it, and release the lease references."""
    global _closing
    with _lock:
        _closing = True
        for mapping in list(mappings.values()):
            received = list(mapping.received)
            tasks = [one._task for one in received]
            for one in received:
                one._task = None  # type: ignore[assignment]
            for task in tasks:
                task.run()
        _close_lingering(None)


@at_exit.register(at_exit.Step.IMPORTS)
def _close_at_exit() -> None:
    for device in {mapping.device for mapping in mappings.values()}:
        cuda_driver.synchronize(device)
    close_all()


@cuda_driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    for mapping in mappings.values():
        for received in list(mapping.received):
            received.delivery.release()
            received._task = None  # type: ignore[assignment]
        if mapping.lingers is not None:
            mapping.lingers.release()
    mappings.clear()
    _starts.clear()
