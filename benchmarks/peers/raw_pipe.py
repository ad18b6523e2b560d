"""Two pipes and no library: the floor of a round trip through the kernel."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.base import Ask, Peer, Starter
from benchmarks.peers.iceoryx import as_bytes, from_buffer

LARGEST = 4096
"""A pipe keeps messages of this size whole."""


class RawPipe(Peer):
    """`os.write` and `os.read` on two pipes, without pickle: only small arrays and numbers."""

    name = "raw pipe"

    def connect(self, starter: Starter) -> Ask:
        return self.talk(starter, End(*starter.context.Pipe(False)), End(*starter.context.Pipe(False)))


class End:
    """Both ends of a pipe, of which a process uses one."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self.reader, self.writer = reader, writer

    def put(self, message: Any) -> None:
        os.write(self.writer.fileno(), as_bytes(message))

    def get(self) -> Any:
        return from_buffer(os.read(self.reader.fileno(), LARGEST))

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
