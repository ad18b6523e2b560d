"""The recorder of this process: it opens the process's file in the folder of the run, and writes events.

Note [Which processes record]
-----------------------------
    fork                a hook after the fork opens a file for the child
    spawn, forkserver   the pickle of the process object has a call of `join`, whose unpickling does it, since a fork
                        server may be older than the timeline
    started by exec     `MP_TIMELINE_RUN` in the environment, which names the folder; `import mp_core` looks for it

A process whose file cannot be made runs without one: quietly if the folder has gone, since the timeline has ended then,
otherwise with a warning, as when the disk is full.

A hot path tests `backend.recorders`, a list that is empty while nothing is recorded, or in C a pointer.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from multiprocessing import context, process, util

from mp_core.sharing import backend, forks
from mp_core.system.pickled_call import PickledCall
from mp_core.timeline import events as kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The variable by which a process started by exec finds the run.
RUN = "MP_TIMELINE_RUN"

_write, _now = backend.timeline_write, backend.timeline_now
_watches = False
_LEAST_WAIT_NS = 20_000


class Recorder:
    """Write the events of this process into its file in *folder*, which has room for so many *events*."""

    def __init__(self, folder: str, events: int) -> None:
        self.folder, self.capacity = folder, events
        self._names: dict[str, int] = {}
        #: The name of the user's function, set by a task that calls it.
        self.called = ""
        self._path = os.path.join(folder, f"{os.getpid()}-{_now()}.events")
        nbytes = kinds.nbytes_of(events)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)  # an event on a full disk would be a SIGBUS
            backend.timeline_open(fd, events, kinds.NAMED_STRINGS, os.getppid())
        except BaseException:
            os.unlink(self._path)
            raise
        finally:
            os.close(fd)

    def close(self) -> None:
        """Say that the process has ended, and give back the room that it did not need."""
        used = backend.timeline_close()
        if used:
            with contextlib.suppress(OSError):  # the timeline has ended before
                os.truncate(self._path, used)

    def invitation(self) -> str:
        """Return the text by which other processes join."""
        return f"{self.capacity}:{self.folder}"

    def name_process(self, name: str) -> None:
        backend.timeline_name(name[:200].encode(errors="replace").decode(), True)

    def _name(self, text: str) -> int:
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = backend.timeline_name(text[:200].encode(errors="replace").decode(), False)
        return number

    def task(
        self,
        began: int,
        name: str,
        number: int,
        given: int,
        returned: int,
        failed: bool,
        came: tuple[int, int] = (0, 0),
        went: tuple[int, int] = (0, 0),
    ) -> None:
        """
        Record a task that a worker has done, under `called` or else *name*: the bytes *given* and *returned* in
        messages, and those in blocks, shared and copied, that came and went. `called` is empty afterwards.
        """
        flags = kinds.FAILED if failed else 0
        for direction, blocks in ((0, came), (kinds.INTO, went)):
            if any(blocks):
                _write(kinds.BLOCKS, direction, 0, number, *blocks, 0, 0)
        if self.called:
            name, self.called = self.called, ""
        _write(kinds.TASK, flags, began, number, given, returned, 1, self._name(name))

    def answered(self, worker: int, number: int, position: int, items: int) -> None:
        """Record which task of a worker a result was for."""
        _write(kinds.ANSWER, 0, 0, worker, number, position, items, 0)

    def lost(
        self, worker: int, number: int, position: int, items: int, name: str, retried: bool, terminated: bool
    ) -> None:
        """Record that a worker has died, or its pool was terminated, in a task."""
        flags = kinds.RETRIED * retried | kinds.TERMINATED * terminated
        _write(kinds.LOST, flags, 0, worker, number, position, items, self._name(name))

    def started(self, pid: int, name: str, began: int) -> None:
        _write(kinds.START, 0, began, pid, 0, 0, 0, self._name(name))

    def made(self, reader: Any, size: int) -> None:
        """Record that a queue was made, and where."""
        from mp_core.messages.trace import calling_line

        _write(kinds.MADE, 0, 0, reader._ring_id(False), size, 0, 0, self._name(calling_line()))

    def waited(self, began: int, name: str) -> None:
        """Record a wait at a condition, an event or a barrier, unless it was too short for a sleep."""
        if _now() - began >= _LEAST_WAIT_NS:
            _write(kinds.LOCK, 0, began, 0, 0, 0, 0, self._name(name))

    def waits_for_place(self, queue: Any, timeout: float | None) -> float | None:
        """Wait until a queue has a place, and record the wait; return what is left of the timeout."""
        if timeout == 0 or queue._writer._wait_for_place(0, None):
            return timeout
        began = _now()
        try:
            queue._writer._wait_for_place(timeout, None)
        finally:
            _write(kinds.PLACE, 0, began, queue._reader._ring_id(False), 0, 0, 0, 0)
        return None if timeout is None else max(0.0, timeout - (_now() - began) / 1e9)


def begin(folder: str, events: int) -> Recorder:
    """Record the events of this process, and of those that it starts."""
    recorder = Recorder(folder, events)
    backend.recorders[:] = [recorder]
    _watch()
    return recorder


def end() -> None:
    """Record no more events of this process."""
    recorders = backend.recorders[:]
    backend.recorders.clear()
    for recorder in recorders:
        recorder.close()


def join(run: str, name: str | None = None) -> None:
    """Record the events of this process in the run of the process that has started it."""
    if backend.recorders:
        return
    events, _, folder = run.partition(":")
    try:
        recorder = begin(folder, int(events))
    except FileNotFoundError:
        return
    except OSError as error:
        warnings.warn(
            f"process {os.getpid()} is not in the timeline: {error.strerror}: {folder}", RuntimeWarning, stacklevel=2
        )
        return
    if name is not None:
        recorder.name_process(name)
    end_with_process(end)


def name_process(name: str) -> None:
    """
    Name this process in the timeline, if one is recorded.

    Examples
    --------
    >>> mp_core.timeline.name_process("rank 0")
    """
    for recorder in backend.recorders:
        recorder.name_process(name)


def end_with_process(function: Callable[[], None]) -> None:
    """Have *function* called when this process ends, after its children and after all others that may still send."""
    util.Finalize(None, function, exitpriority=-1000)


def _end_after_fork(of: object) -> None:
    end_with_process(end)


# ---- children --------------------------------------------------------------------------------------------------------


def _watch() -> None:
    """Record the starts of processes, and invite those that are started; once for this process and its forks."""
    global _watches
    if _watches:
        return
    _watches = True
    forks.register(after_in_child=_joined_after_fork)
    # multiprocessing clears its list of finalizers after a fork, and calls this then.
    util.register_after_fork(end, _end_after_fork)
    for name in ("ForkProcess", "SpawnProcess", "ForkServerProcess"):
        kind: Any = getattr(context, name)
        start = _recorded(kind._Popen)
        start._extended = getattr(kind._Popen, "_extended", False)  # type: ignore[attr-defined]
        kind._Popen = staticmethod(start)


def _recorded(start: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def started(child: process.BaseProcess) -> Any:
        if not backend.recorders:
            return start(child)
        recorder, began = backend.recorders[0], _now()
        vars(child)["_timeline"] = PickledCall(join, recorder.invitation(), str(child.name))
        try:
            popen = start(child)
        finally:
            vars(child).pop("_timeline", None)
        recorder.started(popen.pid, str(child.name), began)
        return popen

    return started


def _joined_after_fork() -> None:
    if backend.recorders:
        run = backend.recorders[0].invitation()
        backend.recorders.clear()
        join(run)
