"""Buffers that objects offer to pickle (`PickleBuffer`): sent as arrays are, shared if possible, else copied once.

Arrow tables, the text columns of pandas, and classes whose ``__reduce_ex__(5)`` returns buffers use them. NumPy's own
buffers never come here: arrays have a reducer.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any

import numpy as np

from mp_core.block import Block, Copied, allocate, block_at
from mp_core.stats import add_copied_bytes
from mp_reductions import inline
from mp_reductions.by_value_warning import warn_once
from mp_reductions.sharing import address_of

__all__ = ["take"]

Place = tuple[Block | Copied, int, int, bool]


def take(buffer: PickleBuffer) -> Place | None:
    """Put *buffer* into shared memory and return its place for `mp_core._pickling`; None for a small buffer."""
    try:
        raw = buffer.raw()
    except BufferError:
        return None  # not contiguous: the pickler raises
    nbytes = raw.nbytes
    if nbytes == 0:
        return None
    data: np.ndarray[Any, Any] = np.frombuffer(raw, np.uint8)
    address = address_of(data)
    block = block_at(address)
    if block is not None and address + nbytes <= block._address + block.nbytes:
        return block, address - block._address, nbytes, raw.readonly
    if inline.has_room(nbytes):
        return None
    try:
        block = allocate(nbytes, zeroed=False)
    except (MemoryError, OSError) as error:
        warn_once(nbytes, error)
        return None
    memoryview(block)[:] = raw
    add_copied_bytes(nbytes)
    return Copied(block), 0, nbytes, raw.readonly
