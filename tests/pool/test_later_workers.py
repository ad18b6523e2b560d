"""Workers that take the place of others are forked by a process without threads: no lock is held in them for ever."""

from __future__ import annotations

import errno
import gc
import importlib
import logging
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.processes import ended
from support.scripts import run_python, run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_pool.workers import zygote

HOLDERS = ("random", "import", "logging", "own lock")
lock = threading.Lock()  # of a program
SOAK = os.environ.get("MP_SOAK") == "1"
REPLACEMENTS = 10_000 if SOAK else 60


class Handler(logging.Handler):
    """Holds its lock while it emits a record."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "wait":
            held.set()
            release.wait()


held, release = threading.Event(), threading.Event()
logger = logging.getLogger("later workers")


class Waiting(list[int]):
    """A list whose copying waits: `np.random.shuffle` has the lock of its state meanwhile."""

    def __setitem__(self, key: Any, value: Any) -> None:
        held.set()
        release.wait()
        super().__setitem__(key, value)


def hold(what: str, folder: str) -> None:
    """Hold a lock in this thread until `release` is set."""
    if what == "random":
        np.random.shuffle(Waiting(range(3)))
    elif what == "import":
        importlib.import_module("imported_slowly")
    elif what == "logging":
        logger.error("wait")
    else:
        with lock:
            held.set()
            release.wait()


def use(what: str) -> int:
    """Use in a worker what a thread of the parent holds."""
    if what == "random":
        np.random.standard_normal()
    elif what == "import":
        importlib.import_module("imported_slowly")
    elif what == "logging":
        logger.error("go on")
    else:
        with lock:
            pass
    return os.getpid()


def zygote_of(pool: Any) -> int:
    """Return the pid of the process that forks later workers: the parent of one."""
    first = {process.pid for process in pool._pool}
    while (pids := pool.apply(pid_and_parent))[0] in first:
        with suppress(ProcessLookupError):  # it was its last task
            os.kill(pids[0], signal.SIGKILL)
    return pids[1]


def pid_and_parent() -> tuple[int, int]:
    """Return the pids of this process and of its parent."""
    return os.getpid(), os.getppid()


@contextmanager
def holding(what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a thread of this process hold a lock."""
    held.clear()
    release.clear()
    (folder / "imported_slowly.py").write_text(
        "import sys, os\nmodule = sys.modules.get('test_later_workers')\n"
        f"if module is not None and os.getpid() == {os.getpid()}:\n    module.held.set(); module.release.wait()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(logger, "handlers", [Handler()])
    monkeypatch.setattr(logger, "propagate", False)
    thread = threading.Thread(target=hold, args=(what, str(folder)))
    thread.start()
    try:
        assert held.wait(tasks.PATIENCE)
        yield
    finally:
        release.set()
        thread.join()
        sys.modules.pop("imported_slowly", None)


@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.parametrize("what", HOLDERS)
@pytest.mark.parametrize("end", ["limit of tasks", "killed"])
def test_a_later_worker_does_not_wait_for_a_lock_that_a_thread_of_the_program_holds(
    kind: str, what: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = mp.get_context("fork")
    limit = {"maxtasksperchild" if kind == "pool" else "max_tasks_per_child": 1} if end == "limit of tasks" else {}
    monkeypatch.syspath_prepend(str(tmp_path))  # the later workers see the program as it was when the pool was made
    with tasks.either(kind, fork, 2, **limit) as pool:
        first = {pool.submit(tasks.own_pid)() for _ in range(4)}
        with holding(what, tmp_path, monkeypatch):
            pids = set()
            for _ in range(REPLACEMENTS // 2 if end == "limit of tasks" else 4):
                if end == "killed":
                    assert isinstance(tasks.outcome(pool.submit(tasks.end, "SIGKILL")), mp.WorkerLostError)
                pids.add(pool.submit(use, what)())
            assert pids - first


def test_a_later_worker_is_a_worker_like_the_first() -> None:
    fork = mp.get_context("fork")
    given = 5

    def initialize() -> None:  # a closure, which only a fork takes along
        os.environ["LATER"] = str(given)

    with fork.Pool(1, initialize, maxtasksperchild=1) as pool:
        seen = [pool.apply(describe) for _ in range(3)]
        assert [(parent, later, daemon) for _, parent, later, daemon, _ in seen] == [(os.getpid(), "5", True)] * 3
        assert len({pid for pid, *_ in seen}) == 3
        names = [name for *_, name in seen]
        assert names == sorted(set(names), key=lambda name: int(name.rpartition("-")[2]))
        assert {name.rpartition("-")[0] for name in names} == {"ForkPoolWorker"}


def describe() -> tuple[int, int, str, bool, str]:
    """Describe this worker."""
    parent = mp.parent_process()
    assert parent is not None and parent.is_alive()
    process = mp.current_process()
    return os.getpid(), parent.pid or 0, os.environ["LATER"], process.daemon, process.name


@pytest.mark.parametrize(("how", "exitcode"), [("exit", 3), ("SIGKILL", -9), ("segfault", -11)])
@pytest.mark.parametrize("kind", tasks.KINDS)
def test_the_end_of_a_later_worker_has_its_exit_code(kind: str, how: str, exitcode: int) -> None:
    with tasks.either(kind, mp.get_context("fork"), 1) as pool:
        for _ in range(3):
            error = tasks.outcome(pool.submit(tasks.end, how))
            assert isinstance(error, mp.WorkerLostError) and error.exitcode == exitcode
        assert pool.submit(tasks.square, 5)() == 25


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_pool_goes_on_when_the_process_that_forks_its_later_workers_was_sent_a_signal(number: int) -> None:
    with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        pids = {pool.apply(tasks.own_pid) for _ in range(6)}
        os.kill(zygote_of(pool), number)
        pids |= {pool.apply(tasks.own_pid) for _ in range(6)}
        assert len(pids) == 12


def test_a_pool_ends_though_the_process_that_forks_its_later_workers_is_stopped() -> None:
    with mp.get_context("fork").Pool(1) as pool:
        os.kill(zygote_of(pool), signal.SIGSTOP)
        assert pool.apply(abs, (-1,)) == 1


def test_a_pool_continues_the_stopped_process_that_forks_its_later_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "LIMIT", tasks.PATIENCE)
    with mp.get_context("fork").Pool(2) as pool:
        assert until(pool._scheduler.is_ready, tasks.PATIENCE)
        for _ in range(2):
            os.kill(zygote_of(pool), signal.SIGSTOP)
            first = pool._pool[0].pid
            os.kill(first, signal.SIGKILL)
            assert until(lambda first=first: first not in {each.pid for each in pool._pool}, tasks.PATIENCE)
            assert pool.apply_async(abs, (-1,)).get(tasks.PATIENCE / 2) == 1
        os.kill(zygote_of(pool), signal.SIGSTOP)
        os.kill(pool._pool[0].pid, signal.SIGKILL)


def test_without_pidfds_a_pool_replaces_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "no such call")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        assert len({pool.apply(tasks.own_pid) for _ in range(6)}) == 6


def test_a_later_worker_runs_finalizers_and_ends_its_children_as_the_first_one_does(tmp_path: Path) -> None:
    program = f"""
        import atexit
        import os
        import time
        from multiprocessing import util

        import mp_all as mp

        def note(name):
            open({str(tmp_path)!r} + f"/{{name}} {{os.getpid()}}", "w").close()

        def work(i):
            util.Finalize(None, note, ("finalized",), exitpriority=5)
            atexit.register(note, "exited")  # from 3.13 on a child runs it
            child = mp.Process(target=time.sleep, args=(600,), daemon=True)
            child.start()
            return os.getpid(), child.pid

        if __name__ == "__main__":
            with mp.ProcessPoolExecutor(1, mp_context=mp.get_context("fork"), max_tasks_per_child=1) as executor:
                for pids in executor.map(work, range(3)):
                    print(*pids)
    """
    pids = [line.split() for line in succeeded(run_script(tmp_path, program)).splitlines()]
    names = {path.name for path in tmp_path.iterdir()}
    for worker, child in pids:
        assert f"finalized {worker}" in names
        assert (f"exited {worker}" in names) == (sys.version_info >= (3, 13))
        assert until(lambda child=child: ended(int(child)), tasks.PATIENCE)
    assert len(pids) == 3


def test_a_later_worker_that_nobody_can_watch_is_ended_and_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, own, forked = os.pidfd_open, os.getpid(), tmp_path / "forked"

    def refuse_once(pid: int, *args: int) -> int:
        if os.getppid() == own and not forked.exists():  # in the process that forks the later workers
            forked.write_text(str(pid))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(pid, *args)

    with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        monkeypatch.setattr(os, "pidfd_open", refuse_once)
        os.kill(zygote_of(pool), signal.SIGKILL)
        assert len({pool.apply(tasks.own_pid) for _ in range(3)}) == 3
        assert not os.path.exists(f"/proc/{forked.read_text()}")


def test_a_later_worker_does_not_flush_what_the_program_had_not_printed_yet(tmp_path: Path) -> None:
    path = tmp_path / "printed"
    before = sys.stdout
    with path.open("w") as sys.stdout:
        try:
            print("once")
            with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
                for _ in range(3):
                    pool.apply(tasks.own_pid)
        finally:
            sys.stdout, file = before, sys.stdout
    file.close()
    assert path.read_text() == "once\n"


def test_a_child_that_the_program_forks_keeps_no_pool_alive() -> None:
    with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        pids: list[Callable[[], int]] = [pool.apply_async(tasks.own_pid).get for _ in range(2)]
        child = mp.get_context("fork").Process(target=signal.pause)
        child.start()
        number = zygote_of(pool)
        assert len({get() for get in pids}) == 2
    pool.join()
    assert until(lambda: not os.path.exists(f"/proc/{number}"), tasks.PATIENCE)
    child.kill()
    child.join()
    child.close()


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_the_end_of_each_first_worker_is_seen_at_once(kind: str) -> None:
    with tasks.either(kind, mp.get_context("fork"), 2) as pool:
        processes: list[Any] = pool.pool._pool if kind == "pool" else []
        if kind == "executor":
            pool.submit(abs, 1)()
            processes = list(pool.pool._processes.values())
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            assert mp.connection.wait([process.sentinel], tasks.PATIENCE)
            # The pool's thread waits for it, too; one of the two gets the code a moment before the other can see it.
            assert until(lambda process=process: process.exitcode == -signal.SIGKILL, tasks.PATIENCE)
        assert pool.submit(tasks.square, 3)() == 9


def test_many_later_workers_leave_no_descriptor_in_the_process_that_forks_them() -> None:
    with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        zygote = zygote_of(pool)
        before = len(os.listdir(f"/proc/{zygote}/fd"))
        for _ in range(REPLACEMENTS):
            pool.apply(tasks.own_pid)
        # It has one for each worker, also for those that have no more tasks and are about to end.
        assert until(lambda: len(os.listdir(f"/proc/{zygote}/fd")) <= before + 3, tasks.PATIENCE)


def test_a_pool_starts_where_there_can_be_no_more_process_than_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, forked = os.fork, []

    def limited() -> int:
        if len(forked) == 2:
            raise BlockingIOError(11, "no more processes")
        forked.append(True)
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    with mp.get_context("fork").Pool(2) as pool:
        assert pool.map(tasks.square, range(4)) == [0, 1, 4, 9]
        forked.clear()
        assert isinstance(tasks.outcome(lambda: pool.apply(os._exit, (3,))), mp.WorkerLostError)
        assert until(lambda: len(pool._pool) == 2, tasks.PATIENCE)


def test_a_later_worker_collects_garbage_as_the_program_did() -> None:
    with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        assert [pool.apply(gc.isenabled) for _ in range(2)] == [True, True]
    gc.disable()
    try:
        with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            assert [pool.apply(gc.isenabled) for _ in range(2)] == [False, False]
    finally:
        gc.enable()


@pytest.mark.parametrize("program", ["", "gc.freeze()"])
def test_a_later_worker_has_the_program_s_objects_as_they_are_and_collects_none_of_them_at_its_start(
    program: str,
) -> None:
    text = f"""
    import gc
    import mp_all as mp
    gc.collect()
    {program}
    young = [[object()] for _ in range(gc.get_threshold()[0] // 2)]
    with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        counts = [pool.apply(gc.get_count)[0] for _ in range(5)]
        assert {{bool(pool.apply(gc.get_freeze_count)) for _ in range(5)}} == {{bool(gc.get_freeze_count())}}
    assert gc.get_freeze_count() or max(counts[1:]) < len(young), counts
    """
    succeeded(run_python("-c", textwrap.dedent(text)))


AFTER_FORK = """
    import multiprocessing
    import os
    import mp_all as mp

    if __name__ == "__main__":
        context = mp.get_context("fork")
        with context.Pool(2, maxtasksperchild=1) as pool:
            pool.map(abs, range(8), chunksize=1)
            child = os.fork()
            if not child:
                multiprocessing.active_children()
                process = context.Process(target=print, args=("of the child",))
                process.start()
                process.join()
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_asks_the_workers_of_its_parent_for_nothing(tmp_path: Path) -> None:
    # From 3.12 on a fork beside threads warns.
    done = run_script(tmp_path, AFTER_FORK, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert succeeded(done) == "of the child\n0\n"


SEVERAL = """
    import threading
    import time
    import mp_all as mp

    def use(number):
        began = time.monotonic()
        for _ in range(3):
            with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
                assert pool.map(abs, range(6), chunksize=1) == list(range(6))
        times.append(time.monotonic() - began)

    if __name__ == "__main__":
        times = []
        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(len(times), max(times) < 9)  # a zygote that does not answer takes ten seconds
"""


def test_the_zygotes_of_several_pools_do_not_wait_for_each_other(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, SEVERAL)) == "4 True\n"


OTHER_USER = """
    import os
    import sys
    import mp_all as mp

    def user(_):
        return os.getuid()

    if __name__ == "__main__":
        pool = mp.get_context("fork").Pool(2, maxtasksperchild=1 if sys.argv[1] == "later" else None)
        assert set(pool.map(user, range(2), chunksize=1)) == {0}
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        if sys.argv[1] == "later":
            users = pool.map(user, range(20), chunksize=1)
            # Two had been forked before, and take a task each, whenever they begin.
            print(set(users) - {0}, users.count(0) <= 2)
        pool.terminate()
        pool.join()
        print("ended")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, who may become another user")
@pytest.mark.parametrize(("which", "said"), [("later", "{65534} True\nended\n"), ("first", "ended\n")])
def test_later_workers_have_the_user_that_the_program_has_by_then(tmp_path: Path, which: str, said: str) -> None:
    # The new user cannot remove root's files of the session.
    assert succeeded(run_script(tmp_path, OTHER_USER, which, MPSHM_RUNTIME_DIR=str(tmp_path / "sessions"))) == said


IGNORES = """
    import signal
    import mp_all as mp

    if __name__ == "__main__":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
            print(pool.map(abs, range(4), chunksize=1))
"""


def test_a_program_may_ignore_the_ends_of_its_children(tmp_path: Path) -> None:
    assert succeeded(run_script(tmp_path, IGNORES)) == "[0, 1, 2, 3]\n"


DEFINED = """
    import mp_all as mp

    if __name__ == "__main__":
        with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
            print(pool.map(lambda number: number + 1, range(60), chunksize=1) == [*range(1, 61)])
"""


def test_later_workers_have_what_a_definition_needs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(DEFINED))
    done = run_python("-X", "importtime", str(tmp_path / "program.py"))
    assert done.stdout == "True\n"
    # By the program, by workers from before the first definition, and by what forks the others.
    assert 0 < len(re.findall(r"\bcloudpickle\.cloudpickle$", done.stderr, re.MULTILINE)) <= 12
