"""The shared allocator in several processes: results of pools, forks of every kind, killed owners (S6, S9)."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tasks
from support.carriers import TIMEOUT, Carrier
from support.scripts import run_script, succeeded

import mp_all as mp

pytestmark = pytest.mark.usefixtures("strategy")

# ---- pools ----


def make(n: int) -> np.ndarray:
    return np.arange(n, dtype=float)


def copied_here(_: Any) -> int:
    return mp.memory_stats()["copied_bytes"]


def test_results_of_a_pool_move_no_bytes(start_method: str) -> None:
    context = mp.get_context(start_method)
    with context.Pool(1, initializer=mp.install_shared_allocator) as pool:
        before = pool.apply_async(copied_here, (0,)).get(TIMEOUT)
        results = pool.map_async(make, [10_000, 20_000, 300_000]).get(TIMEOUT)
        assert pool.apply_async(copied_here, (0,)).get(TIMEOUT) == before
        pool.close()
        pool.join()
    assert all(mp.is_shared(a) and np.array_equal(a, make(len(a))) for a in results)


def test_results_of_an_executor_move_no_bytes(start_method: str) -> None:
    context = mp.get_context(start_method)
    with ProcessPoolExecutor(1, mp_context=context, initializer=mp.install_shared_allocator) as executor:
        before = executor.submit(copied_here, 0).result(TIMEOUT)
        results = [executor.submit(make, n).result(TIMEOUT) for n in (10_000, 300_000)]
        assert executor.submit(copied_here, 0).result(TIMEOUT) == before
    assert all(mp.is_shared(a) and np.array_equal(a, make(len(a))) for a in results)


# ---- fork ----


def run_forked(tmp_path: Path, program: str) -> str:
    prelude = """
        import gc, os, sys
        import numpy as np
        import mp_all as mp

        def forked(body):
            "Run body in a child, to its end."
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    body()
                    code = 0
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0
    """
    return succeeded(run_script(tmp_path, prelude + program, MP_SHARING_STRATEGY=mp.get_sharing_strategy()))


def test_after_a_fork_shared_allocated_arrays_are_shared_and_private_ones_are_not(tmp_path: Path) -> None:
    program = """
        before = np.zeros(10_000)
        with mp.shared_allocator():
            a, full, private = np.zeros(10_000), np.ones(10_000), np.zeros(10)
        after = np.zeros(10_000)

        def write():
            for array in before, a, full, private, after:
                array[...] = 5

        forked(write)
        print([int(array[-1]) for array in (before, a, full, private, after)])
    """
    assert run_forked(tmp_path, program) == "[0, 5, 5, 0, 0]\n"


def test_memory_that_one_side_of_a_fork_drops_is_not_reused_while_the_other_has_it(tmp_path: Path) -> None:
    program = """
        import threading
        ready, gone = os.pipe(), os.pipe()
        mp.install_shared_allocator()
        a, b = np.full(50_000, 1.0), np.full(50_000, 2.0)
        dropped = np.full(50_000, 3.0)
        del dropped  # and is kept for the next one: not for both

        def child():
            global a
            a = None
            mine = [np.full(50_000, 8.0) for _ in range(5)]
            os.write(ready[1], b"x")
            os.read(gone[0], 1)
            assert (b == 2).all() and all((m == 8).all() for m in mine)

        pid = os.fork()
        if pid == 0:
            try:
                child()
            except BaseException:
                os._exit(1)
            os._exit(0)
        os.read(ready[0], 1)
        assert (a == 1).all()
        b = None
        mine = [np.full(50_000, 9.0) for _ in range(5)]
        os.write(gone[1], b"x")
        assert os.waitpid(pid, 0)[1] == 0
        assert (a == 1).all() and all((m == 9).all() for m in mine)
    """
    assert run_forked(tmp_path, program) == ""


def test_a_forked_child_cannot_ruin_its_parents_arrays_of_objects(tmp_path: Path) -> None:
    program = """
        mp.install_shared_allocator()
        words = np.array([f"word {i}" for i in range(10_000)], object)
        late = np.empty(10_000, object)
        late[6_000:] = ["late"] * 4_000
        records = np.array([(i, f"record {i}") for i in range(10_000)], [("n", "f8"), ("s", "O")])
        numbers = np.arange(10_000)
        expected = words.tolist(), late.tolist(), records.tolist()

        def ruin():
            global words, late, records
            assert (words.tolist(), late.tolist(), records.tolist()) == expected
            words[:] = [object() for _ in range(10_000)]
            late[:100] = "child"
            words.resize(20_000, refcheck=False)
            records["s"] = [str(i) for i in range(10_000)]
            words = late = records = None
            numbers[:] = 7
            gc.collect()

        forked(ruin)
        forked(lambda: forked(ruin))
        assert (words.tolist(), late.tolist(), records.tolist()) == expected
        assert (numbers == 7).all()

        def look():
            assert words[9_999] == "word 9999"

        words[0] = "changed since"
        forked(look)
    """
    assert run_forked(tmp_path, program) == ""


def test_an_array_that_a_forked_child_makes_and_sends_arrives(start_method: str) -> None:
    # The parent has arrays of its own, made before, so that a forked child begins with all of its state.
    with mp.shared_allocator():
        mine = [np.full(10_000, i) for i in range(5)]
        del mine[2]
        context = mp.get_context(start_method)
        here, there = context.Pipe()
        process = context.Process(target=make_and_send, args=(there,))
        process.start()
        there.close()
        theirs = [here.recv() for _ in range(5)]
        mine.append(np.full(10_000, 2))
        process.join(TIMEOUT)
        assert process.exitcode == 0
    process.close()
    here.close()
    assert [int(a[0]) for a in mine] == [0, 1, 3, 4, 2]
    assert [int(a[0]) for a in theirs] == [-1, -2, -3, -4, -5]


def make_and_send(connection: Any) -> None:
    with mp.shared_allocator():
        for i in range(1, 6):
            connection.send(np.full(10_000, -i))


def test_threads_that_allocate_while_another_forks_are_never_locked_out(tmp_path: Path) -> None:
    program = """
        import threading, warnings

        warnings.simplefilter("ignore", DeprecationWarning)
        mp.install_shared_allocator()
        stop = threading.Event()

        def churn():
            while not stop.is_set():
                a = np.full(20_000, 1.0)
                assert (a == 1).all()

        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads:
            thread.start()

        def child():
            a = [np.full(20_000, 2.0) for _ in range(10)]
            assert all((b == 2).all() for b in a)

        for _ in range(20):
            forked(child)
        stop.set()
        for thread in threads:
            thread.join()
        print("done")
    """
    assert run_forked(tmp_path, program) == "done\n"


def test_a_killed_owner_takes_nothing_from_another_holder(echo: Carrier) -> None:
    context = mp.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=make_and_wait, args=(there,))
    process.start()
    there.close()
    a = here.recv()
    echo.call(tasks.keep, a)
    os.kill(process.pid or sys.maxsize, signal.SIGKILL)
    process.join(TIMEOUT)
    process.close()
    here.close()
    with mp.shared_allocator():
        others = [np.zeros(100_000) for _ in range(5)]
    assert (a == np.arange(100_000)).all()
    assert echo.again(tasks.kept_values)[0] == list(range(100_000))
    del others


def make_and_wait(connection: Any) -> None:
    with mp.shared_allocator():
        connection.send(np.arange(100_000))
    connection.recv()


def test_an_array_survives_the_death_of_the_process_that_allocated_it(tmp_path: Path) -> None:
    program = """
        import os, signal
        import numpy as np
        import mp_all as mp

        def make(connection):
            mp.install_shared_allocator()
            connection.send(np.arange(100_000))
            os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            here, there = mp.Pipe()
            process = mp.get_context("spawn").Process(target=make, args=(there,))
            process.start()
            process.join(50)
            assert process.exitcode == -signal.SIGKILL
            a = here.recv()
            assert mp.is_shared(a) and (a == np.arange(100_000)).all()
            print(mp.memory_stats()["copied_bytes"])
    """
    done = run_script(tmp_path, program, MP_SHARING_STRATEGY=mp.get_sharing_strategy())
    assert succeeded(done) == "0\n"
