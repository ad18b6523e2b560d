"""`Supervisor`: waits for the ranks of a job, starts failed ones again, ends the others, and judges how each ended."""

from __future__ import annotations

import dataclasses
import logging
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from selectors import EVENT_READ, BaseSelector
from typing import Any, Self

from mp_spawn.errors import Failure, ProcessException, exception_of, name_of_signal
from mp_spawn.jobs.job import Job, are_descriptors_few
from mp_spawn.ranks.process_handle import POLL_EVERY_S
from mp_spawn.ranks.rank import Events, Rank, all_ended
from mp_spawn.ranks.report_pipe import Kind
from mp_spawn.ranks.signals import ENDING, TERM_TO_KILL, Forwarding, was_sent

# All times are in seconds. From the first failure to SIGTERM for the others, by default: long enough to see which
# other ranks fail at the same time.
GRACE = 0.1
LOOK_FOR_READER = 0.5
# For the output of what ranks have started, after they have ended well.
LATE_OUTPUT = 2.0
# From the end of a failed rank to SIGTERM for what it has left: the `tee` of a script writes the last words meanwhile.
LAST_WORDS = 0.5
# From SIGKILL until the launcher stops waiting for the kernel to end the process.
KILL_TO_DEAD = 5.0

logger = logging.getLogger("mp_spawn")


class Patience:
    """
    The *seconds* that a reader has who does not read, from when a job is to end.

    >>> Patience(60.0).is_over(True)
    False
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: float | None = None

    def is_over(self, is_to_end: bool) -> bool:
        """Tell whether the time has passed; it began when *is_to_end* was true for the first time."""
        if is_to_end and self._since is None:
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() > self._since + self.seconds


class Supervisor:
    """
    The ranks of a job while they run. One thread at a time calls its methods.

    *job* is None for processes that the program has started itself, and for ranks of which not all have started.
    *signals* are the signals to this process to handle while the ranks run: an object like `Forwarding`, with `fd` and
    `handle`. From SIGTERM the ranks have *time_to_end* seconds, by default the job's.
    """

    def __init__(
        self, ranks: list[Rank], job: Job | None, signals: Any = None, time_to_end: float | None = None
    ) -> None:
        self.job = job
        self.ranks = ranks
        self.signals = signals
        self.processes: list[BaseProcess] = [rank.process for rank in ranks]
        self.sentinels = {rank.process.sentinel: rank.index for rank in ranks}
        #: Failures after which the rank was started again.
        self.past: list[Failure] = []
        #: By a signal, which the ranks have been sent: they are not started again, and are sent no SIGTERM in addition.
        self.was_told_to_end = False
        #: That signal, if the command was sent it.
        self.told_by = 0
        #: The program has ended them itself, as one does that are late.
        self.is_terminated = False
        self._polled_at = 0.0
        # The ranks to be started again when they, and what they have left, have ended; and when those are killed.
        self._ending: dict[Rank, float] = {}
        # From SIGTERM to SIGKILL.
        self._time_to_end = (TERM_TO_KILL if job is None else job.time_to_end) if time_to_end is None else time_to_end
        self._patience = Patience(min(self._time_to_end, TERM_TO_KILL))

    @classmethod
    def start(cls, job: Any, signals: Any = None) -> Self:
        try:
            ranks = job.start(dict.fromkeys(range(job.nprocs), 0))
        except BaseException:
            job.output.finish()
            job.death_pipe.close()
            raise
        return cls(ranks, job, signals)

    def watch(self, events: BaseSelector) -> None:
        """Let *events* wait for all for which `wait` waits."""
        with suppress(OSError, ValueError):  # another thread is in join(), and has just closed one
            for rank in self.ranks:
                # Not the pidfd, which another thread closes at the end: an epoll forgets what is closed.
                for fd in () if rank.ended else (rank.process.sentinel, rank.inbox_fd):
                    if fd >= 0:
                        events.register(fd, EVENT_READ)

    def forward(self, signum: int) -> None:
        """Send a signal on to the ranks. After one that ends them they are not started again."""
        if signum in ENDING:
            self.was_told_to_end = True
            self.told_by = signum
        # A key of the terminal has reached rank 0 if that is in the group of this process.
        witness = self.job.launcher.witness if self.job is not None and self.job.gives_terminal else 0
        for rank in self.ranks:
            if not (rank.index == 0 and witness and was_sent(witness, signum)):
                rank.signal(signum)

    def count_ended(self) -> int:
        return sum(rank.ended for rank in self.ranks)

    def wait(self, deadline: float | None) -> bool:
        """Wait until all have ended or one has failed for good; return False at the deadline."""
        with self.events() as events:
            changed = self._poll(events, 0.0, late=True) or self.ranks
            while True:
                if self._restart_failed(events, changed) or (all_ended(self.ranks) and not self._ending):
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                changed = self._poll(events, self._until_late(left))
                if not changed and left is not None and left <= 0:
                    return False

    def _restart_failed(self, events: Events, changed: list[Rank]) -> bool:
        """Start those of *changed* again that have failed, or all ranks with one; return True if one may not be."""
        concerned = dict.fromkeys([*changed, *self._ending])
        failed = [(rank, failure) for rank in concerned if (failure := self.failure(rank)) is not None]
        if not failed:
            return False
        if self.job is None or self.was_told_to_end or any(old.restarts >= self.job.max_restarts for old, _ in failed):
            return True
        if self.job.restarts_all:
            return not self._restart_all(events, failed[0][1], self.job)
        now = time.monotonic()
        for rank, _ in failed:
            self._ending.setdefault(rank, now + self._time_to_end)
        ended = [
            (rank, failure)
            for rank, failure in failed
            if rank.ended and (not rank.has_left() or now > self._ending[rank] + KILL_TO_DEAD)
        ]
        if not ended:
            return False
        for rank, _ in ended:
            del self._ending[rank]
        # The descriptors of an old rank go when a new one has its place.
        few = are_descriptors_few(len(ended), self.job.output)
        for together in [[each] for each in ended] if few else [ended]:
            self.restart(together, self.job)
            for old, _ in together:
                events.add(self.ranks[old.index])
        return False

    def _until_late(self, timeout: float | None) -> float | None:
        """Kill what is late of the ranks to be started again; return when to look again, at most after *timeout*."""
        waits = [] if timeout is None else [timeout]
        for rank, at in self._ending.items():
            left = at - time.monotonic()
            if left <= 0:
                rank.signal(signal.SIGKILL)
            self._kill_late(rank)
            waits.append(POLL_EVERY_S if rank.ended or left <= 0 else left)
        return min(waits, default=None)

    def _kill_late(self, rank: Rank) -> bool:
        """Kill what a failed rank has left once it has had its time; return whether that still runs."""
        since = rank.ended_at if rank.has_left() else None
        if since is None:
            return False
        if time.monotonic() > since + self._time_of_left():
            # First the one and then, when it is looked at again, the other.
            rank.signal_left(signal.SIGTERM if rank.has_untold else signal.SIGKILL)
        return True

    def _time_of_left(self) -> float:
        """Return the seconds from the end of a failed rank to SIGKILL for what it has left."""
        return self._time_to_end if self.was_told_to_end else min(self._time_to_end, TERM_TO_KILL)

    def restart(self, failed: list[tuple[Rank, Failure]], job: Job) -> None:
        """Start ranks again that have failed and ended: at once, since they share what a start costs."""
        again = {old.index: old.restarts + 1 for old, _ in failed}
        for old, failure in failed:
            text = failure.for_file().rstrip()  # nobody else shows its traceback
            logger.warning("%s; it is started again (%d of %d)", text, again[old.index], job.max_restarts)
            self.past.append(failure)
            job.output.add(failure.rank, failure.for_file())
        try:
            started = job.start(again)
        except BaseException:
            self.end(0.0)
            raise
        for new in started:
            self.ranks[new.index] = new
            self.processes[new.index] = new.process
            self.sentinels[new.process.sentinel] = new.index

    def _restart_all(self, events: Events, first: Failure, job: Job) -> bool:
        """End all ranks and start all of them again; return False if they do not end, or are to end for good."""
        for rank in self.ranks:
            if not rank.ended:
                events.remove(rank)
        self._stop(GRACE, casualties=True)
        self._end_left()
        if self.was_told_to_end or not all_ended(self.ranks):
            return False
        again = first.restarts + 1
        for failure in filter(None, map(self.failure, self.ranks)):
            self.past.append(failure)
            job.output.add(failure.rank, failure.for_file())
            if failure.rank != first.rank:  # often since the first one has gone
                logger.warning("%s", failure.describe())
        text = first.for_file().rstrip()
        logger.warning("%s; all ranks are started again (%d of %d)", text, again, job.max_restarts)
        for rank in self.ranks:
            rank.close()
        try:
            self.ranks = job.start(dict.fromkeys(range(job.nprocs), again))
        except BaseException:
            self.end(0.0)
            raise
        self.processes[:] = [rank.process for rank in self.ranks]
        for rank in self.ranks:
            self.sentinels[rank.process.sentinel] = rank.index
            events.add(rank)
        return True

    def failure(self, rank: Rank) -> Failure | None:
        return rank.failure(needs_result=self.job is not None and self.job.wants_result)

    def settle(self, grace_period: float | None) -> ProcessException | None:
        """End the ranks that still run, and return the exception; None if none has failed."""
        if not all_ended(self.ranks):
            silent = any(failure.missing_guard for rank in self.ranks if (failure := self.failure(rank)) is not None)
            self.end(GRACE if grace_period is None else grace_period, casualties=not silent)
        self.finish()
        failures = [failure for rank in self.ranks if (failure := self.failure(rank)) is not None]
        if not failures:
            return None
        if self.job is not None:
            for failure in failures:
                self.job.output.add(failure.rank, failure.for_file())
        with_output = [
            dataclasses.replace(
                failure, stdout=self.text(failure.rank, "stdout"), stderr=self.text(failure.rank, "stderr")
            )
            for failure in failures
        ]
        return exception_of(with_output, self.past)

    def end(self, grace_period: float, casualties: bool = False) -> None:
        """End the ranks. The ends of *casualties* of another failure are no failures of their own."""
        try:
            self._stop(grace_period, casualties)
        finally:
            self.finish()

    def _stop(self, grace_period: float, casualties: bool) -> None:
        try:
            if not self.was_told_to_end:
                self.pass_time(grace_period)
            # Again: the signal may have come meanwhile. A second one would be handled in the middle of the first.
            if not self.was_told_to_end:
                # A rank that has raised ends already: its threads, and what it calls at its end, may need the time.
                ending = (Kind.RAISED, Kind.INTERRUPTED)
                others = [rank for rank in self.ranks if rank.report is None or rank.report.kind not in ending]
                self._signal(others, signal.SIGTERM, casualties)
                self._signal(others, signal.SIGCONT, casualties)  # a stopped one takes the other signal then
                grace_period = 0.0
            self.pass_time(max(grace_period, self._time_to_end))
        finally:
            self._kill(casualties)

    def _kill(self, casualties: bool = False) -> None:
        self.signal(signal.SIGKILL, casualties)
        self.pass_time(KILL_TO_DEAD)

    def kill(self) -> None:
        """Kill the ranks."""
        try:
            self._kill()
        finally:
            self.finish()

    def _end_left(self) -> None:
        """Let what failed ranks have left in their groups end, and kill what does not."""
        give_up_at = time.monotonic() + self._time_to_end + KILL_TO_DEAD
        while sum(map(self._kill_late, self.ranks)) and time.monotonic() < give_up_at:
            self._terminate_left()
            self.hears_an_end()
            time.sleep(POLL_EVERY_S)

    def _terminate_left(self) -> float | None:
        """
        Send SIGTERM to what failed ranks have left, if that has had the time for its last words; return the seconds
        until the next has had it.
        """
        now, waits = time.monotonic(), []
        for rank in self.ranks:
            if rank.has_untold:
                left = (rank.ended_at or now) + min(LAST_WORDS, self._time_of_left() / 2) - now
                if left > 0:
                    waits.append(left)
                else:
                    rank.signal_left(signal.SIGTERM)
        return min(waits, default=None)

    def text(self, rank: int, stream: str) -> str:
        return "" if self.job is None else self.job.output.text(rank, stream)

    def signal(self, signum: int, casualties: bool = False) -> None:
        """Send a signal to the ranks that run; the ends of *casualties* are no failures."""
        self._signal(self.ranks, signum, casualties)

    def _signal(self, ranks: list[Rank], signum: int, casualties: bool) -> None:
        running = [rank for rank in ranks if not rank.ended]
        ended = [rank for rank in running if rank.signal(signum, casualties)]
        if casualties and signum == signal.SIGKILL:  # each of them, also those that have not ended by SIGTERM
            ended = running
        for rank in ended:  # after all signals: a program's handler of records may wait
            logger.warning("Terminating process %s via signal %s", rank.pid, name_of_signal(signum))

    def pass_time(self, seconds: float) -> None:
        """Wait until all have ended, at most *seconds*, and read their reports."""
        deadline = time.monotonic() + seconds
        with self.events() as events:
            self._poll(events, 0.0)
            while not all_ended(self.ranks) and (left := deadline - time.monotonic()) > 0:
                self._poll(events, left)

    def events(self) -> Events:
        """Return what `wait` waits for; in the main thread also the signals to this process."""
        signals = self.signals if threading.current_thread() is threading.main_thread() else None
        return Events(self.ranks, self.sentinels, signals, self.forward)

    def _poll(self, events: Events, timeout: float | None, late: bool = False) -> list[Rank]:
        """Handle the events so far; *late* says that the last poll was not just now."""
        left = self._terminate_left()
        if left is not None:
            timeout = left if timeout is None else min(timeout, left)
        if self._is_to_end() and self.job is not None and self.job.output.is_writing():
            # Ranks that wait for a reader who does not read would not end.
            timeout = LOOK_FOR_READER if timeout is None else min(timeout, LOOK_FOR_READER)
            if self._patience.is_over(True) and self.job.output.is_stalled(self._patience.seconds):
                self.job.output.discard()
        changed = events.poll(timeout, self._polled_at if late else None)
        self._polled_at = events.polled_at
        return changed

    def finish(self) -> None:
        """Close the descriptors of the job."""
        for rank in self.ranks:
            rank.close()
        self._end_left()
        if self.job is not None and all_ended(self.ranks):
            until = time.monotonic() + LATE_OUTPUT
            # What a rank has started may write a moment later than it, as the last program of a shell's pipeline.
            while self.job.output.is_writing() and any(rank.left_writers() for rank in self.ranks):
                if self.hears_an_end() or self.was_told_to_end or time.monotonic() > until:
                    break
                time.sleep(POLL_EVERY_S)
            self.job.output.finish(self.is_given_up)
            self.job.death_pipe.close()

    def is_given_up(self) -> bool:
        """Tell whether output that nobody reads is to be left unwritten."""
        self.hears_an_end()
        return self._patience.is_over(self._is_to_end())

    def _is_to_end(self) -> bool:
        return self.was_told_to_end or self.is_terminated

    def hears_an_end(self) -> bool:
        """Handle the signals that have come to the command; tell whether one of them ends the job."""
        # In a program, its own handlers decide.
        if isinstance(self.signals, Forwarding) and self.signals.fd >= 0:
            self.signals.handle(self.forward)
            return self.was_told_to_end
        return False

    def reports(self) -> list[bytes]:
        """Return the pickled result of each rank, after join() has returned True."""
        blobs = []
        for rank in self.ranks:
            assert rank.report is not None and rank.report.kind is Kind.RETURNED
            blobs.append(rank.report.blob)
        return blobs
