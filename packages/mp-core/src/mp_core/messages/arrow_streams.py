"""Tables and columns with Arrow's C stream (`__arrow_c_stream__`): packed into one block, offered as a stream again.

    packed = pack(frame)                        the sender's reducer; None if it has to travel by its own pickle
    library.DataFrame(Stream(*packed))          the receiver: the columns lie in the block, nothing is copied

No library is imported for that. `formats/polars.py` is an example.
"""

from __future__ import annotations

from mp_core.memory import block
from mp_core.sharing import backend
from mp_core.system.errors import warn_sent_by_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Packed = tuple[bytes, "bytes | block.Copied"]
"""The layout, and the memory that it describes; send both once."""

# Fewer bytes travel in the message, as other buffers do.
LEAST = 1 << 15


def pack(thing: Any) -> Packed | None:
    """
    Copy the columns of *thing*, which has ``__arrow_c_stream__``, into one block for one receiver.

    It returns None if *thing* has to travel by its own pickle: in a message that goes by value, if no memory can be
    shared, and for a type of columns that is unknown here (unions, runs, list views).

    >>> pack(7)
    Traceback (most recent call last):
    AttributeError: 'int' object has no attribute '__arrow_c_stream__'
    """
    if backend.by_value():
        return None
    packed = backend.pack_arrow(thing.__arrow_c_stream__(), LEAST)
    if packed is None:
        return None
    layout, memory, nbytes = packed
    if isinstance(memory, int):
        warn_sent_by_value("a table", nbytes, block.error_of(-memory, nbytes))
        return None
    return layout, memory if isinstance(memory, bytes) else block.Copied(memory)


class Stream:
    """
    Offer what `pack` returned, at the receiver, by ``__arrow_c_stream__``.

    The reader keeps the block until it has released all arrays of the stream. It may write to it.
    """

    __slots__ = ("_layout", "_memory")

    def __init__(self, layout: bytes, memory: Any) -> None:
        self._layout, self._memory = layout, memory

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return backend.unpack_arrow(self._layout, self._memory)
