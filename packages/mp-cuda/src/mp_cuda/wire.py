"""Wire format: an array in a message, as tuples of numbers and bytes, about 300 bytes in all."""

from __future__ import annotations

from typing import Any, NamedTuple

from mp_cuda.dtype import DType
from mp_cuda.process_identity import Process

__all__ = ["Memory", "Message", "Ready", "pack", "unpack"]

VERSION = 2
OFFER = 56  # bytes


class Memory(NamedTuple):
    """An allocation, and the handle that opens it."""

    transport: str
    """The name of the module in `transports`."""
    uuid: bytes
    owner: Process
    serial: int
    """The owner's number of the export."""
    handle: bytes
    nbytes: int
    extra: Any = None
    """More data for the transport."""


class Ready(NamedTuple):
    """The event after which the bytes may be read; *owner* need not be the owner of the memory."""

    handle: bytes
    owner: Process
    offers: tuple[bytes, ...] = ()
    """In-flight references to the event alone, if another process owns the memory."""


class Message(NamedTuple):
    """An array in a message. It is empty if *memory* is None."""

    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    readonly: bool
    device: bytes
    offset: int = 0
    memory: Memory | None = None
    offers: tuple[bytes, ...] = ()
    """One in-flight lease reference for each receiver."""
    ready: Ready | None = None


def pack(message: Message) -> tuple[Any, ...]:
    """Turn *message* into plain tuples, which pickle without the names of our classes."""
    memory, ready = message.memory, message.ready
    return (
        VERSION,
        *message[:3],
        tuple(message.dtype),
        *message[4:7],
        memory and (*memory[:2], tuple(memory.owner), *memory[3:]),
        _joined(message.offers),
        ready and (ready.handle, tuple(ready.owner), _joined(ready.offers)),
    )


def _joined(offers: tuple[bytes, ...]) -> bytes:
    """
    Join the offers into one bytes object. mp_core recognises a single offer in a message and discards it if receiving
    fails; it must not discard several, because other receivers may still need theirs.
    """
    return b"".join(offers)


def _split(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + OFFER] for at in range(0, len(joined), OFFER))


def unpack(packed: tuple[Any, ...]) -> Message:
    """Turn the tuples back into a message. `ValueError` if they are damaged or of another version."""
    try:
        version, kind, shape, strides, dtype, readonly, device, offset, memory, offers, ready = packed
        if version != VERSION:
            raise ValueError(f"version {version} instead of {VERSION}; both processes need the same mp-cuda")
        return Message(
            kind,
            tuple(shape),
            tuple(strides),
            DType(*dtype),
            readonly,
            device,
            offset,
            memory and Memory(memory[0], memory[1], Process(*memory[2]), *memory[3:]),
            _split(offers),
            ready and Ready(ready[0], Process(*ready[1]), _split(ready[2])),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the message of a device array is damaged: {error}") from None
