"""Buffers that objects offer to pickle (`PickleBuffer`): sent as arrays are, shared if possible, else copied once.

Arrow tables, the text columns of pandas, and classes whose ``__reduce_ex__(5)`` returns buffers use them. NumPy's own
buffers come here from a process only that has not registered the reducer of arrays.
"""

from __future__ import annotations

from mp_core.memory.block import Block, Copied, allocate, block_at
from mp_core.sharing import backend
from mp_core.system.errors import warn_sent_by_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pickle import PickleBuffer

Place = tuple[Block | Copied, int, int, bool]
"""A block, the offset in it, the number of bytes, and whether they are read-only."""


def take(buffer: PickleBuffer) -> Place | None:
    """Put *buffer* into shared memory and return its place for `pickling`; None for a small private buffer."""
    try:
        raw = buffer.raw()
    except BufferError:
        return None  # not contiguous: the pickler raises
    nbytes = raw.nbytes
    if nbytes == 0:
        return None
    address = backend.address_of(raw)
    block = block_at(address)
    if block is not None and address + nbytes <= block.address + block.nbytes:
        return block, address - block.address, nbytes, raw.readonly
    if nbytes < backend.LEAST_BUFFER:
        return None
    try:
        block = allocate(nbytes, zeroed=False)
    except (MemoryError, OSError) as error:
        warn_sent_by_value("a buffer", nbytes, error)
        return None
    memoryview(block)[:] = raw
    backend.copied_bytes(nbytes)
    return Copied(block), 0, nbytes, raw.readonly
