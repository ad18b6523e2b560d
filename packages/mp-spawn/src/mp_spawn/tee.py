"""`Tee`: the output of the ranks both in a file per rank and stream and, with the rank in front, here."""

from __future__ import annotations

import os

from mp_spawn.output import Files, Pair, Prefix

__all__ = ["Tee"]


class Tee(Prefix):
    """Prefixed lines, and a folder with ``rank-0.out``, ``rank-0.err``, …; a restarted rank appends."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self._files = Files(folder)
        self._numbers: dict[tuple[int, str], int] = {}

    def ends_for(self, rank: int, restarts: int) -> Pair | None:
        """Open the files of a rank that is about to start, and return its pipes."""
        if (rank, "stdout") not in self._numbers:  # else it is started again, and its rest may still be on its way
            files = self._files.ends_for(rank, restarts)
            assert files is not None
            for stream, file in zip(("stdout", "stderr"), files, strict=True):
                self._numbers[rank, stream] = os.dup(file.fd)
            self._files.started()
        return super().ends_for(rank, restarts)

    def own_fds(self) -> list[int]:
        """Return the descriptors that a forked rank must not keep."""
        return [*super().own_fds(), *self._numbers.values()]

    def add(self, rank: int, text: str) -> None:
        """Append the launcher's text about a failure to the file, too."""
        self._files.add(rank, text)

    def finish(self) -> None:
        """Write the rest and close the files."""
        try:
            super().finish()
        finally:
            self._files.finish()
            numbers, self._numbers = self._numbers, {}
            for fd in numbers.values():
                os.close(fd)

    def _take(self, rank: int, stream: str, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._numbers[rank, stream], rest) :]
        except OSError:
            pass  # a full disk must not stop the ranks; the lines are printed all the same
        super()._take(rank, stream, data)
