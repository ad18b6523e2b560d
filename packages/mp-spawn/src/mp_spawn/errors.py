"""The exceptions for ranks that fail, and `Failure`, the record of each failure."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any


@dataclasses.dataclass(frozen=True)
class Failure:
    """
    Describes one rank that failed; the ``failures`` of a `ProcessException` are objects of this class.

    Attributes
    ----------
    rank, pid : int
        The rank and its process.
    reason : str
        One line: ``ValueError: boom``, ``signal SIGKILL``, ``exit code 3``.
    exit_code : int or None
        As `multiprocessing.Process.exitcode`: negative for a signal, None if the rank had not ended by itself.
    signal_name : str or None
        ``"SIGKILL"`` and the like.
    traceback : str
        As text; empty if the rank did not raise.
    stack : str
        The Python stack of each thread at a signal such as SIGSEGV; empty if it is not known.
    exception : BaseException or None
        The exception of the rank; None if it did not raise, or if the exception cannot be pickled.
    at : float
        The time of the failure, in seconds on the clock of `time.monotonic`.
    restarts : int
        How often this rank had been started before.
    stdout, stderr : str
        Its output, under ``output="capture"``.
    node : str
        With an engine, the name and address of the node on which the rank ran.
    lost : bool
        With an engine, True if the rank was lost with its node, so that its end is not known.

    Examples
    --------
    >>> mp.Failure(rank=1, pid=4711, reason="signal SIGKILL", exit_code=-9, signal_name="SIGKILL").describe()
    'rank 1 (pid 4711): signal SIGKILL'
    """

    rank: int
    pid: int
    reason: str
    exit_code: int | None = None
    signal_name: str | None = None
    traceback: str = ""
    stack: str = ""
    exception: BaseException | None = None
    at: float = 0.0
    restarts: int = 0
    stdout: str = ""
    stderr: str = ""
    node: str = ""
    lost: bool = False
    missing_guard: bool = False

    def describe(self) -> str:
        """Return the failure in one line."""
        place = f", node {self.node}" if self.node else ""
        return f"rank {self.rank} (pid {self.pid}{place}): {self.reason}"

    def code(self) -> int:
        """
        Return the exit code that a shell shows, and never 0; 1 after an exception, unless a hook has chosen another.

        >>> mp.Failure(rank=1, pid=4711, reason="signal SIGKILL", exit_code=-9).code()
        137
        """
        code = self.exit_code or 1
        return code if code > 0 else 1 if self.traceback else 128 - code

    def for_file(self) -> str:
        """Return the failure as text for a file: the traceback or stack, if known, and one line."""
        return f"{self.traceback or self.stack}{self.describe()}\n"


class ProcessException(Exception):
    """
    The base of `ProcessRaisedException` and `ProcessExitedException`: a rank failed.

    It can be pickled; the pickle has the texts of the exceptions in ``failures``, not the exceptions.

    Parameters
    ----------
    msg : str
        The text.
    error_index : int
        The rank that failed first.
    error_pid : int
        Its process; also `pid`.

    Attributes
    ----------
    failures : tuple of Failure
        Every rank that failed by itself before the others were ended, in order of time.

    Examples
    --------
    >>> mp.ProcessException("no luck", 1, 4711).error_index
    1
    """

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid
        self.failures: tuple[Failure, ...] = ()

    @property
    def pid(self) -> int:
        """The same as ``error_pid``."""
        return self.error_pid

    def _arguments(self) -> tuple[Any, ...]:
        return self.msg, self.error_index, self.error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        state: dict[str, Any] = {
            "failures": tuple(dataclasses.replace(failure, exception=None) for failure in self.failures)
        }
        if notes := getattr(self, "__notes__", None):
            state["__notes__"] = list(notes)
        return type(self), self._arguments(), state


class ProcessRaisedException(ProcessException):
    """
    A rank raised an exception.

    The message has its traceback, and ``__cause__`` is the exception itself, unless it could not be pickled.

    Parameters
    ----------
    msg, error_index, error_pid
        As for `ProcessException`.

    Examples
    --------
    >>> try:
    ...     mp.spawn(divmod, args=(0,), nprocs=2)  # each rank calls divmod(rank, 0)
    ... except mp.ProcessRaisedException as error:
    ...     type(error.__cause__)
    <class 'ZeroDivisionError'>
    """


class ProcessExitedException(ProcessException):
    """
    A rank ended by a signal, or with an exit code of its own.

    Parameters
    ----------
    msg, error_index, error_pid
        As for `ProcessException`.
    exit_code : int
        Negative for a signal.
    signal_name : str or None
        ``"SIGKILL"`` and the like.

    Examples
    --------
    >>> mp.ProcessExitedException("process 1 terminated with signal SIGKILL", 1, 4711, -9, "SIGKILL").signal_name
    'SIGKILL'
    """

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def _arguments(self) -> tuple[Any, ...]:
        return *super()._arguments(), self.exit_code, self.signal_name


def name_of_signal(number: int) -> str:
    """
    Return the name of a signal; its number if it has none (most real-time signals).

    >>> name_of_signal(9), name_of_signal(42)
    ('SIGKILL', '42')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def exception_of(failures: list[Failure], past: list[Failure]) -> ProcessException:
    """
    Return the exception for the first of *failures* by time, with a note for each of the others, and for each of the
    *past*, after which the rank was started again.
    """
    failures = sorted(failures, key=lambda failure: failure.at)
    first = failures[0]
    error: ProcessException
    for failure in failures:
        if failure.missing_guard:  # every rank has it, and one text is enough
            error = ProcessExitedException(failure.reason, failure.rank, failure.pid, 1)
            error.failures = tuple(failures)
            return error
    if first.traceback:
        text = f"\n\n-- Process {first.rank} terminated with the following error:\n{first.traceback}"
        error = ProcessRaisedException(text, first.rank, first.pid)
        error.__cause__ = first.exception
    else:
        how = "signal " + first.signal_name if first.signal_name else f"exit code {first.exit_code}"
        text = f"process {first.rank} {first.reason}" if first.lost else f"process {first.rank} terminated with {how}"
        error = ProcessExitedException(text, first.rank, first.pid, first.exit_code or 0, first.signal_name)
        if first.reason != how or first.node:
            error.add_note(first.describe())
        if first.stack:
            error.add_note(first.stack.rstrip())
    for other in failures[1:]:
        error.add_note(f"{other.describe()}, {other.at - first.at:.3f} s later")
    for earlier in past:
        error.add_note(f"{earlier.describe()}, {first.at - earlier.at:.3f} s before; it was started again")
    error.failures = tuple(failures)
    return error
