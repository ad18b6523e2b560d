"""Programs written for multiprocessing, with only the import changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import drop_in
from support.scripts import run_script, succeeded

METHODS = pytest.mark.parametrize("method", drop_in.METHODS)

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

POOLS = """
    import sys

    import mp_all as mp

    def rank(number):
        return number

    if __name__ == "__main__":
        mp.set_start_method(sys.argv[1])
        with mp.Pool(1) as pool:
            print(pool.map(abs, [-1]))
        with mp.ProcessPoolExecutor(1) as executor:
            print(*executor.map(abs, [-2]))
        print(mp.run(rank, nprocs=2))
"""


@METHODS
def test_a_program_runs_with_only_its_import_changed(tmp_path: Path, strategy: str, method: str) -> None:
    done = run_script(tmp_path, drop_in.PROGRAM, method, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done) == drop_in.EXPECTED


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


@METHODS
def test_no_file_is_opened_in_an_encoding_that_nobody_named(tmp_path: Path, method: str) -> None:
    strict = {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "error::EncodingWarning"}
    assert succeeded(run_script(tmp_path, POOLS, method, **strict)) == "[1]\n2\n[0, 1]\n"
