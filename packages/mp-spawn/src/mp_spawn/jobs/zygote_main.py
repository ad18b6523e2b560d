"""The zygote: a fresh interpreter that forks ranks and reports how they end; see Note [The zygote]."""

from __future__ import annotations

import gc
import os
import pickle
import pkgutil  # noqa: F401  (every rank would import it, for the main module)
import signal
import socket
import struct
import sys
import threading
import time
from multiprocessing import context, resource_tracker, spawn
from multiprocessing import process as process_module
from multiprocessing.process import current_process
from typing import IO, Any, NamedTuple, NoReturn

from mp_core.children import death_pipe
from mp_core.memory.mapped_buffers import memory_file
from mp_spawn.ranks.child import reporting, set_up
from mp_spawn.ranks.rank_spec import RankSpec

# Sent for a rank that has been started: its number, its pid, and an error number if it could not be started.
STARTED = struct.Struct("=iii")
# Sent for a rank that has ended: the status as from waitpid, and the time on the clock of time.monotonic.
STATUS = struct.Struct("=id")

# The program of the zygote. The current folder may have a pickle.py. The file begins with a pickled sys.path: this
# package may be found only there.
PROGRAM = (
    "import sys; at_start = {{*sys.modules}}; path = sys.path[:]; sys.path[:] = filter(None, path); import pickle; "
    "file = open({file}, 'rb'); sys.path[:] = pickle.load(file); "
    "from mp_spawn.jobs import zygote_main; zygote_main.{entry}"
)

# Variables that an interpreter, or its C library, reads as it starts.
READ_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")


class RankProcess(context.SpawnProcess):
    """A process object of a rank; by the time its start() is called, the process runs."""

    #: What multiprocessing asks about the process; None until that runs.
    popen: Any = None
    #: Kept as long as this object: the rank ends with the pipe.
    death_pipe: Any

    @staticmethod
    def _Popen(process: Any) -> Any:
        return process.popen

    @property
    def spec(self) -> RankSpec:
        """The description of the rank, until start() is called."""
        spec: RankSpec = self._args[0]  # type: ignore[attr-defined]
        return spec

    @property
    def ended_at(self) -> float | None:
        """When the zygote saw it end."""
        at: float | None = self.popen.ended_at
        return at


class ZygoteSpec(NamedTuple):
    """Everything that the zygote is given."""

    #: The interpreter and its options.
    python: list[str]
    #: multiprocessing's preparation data: the main module, the authkey, …
    preparation: dict[str, Any]
    #: The descriptor of the standard library's resource tracker.
    tracker: int
    #: The socket on which the zygote sends pids and pidfds.
    socket: int
    processes: list[RankProcess]
    #: The descriptors to which the pickles of the others refer; the last, as the set is complete when it is pickled.
    fds: set[int]

    def of_ranks(self) -> set[int]:
        """Return the descriptors of the ranks."""
        return set[int]().union(*(process.spec.fds for process in self.processes))

    def others(self, spec: RankSpec) -> set[int]:
        """Return the descriptors that belong to other ranks only."""
        return self.of_ranks() - spec.fds - {self.tracker}


def main(file: IO[bytes], path: list[str], at_start: set[str]) -> None:
    """
    Fork the ranks, then wait for them. This interpreter has started with that sys.path, and the modules *at_start*.
    """
    # Not at the top, because the parent also imports this module. Every rank would import these.
    from mp_core.children import inheritance  # noqa: F401
    from mp_core.messages import definitions  # noqa: F401
    from mp_spawn.ranks import diagnostics, program  # noqa: F401

    program.modules_at_start = at_start
    zygote: ZygoteSpec = pickle.load(file)
    specs = [process.spec for process in zygote.processes]
    for fd in {file.fileno(), zygote.socket, zygote.tracker, *zygote.of_ranks()}:
        if fd > 2:
            os.set_inheritable(fd, False)
    assert specs[0].death_pipe is not None
    watched = set() if death_pipe.arm(specs[0].death_pipe.fd) else {specs[0].death_pipe.fd}
    gc.freeze()  # the ranks share these objects, until one writes to them
    may_fork = _has_one_thread()
    # Ignored, it would leave no status of a rank; the ranks ignore it, if the program does.
    of_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid_of_zygote = os.getpid()
    status_of: dict[int, int] = {}
    own_groups: set[int] = set()
    # With its kind, which Python would otherwise ask for by calls that a sandbox may refuse.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, zygote.socket) as launcher:
        for process, spec in zip(zygote.processes, specs, strict=True):
            assert spec.status is not None
            try:
                told, tells = os.pipe()
                pid = os.fork()
            except OSError as error:
                launcher.send(STARTED.pack(spec.rank, 0, error.errno))
                os._exit(1)
            if pid == 0:
                # It begins when the launcher can know of it: what the launcher is sent from then on is for this rank.
                os.close(tells)
                os.read(told, 1)
                os.close(told)
                launcher.close()
                signal.signal(signal.SIGCHLD, of_children)
                # The status is the zygote's to write.
                for fd in {*zygote.others(spec), spec.status.fd}:
                    os.close(fd)
                _begin(zygote, process, pid_of_zygote, file, path, may_fork)
            status_of[pid] = spec.status.fd
            if spec.own_group:
                own_groups.add(pid)
            pidfd = os.pidfd_open(pid)
            try:
                socket.send_fds(launcher, [STARTED.pack(spec.rank, pid, 0)], [pidfd])
            except ConnectionError:
                os.kill(pid, signal.SIGKILL)  # it has not begun
                break  # the launcher wants no more ranks
            finally:
                for fd in pidfd, told, tells:
                    os.close(fd)
    for fd in zygote.of_ranks() - {*status_of.values()} - watched:
        os.close(fd)
    stopped: dict[int, int] = {}
    while status_of:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            # It reads from the terminal, or writes to it, and cannot be continued there.
            if os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU) and pid in own_groups:
                stopped[pid] = os.WSTOPSIG(status)
                os.kill(pid, signal.SIGKILL)
            continue
        if (fd := status_of.pop(pid, -1)) >= 0:
            try:
                os.write(fd, STATUS.pack(stopped.get(pid, status), time.monotonic()))
            except BrokenPipeError:
                pass  # the launcher has closed the pipe
            # At its end, the pipe stays readable for everybody, even after one has read the status.
            os.close(fd)
    os._exit(0)


def _has_one_thread() -> bool:
    """Tell whether this process has one thread, counting threads that Python does not know."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return threading.active_count() == 1


def _begin(
    zygote: ZygoteSpec, process: RankProcess, pid_of_zygote: int, file: IO[bytes], path: list[str], may_fork: bool
) -> NoReturn:
    """Run a rank from the fork on."""
    from mp_core import set_parent_death_signal

    spec = process.spec
    with reporting(spec):
        set_parent_death_signal(signal.SIGKILL, parent=pid_of_zygote)
        if not may_fork or any(name.startswith(READ_EARLY) for name in spec.env):
            _execute(zygote, spec, file)
        file.close()
        set_up(spec)
    _run(zygote, process, path)


def _execute(zygote: ZygoteSpec, spec: RankSpec, file: IO[bytes]) -> NoReturn:
    # A file with an offset of its own: the others read the same file. Without /proc none can be opened again.
    own = memory_file(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    os.lseek(own, 0, os.SEEK_SET)
    for fd in {*_kept(zygote, spec), own}:
        os.set_inheritable(fd, True)
    entry = f"continue_in_fresh_interpreter(file, path, at_start, {spec.rank})"
    command = [*zygote.python, "-c", PROGRAM.format(file=own, entry=entry), "--multiprocessing-fork"]
    os.execve(command[0], command, {**os.environ, **spec.env})


def _kept(zygote: ZygoteSpec, spec: RankSpec) -> set[int]:
    assert spec.status is not None
    of_the_launcher = zygote.fds - zygote.of_ranks()  # the configuration of its process has it
    return (spec.fds | {zygote.tracker} | of_the_launcher) - {spec.status.fd}


def continue_in_fresh_interpreter(file: IO[bytes], path: list[str], at_start: set[str], rank: int) -> None:
    """Run a rank that has executed an interpreter of its own."""
    from mp_spawn.ranks import program

    program.modules_at_start = at_start
    zygote: ZygoteSpec = pickle.load(file)
    file.close()
    process = next(process for process in zygote.processes if process.spec.rank == rank)
    for fd in _kept(zygote, process.spec):
        os.set_inheritable(fd, False)
    with reporting(process.spec):
        set_up(process.spec)
    _run(zygote, process, path)


def _run(zygote: ZygoteSpec, rank: Any, path: list[str]) -> NoReturn:
    resource_tracker._resource_tracker._fd = zygote.tracker  # type: ignore[attr-defined]
    spec: RankSpec = rank.spec
    current: Any = current_process()
    if spec.is_program:
        from mp_spawn.ranks.program import become

        current.authkey = zygote.preparation["authkey"]
        if (folder := zygote.preparation["dir"]) != os.getcwd():  # on another machine
            os.chdir(folder)
            process_module.ORIGINAL_DIR = folder  # type: ignore[attr-defined]
        # Its own, and then what else the launcher's has; but no folder of the launcher's program.
        sys.path[:] = path + [each for each in sys.path[1:] if each not in path]
        become(spec)
    with reporting(spec):
        current._inheriting = True  # importing the main module must not start processes
        try:
            spawn.prepare(zygote.preparation)
        finally:
            del current._inheriting
        assert spec.death_pipe is not None
        sys.exit(rank._bootstrap(parent_sentinel=spec.death_pipe.fd))
    raise AssertionError("unreachable")
