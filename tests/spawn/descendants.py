"""Watch processes that are no children of the test: by descriptor, so that a recycled pid fools nobody."""

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
    """Processes by pid, each with a descriptor."""

    def __init__(self, pids: list[int]) -> None:
        self._fds = {pid: os.pidfd_open(pid) for pid in pids}

    def alive(self) -> list[int]:
        """Those that have not ended."""
        return [pid for pid, fd in self._fds.items() if not select.select([fd], [], [], 0)[0]]

    def wait(self, seconds: float, but: int = 0) -> list[int]:
        """Those that have not ended within *seconds*; no longer than until only *but* of them live."""
        deadline = time.monotonic() + seconds
        while len(alive := self.alive()) > but and (left := deadline - time.monotonic()) > 0:
            select.select([self._fds[pid] for pid in alive], [], [], left)
        return alive

    def close(self) -> None:
        """Kill what is left."""
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
    A running program that can import the functions beside this file; killed at the end.
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


def pids_told(process: subprocess.Popen[str], count: int) -> list[int]:
    """
    The next *count* lines of the program, each a pid.
    """
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    return [int(line) for line in lines]
