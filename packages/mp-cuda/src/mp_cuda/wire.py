"""Wire format: what a message with arrays is made of, and how each part is pickled.

    rebuild_array (version
        receive_message (process, serial, offers)              one for each lease: most messages have one
        received_memory (transport, UUID, process, ...)        one for each allocation
        Ready (handle, its lease, slot)                        one for each stream that produced something
        offset, shape, strides, dtype, ...)                    for each array

Each part is an object of its own, which pickle writes once and then names by its number in the memo.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mp_cuda.process_identity import Process

__all__ = ["ALL", "VERSION", "Memory", "MemoryKey", "Ready", "joined", "received_memory", "split"]

VERSION = 3
ALL = -1  # the number of all that the sender keeps
OFFER = 56  # bytes


class MemoryKey(NamedTuple):
    """
    What tells an allocation from every other.

    The owner belongs to it, because a later process may have its pid and handles; so does the driver's number of the
    allocation, because a later one may have its address.
    """

    owner: Process
    buffer_id: int
    handle: bytes


class Memory:
    """An allocation, and the handle that opens it."""

    __slots__ = ("extra", "key", "nbytes", "received", "transport", "uuid")

    def __init__(self, transport: str, uuid: bytes, key: MemoryKey, nbytes: int, extra: Any = None) -> None:
        self.transport = transport
        """The name of the module in `transports`."""
        self.uuid, self.key, self.nbytes = uuid, key, nbytes
        self.extra = extra
        """More data for the transport, for one receiver."""
        self.received: Any = None
        """At the receiver, while the message is unpickled: what all arrays on it share, a `Received` of `imports`."""

    def __reduce__(self) -> Any:
        owner, buffer_id, handle = self.key
        return received_memory, (self.transport, self.uuid, *owner, buffer_id, handle, self.nbytes, self.extra)


def received_memory(
    transport: str, uuid: bytes, pid: int, nonce: bytes, buffer_id: int, handle: bytes, nbytes: int, extra: Any
) -> Memory:
    """Rebuild the description of an allocation."""
    return Memory(transport, uuid, MemoryKey(Process(pid, nonce), buffer_id, handle), nbytes, extra)


class Ready:
    """The event after which the bytes of a message may be read."""

    __slots__ = ("handle", "home", "slot")

    def __init__(self, handle: bytes, home: Any, slot: int) -> None:
        self.handle = handle
        self.home = home
        """The lease that keeps the event; its owner is the event's."""
        self.slot = slot
        """The byte of the lease's memory that the receiver clears when its streams wait for the event."""

    def __reduce__(self) -> Any:
        return Ready, (self.handle, self.home, self.slot)


def joined(offers: tuple[bytes, ...]) -> bytes:
    """
    Join the offers into one bytes object. mp_core recognises a single offer in a message and discards it if receiving
    fails; it must not discard several, because other receivers may still need theirs.
    """
    return b"".join(offers)


def split(offers: bytes) -> tuple[bytes, ...]:
    """Undo `joined`."""
    return (offers,) if len(offers) == OFFER else tuple(offers[at : at + OFFER] for at in range(0, len(offers), OFFER))
