"""What a message holds of an array: plain tuples of numbers and bytes, some three hundred of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from mp_cuda.dtype import DType
from mp_cuda.process import Process

__all__ = ["Memory", "Message", "Ready", "pack", "unpack"]

VERSION = 2
OFFER = 56  # bytes


class Memory(NamedTuple):
    """An allocation, and the right to open it."""

    transport: str
    """The name of the module in `transports`."""
    uuid: bytes
    owner: Process
    serial: int
    """The owner's number for the send."""
    handle: bytes
    nbytes: int
    extra: Any = None
    """What else the transport needs."""


class Ready(NamedTuple):
    """The event after which the bytes may be read; *owner* may be another process than the memory's."""

    handle: bytes
    owner: Process
    offers: tuple[bytes, ...] = ()
    """Claims on the event alone, when the memory is somebody else's."""


class Message(NamedTuple):
    """An array in a message. Without *memory* it is empty."""

    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    readonly: bool
    device: bytes
    offset: int = 0
    memory: Memory | None = None
    offers: tuple[bytes, ...] = ()
    """One claim for each receiver that it is meant for."""
    ready: Ready | None = None


def pack(message: Message) -> tuple[Any, ...]:
    """*message* as plain tuples, which pickle without the names of our classes."""
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
    One piece of bytes. Only a single offer can be told from other bytes of a message, for mp_core to discard it when
    that fails; several are for other receivers, too, who may still want theirs.
    """
    return b"".join(offers)


def _split(joined: bytes) -> tuple[bytes, ...]:
    return tuple(joined[at : at + OFFER] for at in range(0, len(joined), OFFER))


def unpack(packed: tuple[Any, ...]) -> Message:
    """The message that was packed. `ValueError` when it is none, or one of another version."""
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
