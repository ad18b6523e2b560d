"""A rank as the parent sees it: a process, a descriptor of it, and an inbox."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import signal
import time
from multiprocessing.process import BaseProcess

from mp_spawn import oom
from mp_spawn.errors import Failure, name_of_signal
from mp_spawn.pidfd import PidFd
from mp_spawn.report import Inbox, Kind, Report
from mp_spawn.stacks import DUMP, Stacks

__all__ = ["Rank", "all_ended", "stacks_of"]

logger = logging.getLogger("mp_spawn")

# A death is seen when the kernel has closed the dead process's files, and by then its peers may have
# complained of broken connections. In the order of failures, a death therefore counts as having come this
# much earlier.
HEAD_START = 0.05
# Until ranks have told what they are doing, all together.
FOR_STACKS = 2.0
# After these, faulthandler has written.
CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, getattr(signal, "SIGBUS", signal.SIGSEGV)}
)
UNKNOWN = "exit code unknown, which another call of wait() took"
KILLED_SERVER = "exit code unknown, since the fork server was killed"


class Rank:
    """One life of one rank; a restart makes a new one."""

    def __init__(self, index: int, process: BaseProcess, inbox: Inbox | None, pidfd: PidFd, restarts: int = 0) -> None:
        self.index = index
        self.process = process
        self.restarts = restarts
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self._inbox = inbox
        self._pidfd = pidfd
        self._casualty_at: float | None = None
        #: Set by the job that has started it.
        self.stacks: Stacks | None = None
        self.kills_before: dict[str, int] = {}
        self._killed_by = ""
        self._stack = ""

    @property
    def pid(self) -> int:
        return int(self.process.pid or 0)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def end_fd(self) -> int:
        """What becomes readable when the process has ended."""
        # The sentinel of a process of the fork server tells of the server's end, too.
        under_server = getattr(getattr(self.process, "_popen", None), "method", "") == "forkserver"
        return self._pidfd.fd if under_server and self._pidfd.fd >= 0 else self.process.sentinel

    @property
    def inbox_fd(self) -> int:
        """The pipe to wait on for the report; -1 when there is nothing more to wait for."""
        return -1 if self._inbox is None else self._inbox.fd

    @property
    def report(self) -> Report | None:
        return None if self._inbox is None else self._inbox.report

    def read(self) -> None:
        """Take what there is of the report."""
        if self._inbox is not None:
            self._inbox.read()

    def reap(self, at: float) -> None:
        """The process has ended: take its exit code and the last of its report."""
        self.process.join()
        self.ended_at = getattr(self.process, "ended_at", None) or at
        self.read()
        code = self.process.exitcode
        if code == -signal.SIGKILL and self.kills_before:
            self._killed_by = oom.kills_since(self.kills_before)
        elif code is not None and -code in CRASHES and self.stacks is not None:
            self._stack = self.stacks.text()
        self.close()

    def ask_for_stacks(self) -> None:
        """Have the rank write what its threads are doing."""
        if self.stacks is not None and DUMP and not self.ended:
            self._pidfd.send(DUMP)

    def signal(self, signum: int, casualty: bool = False) -> None:
        """Send a signal, if the process is still there; how a *casualty* ends from now on is not its own."""
        if self.ended:
            return
        if casualty and self._casualty_at is None:
            self._casualty_at = time.monotonic()
            logger.warning("Terminating process %s via signal %s", self.pid, name_of_signal(signum))
        self._pidfd.send(signum)

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.join()
        self.close()

    def failure(self, needs_result: bool) -> Failure | None:
        """How this rank failed by itself; None when it has not."""
        report = self.report
        base = Failure(self.index, self.pid, "", restarts=self.restarts)
        fate = self._casualty_at or float("inf")
        exit_code = self.process.exitcode if self.ended else None
        if report is not None and report.kind is Kind.RAISED:
            if report.at > fate:
                return None
            reason, _, text = report.text.partition("\n")
            return dataclasses.replace(
                base,
                reason=reason,
                exit_code=exit_code,
                traceback=text,
                exception=_unpickled(report.blob),
                at=report.at,
            )
        if self.ended_at is None or self.ended_at > fate:
            return None
        at = self.ended_at - HEAD_START
        lost = getattr(getattr(self.process, "_popen", None), "lost", False)
        if exit_code is None or lost:
            if report is not None and report.kind is Kind.RETURNED:
                return None
            return dataclasses.replace(base, reason=KILLED_SERVER if lost else UNKNOWN, exit_code=exit_code, at=at)
        if exit_code < 0:
            name = name_of_signal(-exit_code)
            reason = ", ".join(filter(None, (f"signal {name}", self._killed_by)))
            return dataclasses.replace(
                base, reason=reason, exit_code=exit_code, signal_name=name, stack=self._stack, at=at
            )
        reason = f"exit code {exit_code}"
        if report is not None and report.kind is Kind.LEFT:
            reason += f", {report.text}"
        elif exit_code == 0 and needs_result and report is None:
            reason += ", before it returned a result"
        elif exit_code == 0:
            return None
        return dataclasses.replace(base, reason=reason, exit_code=exit_code, at=at)

    def close(self) -> None:
        """Close what was open for it; what was reported stays."""
        if self._inbox is not None:
            self._inbox.close()
        if self.stacks is not None:
            self.stacks.close()
        self._pidfd.close()


def _unpickled(blob: bytes) -> BaseException | None:
    try:
        error = pickle.loads(blob)
    except Exception:
        return None  # nothing was sent, or it cannot be made again here; the text is enough
    return error if isinstance(error, BaseException) else None


def stacks_of(ranks: list[Rank]) -> dict[int, str]:
    """
    What each of them that still runs is doing, by rank; without those that were not to be asked.
    """
    slow = [(rank, rank.stacks) for rank in ranks if not rank.ended and rank.stacks is not None]
    for rank, _ in slow:
        rank.ask_for_stacks()
    deadline = time.monotonic() + FOR_STACKS
    texts = {rank: stacks.wait(rank.pid, deadline - time.monotonic()) for rank, stacks in slow}
    return {
        rank.index: f"rank {rank.index} (pid {rank.pid}):\n{text.rstrip() or '  no answer'}"
        for rank, text in texts.items()
    }


def all_ended(ranks: list[Rank]) -> bool:
    """
    Whether all of them have ended.
    """
    return all(rank.ended for rank in ranks)
