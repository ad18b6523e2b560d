"""Exceptions of tasks whose worker died, took too long, or used too much memory."""

from __future__ import annotations

import signal
from multiprocessing import ProcessError
from multiprocessing import TimeoutError as ResultTimeoutError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Said of a worker that runs its initializer, or has not come to it.
OF_A_START = "its start or initializer"


class WorkerLostError(ProcessError):
    """
    A worker process ended while it ran this task.

    Only the task that the worker was running fails, in a `map` the chunk. All other tasks continue.

    Parameters
    ----------
    pid : int
        Process id of the worker.
    exitcode : int or None
        Exit code of the worker; ``-n`` if signal *n* ended it.
    function : str
        Name of the task's function.
    index : int
        Position of the task among the tasks of its call: of the item in a `map` or ``imap`` (of the first item of the
        chunk), 0 for ``apply`` and ``submit``.
    out_of_memory : bool
        Whether the kernel has killed a process of this program's control group for lack of memory since the pool last
        looked, which is when it started or when a worker was killed.

    node : str
        With ``engine=``, name and address of the worker's node; else empty.
    lost : str
        If the whole node is lost, the reason; *pid* is then 0 and *exitcode* None.

    Attributes
    ----------
    signal_name : str or None
        Name of the signal that ended the worker, such as ``"SIGKILL"``.

    Examples
    --------
    >>> import os
    >>> with mp.Pool(2) as pool:
    ...     try:
    ...         pool.apply(os._exit, (3,))
    ...     except mp.WorkerLostError as error:
    ...         print(error.exitcode, error.function, pool.apply(abs, (-1,)))
    3 _exit 1
    """

    def __init__(
        self,
        pid: int,
        exitcode: int | None,
        function: str,
        index: int = 0,
        out_of_memory: bool = False,
        node: str = "",
        lost: str = "",
    ) -> None:
        super().__init__(pid, exitcode, function, index, out_of_memory, node, lost)
        self.pid = pid
        self.exitcode = exitcode
        self.function = function
        self.index = index
        self.out_of_memory = out_of_memory
        self.node = node
        self.lost = lost
        self.signal_name = signal_name(exitcode)

    def __str__(self) -> str:
        if self.lost:
            return f"node {self.node} was lost while it had {self.function}, task {self.index}: {self.lost}"
        where = f" on node {self.node}" if self.node else ""
        memory = " (the kernel reports that it killed a process for want of memory)" if self.out_of_memory else ""
        how = f"worker {self.pid}{where} {how_it_ended(self.exitcode)} while it ran {self.function}"
        if self.function != OF_A_START:
            return f"{how}, task {self.index}{memory}"
        return f"{how}; its output on stderr says why" if (self.exitcode or 0) > 0 else f"{how}{memory}"


class TaskTimeoutError(ResultTimeoutError, TimeoutError):
    """
    A task ran longer than the pool's ``timeout=``, and its worker was killed.

    It is a `TimeoutError` and a `multiprocessing.TimeoutError`.

    Parameters
    ----------
    pid : int
        Process id of the worker that was killed.
    seconds : float
        The limit, in seconds.
    function : str
        Name of the task's function.
    index : int
        Position of the task among the tasks of its call.

    Examples
    --------
    >>> import time
    >>> with mp.Pool(1, timeout=0.1) as pool:
    ...     try:
    ...         pool.apply(time.sleep, (60,))
    ...     except TimeoutError as error:
    ...         print(error.function, error.seconds)
    sleep 0.1
    """

    def __init__(self, pid: int, seconds: float, function: str, index: int = 0) -> None:
        super().__init__(pid, seconds, function, index)
        self.pid = pid
        self.seconds = seconds
        self.function = function
        self.index = index

    def __str__(self) -> str:
        return (
            f"{self.function}, task {self.index}, ran longer than {self.seconds:g} s; its worker {self.pid} was killed"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError, a base, would leave out arguments.
        return type(self), (self.pid, self.seconds, self.function, self.index)


class TaskMemoryError(MemoryError):
    """
    A task used more memory than its ``memory_limit=``, and its worker was killed.

    Parameters
    ----------
    pid : int
        Process id of the worker that was killed.
    limit : int
        The limit, in bytes.
    used : int
        Private memory of the worker, in bytes, when the pool looked.
    function : str
        Name of the task's function.
    index : int
        Position of the task among the tasks of its call.

    Examples
    --------
    >>> import time
    >>> def grow(size):
    ...     held = b"1" * size
    ...     time.sleep(60)
    >>> with mp.Pool(1) as pool:
    ...     try:
    ...         pool.options(memory_limit=200 << 20).apply(grow, (400 << 20,))
    ...     except mp.TaskMemoryError as error:
    ...         print(error.function, error.used > error.limit)
    grow True
    """

    def __init__(self, pid: int, limit: int, used: int, function: str, index: int = 0) -> None:
        super().__init__(pid, limit, used, function, index)
        self.pid = pid
        self.limit = limit
        self.used = used
        self.function = function
        self.index = index

    def __str__(self) -> str:
        return (
            f"{self.function}, task {self.index}, used {self.used / 2**20:,.0f} MiB of private memory, more than its "
            f"memory_limit of {self.limit / 2**20:,.0f} MiB; its worker {self.pid} was killed"
        )


def signal_name(exitcode: int | None) -> str | None:
    """
    Return the name of the signal in a negative exit code, None for any other exit code.

    >>> signal_name(-9)
    'SIGKILL'
    """
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"  # a real-time signal has no name


def how_it_ended(exitcode: int | None) -> str:
    """
    Describe the end of a worker with this exit code.

    >>> how_it_ended(3)
    'ended with exit code 3'
    """
    name = signal_name(exitcode)
    return f"ended with exit code {exitcode}" if name is None else f"was ended by {name}"
