"""Wire format: what a message with arrays is made of.

    rebuild_array ( receive_table ( offers, table ), layout )

The table and the layouts are bytes in the order of the machine, which both processes run on; they are written and
read in C (`native/outgoing.c`, Note [One table]). This module makes and reads the part that the Python modules
describe: what tells an allocation from every other.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["ALL", "OFFER", "Key"]

ALL = 0xFFFF_FFFF  # the number of all that the sender keeps
OFFER = 56  # bytes
_KEY = struct.Struct("=I8s16sQQB")


class Key(NamedTuple):
    """
    What tells an allocation from every other, and how to open it.

    The owner belongs to it, because a later process may have its pid and handles; so does the driver's number of the
    allocation, because a later one may have its address.
    """

    pid: int
    nonce: bytes
    uuid: bytes
    """Of the device."""
    buffer_id: int
    nbytes: int
    transport: int
    """Its number in `transports`."""
    handle: bytes

    def packed(self) -> bytes:
        """Return the bytes that name the allocation everywhere."""
        *head, handle = self
        return _KEY.pack(*head) + handle

    @classmethod
    def unpacked(cls, data: bytes) -> Key:
        """Undo `packed`."""
        pid, nonce, uuid, buffer_id, nbytes, transport = _KEY.unpack_from(data)
        return cls(pid, nonce, uuid, buffer_id, nbytes, transport, data[_KEY.size :])
