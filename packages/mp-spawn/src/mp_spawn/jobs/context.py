"""`ProcessContext`: the ranks of one job, from their start to the exception for their end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from mp_spawn.errors import ProcessException, exception_of
from mp_spawn.jobs.job import Job
from mp_spawn.jobs.running_job import RunningJob
from mp_spawn.jobs.supervisor import KILL_TO_DEAD, Supervisor
from mp_spawn.jobs.time_limits import checked_seconds
from mp_spawn.output.destinations import Captured
from mp_spawn.ranks.process_handle import PidFd, lock
from mp_spawn.ranks.rank import Rank, stacks_of
from mp_spawn.ranks.signals import (
    AFTER_A_SIGNAL,
    INTERRUPTED,
    TERM_TO_KILL,
    Deferral,
    Ended,
    Forwarding,
    group_was_sent,
)

# In seconds: from a signal to this process to the same signal to its group, if there is one.
TO_THE_GROUP = 0.5
# From the end of a rank, which a block has seen by a broken connection, until its failure is known.
TO_BE_KNOWN = 0.1


class ProcessContext(RunningJob):
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
        ranks = []
        for index, process in enumerate(processes):
            pidfd = PidFd.of(process)
            lock(process, pidfd)
            ranks.append(Rank(index, process, pidfd))
        self._init_fields(Supervisor(ranks, None))
        self.error_files = error_files

    @classmethod
    def _of(cls, job: Job, signals: Forwarding | Deferral | None = None) -> Self:
        """Start a job. *signals* are the signals to this process to handle while the ranks run."""
        self = cls.__new__(cls)
        self._init_fields(Supervisor.start(job, signals))
        self.error_files = [""] * job.nprocs
        return self

    def _init_fields(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.processes: list[BaseProcess] = supervisor.processes
        self.sentinels = supervisor.sentinels
        self._settled = False
        self._error: ProcessException | None = None
        self._lock = threading.RLock()

    @property
    def _ranks(self) -> list[Rank]:
        return self._supervisor.ranks

    def pids(self) -> list[int]:
        """Return the pids, by rank."""
        return [rank.pid for rank in self._ranks]

    @property
    def captured(self) -> list[Captured]:
        """The output of each rank so far, under ``output="capture"``."""
        text = self._supervisor.text
        return [Captured(text(i, "stdout"), text(i, "stderr")) for i in range(len(self._ranks))]

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
        timeout, grace_period = checked_seconds("timeout", timeout), checked_seconds("grace_period", grace_period)
        try:
            if self._supervisor.signals is not None or threading.current_thread() is not threading.main_thread():
                return self._join(timeout, grace_period)
            with Deferral() as signals:
                return self._join_deferred(signals, timeout, grace_period)
        finally:
            del self  # see `_join`

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
        from mp_spawn.jobs import join_in_loop  # and asyncio with it

        timeout, grace_period = checked_seconds("timeout", timeout), checked_seconds("grace_period", grace_period)
        return join_in_loop.join(self.join, self._supervisor.watch, timeout, grace_period)

    @classmethod
    def _run(cls, job: Job, timeout: float | None = None, grace_period: float | None = None) -> tuple[Self, bool]:
        """Start a job and join it; at no moment in between does a signal end this process at once."""
        with Deferral(job.frugal) as signals:
            job.between_starts = signals.raise_ended
            self = cls._of(job)
            try:
                return self, self._join_deferred(signals, timeout, grace_period)
            except BaseException as error:  # also of a handler that limits the time: nobody else has the ranks
                # A Ctrl-C may come just before `_join_deferred` handles it.
                self.terminate(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 0.0)
                raise
            finally:
                del self  # see `_join`

    def _join_deferred(self, signals: Deferral, timeout: float | None, grace_period: float | None) -> bool:
        self._supervisor.signals = signals
        try:
            return self._join(timeout, grace_period)
        except Ended as ended:
            self._outlive(ended.signum)
            raise
        finally:
            self._supervisor.signals = None
            del self  # see `_join`

    def _join(self, timeout: float | None, grace_period: float | None) -> bool:
        left = None if timeout is None else max(0.0, timeout)
        deadline = None if left is None else time.monotonic() + left
        if not self._lock.acquire(timeout=-1 if left is None else left):
            return False
        try:
            if not self._settled:
                if not self._supervisor.wait(deadline):
                    return False
                self._error = self._supervisor.settle(grace_period)
                self._settled = True
            if self._error is not None:
                raise self._error
            return True
        except (Exception, Ended):
            raise
        except BaseException:
            # Ctrl-C, or a signal handler that leaves the program: also end its ranks.
            self._supervisor.is_terminated = True
            self._supervisor.end(INTERRUPTED)
            raise
        finally:
            self._lock.release()
            del self  # the traceback has this frame, and the context the exception: none would go with its last user

    def _outlive(self, signum: int) -> None:
        """Let the ranks, which may have been sent it as well, handle a signal that is to end this process."""
        with self._lock:
            self._supervisor.is_terminated = True
            try:
                # `timeout` signals its child first, then the group; ranks with the default action die meanwhile.
                self._supervisor.pass_time(TO_THE_GROUP)
                witness = 0 if self._supervisor.job is None else self._supervisor.job.launcher.witness
                were_sent = group_was_sent(signum, [rank.pid for rank in self._ranks if not rank.ended], witness)
                if not were_sent:
                    self._supervisor.signal(signum)
                # Without a witness, they may not have been sent it.
                self._supervisor.was_told_to_end = bool(witness) or not were_sent
                self._supervisor.end(AFTER_A_SIGNAL)
            except BaseException:
                # A second signal, of any kind: do not wait for the ranks. The first one goes on.
                self._supervisor.signals = None
                self._supervisor.signal(signal.SIGKILL)
                self._supervisor.pass_time(KILL_TO_DEAD)
                self._supervisor.finish()

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
        grace_period = checked_seconds("grace_period", grace_period)
        self._supervisor.is_terminated = True
        deadline = time.monotonic() + grace_period
        if self._lock.acquire(timeout=grace_period):
            try:
                self._supervisor.end(max(0.0, deadline - time.monotonic()))
            finally:
                self._lock.release()
            return
        # Another thread is in join(), and sees the ranks end.
        try:
            for signum, seconds in ((signal.SIGTERM, TERM_TO_KILL), (signal.SIGKILL, KILL_TO_DEAD)):
                self._supervisor.signal(signum)
                if self._lock.acquire(timeout=seconds):
                    self._lock.release()
                    return
        except BaseException:
            self._supervisor.signal(signal.SIGKILL)
            raise

    def send_signal(self, signum: int) -> None:
        """
        Send a signal to all ranks that run. After one that ends them by default they are not started again.

        Parameters
        ----------
        signum : int
            Its number.

        Examples
        --------
        >>> import signal
        >>> context = mp.start_processes(time.sleep, nprocs=2, join=False)
        >>> context.send_signal(signal.SIGCONT)
        >>> context.join()
        True
        """
        self._supervisor.forward(signum)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and kind is not KeyboardInterrupt:  # which the ranks may have got too
                self._note_failure(error)
        finally:
            super().__exit__(kind, error, trace)

    def _note_failure(self, error: BaseException) -> None:
        """Add a note to the exception of a block if a rank has failed, and nobody was told."""
        if not self._lock.acquire(timeout=TO_BE_KNOWN):
            return
        try:
            if self._settled:
                return  # a join has raised it
            self._supervisor.pass_time(TO_BE_KNOWN)
            failures = [failure for rank in self._ranks if (failure := self._supervisor.failure(rank)) is not None]
        finally:
            self._lock.release()
        if failures:  # often the reason, as of a wait for what no rank sends any more
            with suppress(Exception):  # of an exception that takes no notes
                error.add_note(f"A rank has failed as well: {str(exception_of(failures, [])).strip()}")

    def stacks(self) -> dict[int, str]:
        """
        Return the Python stacks of the ranks that still run, within two seconds.

        Returns
        -------
        dict of int to str
            By rank, a text of a few lines; an empty one with ``faulthandler=False``.

        Examples
        --------
        >>> with mp.start_processes(time.sleep, nprocs=2, join=False) as context:
        ...     context.stacks()[1].startswith("rank 1 (pid ")
        True
        """
        if self._lock.acquire(blocking=False):  # or else another thread, in join(), sees the ends
            try:
                self._supervisor.pass_time(0.0)
            finally:
                self._lock.release()
        return stacks_of(self._ranks)
