"""`ProcessContext`: the ranks of one job, from their start to the exception for their end."""

from __future__ import annotations

import dataclasses
import logging
import signal
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from multiprocessing.process import BaseProcess
from selectors import EVENT_READ, BaseSelector
from types import TracebackType
from typing import Any, Self

from mp_spawn.errors import Failure, ProcessException, exception_of
from mp_spawn.job import Job
from mp_spawn.output import Captured
from mp_spawn.process_handle import PidFd
from mp_spawn.rank import Events, Rank, all_ended
from mp_spawn.report_pipe import Kind
from mp_spawn.signals import ENDING, INTERRUPTED, TERM_TO_KILL, Deferral, Ended, Forwarding, group_was_sent, was_sent

__all__ = ["ProcessContext"]

# All times are in seconds. From the first failure to SIGTERM for the others, by default: long enough to see which
# other ranks fail at the same time.
GRACE = 0.1
# From SIGKILL until the launcher stops waiting for the kernel to end the process.
KILL_TO_DEAD = 5.0
# For ranks that may have handlers for a signal which ends them, until SIGKILL.
AFTER_A_SIGNAL = 30.0
# From a signal to this process to the same signal to its group, if there is one.
TO_THE_GROUP = 0.5

logger = logging.getLogger("mp_spawn")


class ProcessContext:
    """
    The ranks of a job, as `start_processes` returns them with ``join=False``.

    It is also a context manager: the end of the block waits for the ranks, and an exception in the block ends them.

    Attributes
    ----------
    processes : list of multiprocessing.process.BaseProcess
        By rank.
    sentinels : dict of int to int
        The sentinel of each process that has not ended, and its rank.
    error_files : list of str
        Empty strings: torch reports errors in files, mp-spawn through pipes.

    Examples
    --------
    >>> with mp.start_processes(print, args=("says hello",), nprocs=2, join=False, output="capture") as context:
    ...     context.join()
    True
    >>> context.captured[1].stdout
    '1 says hello\\n'
    """

    def __init__(self, processes: list[BaseProcess], error_files: list[str]) -> None:
        self._begin([Rank(index, process, PidFd.of(process)) for index, process in enumerate(processes)], None, None)
        self.error_files = error_files

    @classmethod
    def _of(cls, job: Job, signals: Forwarding | Deferral | None = None) -> Self:
        """
        Start a job. *signals* are the signals to this process to handle while the ranks run.
        """
        self = cls.__new__(cls)
        try:
            ranks = job.start(dict.fromkeys(range(job.nprocs), 0))
        except BaseException:
            job.output.finish()
            job.death_pipe.close()
            raise
        self._begin(ranks, job, signals)
        self.error_files = [""] * len(ranks)
        return self

    def _begin(self, ranks: list[Rank], job: Job | None, signals: Forwarding | Deferral | None) -> None:
        self._job = job
        self._ranks = ranks
        self.processes: list[BaseProcess] = [rank.process for rank in ranks]
        self.sentinels = {rank.process.sentinel: rank.index for rank in ranks}
        self._past: list[Failure] = []  # failures after which the rank was started again
        self._settled = False
        self._error: ProcessException | None = None
        self._polled_at = 0.0
        self._grace_period = GRACE
        # From SIGTERM to SIGKILL.
        self._time_to_end = TERM_TO_KILL if job is None else job.time_to_end
        # By a signal, which the ranks have been sent: they are not started again, and are sent no SIGTERM in addition.
        self._was_told_to_end = False
        self._signals = signals
        self._lock = threading.RLock()

    def pids(self) -> list[int]:
        """
        Return the pids, by rank.
        """
        return [rank.pid for rank in self._ranks]

    @property
    def captured(self) -> list[Captured]:
        """
        The output of each rank so far, under ``output="capture"``.
        """
        return [Captured(self._text(i, "stdout"), self._text(i, "stderr")) for i in range(len(self._ranks))]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """
        Wait for the ranks.

        When a rank fails, the others have *grace_period* seconds to end by themselves; then the launcher sends them
        SIGTERM, and SIGKILL 5 seconds later. A rank that has raised is not sent SIGTERM.

        Parameters
        ----------
        timeout : float
            Seconds to wait, without limit if None.
        grace_period : float, default 0.1
            Seconds.

        Returns
        -------
        bool
            True if all have ended well, False if some are still running after *timeout* seconds.

        Raises
        ------
        ProcessRaisedException, ProcessExitedException
            For the rank that failed first; ``failures`` has all that failed. Another call raises the same object.

        Examples
        --------
        >>> mp.start_processes(print, nprocs=2, join=False, output="capture").join()
        True
        """
        if self._signals is not None or threading.current_thread() is not threading.main_thread():
            return self._join(timeout, grace_period)
        with Deferral() as signals:
            return self._join_deferred(signals, timeout, grace_period)

    def ajoin(self, timeout: float | None = None, grace_period: float | None = None) -> Coroutine[Any, Any, bool]:
        """
        Wait for the ranks in a coroutine, as `join` does, while the event loop goes on.

        If its task is cancelled, the ranks go on; `terminate`, or the end of ``with context:``, ends them.

        Parameters
        ----------
        timeout, grace_period : float
            As for `join`.

        Returns
        -------
        bool
            As `join`, and it raises the same exceptions.

        Examples
        --------
        >>> import asyncio
        >>> async def main():
        ...     with mp.start_processes(print, nprocs=2, join=False, output="capture") as context:
        ...         return await context.ajoin()
        >>> asyncio.run(main())
        True
        """
        from mp_spawn import join_in_loop  # and asyncio with it

        return join_in_loop.join(self.join, self._watch, timeout, grace_period)

    def _watch(self, events: BaseSelector) -> None:
        """Let *events* wait for all for which `join` waits."""
        with suppress(OSError, ValueError):  # another thread is in join(), and has just closed one
            for rank in self._ranks:
                # Not the pidfd, which another thread closes at the end: an epoll forgets what is closed.
                for fd in () if rank.ended else (rank.process.sentinel, rank.inbox_fd):
                    if fd >= 0:
                        events.register(fd, EVENT_READ)

    @classmethod
    def _run(cls, job: Job, timeout: float | None = None, grace_period: float | None = None) -> tuple[Self, bool]:
        """
        Start a job and join it; at no moment in between does a signal end this process at once.
        """
        with Deferral(job.frugal) as signals:
            self = cls._of(job)
            try:
                return self, self._join_deferred(signals, timeout, grace_period)
            except BaseException as error:  # also of a handler that limits the time: nobody else has the ranks
                # A Ctrl-C may come just before `_join_deferred` handles it.
                self.terminate(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 0.0)
                raise

    def _join_deferred(self, signals: Deferral, timeout: float | None, grace_period: float | None) -> bool:
        self._signals = signals
        try:
            return self._join(timeout, grace_period)
        except Ended as ended:
            self._outlive(ended.signum)
            raise
        finally:
            self._signals = None

    def _join(self, timeout: float | None, grace_period: float | None) -> bool:
        left = None if timeout is None else max(0.0, timeout)
        deadline = None if left is None else time.monotonic() + left
        if not self._lock.acquire(timeout=-1 if left is None else left):
            return False
        try:
            if not self._settled:
                if not self._wait(deadline):
                    return False
                self._error = self._settle(grace_period)
                self._settled = True
            if self._error is not None:
                raise self._error
            return True
        except (Exception, Ended):
            raise
        except BaseException:
            # Ctrl-C, or a signal handler that leaves the program: also end its ranks.
            self._end(INTERRUPTED)
            raise
        finally:
            self._lock.release()

    def _outlive(self, signum: int) -> None:
        """
        Let the ranks, which may have been sent it as well, handle a signal that is to end this process.
        """
        with self._lock:
            try:
                # `timeout` signals its child first, then the group; ranks with the default action die meanwhile.
                self._pass_time(TO_THE_GROUP)
                witness = 0 if self._job is None else self._job.launcher.witness
                were_sent = group_was_sent(signum, [rank.pid for rank in self._ranks if not rank.ended], witness)
                if not were_sent:
                    self._signal(signum)
                # Without a witness, they may not have been sent it.
                self._was_told_to_end = bool(witness) or not were_sent
                self._end(AFTER_A_SIGNAL)
            except BaseException:
                # A second signal, of any kind: do not wait for the ranks. The first one goes on.
                self._signals = None
                self._signal(signal.SIGKILL)
                self._pass_time(KILL_TO_DEAD)
                self._finish()

    def terminate(self, grace_period: float = 0.0) -> None:
        """
        End the ranks: send those still running SIGTERM, and SIGKILL 5 seconds later.

        Unlike `join`, it raises no exception for how they end. A Ctrl-C while it waits kills them at once. It may be
        called while another thread is in `join`.

        Parameters
        ----------
        grace_period : float, default 0
            Seconds before SIGTERM.

        Examples
        --------
        >>> context = mp.start_processes(time.sleep, nprocs=2, join=False)
        >>> context.terminate()
        >>> [process.is_alive() for process in context.processes]
        [False, False]
        """
        deadline = time.monotonic() + grace_period
        if self._lock.acquire(timeout=grace_period):
            try:
                self._end(max(0.0, deadline - time.monotonic()))
            finally:
                self._lock.release()
            return
        # Another thread is in join(), and sees the ranks end.
        try:
            for signum, seconds in ((signal.SIGTERM, TERM_TO_KILL), (signal.SIGKILL, KILL_TO_DEAD)):
                self._signal(signum)
                if self._lock.acquire(timeout=seconds):
                    self._lock.release()
                    return
        except BaseException:
            self._signal(signal.SIGKILL)
            raise

    def _forward(self, signum: int) -> None:
        """Send on to the ranks a signal that the command was sent."""
        if signal.Signals(signum).name in ENDING:
            self._was_told_to_end = True
        # A key of the terminal has reached rank 0 if that is in the group of this process.
        witness = self._job.launcher.witness if self._job is not None and self._job.gives_terminal else 0
        for rank in self._ranks:
            if not (rank.index == 0 and witness and was_sent(witness, signum)):
                rank.signal(signum)

    def _count_ended(self) -> int:
        return sum(rank.ended for rank in self._ranks)

    def _wait(self, deadline: float | None) -> bool:
        """
        Wait until all have ended or one has failed for good; return False at the deadline.
        """
        with self._events() as events:
            changed = self._poll(events, 0.0, late=True) or self._ranks
            while True:
                if self._failed_for_good(events, changed) or all_ended(self._ranks):
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                changed = self._poll(events, left)
                if not changed and left is not None and left <= 0:
                    return False

    def _failed_for_good(self, events: Events, changed: list[Rank]) -> bool:
        """
        Start those of *changed* again that have failed and may be; return True if one may not.
        """
        for rank in changed:
            failure = self._failure(rank)
            if failure is None:
                continue
            if self._job is None or rank.restarts >= self._job.max_restarts or self._was_told_to_end:
                return True
            if self._job.restarts_all:
                return not self._restart_all(events, failure, self._job)
            self._await_end(events, rank)
            self._restart(rank, failure, self._job)
            events.add(self._ranks[rank.index])
        return False

    def _await_end(self, events: Events, rank: Rank) -> None:
        """
        Wait for the end of a rank that has raised, and kill it if it does not end.
        """
        if not rank.ended:
            events.remove(rank)
            rank.process.join(self._time_to_end)
            rank.signal(signal.SIGKILL)
            rank.reap(time.monotonic())

    def _restart(self, old: Rank, failure: Failure, job: Job) -> None:
        again = old.restarts + 1
        logger.warning("%s; it is started again (%d of %d)", failure.describe(), again, job.max_restarts)
        self._past.append(failure)
        job.output.add(failure.rank, failure.for_file())
        try:
            new = job.start({old.index: again})[0]
        except BaseException:
            self._end(0.0)
            raise
        self._ranks[new.index] = new
        self.processes[new.index] = new.process
        self.sentinels[new.process.sentinel] = new.index

    def _restart_all(self, events: Events, first: Failure, job: Job) -> bool:
        """
        End all ranks and start all of them again; return False if they do not end, or are to end for good.
        """
        for rank in self._ranks:
            if not rank.ended:
                events.remove(rank)
        self._stop(self._grace_period, casualties=True)
        if self._was_told_to_end or not all_ended(self._ranks):
            return False
        again = first.restarts + 1
        logger.warning("%s; all ranks are started again (%d of %d)", first.describe(), again, job.max_restarts)
        for failure in filter(None, map(self._failure, self._ranks)):
            self._past.append(failure)
            job.output.add(failure.rank, failure.for_file())
        for rank in self._ranks:
            rank.close()
        try:
            self._ranks = job.start(dict.fromkeys(range(job.nprocs), again))
        except BaseException:
            self._end(0.0)
            raise
        self.processes[:] = [rank.process for rank in self._ranks]
        for rank in self._ranks:
            self.sentinels[rank.process.sentinel] = rank.index
            events.add(rank)
        return True

    def _failure(self, rank: Rank) -> Failure | None:
        return rank.failure(needs_result=self._job is not None and self._job.wants_result)

    def _settle(self, grace_period: float | None) -> ProcessException | None:
        """
        End the ranks that still run, and return the exception; None if none has failed.
        """
        if not all_ended(self._ranks):
            silent = any(failure.missing_guard for rank in self._ranks if (failure := self._failure(rank)) is not None)
            self._end(self._grace_period if grace_period is None else grace_period, casualties=not silent)
        self._finish()
        failures = [failure for rank in self._ranks if (failure := self._failure(rank)) is not None]
        if not failures:
            return None
        if self._job is not None:
            for failure in failures:
                self._job.output.add(failure.rank, failure.for_file())
        with_output = [
            dataclasses.replace(
                failure, stdout=self._text(failure.rank, "stdout"), stderr=self._text(failure.rank, "stderr")
            )
            for failure in failures
        ]
        return exception_of(with_output, self._past)

    def _end(self, grace_period: float, casualties: bool = False) -> None:
        """End the ranks. The ends of *casualties* of another failure are no failures of their own."""
        try:
            self._stop(grace_period, casualties)
        finally:
            self._finish()

    def _stop(self, grace_period: float, casualties: bool) -> None:
        try:
            if not self._was_told_to_end:
                self._pass_time(grace_period)
            # Again: the signal may have come meanwhile. A second one would be handled in the middle of the first.
            if not self._was_told_to_end:
                for rank in self._ranks:
                    # A rank that has raised ends already: its threads, and what it calls at its end, may need the time.
                    if rank.report is None or rank.report.kind is not Kind.RAISED:
                        rank.signal(signal.SIGTERM, casualties)
                grace_period = 0.0
            self._pass_time(max(grace_period, self._time_to_end))
        finally:
            self._signal(signal.SIGKILL, casualties)
            self._pass_time(KILL_TO_DEAD)

    def _text(self, rank: int, stream: str) -> str:
        return "" if self._job is None else self._job.output.text(rank, stream)

    def _signal(self, signum: int, casualties: bool = False) -> None:
        for rank in self._ranks:
            rank.signal(signum, casualties)

    def _pass_time(self, seconds: float) -> None:
        """Wait until all have ended, at most *seconds*, and read their reports."""
        deadline = time.monotonic() + seconds
        with self._events() as events:
            self._poll(events, 0.0)
            while not all_ended(self._ranks) and (left := deadline - time.monotonic()) > 0:
                self._poll(events, left)

    def _events(self) -> Events:
        signals = self._signals if threading.current_thread() is threading.main_thread() else None
        return Events(self._ranks, self.sentinels, signals, self._forward)

    def _poll(self, events: Events, timeout: float | None, late: bool = False) -> list[Rank]:
        """Handle the events so far; *late* says that the last poll was not just now."""
        changed = events.poll(timeout, self._polled_at if late else None)
        self._polled_at = events.polled_at
        return changed

    def _finish(self) -> None:
        """Close the descriptors of the job."""
        for rank in self._ranks:
            rank.close()
        if self._job is not None and all_ended(self._ranks):
            self._job.output.finish()
            self._job.death_pipe.close()

    def _reports(self) -> list[bytes]:
        """
        Return the pickled result of each rank, after join() has returned True.
        """
        blobs = []
        for rank in self._ranks:
            assert rank.report is not None and rank.report.kind is Kind.RETURNED
            blobs.append(rank.report.blob)
        return blobs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.terminate(INTERRUPTED if kind is KeyboardInterrupt else 0.0)
            return
        try:
            self.join()
        except BaseException:
            self.terminate()
            raise
