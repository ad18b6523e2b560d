"""`Zygote`: a process without threads that forks every worker after the first ones.

Note [Who forks]
----------------
A forked child inherits each lock as it is. If a thread of the program has one at that moment (of NumPy's random state,
of a module that is being imported), the child waits for ever for a thread that it does not have. So the pool's thread
forks nobody. A pool that forks its workers has one more process, the zygote, forked where the pool is made, while the
first workers get ready. It has one thread, runs nothing of the program, and forks every later worker:

    the pool's process                               the zygote                         a later worker
    request: name, number, ring  --socket-->         os.fork()  -------------->          works
    its pid and pidfd            <---------          waits for its children
    its exit code                <---------          has reaped it              <--     ends

So a later worker finds the program as it was when the pool was made: its variables, modules, environment, limits and
processors. `parent_process()` is the pool's process, and `os.getppid()` the zygote. An end is seen by the pidfd, which
the zygote opens before it can have reaped the worker, so the pid cannot be another process's by then.

- The pool's process dies: the kernel kills the workers (`mp_core.children.death_pipe`). The zygote reads the end of its
  socket, and ends after them.
- The zygote dies: its workers go on; the exit code of each is 255, as of a standard fork server that has died. The next
  worker makes a new zygote, which is forked by the pool's thread.
- The program changes its user or groups: the next worker makes a new zygote, and the old one ends with its workers.
- The zygote is stopped: it is continued when a request, or the end of a worker, has waited for `SOON` seconds. If there
  is no answer after `LIMIT` seconds either (a debugger has it), it is killed.
- A child that the program forks meanwhile closes the socket.
- A signal handler: the zygote blocks every signal, and a worker gets back the mask of the thread that made the pool.
- No pidfd (an old kernel, a sandbox): there is no zygote, and the pool's thread forks.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import errno
import functools
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from multiprocessing import popen_fork, util
from multiprocessing import process as _process

from mp_core.sharing.backend import TryLock, recorders
from mp_core.system.descriptor import Descriptor, close_in_children, keep_in_children, readable
from mp_pool.workers.stdin import leave_alone
from mp_pool.workers.task_rings import WorkerEnds, socket_pair
from mp_pool.workers.worker_main import Settings, work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Start = Callable[[bytes, list[int], Callable[[], None]], int]

SOON, LIMIT = 0.1, 10.0  # seconds for its answer
UNKNOWN = 255  # the exit code of a worker whose zygote has died

# Whether the children of `popen_fork` run the handlers of atexit, as from 3.13 on.
HAS_EXIT_HANDLERS = hasattr(popen_fork, "atexit")

# What the zygote sends: the pid, and an error number of its start, or its exit code.
STARTED, ENDED = 0, 1
ANSWER = struct.Struct("=iii")
REQUEST = 4096  # bytes at most
# What a worker imports to receive a definition. The zygote imports it, once for all workers, when the program has.
FOR_DEFINITIONS = ("mp_core.messages.definitions", "cloudpickle")


class Zygote:
    """
    The pool's side. *make* makes a process, *settings* are the workers', *death* is an end of the pool's death pipe,
    and *stacks* the file for their stacks.
    """

    def __init__(self, make: Callable[..., Any], settings: Settings, death: int, stacks: int) -> None:
        self._make, self._settings, self._death, self._stacks = make, settings, death, stacks
        self._socket: Any = None
        self._process = Descriptor(closed_in_children=True)  # its pidfd
        self._pid = 0
        self._exitcodes: dict[int, int] = {}
        self._user: Any = None  # when it was forked
        self._alive = 0  # children of it that have not been asked for their exit code
        self._lock: Any = TryLock()  # a signal handler may ask for an exit code, or raise

    def start(self) -> None:
        """Fork the process; without pidfds, do nothing."""
        if not hasattr(os, "pidfd_open"):
            return
        self._user = _user()
        util._flush_std_streams()  # type: ignore[attr-defined]
        self._socket, theirs = socket_pair()
        close_in_children(self._socket)
        mask = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            # A signal handler that raises after the fork would leave a process that nobody knows.
            _signal.pthread_sigmask(signal.SIG_BLOCK, _signal.valid_signals())
            beside_threads = threading.active_count() > 1
            pid = os.fork()
            if pid == 0:
                _serve(theirs, functools.partial(self._starter, mask, beside_threads))
            self._pid = pid
            try:
                self._process.fd = os.pidfd_open(pid)
                signal.pidfd_send_signal(self._process.fd, 0)  # a sandbox may allow the one without the other
            except OSError:
                os.kill(pid, signal.SIGKILL)
                raise
        except OSError:  # no pidfds, or there can be no more processes now
            self.close()
        finally:
            _signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()

    @property
    def runs(self) -> bool:
        """Whether it was started and is not known to have ended."""
        return self._socket is not None

    @property
    def is_of_this_user(self) -> bool:
        """Whether its workers would have the user, groups and rights that the program has now."""
        return bool(self._user == _user())

    # In the zygote.

    def _starter(self, mask: Any, beside_threads: bool) -> Start:
        """
        Return what forks the worker of a request, which calls *close*, and returns its pid.

        It does without `Process.start`, whose checks and records are the parent's, and which touches twice as much
        memory: a fork has to copy it. The child does what multiprocessing's does (`popen_fork`), exit handlers too.
        """
        for recorder in recorders:
            recorder.name_process("zygote of a pool")
        collects, thaws = gc.isenabled(), not gc.get_freeze_count()
        gc.disable()  # the program's objects are left as they are
        parent = os.getppid()

        def start(request: bytes, fds: list[int], close: Callable[[], None]) -> int:
            name, identity, index, modules = pickle.loads(request)
            for module in modules:
                # If a thread of the program was importing it at the fork, this would wait for ever.
                if module not in sys.modules:
                    with suppress(Exception):  # then each worker imports it, and says so
                        importlib.import_module(module)
            if thaws:
                # No object counts as new then. Otherwise those of this process would soon have each worker begin with a
                # collection, which copies the memory of all that are young.
                gc.freeze()
            pid = os.fork()
            if pid:
                return pid
            code = 1
            try:
                if HAS_EXIT_HANDLERS:
                    atexit._clear()
                    atexit.register(util._exit_function)  # type: ignore[attr-defined]
                close()
                if thaws:
                    gc.unfreeze()
                if collects:
                    gc.enable()
                ends = WorkerEnds(*fds)
                ends.index, ends.stacks, ends.death = index, self._stacks, os.dup(self._death)
                process = self._make(target=work, args=(ends, self._settings))
                process.name, process._identity, process._parent_pid = name, identity, parent
                _signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, signal.SIGINT})  # `work` unblocks it
                if beside_threads:
                    leave_alone()  # a thread of the pool's process may have had the lock of its `sys.stdin`
                code = process._bootstrap(parent_sentinel=self._death)
            finally:
                if HAS_EXIT_HANDLERS:
                    atexit._run_exitfuncs()
                os._exit(code)

        return start

    # In the pool's process.

    def fork(self, process: Any, ends: WorkerEnds) -> tuple[int, int]:
        """Have the zygote fork *process*; return its pid and a pidfd."""
        modules = [module for module in FOR_DEFINITIONS if module in sys.modules]
        request = pickle.dumps((str(process.name), process._identity, ends.index, modules))
        fds = [ends.fd] if ends.memory < 0 else [ends.fd, ends.memory]
        try:
            self._lock.wait()
            try:
                socket.send_fds(self._socket, [request], fds)
                while (answer := self._receive(LIMIT)) is not None:
                    kind, pid, number, pidfds = answer
                    if kind == STARTED:
                        break
                else:
                    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                self.close()
                raise
            if number:
                raise OSError(number, os.strerror(number))
            if not pidfds:  # no descriptor is left here; the worker ends with its ring
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._alive += 1
            return pid, pidfds[0]
        finally:
            self._lock.release()

    def _receive(self, seconds: float) -> tuple[int, int, int, list[int]] | None:
        """Receive and note one answer; return None if none comes in so many seconds."""
        if not readable(self._socket.fileno(), SOON):
            self._signal(signal.SIGCONT)  # somebody may have stopped it
            if not readable(self._socket.fileno(), seconds):
                return None
        message, fds, _, _ = socket.recv_fds(self._socket, ANSWER.size, 1)
        if not message:
            raise ConnectionResetError
        kind, pid, number = ANSWER.unpack(message)
        if kind == ENDED:
            self._exitcodes[pid] = number
        return kind, pid, number, fds

    def exitcode(self, pid: int) -> int:
        """Return the exit code of a worker that has ended, once."""
        try:
            self._lock.wait()
            with suppress(OSError):
                while self._socket is not None and pid not in self._exitcodes and self._receive(LIMIT):
                    pass
            if pid not in self._exitcodes:
                self.close()
            self._alive -= 1
            return self._exitcodes.pop(pid, UNKNOWN)
        finally:
            self._lock.release()

    def kill_if_childless(self) -> None:
        """End it, unless the exit code of a child of it is still wanted, so that it ends while the workers do."""
        try:
            # Otherwise a worker is being forked, or an exit code asked for.
            if self._lock.acquire() and not self._alive:
                self._signal(signal.SIGKILL)
        finally:
            self._lock.release()

    def _signal(self, number: int) -> bool:
        """Return whether it was sent, or the process has ended: one of another user is sent nothing."""
        try:
            if self._process.fd >= 0:
                signal.pidfd_send_signal(self._process.fd, number)
        except ProcessLookupError:
            pass
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End it, and release all that it has. Idempotent."""
        try:
            self._lock.wait()
            pid, self._pid = self._pid, 0
            is_ending = self._signal(signal.SIGKILL) if pid else True
            if self._socket is not None:
                self._socket.close()
                keep_in_children(self._socket)
                self._socket = None
            if pid:
                if not is_ending:  # it ends by itself, after its workers
                    is_ending = readable(self._process.fd, 1)
                with suppress(ChildProcessError):  # the program waits for any child
                    os.waitpid(pid, 0 if is_ending else os.WNOHANG)
            self._process.close()
        finally:
            self._lock.release()


def _user() -> Any:
    return os.getresuid(), os.getresgid(), os.getgroups()


class ZygotePopen:
    """Answers what a process object asks about a worker that the zygote has forked."""

    method = "fork"

    def __init__(self, zygote: Zygote, ends: WorkerEnds, process: Any) -> None:
        self._zygote = zygote
        self._owner = os.getpid()
        self.returncode: int | None = None
        self._lock: Any = TryLock()
        self.pid, self.sentinel = zygote.fork(process, ends)
        self.finalizer = util.Finalize(self, util.close_fds, (self.sentinel,))  # type: ignore[attr-defined]

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, None if the worker runs."""
        return self.wait(0 if flag == os.WNOHANG else None)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the exit code; in a forked child, whose own child it is not, return None."""
        seconds = timeout if timeout is None else max(0.0, timeout)
        if self.returncode is None and os.getpid() == self._owner and readable(self.sentinel, seconds):
            try:
                self._lock.wait()
                if self.returncode is None:
                    self.returncode = self._zygote.exitcode(self.pid)
            finally:
                self._lock.release()
        return self.returncode

    def _send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sentinel, number)

    def terminate(self) -> None:
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        self._send_signal(signal.SIGINT)

    def close(self) -> None:
        self.finalizer()


def _serve(requests: Any, starter: Callable[[], Start]) -> NoReturn:
    """Run the zygote: start the workers that are asked for, and report their ends."""
    try:
        start = starter()
        # A worker that fails early would end the workers of the pool, as children of its own, at its exit.
        _process._children = set()  # type: ignore[attr-defined]
        children: dict[int, int] = {}  # the pid of each pidfd
        wanted = True
        poll = select.poll()
        poll.register(requests, select.POLLIN)

        def close() -> None:
            requests.close()
            for fd in children:
                os.close(fd)

        while wanted or children:
            for fd, _ in poll.poll():
                if fd in children:
                    pid = children.pop(fd)
                    poll.unregister(fd)
                    os.close(fd)
                    requests.send(ANSWER.pack(ENDED, pid, _reap(pid)))
                    continue
                request, fds, _, _ = socket.recv_fds(requests, REQUEST, 2)
                if not request:
                    wanted = False
                    poll.unregister(requests)
                    continue
                pid = 0
                try:
                    pid = start(request, fds, close)
                    pidfd = os.pidfd_open(pid)
                except OSError as error:
                    if pid:
                        with suppress(ProcessLookupError):  # it has ended, and the program ignores SIGCHLD
                            os.kill(pid, signal.SIGKILL)
                        _reap(pid)
                    requests.send(ANSWER.pack(STARTED, 0, error.errno or errno.EAGAIN))
                    continue
                finally:
                    for each in fds:
                        os.close(each)
                children[pidfd] = pid
                poll.register(pidfd, select.POLLIN)
                socket.send_fds(requests, [ANSWER.pack(STARTED, pid, 0)], [pidfd])
    except (BrokenPipeError, ConnectionResetError):
        pass  # the pool is about to end it, or its process has died
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the program ignores SIGCHLD
        return UNKNOWN
