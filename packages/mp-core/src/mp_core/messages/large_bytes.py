"""Large bytes: what `bytes`, `bytearray`, `str` and `array.array` of 64 KiB and more need beside their C code.

`large_bytes.c` copies them into blocks; `pickle_writer.c` and `pickle_reader.c` are the files of
picklers and unpicklers.
"""

from __future__ import annotations

import sys

from mp_core.sharing import backend
from mp_core.system.pickled_call import PickledCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The reduction of an array by this protocol has its bytes and its machine format.
PROTOCOL = 5

Place = tuple[int, int, bytes]
"""Position in the stream, bytes of the length before it, handle."""


def writer() -> Any:
    """Return a pickler's file, whose ``take()`` returns (stream, places): large bytes are in blocks."""
    return backend.PickleWriter(_stays)


def reader(stream: bytes, places: list[Place]) -> Any:
    """Return the file for an unpickler: *stream* with the bytes of the *places* in their positions."""
    from mp_core.memory.block import rebuild_copy

    pieces = [(position, width, rebuild_copy(handle)) for position, width, handle in places]
    return backend.PickleReader(stream, pieces)


def _stays(number: int, nbytes: int) -> None:
    """Warn, the first time, that bytes travel through the pipe, because a block failed with errno *number*."""
    from mp_core.memory import block
    from mp_core.system.errors import warn_sent_by_value

    warn_sent_by_value("data", nbytes, block.error_of(number, nbytes))


# ---- array.array -----------------------------------------------------------------------------------------------------


def use_arrays(table: Any) -> None:
    """
    Let the pickler with this dispatch *table* copy an `array.array` straight into a block.

    A reducer that a program has registered is kept. The module ``multiprocessing.managers`` registers one too, which
    copies the array; it is replaced.
    """
    module = sys.modules.get("array")
    if module is None:
        return
    known = table.get(module.array)
    if known is None or known is getattr(sys.modules.get("multiprocessing.managers"), "reduce_array", None):
        dict.__setitem__(table, module.array, _reduce_array)


def _reduce_array(array: Any) -> Any:
    nbytes = len(array) * array.itemsize
    if nbytes < backend.LARGE or backend.by_value():
        return array.__reduce_ex__(PROTOCOL)
    handle = backend.copy_large(array)
    if isinstance(handle, int):
        _stays(-handle, nbytes)
        return array.__reduce_ex__(PROTOCOL)
    return rebuild_array, (array.typecode, PickledCall(backend.rebuild_copy, handle))


def rebuild_array(typecode: str, memory: Any) -> Any:
    """Return a new array of the bytes in *memory*, which came through a block."""
    from array import array

    made = array(typecode)
    with memoryview(memory) as view:
        made.frombytes(view)
    backend.copied_bytes(len(made) * made.itemsize)
    return made
