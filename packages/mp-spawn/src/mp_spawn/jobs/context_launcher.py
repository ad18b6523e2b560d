"""Start ranks as processes of a multiprocessing context: fork, forkserver, or a context of the user's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from mp_core.system.descriptor import readable
from mp_spawn.jobs.job import Job, Started
from mp_spawn.jobs.stopped_starts import end_started
from mp_spawn.ranks.child import set_up_and_call
from mp_spawn.ranks.process_handle import PidFd, has_pidfds, lock
from mp_spawn.ranks.program import ProgramProcess
from mp_spawn.ranks.rank_spec import RankSpec
from mp_spawn.ranks.signals import FROM_OUTSIDE, blocked, sent_to

#: Seconds for a fork server that has closed its connections to end.
END_OF_FORK_SERVER = 10.0
PRELOADED = "mp_spawn.ranks.forkserver_preload"


class ContextLauncher:
    """
    Starts each rank as a `Process` of *context*. The pickle of a process is small, so that no start waits for the
    imports of another.
    """

    one_by_one = True

    def __init__(self, context: BaseContext) -> None:
        self._context: Any = context
        self.start_method: str = context.get_start_method() or ""
        self.witness = 0
        self._sent_before: frozenset[int] | None = None

    def start(self, job: Job, specs: Iterator[RankSpec], own_fds: Callable[[], set[int]]) -> list[Started]:
        """Start the ranks. None of *own_fds* stays open in a forked one."""
        # Not at the top: `import mp_spawn` does not import mp-core.
        from mp_core.children.main_module import leave_out

        leave_out()
        # Otherwise the first start would start these helpers, with SIGINT blocked. Their start unblocks signals.
        with blocked(()):
            if self.start_method == "forkserver":
                self._ensure_server()
            elif self.start_method == "spawn":
                resource_tracker.ensure_running()
        started: dict[int, Started] = {}
        try:
            for spec in specs:
                # Under the other methods it can take seconds until the rank unblocks signals.
                with blocked(FROM_OUTSIDE if self.start_method == "fork" else {signal.SIGINT}) as mask:
                    before = None if spec.own_group else self._sent_before
                    started[spec.rank] = self._start(job, spec._replace(mask=mask, sent_before=before), own_fds)
        except BaseException as error:
            end_started(started, error, job)
            raise
        return [*started.values()]

    def _ensure_server(self) -> None:
        """Start a fork server that survives signals to its group. A server that runs already is left as it is."""
        server: Any = forkserver._forkserver
        if PRELOADED not in server._preload_modules:
            server._preload_modules = [*server._preload_modules, PRELOADED]
        before, sent = server._forkserver_pid, frozenset[int]()
        if before is not None:
            sent = sent_to(before)
        # With no signals blocked: if it cannot import the module, its processes would block them for ever.
        _start_fork_server()
        self._set_witness(sent if server._forkserver_pid == before else frozenset())

    def _set_witness(self, sent_before: frozenset[int]) -> None:
        self.witness = forkserver._forkserver._forkserver_pid or 0  # type: ignore[attr-defined]
        self._sent_before = sent_before if self.witness else None

    def _start(self, job: Job, spec: RankSpec, own_fds: Callable[[], set[int]]) -> Started:
        forked = self.start_method == "fork"

        def close_others() -> None:
            for fd in own_fds() - spec.fds:
                try:
                    os.close(fd)
                except OSError:
                    pass  # the thread that reads output had closed it just before the fork

        kind: Any = ProgramProcess if spec.is_program else self._context.Process
        process = kind(
            target=set_up_and_call,
            args=(spec, close_others) if forked else (spec,),
            name=f"rank {spec.rank}",
            daemon=job.daemon,
        )
        process.reports_missing_guard = True
        try:
            process.start()
        except (ConnectionError, EOFError):
            if self.start_method != "forkserver" or not _fork_server_has_ended():
                raise
            _restart_fork_server()
            self._set_witness(frozenset())
            process.start()
        try:
            pidfd = PidFd.of(process, job.frugal)
        except BaseException:
            process.kill()
            process.join()
            raise
        lock(process, pidfd)
        # Kept as long as the process object, even if the context is dropped: the rank ends with the pipe.
        process.death_pipe = job.death_pipe
        return process, pidfd


# The fork server of CPython 3.14 imports the main module before it serves, and ends if that raises; 3.15 goes on. A
# new server without the main module starts a rank that imports it and fails, and that failure is reported.
def _fork_server_has_ended() -> bool:
    """Wait for the end of the fork server, which has closed its connections; return False if it does not end."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is None or not has_pidfds():
        return False
    fd = os.pidfd_open(pid)  # of a child that has not been waited for, so that the number is its own
    try:
        return readable(fd, END_OF_FORK_SERVER)
    finally:
        os.close(fd)


def _restart_fork_server() -> None:
    main = vars(sys.modules["__main__"])
    names = {name: main[name] for name in ("__file__", "__spec__") if main.get(name) is not None}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        _start_fork_server()
    finally:
        main.update(names)


def _start_fork_server() -> None:
    """Start the fork server, if none runs, without NumPy: each rank sets the number of its threads first."""
    from mp_core.children.fork_server import start_without_libraries

    start_without_libraries()
