"""Programs written for multiprocessing, with only the import changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])

PROGRAM = """
    import sys
    import numpy as np
    import mp_all as multiprocessing

    def work(job, results):
        while (item := job.get()) is not None:
            item += 1
            results.put(item)

    def square(a):
        return a * a

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[1])
        job, results = multiprocessing.Queue(), multiprocessing.Queue()
        process = multiprocessing.Process(target=work, args=(job, results))
        process.start()
        mine = np.zeros(100_000)
        job.put(mine)
        job.put(mine[:3])
        job.put(None)
        print(results.get(timeout=30).sum(), results.get(timeout=30), mine.sum())
        process.join(30)
        with multiprocessing.Pool(2) as pool:
            print([float(a.sum()) for a in pool.map(square, [np.full(50_000, k) for k in range(4)])])
            print([float(a.sum()) for a in pool.imap(square, [np.full(5, k) for k in range(4)])])
            pool.close()
            pool.join()
        with multiprocessing.Manager() as manager:
            shared = manager.dict(a=np.arange(3))
            shared["b"] = np.ones(50_000)
            print(shared["a"] + 1, shared["b"].sum())
        print(process.exitcode, multiprocessing.active_children())
"""
EXPECTED = """\
100000.0 [1. 1. 1.] 0.0
[0.0, 50000.0, 200000.0, 450000.0]
[0.0, 5.0, 20.0, 45.0]
[1 2 3] 50000.0
0 []
"""

# The worker's module and the main module are the user's: neither imports mp_all in a child.
WORKER = """
import os

import numpy as np

def make(n):
    return np.full(n, os.getpid())

def serve(tasks, results):
    while (n := tasks.get()) is not None:
        results.put(make(n))

def talk(connection):
    connection.send(make(connection.recv()))
"""
UNAWARE = """
    import sys

    import worker

    if __name__ == "__main__":
        import mp_all as mp

        ctx = mp.get_context(sys.argv[1])
        shared = []
        tasks, results = ctx.Queue(), ctx.Queue()
        process = ctx.Process(target=worker.serve, args=(tasks, results))
        process.start()
        tasks.put(100_000)
        got = results.get(timeout=30)
        tasks.put(None)
        process.join(30)
        shared.append((mp.is_shared(got), int(got[-1]) == process.pid))
        ours, theirs = ctx.Pipe()
        process = ctx.Process(target=worker.talk, args=(theirs,))
        process.start()
        ours.send(100_000)
        got = ours.recv()
        process.join(30)
        shared.append((mp.is_shared(got), int(got[-1]) == process.pid))
        with ctx.Pool(1) as pool:
            got = pool.apply(worker.make, (100_000,))
            shared.append((mp.is_shared(got), True))
            pool.close()
            pool.join()
        from concurrent.futures import ProcessPoolExecutor
        with ProcessPoolExecutor(1, mp_context=ctx) as executor:
            got = executor.submit(worker.make, 100_000).result(30)
            shared.append((mp.is_shared(got), True))
        print(shared)
"""

INHERITED = """
    import sys

    import mp_all as mp

    def report(connection):
        connection.send((mp.get_sharing_strategy(), mp.shared.zeros(3), mp.Block(1).strategy))

    def ask(ctx):
        ours, theirs = ctx.Pipe()
        process = ctx.Process(target=report, args=(theirs,))
        process.start()
        print(*ours.recv())
        process.join(30)

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        ask(ctx)
        mp.set_sharing_strategy("file_system")
        ask(ctx)
        mp.set_sharing_strategy("file_descriptor")
        ask(ctx)
"""


@METHODS
def test_a_program_runs_with_only_its_import_changed(tmp_path: Path, strategy: str, method: str) -> None:
    done = run_script(tmp_path, PROGRAM, method, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == EXPECTED


@METHODS
def test_children_that_never_import_us_send_through_shared_memory(tmp_path: Path, strategy: str, method: str) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    done = run_script(tmp_path, UNAWARE, method, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == f"{[(True, True)] * 4}\n"


@METHODS
def test_a_child_begins_with_its_parents_strategy_of_the_moment(tmp_path: Path, method: str) -> None:
    done = run_script(tmp_path, INHERITED, method, MP_SHARING_STRATEGY="file_descriptor")
    assert succeeded(done).splitlines() == [
        f"{strategy} [0. 0. 0.] {strategy}" for strategy in ("file_descriptor", "file_system", "file_descriptor")
    ]
