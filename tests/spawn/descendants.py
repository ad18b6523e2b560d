"""Watch processes that are not children of the test, by pidfd, because a pid may be reused."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


class Watched:
    """Processes by pid, each with a pidfd."""

    def __init__(self, pids: list[int]) -> None:
        self._fds: dict[int, int] = {}
        for pid in pids:
            self.add(pid)

    def add(self, pid: int) -> None:
        """Watch one more, which has not ended."""
        self._fds[pid] = os.pidfd_open(pid)

    def alive(self) -> list[int]:
        """Return the pids of those that have not ended."""
        return [pid for pid, fd in self._fds.items() if not select.select([fd], [], [], 0)[0]]

    def wait(self, seconds: float, but: int = 0) -> list[int]:
        """Wait up to *seconds* until only *but* of them live; return the pids of those."""
        deadline = time.monotonic() + seconds
        while len(alive := self.alive()) > but and (left := deadline - time.monotonic()) > 0:
            select.select([self._fds[pid] for pid in alive], [], [], left)
        return alive

    def close(self) -> None:
        """Kill those that still run."""
        for fd in self._fds.values():
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.close(fd)
        self._fds = {}


@contextmanager
def program(folder: Path, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """
    Run a program that can import the modules of this folder; kill it at the end.
    """
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    process = subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def printed_pids(process: subprocess.Popen[str], count: int) -> list[int]:
    """
    Return the next *count* lines of the program as pids.
    """
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    return [int(line) for line in lines]
