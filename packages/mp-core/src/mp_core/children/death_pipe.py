"""The death pipe: the kernel kills children when the process that started them ends, however it ends.

Note [The death pipe]
---------------------
Linux's parent-death signal (PR_SET_PDEATHSIG) comes when the parent *thread* ends, so children started from a
helper thread would die with that thread while their program lives on. The table of open files ends with the
process, and not before. So a launcher's job, and a pool, has a pipe that is never written to:

      the starting process                      each child
      +--------------------+                  +--------------------------------------+
      |      write end ----|=====( pipe )=====|---- read end: O_ASYNC, owned by the  |
      |  (one, never used) |                  |    child, with SIGKILL as its signal |
      +--------------------+                  +--------------------------------------+
                |  exit, SIGKILL, exec: the kernel closes it
                +----------> hang-up at each read end ----------> SIGKILL to its owner

No thread in the child has to get hold of the interpreter first, so even a child deep in C code is killed.
The owner of a descriptor belongs to the open file, which forked processes share; each child therefore opens
the read end anew. There is no race: after arming its end, a child checks for a hang-up and kills itself if it
finds one. A child that has started children of its own holds the write end of *their* death pipe, so that
every descendant ends within a millisecond of the first process.

Any other holder of a write end would keep the children alive: pipes are close-on-exec, and after every fork the
child closes its copies of our write ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_core.system.descriptor import Descriptor


class DeathPipe:
    """
    The death pipe of one job or pool, in the process that starts its children.

    Examples
    --------
    >>> pipe = mp_core.children.death_pipe.DeathPipe()
    >>> pipe.fd > 2
    True
    >>> pipe.close()
    """

    _read = -1
    _write: Descriptor | None = None

    def __init__(self) -> None:
        from mp_core.system.descriptor import Descriptor  # a child that arms its end does not need it

        self._write = Descriptor(closed_in_children=True)
        self._read, self._write.fd = os.pipe()

    @property
    def fd(self) -> int:
        """The read end, which the children inherit."""
        return self._read

    def close(self) -> None:
        """
        Close both ends, which kills every child that has armed the read end. Idempotent; if a signal handler raises in
        the middle, call it again.
        """
        if self._write is not None:
            self._write.close()
        read, self._read = self._read, -1
        if read >= 0:
            os.close(read)

    def __del__(self) -> None:
        self.close()


def arm(fd: int) -> bool:
    """
    Have the kernel kill this process when the other end of *fd* is closed; at once if it is closed already.

    Return whether *fd* may be closed now: without ``/proc`` a thread watches it.

    Parameters
    ----------
    fd : int
        The read end of a `DeathPipe`, or a copy of it.

    Examples
    --------
    >>> pipe = mp_core.children.death_pipe.DeathPipe()
    >>> mp_core.children.death_pipe.arm(pipe.fd)  # doctest: +SKIP
    """
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        # Without /proc, or on another system than Linux, a thread watches the pipe.
        threading.Thread(target=_watch, args=(fd,), name="mp death pipe", daemon=True).start()
        return False
    try:
        if not os.read(own, 1):  # nobody writes: it has been closed already
            os.kill(os.getpid(), signal.SIGKILL)
    except BlockingIOError:
        pass
    return True


def end_children_with_this_process() -> None:
    """
    Have the kernel kill the processes of multiprocessing that this one starts from now on, all that it forks, and what
    those start, when this process ends.
    """
    from multiprocessing.process import current_process

    pipe = DeathPipe()
    current_process()._config["death pipe"] = _ReadEnd(pipe.fd, pipe)  # type: ignore[attr-defined]


class _ReadEnd:
    """
    The read end of the death pipe of this process or of an ancestor, for all that this process starts.

    A process inherits it in its configuration: by pickle if it is spawned.
    """

    def __init__(self, fd: int, pipe: DeathPipe | None = None) -> None:
        self._fd, self._pipe, self._same = fd, pipe, os.fstat(fd)
        os.register_at_fork(after_in_child=self._arm_if_open)

    def _is_open(self) -> bool:
        try:  # the process may have closed it, and its number may be another file's
            return os.path.samestat(os.fstat(self._fd), self._same)
        except OSError:
            return False

    def _arm_if_open(self) -> None:
        if self._is_open():
            arm(self._fd)

    def __reduce__(self) -> Any:
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        if get_spawning_popen() is None or not self._is_open():
            return type(None), ()
        return _inherited, (DupFd(self._fd),)


def _inherited(duplicate: Any) -> _ReadEnd:
    from mp_core.children.child_descriptors import close_on_exec

    fd = duplicate.detach()
    close_on_exec(fd)
    arm(fd)
    return _ReadEnd(fd)


def _watch(fd: int) -> None:
    if not os.read(fd, 1):
        os.kill(os.getpid(), signal.SIGKILL)
