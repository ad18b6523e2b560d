"""Receiving: each allocation of another process is opened once here, and closed after the last array on it has gone.

The order is what the driver demands: wait for our own work on the device, close the memory, and only then give the
claim back. Finalizers leave all three to the janitor.
"""

from __future__ import annotations

import bisect
import errno
import threading
import weakref
from typing import Any

from mp_core import LeaseReference, ReceiveError, receive_lease
from mp_cuda import driver, janitor, signals, transports
from mp_cuda.errors import DriverError, MpCudaError, ProducerGoneError, StaleHandleError
from mp_cuda.process import Process
from mp_cuda.stream import LEGACY
from mp_cuda.wire import Memory, Message, Ready

__all__ = ["Mapping", "Received", "claim_any", "find", "mappings", "open_ready", "receive"]

_lock = threading.RLock()
mappings: dict[tuple[Process, bytes, int], Mapping] = {}
"""What is open here, by owner, handle and device: of a process that has ended, another may have the pid and handle."""
_starts: dict[int, list[tuple[int, Mapping]]] = {}


class Mapping:
    """An allocation of another process, open at *ptr* on *device*, for *users* arrays."""

    __slots__ = ("device", "key", "memory", "ptr", "received", "state", "users")

    def __init__(self, device: int, memory: Memory) -> None:
        self.device, self.memory = device, memory
        self.key = memory.owner, memory.handle, device
        with driver.guard(device):
            self.ptr, self.state = transports.of(memory.transport).open(device, memory.handle, memory.extra)
        self.users = 0
        self.received: weakref.WeakSet[Received] = weakref.WeakSet()
        mappings[self.key] = self
        bisect.insort(_starts.setdefault(device, []), (self.ptr, self), key=lambda pair: pair[0])

    def leave(self) -> None:
        """One array less. Under the lock, and with the device idle. When closing fails, it is one as before."""
        if self.users == 1:
            self.close()
        self.users -= 1

    def close(self) -> None:
        """Nobody needs it. Under the lock."""
        with driver.guard(self.device):
            transports.of(self.memory.transport).close(self.ptr, self.state)
        del mappings[self.key]
        _starts[self.device].remove((self.ptr, self))


class _Leave:
    """Close, if nobody else needs it open; then give the claims back.

    What the driver does not close stays claimed: its owner must not free it. It is tried again at the end.
    """

    after_work = True

    def __init__(self, mapping: Mapping, claims: list[LeaseReference]) -> None:
        self.device, self.mapping, self.claims = mapping.device, mapping, claims

    def finish(self) -> None:
        try:
            with _lock:
                self.mapping.leave()
        except BaseException:
            _stuck.append(self)
            raise
        for claim in self.claims:
            claim.release()


_stuck: list[_Leave] = []


class Received:
    """What an array that arrived stands on: open memory, the claim on it, and the event to wait for."""

    __slots__ = ("__weakref__", "_chore", "claim", "mapping", "memory", "signal")

    def __init__(
        self, mapping: Mapping, memory: Memory, claims: list[LeaseReference], signal: signals.Opened | None
    ) -> None:
        # The mapping may have been opened for an earlier message; the claim is on this one's lease.
        self.mapping, self.memory, self.claim, self.signal = mapping, memory, claims[0], signal
        janitor.expect()
        self._chore = _Leave(mapping, list(claims))
        mapping.users += 1
        claims.clear()  # they go when the array goes
        mapping.received.add(self)

    @property
    def producer_alive(self) -> bool:
        """Does the process that owns the memory run still?"""
        return self.memory.owner.alive

    def make_wait(self, stream: Any) -> None:
        """What *stream* is given from now on begins after the sender's work."""
        if self.signal is not None:
            self.signal.wait_on(stream)

    def __del__(self, drop: Any = janitor.drop) -> None:
        chore = getattr(self, "_chore", None)
        if chore is not None:
            drop(chore)


def claim_any(offers: tuple[bytes, ...]) -> LeaseReference:
    """One of the claims that a message has; `StaleHandleError` when all are taken, or were taken back."""
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
        "or it was taken back by its sender; share(obj, receivers=n) makes one for more"
    ) from problem


def receive(message: Message) -> Received:
    """
    Open the memory that *message* speaks of.

    Raises `StaleHandleError`, `ProducerGoneError`, `DeviceNotVisibleError`, or `DriverError` as the driver says.
    """
    memory = message.memory
    assert memory is not None
    device = driver.ordinal_of(memory.uuid)
    try:
        claims = [claim_any(message.offers)]
    except StaleHandleError:
        if memory.owner.alive:
            raise
        raise _gone(memory) from None
    try:
        if not memory.owner.alive:
            raise _gone(memory)
        if message.ready is not None and message.ready.offers:
            claims.append(claim_any(message.ready.offers))
        signal = open_ready(device, message.ready)
        try:
            with _lock:
                mapping = mappings.get((memory.owner, memory.handle, device))
                if mapping is None:
                    mapping = Mapping(device, memory)
                else:
                    transports.of(memory.transport).skip(memory.extra)
                received = Received(mapping, memory, claims, signal)
        except MpCudaError as error:
            raise _explained(error, memory) from error
    except BaseException:
        _close_unused(memory, device)  # before the claims go, as ever
        for claim in claims:
            claim.release()
        raise
    received.make_wait(LEGACY)
    return received


def _close_unused(memory: Memory, device: int) -> None:
    """What was opened for an array that was never made."""
    with _lock:
        mapping = mappings.get((memory.owner, memory.handle, device))
        if mapping is not None and not mapping.users:
            mapping.close()


def open_ready(device: int, ready: Ready | None) -> signals.Opened | None:
    """The event of a message, to be waited for; None when there is nothing to wait for."""
    if ready is None:
        return None
    try:
        return signals.open_signal(device, ready.owner, ready.handle)
    except MpCudaError:
        if ready.owner.alive:
            raise
        return None  # and with its process, its work on the device has ended


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
            f"the driver takes process {memory.owner.pid} for this one ({error}): both have the "
            f"same pid in containers of "
            "their own; run them in one pid namespace (docker run --pid=host or --pid=container:...)"
        )
    return error


def find(ptr: int, device: int) -> Received | None:
    """Something received that has *ptr* in its memory, to send it on; None when it is nobody else's memory."""
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
            if not received.claim.released:
                return received
    return None


def close_all() -> None:
    """At the end of the process: everything is closed, also what arrays still stand on; then the claims go."""
    with _lock:
        for mapping in list(mappings.values()):
            chores = [received._chore for received in mapping.received]
            for received in list(mapping.received):
                received._chore = None  # type: ignore[assignment]
            for chore in chores:
                chore.finish()
        for chore in list(_stuck):
            _stuck.remove(chore)
            chore.finish()


@driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    for mapping in mappings.values():
        for received in list(mapping.received):
            for claim in received._chore.claims:
                claim.release()
            received._chore = None  # type: ignore[assignment]
    for chore in _stuck:
        for claim in chore.claims:
            claim.release()
    _stuck.clear()
    mappings.clear()
    _starts.clear()
