"""`RunningJob`: what a job can do while its ranks run, on this machine or on several."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from mp_spawn.output.destinations import Captured, Output
from mp_spawn.ranks.signals import INTERRUPTED


@runtime_checkable
class RunningJob(Protocol):
    """
    A job as `start_processes` returns it with ``join=False``: a `ProcessContext`, or what ``engine=`` gives.

    It is also a context manager: the end of the block waits for the ranks, and an exception in the block ends them.

    Examples
    --------
    >>> job: mp.RunningJob = mp.start_processes(print, nprocs=2, join=False, output="capture")
    >>> job.join()
    True
    """

    def pids(self) -> list[int]:
        """Return the pids, by rank."""

    @property
    def captured(self) -> list[Captured]:
        """The output of each rank so far, under ``output="capture"``."""

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the ranks; True if all have ended well, False at the *timeout*. A failure is raised."""

    def ajoin(self, timeout: float | None = None, grace_period: float | None = None) -> Coroutine[Any, Any, bool]:
        """Wait for the ranks in a coroutine, as `join` does."""

    def terminate(self, grace_period: float = 0.0) -> None:
        """End the ranks, by SIGTERM after *grace_period* seconds, and by SIGKILL 5 seconds later."""

    def send_signal(self, signum: int) -> None:
        """Send a signal to all ranks that run; after one that ends them, none is started again."""

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of the ranks that still run, by rank; no text where they cannot be asked for."""

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


def end_late(job: RunningJob, output: Output, seconds: float) -> TimeoutError:
    """End the ranks that still run after so many *seconds*; return the exception, with their stacks."""
    try:
        stacks = job.stacks()
    finally:
        job.terminate()
    ran = f"{len(stacks)} of {len(job.pids())} ranks still ran after {seconds:g} s"
    error = TimeoutError(f"{ran}, and have been ended")
    for rank, stack in stacks.items():
        if stack:
            error.add_note(stack)
            output.add(rank, f"too slow: {stack}\n")
    return error
