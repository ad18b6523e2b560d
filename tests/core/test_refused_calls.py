"""Where a sandbox refuses a system call, programs go on without it, at once, and say what is missing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
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
                if method != "forkserver":  # its server answers through one
                    ctx = mp.get_context(method)
                    tasks, results = ctx.SimpleQueue(), ctx.SimpleQueue()
                    child = ctx.Process(target=double, args=(tasks, results))
                    child.start()
                    tasks.put(np.ones(100_000))
                    result = results.get()
                    child.join()
                    print(mp.is_shared(result), result.sum())
    """
    assert run_refused(tmp_path, program, MP_SHARING_STRATEGY=strategy) == "True 200000.0\n" * 2


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
