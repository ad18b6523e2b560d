"""`Tee`: each stream of each rank in a file, here with the rank in front, both, or neither."""

from __future__ import annotations

import os
from collections.abc import Callable

from mp_spawn.calls.payload import InheritedFd
from mp_spawn.output.destinations import STREAMS, Files, Pair, Prefix
from mp_spawn.output.streams import Streams


class Tee(Prefix):
    """
    Prefixed lines, and a folder with ``rank-0.out``, ``rank-0.err``, …; a restarted rank appends.

    *streams* says which of them.
    """

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams
        self._files = Files(self._streams.folder) if self._streams.folder else None
        self._numbers: dict[tuple[int, str], int] = {}

    def ends_for(self, rank: int, restarts: int) -> Pair | None:
        """Open the files of a rank that is about to start; return for each stream its pipe, or else its file."""
        out, err = (self._end_for(rank, stream, restarts) for stream in STREAMS)
        return InheritedFd(out), InheritedFd(err)

    def _end_for(self, rank: int, stream: str, restarts: int) -> int:
        filed, shown = self._streams.goes_to_file(rank, stream), self._streams.are_shown(rank, stream)
        if not shown and not filed:
            self._ends.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
            return self._ends[-1]
        if not filed:
            return self._pipe_for(rank, stream)
        assert self._files is not None
        # Of a rank that is started again, the rest may still be on its way to the file.
        if shown and (rank, stream) not in self._numbers:
            self._numbers[rank, stream] = self._files.open(rank, stream, restarts)
        if shown:
            return self._pipe_for(rank, stream)
        self._ends.append(self._files.open(rank, stream, restarts))
        return self._ends[-1]

    def own_fds(self) -> list[int]:
        """Return the descriptors that a forked rank must not keep."""
        return [*super().own_fds(), *self._numbers.values()]

    def add(self, rank: int, text: str) -> None:
        """Also append the launcher's text about a failure to the file."""
        if self._streams.goes_to_file(rank, "stderr") and self._files is not None:
            self._files.add(rank, text)

    def finish(self, is_given_up: Callable[[], bool] = bool) -> None:
        """Write the rest and close the files."""
        try:
            super().finish(is_given_up)
        finally:
            if not self.is_writing():
                numbers, self._numbers = self._numbers, {}
                for fd in numbers.values():
                    os.close(fd)

    def take(self, rank: int, stream: str, data: bytes) -> None:
        fd = self._numbers.get((rank, stream))
        if self._files is not None and fd is not None:
            self._files.append(rank, stream, data, fd)
        super().take(rank, stream, data)
