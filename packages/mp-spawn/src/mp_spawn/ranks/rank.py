"""A rank as the parent sees it: its process, its report, how it failed, and how to wait for several."""

from __future__ import annotations

import dataclasses
import pickle
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from mp_core.system.handler_errors import is_of_handler
from mp_spawn.errors import Failure, name_of_signal
from mp_spawn.ranks.diagnostics import DUMP, Stacks, answers, blocking_threads
from mp_spawn.ranks.process_group import is_alive, leads_group, send_to_group
from mp_spawn.ranks.process_handle import POLL_EVERY_S, SHORTEST_POLL_S, PidFd, has_closed_pipe
from mp_spawn.ranks.report_pipe import Inbox, Kind, Report
from mp_spawn.ranks.signals import Deferral, Forwarding

# A death is seen when the kernel has closed the process's files, and by then its peers may have failed with broken
# connections. In the order of failures, a death therefore counts as so many seconds earlier.
HEAD_START = 0.05
# Seconds in which ranks must write their stacks, all together.
FOR_STACKS = 2.0
# The signals for which faulthandler writes stacks.
CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, getattr(signal, "SIGBUS", signal.SIGSEGV)}
)
UNKNOWN = "exit code unknown, which another call of wait() took"
NO_TERMINAL = "it asked for input from the terminal, which only rank 0 can read, with -n 1 or --stdin 0"
KILLED_SERVER = "exit code unknown, since the fork server was killed"


class Rank:
    """One process of one rank; a restart makes a new object."""

    def __init__(
        self,
        index: int,
        process: BaseProcess,
        pidfd: PidFd,
        inbox: Inbox | None = None,
        stacks: Stacks | None = None,
        restarts: int = 0,
        kills_before: dict[str, int] | None = None,
        to_group: frozenset[int] = frozenset(),
        is_program: bool = False,
    ) -> None:
        self.index = index
        self.process = process
        self.restarts = restarts
        self.stacks = stacks
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self._pidfd = pidfd
        self._inbox = inbox
        self._kills_before = kills_before
        # Which signals all processes of its group are sent; none if it has no group of its own.
        self._to_group = to_group
        self._is_program = is_program
        self._has_left = False
        #: It has left something that has not been told to end.
        self.has_untold = False
        self._casualty_at: float | None = None
        self._killed_by = ""
        self._stack = ""
        # What it has raised, in a tuple once it is unpickled.
        self._raised: tuple[BaseException | None] | None = None

    @property
    def pid(self) -> int:
        return int(self.process.pid or 0)

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def seconds(self) -> float:
        """How long it has run. It may have ended before this process knew that it runs."""
        return max(0.0, (self.ended_at or time.monotonic()) - self.started_at)

    @property
    def end_fd(self) -> int:
        """The descriptor that becomes readable when the process has ended."""
        # The sentinel of multiprocessing is a pipe. It also becomes readable at the end of the fork server, and when a
        # rank closes all its descriptors or becomes another program.
        is_pipe = getattr(getattr(self.process, "_popen", None), "method", "") in ("fork", "spawn", "forkserver")
        return self._pidfd.fd if is_pipe and self._pidfd.fd >= 0 else self.process.sentinel

    @property
    def inbox_fd(self) -> int:
        """The pipe to wait on for the report; -1 if nothing more will come."""
        return -1 if self._inbox is None else self._inbox.fd

    @property
    def report(self) -> Report | None:
        return None if self._inbox is None else self._inbox.report

    def read(self) -> None:
        """Read what is there of the report."""
        if self._inbox is not None:
            self._inbox.read()

    def reap(self, at: float) -> None:
        """Take the exit code and the rest of the report of a process that has ended."""
        self.process.join()
        self.ended_at = getattr(self.process, "ended_at", None) or at
        self.read()
        code = self.process.exitcode
        if code == -signal.SIGKILL and self._kills_before:
            from mp_core.system.oom_kills import oom_kills_since

            self._killed_by = oom_kills_since(self._kills_before)
        elif code is not None and -code in CRASHES and self.stacks is not None:
            self._stack = self.stacks.text()
        self.close()
        self._has_left = self.has_untold = bool(code and self._to_group) and send_to_group(self.pid, 0)

    def has_left(self) -> bool:
        """Tell whether a process still runs that this rank has started, and left when it failed."""
        self._has_left = self._has_left and is_alive(self.pid)
        return self._has_left

    def left_writers(self) -> bool:
        """Tell whether a process still runs that this rank has started under the command, and left."""
        return bool(self._to_group) and is_alive(self.pid)

    def signal_left(self, signum: int) -> None:
        """Send a signal that ends it to what this rank has left; a stopped process takes it as well."""
        self.has_untold = False
        if self._has_left:
            send_to_group(self.pid, signum)
            send_to_group(self.pid, signal.SIGCONT)

    def ask_for_stacks(self) -> None:
        """Have the rank write the stacks of its threads, if the system sends it this signal."""
        if self.stacks is not None:
            self.stacks.skip()
            self.signal(DUMP)

    def wait_for_stacks(self, seconds: float, blocking: frozenset[str]) -> str:
        """Return the stacks; empty if they do not come in time. The threads *blocking* blocked the signal before."""
        return "" if self.stacks is None else self.stacks.wait(self.pid, seconds, blocking).rstrip()

    def signal(self, signum: int, casualty: bool = False) -> bool:
        """
        Send a signal, if the process still runs and the system lets us: the other ranks must be sent theirs. The end of
        a *casualty* is from now on no failure of its own; return whether it has become one.
        """
        if self.ended:
            return False
        is_new = casualty and self._casualty_at is None
        if is_new:
            self._casualty_at = time.monotonic()
        with suppress(OSError):
            if signum in self._to_group and self._pidfd.send(0) and leads_group(self.pid):
                send_to_group(self.pid, signum)
            else:
                self._pidfd.send(signum)
        return is_new

    def failure(self, needs_result: bool) -> Failure | None:
        """Judge the end of this rank: return its failure, or None if it has not failed by itself."""
        report = self.report
        base = Failure(self.index, self.pid, "", restarts=self.restarts)
        casualty_at = self._casualty_at or float("inf")
        exit_code = self.process.exitcode if self.ended else None
        if report is not None and report.kind is Kind.RAISED:
            if report.at > casualty_at:
                return None
            reason, _, text = report.text.partition("\n")
            if self._raised is None:  # once: memory in it is received once
                self._raised = (unpickled(report.blob),)
            return dataclasses.replace(
                base,
                reason=reason,
                exit_code=exit_code,
                traceback=text,
                exception=self._raised[0],
                at=report.at,
            )
        if report is not None and report.kind is Kind.INTERRUPTED:
            if report.at > casualty_at:
                return None
            # Whatever has become of it since: it dies of SIGINT, when its threads and children let it.
            code, name = -signal.SIGINT, "SIGINT"
            return dataclasses.replace(base, reason="signal SIGINT", exit_code=code, signal_name=name, at=report.at)
        if self.ended_at is None or self.ended_at > casualty_at:
            return None
        at = self.ended_at - HEAD_START
        from mp_core.children.main_module import is_missing_guard, missing_guard

        # A program may die of that signal itself; it needs no guard, since no other process imports its main module.
        if not self._is_program and is_missing_guard(exit_code, self.process._popen):  # type: ignore[attr-defined]
            return dataclasses.replace(base, reason=str(missing_guard()), exit_code=1, missing_guard=True, at=at)
        lost = getattr(getattr(self.process, "_popen", None), "lost", False)
        if exit_code is None or lost:
            if report is not None and report.kind is Kind.RETURNED:
                return None
            return dataclasses.replace(base, reason=KILLED_SERVER if lost else UNKNOWN, exit_code=exit_code, at=at)
        if exit_code < 0:
            name = name_of_signal(-exit_code)
            why = NO_TERMINAL if name in ("SIGTTIN", "SIGTTOU") else self._killed_by
            reason = ", ".join(filter(None, (f"signal {name}", why)))
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

    def take_exception(self) -> bytes:
        """Take the pickled exception out of the report, for another process to unpickle; empty if there is none."""
        report = self.report
        if self._inbox is None or report is None or report.kind is not Kind.RAISED:
            return b""
        self._inbox.report = report._replace(blob=b"")
        return report.blob

    def close(self) -> None:
        """Close the descriptors; the report and the failure stay."""
        if self._inbox is not None:
            self._inbox.close()
        if self.stacks is not None:
            self.stacks.close()
        self._pidfd.close()


def unpickled(blob: bytes) -> BaseException | None:
    """
    Return a rank's exception from its pickle; None if there is none, or it cannot be unpickled here.

    >>> unpickled(pickle.dumps(ValueError("boom")))
    ValueError('boom')
    """
    try:
        error = pickle.loads(blob)
    except BaseException as refusal:
        if isinstance(refusal, KeyboardInterrupt) or is_of_handler(refusal):
            raise
        return None  # the text is enough; also of one whose pickle would end this program
    return error if isinstance(error, BaseException) else None


def stacks_of(ranks: list[Rank], first: int = 0, place: str = "") -> dict[int, str]:
    """
    Return the stacks of those *ranks* that still run, by rank, each under a line with the *place*; no text for one that
    has no file for stacks. They are the ranks of a job from its rank *first* on.
    """
    running = [rank for rank in ranks if not rank.ended]
    able = [rank for rank in running if rank.stacks is not None]
    asked = [(rank, blocking_threads(rank.pid)) for rank in able if answers(rank.pid)]
    for rank, _ in asked:
        rank.ask_for_stacks()
    deadline = time.monotonic() + FOR_STACKS
    told = dict.fromkeys(able, "  none: it begins, ends, or has become another program")
    for rank, blocking in asked:
        told[rank] = rank.wait_for_stacks(deadline - time.monotonic(), blocking) or "  no answer"
    return {
        first + rank.index: f"rank {first + rank.index} (pid {rank.pid}{place}):\n{told[rank]}" if rank in told else ""
        for rank in running
    }


def all_ended(ranks: list[Rank]) -> bool:
    return all(rank.ended for rank in ranks)


class Events:
    """
    Waits for the ends and reports of *ranks*, and for *signals* to this process, which may send some on by *forward*.

    A rank that has ended is removed from *sentinels*. Where there are no pidfds, or few descriptors, an end is seen by
    the sentinel, which a rank can close before: such a rank is looked at from time to time.
    """

    def __init__(
        self,
        ranks: list[Rank],
        sentinels: dict[int, int],
        signals: Forwarding | Deferral | None,
        forward: Callable[[int], None],
    ) -> None:
        self._selector = selectors.PollSelector()  # takes no descriptor
        self._sentinels = sentinels
        self._signals = signals if signals is not None and signals.fd >= 0 else None
        self._forward = forward
        self.polled_at = 0.0
        # The ranks whose sentinels are readable and that have not ended: seconds until the next look.
        self._unseen: dict[Rank, float] = {}
        for rank in ranks:
            self.add(rank)
        if self._signals is not None:
            self._selector.register(self._signals.fd, selectors.EVENT_READ)

    def add(self, rank: Rank) -> None:
        """Also wait for this rank, unless it has ended."""
        if not rank.ended:
            self._selector.register(rank.end_fd, selectors.EVENT_READ, (rank, True))
            if rank.inbox_fd >= 0:
                self._selector.register(rank.inbox_fd, selectors.EVENT_READ, (rank, False))

    def _unregister(self, *fds: int) -> None:
        for fd in fds:
            if fd >= 0 and fd in self._selector.get_map():
                self._selector.unregister(fd)

    def remove(self, rank: Rank) -> None:
        """Wait for this rank no longer."""
        self._unregister(rank.end_fd, rank.inbox_fd)
        self._unseen.pop(rank, None)
        self._sentinels.pop(rank.process.sentinel, None)

    def poll(self, timeout: float | None, since: float | None = None) -> list[Rank]:
        """
        Wait up to *timeout* seconds for events and handle them; return the ranks concerned, each once.

        *since* is the time of the last poll if that was not just now: a death found now is dated back to the time at
        which the rank was last known to be alive.
        """
        events = [key for key, _ in self._selector.select(self._until_look(timeout))]
        now = self.polled_at = time.monotonic()
        if self._signals is not None and any(key.data is None for key in events):
            self._signals.handle(self._forward)
        changed: dict[Rank, None] = {}
        ready = [(key.fd, *key.data) for key in events if key.data is not None]
        for fd, rank, has_ended in [*ready, *((-1, rank, True) for rank in self._unseen)]:
            if rank.ended:
                changed[rank] = None
                self._unregister(fd)
                self._unseen.pop(rank, None)
                continue
            inbox = rank.inbox_fd
            if has_ended and has_closed_pipe(rank.process._popen):
                self._unregister(fd)
                self._unseen[rank] = min(2 * self._unseen.get(rank, SHORTEST_POLL_S), POLL_EVERY_S)
                continue
            changed[rank] = None
            if has_ended:
                self.remove(rank)
                rank.reap(now if since is None else max(rank.started_at, since))
            else:
                rank.read()
            if rank.inbox_fd < 0:
                self._unregister(inbox)
        return list(changed)

    def _until_look(self, timeout: float | None) -> float | None:
        """Return how long to wait for events, at most *timeout*, until the next look at ranks whose end none tells."""
        pauses = self._unseen.values()
        return min(pauses if timeout is None else [timeout, *pauses], default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
