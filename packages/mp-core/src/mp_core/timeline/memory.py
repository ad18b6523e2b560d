"""Samples of memory, ten times a second: shared memory of the run, and the resident memory of each of its processes.

The owner of the timeline takes them in a thread, and appends a line to a file for each:

    time used cached in-flight pid:resident pid:resident ...

A process that has no line any more has ended: that is how the end of a killed one is known. A line that a full disk or
the end of the owner has cut is left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import NamedTuple

from mp_core.sharing import backend

FILE = "memory"
INTERVAL_S = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """Bytes at one time; *resident* by pid."""

    time: int
    used: int
    cached: int
    in_flight: int
    resident: dict[int, int]


class Sampler:
    """The thread that takes samples for the run in *folder*."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd = os.open(os.path.join(folder, FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mp_timeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample, and end the thread."""
        self._end.set()
        self._thread.join()
        os.close(self._fd)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full, or the folder has gone: there are no more samples
            while not self._end.wait(INTERVAL_S):
                self._take()
            self._take()

    def _take(self) -> None:
        time = backend.timeline_now()
        resident = {}
        for name in os.listdir(self._folder):
            pid, dash, _ = name.partition("-")
            if dash and (nbytes := _resident(int(pid))):
                resident[int(pid)] = nbytes
        used = cached = in_flight = 0
        for _, _, _, owner, _, _, live, flying, free, holders in backend.segments():
            if owner in resident or not resident.keys().isdisjoint(holders):
                used, cached, in_flight = used + live, cached + free, in_flight + flying
        sizes = " ".join(f"{pid}:{nbytes}" for pid, nbytes in resident.items())
        os.write(self._fd, f"{time} {used} {cached} {in_flight} {sizes}\n".encode())


def _resident(pid: int) -> int:
    """Return the resident memory of a process, 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def read(text: str) -> list[Sample]:
    """
    Return the samples of a file.

    >>> read("7 1 2 3 40:4096\\n8 1 2")
    [Sample(time=7, used=1, cached=2, in_flight=3, resident={40: 4096})]
    """
    samples = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and len(words) >= 4:
            resident = {int(pid): int(nbytes) for pid, _, nbytes in (word.partition(":") for word in words[4:])}
            time, used, cached, in_flight = map(int, words[:4])
            samples.append(Sample(time, used, cached, in_flight, resident))
    return samples
