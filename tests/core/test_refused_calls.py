"""Where a sandbox refuses a system call, programs go on without it, at once, and say what is missing."""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
from pathlib import Path

import pytest
from support.refused_calls import NUMBERS
from support.scripts import run_script, succeeded

TESTS = str(Path(__file__).parents[1])


def run_refused(folder: Path, program: str, *arguments: str, **environment: str) -> str:
    """Run the program, which calls `refuse`, and return its output."""
    said = succeeded(run_script(folder, program, *arguments, PYTHONPATH=TESTS, **environment))
    if said == "skip\n":
        pytest.skip("no seccomp filters here")
    return said


def test_named_memory_replaces_refused_memfds(tmp_path: Path) -> None:
    program = """
        from support.refused_calls import refuse
        import mp_core as mp

        refuse("memfd_create")
        block = mp.Block(100_000)
        print(block.strategy, mp.Block(10).strategy)
    """
    assert run_refused(tmp_path, program, MP_SHARING_STRATEGY="file_descriptor") == "file_system file_system\n"


@pytest.mark.parametrize("call", ["accept4", "eventfd2", "getsockopt"])
def test_a_manager_that_cannot_start_is_tried_once_and_named(tmp_path: Path, strategy: str, call: str) -> None:
    program = """
        import sys, threading, time, warnings
        from support.refused_calls import refuse
        import numpy as np
        import mp_all as mp

        refuse(sys.argv[1])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            locks = [mp.Lock() for _ in range(50)]
            queue = mp.SimpleQueue()
            for _ in range(20):
                sender = threading.Thread(target=queue.put, args=(np.ones(100_000),))
                sender.start()
                assert queue.get().sum() == 100_000
                sender.join()
        assert {each.category for each in seen} == {mp.SharedMemoryWarning}
        for each in seen:
            assert "shm-manager) cannot start" in str(each.message) and sys.argv[1] in str(each.message)
        print(len(seen), all(lock.acquire(timeout=60) for lock in locks))
    """
    assert run_refused(tmp_path, program, call, MP_SHARING_STRATEGY=strategy) == "2 True\n"


def test_a_manager_that_is_killed_at_each_start_is_not_started_for_each_block(tmp_path: Path) -> None:
    program = """
        import os, sys
        import mp_core as mp
        from mp_core import _block

        _block.set_manager(os.fsencode(sys.argv[1]))
        errors = []
        for _ in range(4):
            try:
                mp.Block(1000)
            except OSError as error:
                errors.append(str(error))
        assert all("ends whenever it is started" in error for error in errors), errors
        with open(sys.argv[2]) as log:
            print(len(errors), len(log.readlines()) < 200)
    """
    manager, log = tmp_path / "manager", tmp_path / "log"
    manager.write_text(f"#!/bin/sh\necho started >> {log}\nkill -{signal.SIGKILL:d} $$\n")
    manager.chmod(0o700)
    said = run_script(tmp_path, program, str(manager), str(log))
    assert succeeded(said) == "4 True\n"


def test_the_connection_of_a_child_needs_no_socketpair(tmp_path: Path, strategy: str) -> None:
    program = """
        from support.refused_calls import refuse
        import numpy as np
        import mp_all as mp

        def double(tasks, results):
            results.put(tasks.get() * 2)

        if __name__ == "__main__":
            block = mp.Block(1000)
            refuse("socketpair")
            for method in mp.get_all_start_methods():
                ctx = mp.get_context(method)
                tasks, results = ctx.SimpleQueue(), ctx.SimpleQueue()
                child = ctx.Process(target=double, args=(tasks, results))
                child.start()
                tasks.put(np.ones(100_000))
                result = results.get()
                child.join()
                print(mp.is_shared(result), result.sum())
    """
    assert run_refused(tmp_path, program, MP_SHARING_STRATEGY=strategy) == "True 200000.0\n" * 3


@pytest.mark.parametrize("calls", [["pidfd_send_signal"], ["pidfd_open", "pidfd_send_signal"]])
def test_pools_and_jobs_end_where_signals_by_descriptor_are_refused(
    tmp_path: Path, start_method: str, calls: list[str]
) -> None:
    program = """
        import sys, time
        from support.refused_calls import refuse
        import mp_all as mp
        from mp_pool import Pool

        def sleep(rank, begun):
            begun.put(rank)
            time.sleep(3600)

        if __name__ == "__main__":
            method, *calls = sys.argv[1:]
            refuse(*calls)
            with Pool(2, context=mp.get_context(method)) as pool:
                running = pool.apply_async(time.sleep, (3600,))
                assert pool.apply(int) == 0
                pool.terminate()
                pool.join()
            begun = mp.get_context(method).SimpleQueue()
            job = mp.start_processes(sleep, (begun,), nprocs=2, join=False, start_method=method)
            assert {begun.get(), begun.get()} == {0, 1}
            job.terminate()
            print([process.exitcode for process in job.processes])
    """
    assert run_refused(tmp_path, program, start_method, *calls) == "[-15, -15]\n"


@pytest.mark.parametrize("calls", [["socketpair"], ["socketpair", "memfd_create"], ["socketpair", "pidfd_open"]])
def test_pools_work_where_socket_pairs_are_refused(tmp_path: Path, start_method: str, calls: list[str]) -> None:
    program = """
        import os, sys
        from support.refused_calls import refuse
        import numpy as np
        import mp_all as mp
        from mp_pool import Pool, ProcessPoolExecutor

        def double(array):
            return array * 2

        if __name__ == "__main__":
            method, *calls = sys.argv[1:]
            refuse(*calls)
            ctx = mp.get_context(method)
            with Pool(2, context=ctx) as pool:
                try:
                    pool.apply(os._exit, (3,))
                except mp.WorkerLostError:
                    print("lost")
                print([float(each.sum()) for each in pool.map(double, [np.ones(20_000)] * 3)])
            with ProcessPoolExecutor(2, mp_context=ctx) as executor:
                print(list(executor.map(abs, range(-3, 0))))
    """
    said = run_refused(tmp_path, program, start_method, *calls)
    assert said == "lost\n[40000.0, 40000.0, 40000.0]\n[3, 2, 1]\n"


#: What a program does with the library, step by step. It prints a line for each: "same"; or whether the error came from
#: a line of the standard library, whose traceback shows the call, then that line and the error.
PROGRAM = """
    import errno, sys, threading, traceback
    from multiprocessing import connection
    from support.refused_calls import refuse
    import numpy as np
    import mp_all as mp
    from mp_pool import Pool

    def double(array):
        return array * 2

    def answer(tasks, results):
        results.put("ready")
        results.put(double(tasks.get()))

    def lock(ctx):
        with ctx.Lock():
            pass

    def shared(ctx):
        assert mp.shared.ones(50_000).sum() == 50_000

    def queue(ctx):
        queue = ctx.Queue()
        for array in (np.ones(100_000), b"x" * 100_000):
            queue.put(array)
            assert len(queue.get()) == len(array)
        queue.close()
        queue.join_thread()

    def process(ctx):
        tasks, results = ctx.SimpleQueue(), ctx.SimpleQueue()
        process = ctx.Process(target=answer, args=(tasks, results))
        process.start()
        try:
            # A child that could not start says why itself, and reads no task.
            assert results._reader in connection.wait([results._reader, process.sentinel], 30), process.exitcode
            assert results.get() == "ready"
            tasks.put(np.ones(100_000))
            assert results.get().sum() == 200_000
        except BaseException:
            process.terminate()
            raise
        finally:
            process.join()

    def pool(ctx):
        with Pool(2, context=ctx) as pool:
            assert [each.sum() for each in pool.map(double, [np.ones(20_000)] * 4)] == [40_000] * 4
            pool.apply_async(threading.Event().wait)

    def ranks(ctx):
        assert mp.run(abs, nprocs=2, start_method=ctx.get_start_method()) == [0, 1]

    def manager(ctx):
        with ctx.Manager() as manager:
            table = manager.dict()
            table[1] = np.ones(10_000)
            assert table[1].sum() == 10_000

    if __name__ == "__main__":
        method, call, number = sys.argv[1:]
        refuse(call, error=getattr(errno, number))
        ctx = mp.get_context(method)
        steps = [lock, shared, queue, process, pool, ranks]
        if call != "accept4":  # the standard library's process of a manager asks for ever, and its client waits
            steps.append(manager)
        for step in steps:
            try:
                step(ctx)
            except BaseException as error:
                traceback.print_exc()
                last = traceback.extract_tb(error.__traceback__)[-1]
                text = " ".join(str(error).split())
                print("/mp_" not in last.filename, step.__name__, last.line, type(error).__name__, text, flush=True)
            else:
                print("same", flush=True)
"""
#: Without the others (read, mmap, close, futex, ...) no interpreter runs.
CALLS = sorted({*NUMBERS.get(platform.machine(), {})} - {"sigaltstack"})  # -X faulthandler needs it
ERRORS = ("EPERM", "ENOSYS", "EMFILE", "ENOMEM")
#: What the text of an error names in the place of the call. The manager lists the calls that it needs. For a limit, the
#: text says which: "shared memory" and "file_descriptor" stand in other texts, so they do not count.
MANAGER = r"shm-manager the system calls"
INSTEAD = {
    "EPERM": MANAGER,
    "ENOSYS": MANAGER,
    "EMFILE": rf"{MANAGER}|descriptors (are|is) (left|open|used)|ulimit -n|Too many open files",
    "ENOMEM": rf"{MANAGER}|bytes of memory are free|MemoryError|Cannot allocate memory",
}
#: What a call is named in the text or in the last line of code, beside its own name: Python's errors name no call.
NAMES = {
    "clone": "fork",
    "fcntl": r"os\.dup|set_wakeup_fd",
    "getrandom": "random numbers",
    "ioctl": "set_blocking",
    "pipe2": r"os\.pipe\(\)",
    "pread64": "pread",
    "sendto": "send",
}
#: An interpreter that could not start says why itself: the loader prints "cannot read file data: Error 24".
OPENBLAS = "pthread_create failed"  # it ends a process by SIGINT then
ELSEWHERE = "its output on stderr says why"
#: The process of `Manager()` is the standard library's, and ends without a word to its parent.
IN_THE_MANAGER = ("getsockname", "setsockopt")


def refusals() -> list[tuple[str, str, str]]:
    """Return each call with each error and start method, or, for a short run, with one of each."""
    if os.environ.get("MP_SOAK") == "1":
        return [(call, error, method) for call in CALLS for error in ERRORS for method in ("fork", "spawn")]
    return [(call, ERRORS[number % 4], ("fork", "spawn")[number // 4 % 2]) for number, call in enumerate(CALLS)]


@pytest.mark.parametrize(("call", "error", "method"), refusals())
def test_a_program_whose_system_refuses_a_call_gives_the_same_or_names_the_call(
    tmp_path: Path, call: str, error: str, method: str
) -> None:
    # A folder of its own: where files cannot be removed or locked, the folder of the session stays.
    done = run_script(tmp_path, PROGRAM, method, call, error, PYTHONPATH=TESTS, MPSHM_RUNTIME_DIR=str(tmp_path))
    if done.stdout == "skip\n":
        pytest.skip("no seccomp filters here")
    said = [line for line in done.stdout.splitlines() if line != "same"]
    # The text of the error alone: a traceback in stderr may have the name of the call by chance.
    names = rf"\b{call}\b|{NAMES.get(call, call)}|{INSTEAD[error]}"
    unnamed = [
        line
        for line in said
        if not line.startswith("True ")
        and not re.search(names, line)
        and not ("terminated with signal SIGINT" in line and OPENBLAS in done.stderr)
        and not (ELSEWHERE in line and re.search(rf"{names}|: Error {getattr(errno, error)}\n", done.stderr))
        and not (call in IN_THE_MANAGER and "manager" in line)
    ]
    assert not unnamed, "\n".join([*unnamed, done.stderr])
    assert done.returncode == 0 and len(done.stdout.splitlines()) >= 6, done.stdout + done.stderr
