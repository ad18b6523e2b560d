"""A rank's place: what is set up in its process before anything of the user's is imported."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from mp_spawn import lifeline
from mp_spawn.payload import Handed

__all__ = ["Place"]


class Place(NamedTuple):
    """
    Where and how one rank lives. Plain data, apart from the descriptors.

    (No dataclass: importing what those need takes as long as starting Python, and every rank would pay.)
    """

    rank: int
    #: The pipe for the report, and the read end of the lifeline.
    report: Handed
    lifeline: Handed
    #: Where standard output and standard error go; None leaves them.
    output: tuple[Handed, Handed] | None = None
    #: Where a crash leaves the Python stacks; None for nowhere.
    stacks: Handed | None = None
    env: Mapping[str, str] = {}
    cpus: frozenset[int] | None = None
    #: Whether to live in a process group of its own.
    own_group: bool = False
    #: The program's signal mask: until the rank can deal with signals, they are held back. None leaves it.
    mask: frozenset[int] | None = None
    #: Under fork: closes the descriptors of the parent and of other ranks.
    leave_behind: Callable[[], None] | None = None

    @property
    def fds(self) -> list[int]:
        """The descriptors that a rank is given."""
        return [
            self.report.fd,
            self.lifeline.fd,
            *(handed.fd for handed in (*(self.output or ()), *((self.stacks,) if self.stacks else ()))),
        ]

    def take(self) -> None:
        """
        Settle in; called once, in the rank.
        """
        lifeline.hold(self.lifeline.fd)
        if self.leave_behind is not None:
            self.leave_behind()
        if self.own_group:
            os.setpgid(0, 0)
        if self.output is not None:
            self._redirect(self.output)
        _write_whole_lines()
        os.environ.update(self.env)
        if self.cpus is not None:
            os.sched_setaffinity(0, self.cpus)
        if self.stacks is not None:
            from mp_spawn.stacks import watch

            watch(self.stacks)
        if self.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def _redirect(self, output: tuple[Handed, Handed]) -> None:
        for number, name, handed in zip((1, 2), ("stdout", "stderr"), output, strict=True):
            os.dup2(handed.fd, number)
            # Under fork the parent's stream may be something else than the descriptor: a notebook's, a test
            # runner's.
            file = os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, file)
        for fd in {handed.fd for handed in output} - {1, 2}:
            os.close(fd)


def _write_whole_lines() -> None:
    """
    Have the streams written line by line, so that ranks that share one do not cut each other's lines in two.

    Under PYTHONUNBUFFERED, print() would write a text and the end of its line separately.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            cast(Any, stream).reconfigure(line_buffering=True, write_through=False)
