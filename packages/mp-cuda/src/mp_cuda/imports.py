"""Imports: allocations of other processes, each opened once here, and closed after the last array on it is gone.

The driver demands this order: wait for this process's work on the device, close the memory, and only then release the
lease reference. Finalizers leave all three to the finalizer queue.

Note [Lingering]
----------------
Opening an allocation and closing it takes 70 µs, and a queue of messages with the same array would pay it for each. So
an allocation without arrays stays open for a while, with the leases of its last message: the sender keeps the memory.

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
import itertools
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from mp_core import LeaseReference, ReceiveError, receive_lease
from mp_cuda import _functions, at_exit, cuda_driver, finalizer_queue, policy, transports
from mp_cuda._functions import Link, Received, Reference, set_hooks, synchronize
from mp_cuda.errors import DriverError, MpCudaError, ProducerGoneError, StaleHandleError
from mp_cuda.wire import OFFER, Key

__all__ = ["Mapping", "find", "lingering", "mappings", "open_memory", "receive_reference", "take_back"]

SHARE_OF_DEVICE = 8

Leases = tuple[Reference, ...]

_log = logging.getLogger("mp_cuda")
_lock = threading.RLock()
_closing = False
mappings: dict[bytes, Mapping] = {}
"""Open allocations, by their keys. What is not in it is being opened or closed, under the lock."""
lingering: dict[Mapping, Leases] = {}
"""Those without arrays, in the order in which they lost them, with the leases that keep the memory."""
_starts: dict[int, list[tuple[int, Mapping]]] = {}


# ---- messages --------------------------------------------------------------------------------------------------------


def receive_reference(offers: bytes) -> LeaseReference:
    """
    Receive one of a message's lease references. `StaleHandleError` if all were received or revoked.
    """
    problem: Exception | None = None
    count = len(offers) // OFFER
    for at in range(0, len(offers), OFFER):
        try:
            return receive_lease(offers[at : at + OFFER])
        except ReceiveError as error:
            if error.errno != errno.ESTALE:
                raise
            problem = error
    raise StaleHandleError(
        f"this message was made for {count} receiver{'s' * (count != 1)} and has been received by as many, "
        "or its sender has revoked it; share(obj, receivers=n) makes one for more"
    ) from problem


def take_back(offers: tuple[bytes, ...]) -> None:
    """Take back the references of a message that is not sent."""
    for joined in offers:
        for at in range(0, len(joined), OFFER):
            try:
                receive_reference(joined[at : at + OFFER]).release()
            except StaleHandleError:
                pass  # revoked already


# ---- memory ----------------------------------------------------------------------------------------------------------


class Mapping(_functions.Mapping):
    """An allocation of another process, open at `ptr` on `device`, for as many messages as it has `users`."""

    __slots__ = ("last_used", "refused", "state", "transport")

    transport: str
    state: Any
    last_used: float
    refused: bool
    """Whether the driver has refused to close it."""


def _close(unused: Iterable[Mapping]) -> None:
    """
    Close memory. What a message needs again stays open; so does, with its leases, what the driver refuses to close,
    because the owner must not free it.

    Call it under the lock, with the devices idle.
    """
    taken: dict[tuple[str, int], dict[Mapping, Leases]] = {}
    for mapping in unused:
        leases = lingering.get(mapping, ())  # they are kept until it is closed
        if mapping.take_out():
            taken.setdefault((mapping.transport, mapping.device), {})[mapping] = leases
    for (name, device), closing in taken.items():
        codes: tuple[int, ...] = ()
        try:
            codes = transports.of(name).close(device, [(mapping.ptr, mapping.state) for mapping in closing])
        finally:
            for (mapping, leases), code in itertools.zip_longest(closing.items(), codes):
                if code == 0:
                    _starts[device].remove((mapping.ptr, mapping))
                else:
                    _keep_open(mapping, leases, code)


def _keep_open(mapping: Mapping, leases: Leases, code: int | None) -> None:
    mappings[mapping.key] = mapping
    lingering[mapping] = leases
    if not mapping.refused:
        _log.warning("memory of another process stays open: the driver refuses to close it (%s)", code)
    mapping.refused = True


def _opened(key: bytes, described: Key, device: int, extra: bytes | None) -> Mapping:
    try:
        name = transports.NAMES[described.transport]
    except IndexError:
        raise ValueError(
            f"the message of a device array is damaged: there is no transport {described.transport}"
        ) from None
    ptr, state = transports.of(name).open(device, described.handle, extra)
    mapping = Mapping(key, ptr, described.nbytes, device)
    mapping.transport, mapping.state, mapping.refused, mapping.last_used = name, state, False, 0.0
    bisect.insort(_starts.setdefault(device, []), (ptr, mapping), key=lambda pair: pair[0])
    mappings[key] = mapping
    return mapping


def open_memory(leases: Leases, key: bytes, extra: bytes | None) -> Received:
    """
    Open an allocation of another process, which *leases* keep.

    Raises `ProducerGoneError`, `DeviceNotVisibleError`, or `DriverError` if the driver refuses.
    """
    try:
        described = Key.unpacked(key)
        device = cuda_driver.ordinal_of(described.uuid)
        with _lock:
            mapping = mappings.get(key)
            if mapping is None:
                # The driver opens memory of a process that has ended: so ask the owner, before and afterwards.
                if not leases[0].owner_alive:
                    raise _gone(key)
                mapping = _opened(key, described, device, extra)
            elif extra is not None:
                transports.of(mapping.transport).skip(extra)
            if not leases[0].owner_alive:
                raise _gone(key)
            received = Received(mapping, leases)
        finalizer_queue.wake_watch()
        return received
    except BaseException as error:
        explained = _explained(error, key, leases)
        _close_unused(key, leases)  # before the reference is released, as always
        leases = ()  # this frame lives as long as the exception, which must not be in a cycle with it
        try:
            if explained is error:
                raise
            raise explained from error
        finally:
            del explained


def _close_unused(key: bytes, leases: Leases) -> None:
    """Close memory that was opened for an array that could not be made."""
    with _lock:
        mapping = mappings.get(key)
        if mapping is not None and not mapping.users and mapping not in lingering:
            lingering[mapping] = leases
            _close([mapping])


def skip_memory(key: bytes, extra: bytes) -> None:
    """Discard what a transport needs to open memory, which is open already."""
    transports.of(transports.NAMES[Key.unpacked(key).transport]).skip(extra)


def owner_is_gone(key: bytes) -> NoReturn:
    """Raise the error of memory whose owner has ended."""
    raise _gone(key)


def _gone(key: bytes) -> ProducerGoneError:
    described = Key.unpacked(key)
    return ProducerGoneError(
        f"process {described.pid}, which owns the {described.nbytes} bytes, has ended, and device memory ends with "
        "its process; keep it running until its arrays have arrived (mp_cuda.wait_released)"
    )


def _explained(error: BaseException, key: bytes, leases: Leases) -> BaseException:
    if isinstance(error, MpCudaError) and not leases[0].owner_alive:
        return _gone(key)
    if isinstance(error, DriverError) and error.code == 201:
        return MpCudaError(
            f"the driver takes process {Key.unpacked(key).pid} for this one ({error}): both have the same pid, in "
            "different containers; run them in one pid namespace (docker run --pid=host or --pid=container:...)"
        )
    return error


# ---- memory that no array uses ---------------------------------------------------------------------------------------


class _Close(Link):
    """Close the memory if no other array needs it, or let it linger; then release the references, with this object."""

    __slots__ = ()

    after_work = True

    @staticmethod
    def run_all(tasks: list[_Close]) -> None:
        now = time.monotonic()
        with _lock:
            unused: list[Mapping] = []
            for task in tasks:
                mapping: Mapping = task.mapping
                if not mapping.drop_user(task.leases):
                    mapping.last_used = now
                    if not _may_linger(mapping, task.leases):
                        unused.append(mapping)
            _close(unused)
        if lingering:
            finalizer_queue.wake_watch()
        _close_expired()


def _may_linger(mapping: Mapping, leases: Leases) -> bool:
    if _closing or not policy.linger or leases[0].recalled or not leases[0].owner_alive:
        return False
    nbytes = sum(m.nbytes for m in list(lingering) if m.device == mapping.device)
    return nbytes <= cuda_driver.memory_of(mapping.device) // SHARE_OF_DEVICE


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
        _close(
            mapping
            for mapping, leases in list(lingering.items())
            if used_before is None
            or mapping.last_used <= used_before
            or mapping.refused
            or leases[0].recalled
            or not leases[0].owner_alive
        )


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
        received = mapping.received()
        return received[0] if received else None


def close_all() -> None:
    """Close all memory at exit, even if arrays still use it, and release the lease references."""
    global _closing
    with _lock:
        _closing = True
        for mapping in list(mappings.values()):
            _Close.run_all([received.take() for received in mapping.received()])
        _close_lingering(None)


@at_exit.register(at_exit.Step.IMPORTS)
def _close_at_exit() -> None:
    for device in {mapping.device for mapping in mappings.values()}:
        synchronize(device)
    close_all()


set_hooks(
    mappings=mappings,
    lingering=lingering,
    close_type=_Close,
    open_memory=open_memory,
    skip_memory=skip_memory,
    owner_is_gone=owner_is_gone,
    receive_reference=receive_reference,
    take_back=take_back,
)


@cuda_driver.after_fork
def _forget() -> None:
    global _lock
    _lock = threading.RLock()
    for mapping in mappings.values():
        for received in mapping.received():
            _release(received.take().leases)
        _release(lingering.get(mapping, ()))
    mappings.clear()
    lingering.clear()
    _starts.clear()


def _release(leases: Leases) -> None:
    for lease in leases:
        lease.release()
