"""`RankSpec`: everything that one rank is given, under every start method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mp_spawn.calls.payload import InheritedFd, Payload


class RankSpec(NamedTuple):
    """
    The description of one rank: plain data, and the descriptors that it inherits.

    (It is no dataclass: importing `dataclasses` takes as long as starting Python, in every rank.)
    """

    rank: int
    payload: Payload
    #: The pipe for the report, or the file of all reports, and the read end of the death pipe, None for the pipe of
    #: multiprocessing.
    report: InheritedFd
    death_pipe: InheritedFd | None
    #: The place of this rank's report in the file; None for a pipe.
    report_at: int | None = None
    #: The path of the parent's end of the pipe for the report.
    parents_end: str | None = None
    #: Where standard output and standard error go; None leaves them.
    output: tuple[InheritedFd, InheritedFd] | None = None
    #: The file for the Python stacks of a crash; None for no stacks.
    stacks: InheritedFd | None = None
    #: The pipe into which the zygote writes how the rank ended; None without a zygote.
    status: InheritedFd | None = None
    #: A copy of the launcher's standard input, for a program; None for an empty one.
    stdin: InheritedFd | None = None
    env: Mapping[str, str] = {}
    cpus: frozenset[int] | None = None
    #: That of its random numbers; None for none.
    seed: Any = None
    #: Whether the rank gets a process group of its own.
    own_group: bool = False
    wants_result: bool = False
    #: Whether the rank is a program of the command, and no child of multiprocessing.
    is_program: bool = False
    #: Whether the starting program is on another machine, so that the result is pickled by value.
    by_value: bool = False
    #: The program's signal mask, which the rank restores once it can deal with signals. None leaves the mask.
    mask: frozenset[int] | None = None
    #: The signals that its group had been sent before the start; None if it gets each from the launcher.
    sent_before: frozenset[int] | None = None

    @property
    def fds(self) -> set[int]:
        """The descriptors that the rank inherits."""
        optional = (self.death_pipe, *(self.output or ()), self.stacks, self.status, self.stdin)
        each = (self.report, *filter(None, optional), *self.payload.fds)
        return {inherited.fd for inherited in each}
