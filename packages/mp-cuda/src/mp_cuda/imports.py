"""Imports: allocations of other processes, each opened once here and closed after the last array on it is gone.

The driver demands this order: wait for this process's work on the device, close the memory, and only then release the
lease reference. Finalizers leave all three to the finalizer queue.
"""

from __future__ import annotations

import bisect
import errno
import threading
import weakref
from typing import Any

from mp_core import LeaseReference, ReceiveError, receive_lease
from mp_cuda import at_exit, cuda_driver, finalizer_queue, ipc_events, transports
from mp_cuda.errors import DriverError, MpCudaError, ProducerGoneError, StaleHandleError
from mp_cuda.process_identity import Process
from mp_cuda.stream import LEGACY
from mp_cuda.wire import Memory, Message, Ready

__all__ = ["Mapping", "Received", "find", "mappings", "open_ready", "receive", "receive_reference"]

_lock = threading.RLock()
mappings: dict[tuple[Process, bytes, int], Mapping] = {}
"""Open allocations. The owner is part of the key: after it ends, another process may have its pid and its handle."""
_starts: dict[int, list[tuple[int, Mapping]]] = {}


class Mapping:
    """An allocation of another process, open at *ptr* on *device*, for *users* arrays."""

    __slots__ = ("device", "key", "memory", "ptr", "received", "state", "users")

    def __init__(self, device: int, memory: Memory) -> None:
        self.device, self.memory = device, memory
        self.key = memory.owner, memory.handle, device
        with cuda_driver.guard(device):
            self.ptr, self.state = transports.of(memory.transport).open(device, memory.handle, memory.extra)
        self.users = 0
        self.received: weakref.WeakSet[Received] = weakref.WeakSet()
        mappings[self.key] = self
        bisect.insort(_starts.setdefault(device, []), (self.ptr, self), key=lambda pair: pair[0])

    def drop_user(self) -> None:
        """Count one array less. Call it under the lock, with the device idle. If closing fails, the count stays."""
        if self.users == 1:
            self.close()
        self.users -= 1

    def close(self) -> None:
        """Close the memory. Call it under the lock."""
        with cuda_driver.guard(self.device):
            transports.of(self.memory.transport).close(self.ptr, self.state)
        del mappings[self.key]
        _starts[self.device].remove((self.ptr, self))


class _Close:
    """Close the memory if no other array needs it, then release the lease references.

    If the driver fails to close it, the references stay, because the owner must not free it. The exit tries again.
    """

    after_work = True

    def __init__(self, mapping: Mapping, references: list[LeaseReference]) -> None:
        self.device, self.mapping, self.references = mapping.device, mapping, references

    def run(self) -> None:
        try:
            with _lock:
                self.mapping.drop_user()
        except BaseException:
            _failed.append(self)
            raise
        for reference in self.references:
            reference.release()


_failed: list[_Close] = []


class Received:
    """The content of one message: open memory, the lease reference for it, and the event to wait for."""

    __slots__ = ("__weakref__", "_task", "event", "mapping", "memory", "reference")

    def __init__(
        self, mapping: Mapping, memory: Memory, references: list[LeaseReference], event: ipc_events.ImportedEvent | None
    ) -> None:
        # The mapping may have been opened for an earlier message; the reference is to this message's lease.
        self.mapping, self.memory, self.reference, self.event = mapping, memory, references[0], event
        finalizer_queue.expect()
        self._task = _Close(mapping, list(references))
        mapping.users += 1
        references.clear()  # the task releases them
        mapping.received.add(self)

    @property
    def producer_alive(self) -> bool:
        """Whether the process that owns the memory is still running."""
        return self.memory.owner.alive

    def make_wait(self, stream: Any) -> None:
        """Make later work on *stream* wait for the sender's work."""
        if self.event is not None:
            self.event.wait_on(stream)

    def __del__(self, put: Any = finalizer_queue.put) -> None:
        task = getattr(self, "_task", None)
        if task is not None:
            put(task)


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


def receive(message: Message) -> Received:
    """
    Open the memory that *message* describes.

    Raises `StaleHandleError`, `ProducerGoneError`, `DeviceNotVisibleError`, or `DriverError` if the driver refuses.
    """
    memory = message.memory
    assert memory is not None
    device = cuda_driver.ordinal_of(memory.uuid)
    try:
        references = [receive_reference(message.offers)]
    except StaleHandleError:
        if memory.owner.alive:
            raise
        raise _gone(memory) from None
    try:
        if not memory.owner.alive:
            raise _gone(memory)
        if message.ready is not None and message.ready.offers:
            references.append(receive_reference(message.ready.offers))
        event = open_ready(device, message.ready)
        try:
            with _lock:
                mapping = mappings.get((memory.owner, memory.handle, device))
                if mapping is None:
                    mapping = Mapping(device, memory)
                else:
                    transports.of(memory.transport).skip(memory.extra)
                received = Received(mapping, memory, references, event)
        except MpCudaError as error:
            raise _explained(error, memory) from error
    except BaseException:
        _close_unused(memory, device)  # before the references are released, as always
        for reference in references:
            reference.release()
        raise
    received.make_wait(LEGACY)
    return received


def _close_unused(memory: Memory, device: int) -> None:
    """Close memory that was opened for an array that could not be made."""
    with _lock:
        mapping = mappings.get((memory.owner, memory.handle, device))
        if mapping is not None and not mapping.users:
            mapping.close()


def open_ready(device: int, ready: Ready | None) -> ipc_events.ImportedEvent | None:
    """Open the event of a message. Return None if there is no work to wait for."""
    if ready is None:
        return None
    try:
        return ipc_events.open_event(device, ready.owner, ready.handle)
    except MpCudaError:
        if ready.owner.alive:
            raise
        return None  # the work on the device ended with its process


def _gone(memory: Memory) -> ProducerGoneError:
    return ProducerGoneError(
        f"process {memory.owner.pid}, which owns the {memory.nbytes} bytes, has ended, and device memory ends with its "
        "process; keep it running until its arrays have arrived (mp_cuda.wait_released)"
    )


def _explained(error: MpCudaError, memory: Memory) -> MpCudaError:
    if not memory.owner.alive:
        return _gone(memory)
    if isinstance(error, DriverError) and error.code == 201:
        return MpCudaError(
            f"the driver takes process {memory.owner.pid} for this one ({error}): both have the same pid, in different "
            "containers; run them in one pid namespace (docker run --pid=host or --pid=container:...)"
        )
    return error


def find(ptr: int, device: int) -> Received | None:
    """Find a received message whose memory contains *ptr*. Return None if no other process owns that memory."""
    with _lock:
        starts = _starts.get(device)
        if not starts:
            return None
        at = bisect.bisect_right(starts, ptr, key=lambda pair: pair[0]) - 1
        if at < 0:
            return None
        mapping = starts[at][1]
        if ptr >= mapping.ptr + mapping.memory.nbytes:
            return None
        for received in mapping.received:
            if not received.reference.released:
                return received
    return None


def close_all() -> None:
    """Close all memory, even if arrays still use it, and release the lease references."""
    with _lock:
        for mapping in list(mappings.values()):
            tasks = [received._task for received in mapping.received]
            for received in list(mapping.received):
                received._task = None  # type: ignore[assignment]
            for task in tasks:
                task.run()
        for task in list(_failed):
            _failed.remove(task)
            task.run()


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
            for reference in received._task.references:
                reference.release()
            received._task = None  # type: ignore[assignment]
    for task in _failed:
        for reference in task.references:
            reference.release()
    _failed.clear()
    mappings.clear()
    _starts.clear()
