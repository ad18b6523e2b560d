"""`TaskBuffer`: the content of a buffer, which each task of a node gets as a private mapping of one copy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mp_core.memory.mapped_buffers import MappedBuffer, can_open, map_privately


class TaskBuffer:
    """The content of a buffer; see Note [Private mappings] in `mp_core.memory.mapped_buffers`."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._content = content
        self._mapped: MappedBuffer | None = None
        if can_open():
            with suppress(OSError):  # no memory or no descriptor
                self._mapped = MappedBuffer(content)
                self._content = content[:0]

    def __reduce__(self) -> tuple[Any, ...]:
        if self._mapped is None:
            return type(self._content), (self._content,)
        return map_privately, (*self._mapped.place, isinstance(self._content, bytearray))
