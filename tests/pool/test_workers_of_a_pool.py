"""What a worker is: its processors, its threads, its children, and the random numbers of its tasks."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp

both = pytest.mark.parametrize("kind", tasks.KINDS)
pytestmark = pytest.mark.timeout(300)


def own_cpus() -> tuple[int | None, set[int]]:
    return mp.worker_index(), os.sched_getaffinity(0)


@both
def test_each_worker_is_bound_to_its_processors(kind: str, ctx: BaseContext) -> None:
    mine = sorted(os.sched_getaffinity(0))
    cpus = [mine[0], {mine[-1]}]
    with tasks.either(kind, ctx, cpu_affinity=cpus) as either:
        for index, bound in {either.submit(own_cpus_once_two_run, 0)() for _ in range(6)}:
            assert set(bound) == {[mine[0], mine[-1]][index]}
    with tasks.either(kind, ctx, 1, cpu_affinity="spread") as either:
        assert either.submit(own_cpus)() == (0, set(mine))
    assert sorted(os.sched_getaffinity(0)) == mine


def own_cpus_once_two_run(_: int) -> tuple[int, tuple[int, ...]]:
    index, cpus = own_cpus()
    assert index is not None
    return index, tuple(cpus)


def test_the_worker_that_takes_the_place_of_another_has_its_processors(ctx: BaseContext) -> None:
    first = min(os.sched_getaffinity(0))
    with ctx.Pool(1, cpu_affinity=[first]) as pool:
        pid = pool.apply(os.getpid)
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: pool._pool and pool._pool[0].pid != pid, tasks.PATIENCE)
        assert pool.apply(own_cpus) == (0, {first})


@pytest.mark.parametrize("wrong", [[0], "all", 3])
def test_processors_for_another_number_of_workers_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"is not for 2 workers; give 'spread'"):
        mp.Pool(2, cpu_affinity=wrong)


def test_a_processor_that_is_not_there_is_the_error_of_the_pool_itself(ctx: BaseContext) -> None:
    before = os.sched_getaffinity(0)
    for make in (lambda: ctx.Pool(1, cpu_affinity=[4000]), lambda: mp.ProcessPoolExecutor(1, ctx, cpu_affinity=[4000])):
        with pytest.raises(ValueError, match=r"cpu_affinity names no processor in \[4000\]"):
            make()
    assert os.sched_getaffinity(0) == before


THREADS = """
import sys
import numpy
import mp_all as mp

def threads():
    import threadpoolctl
    return sorted({library["num_threads"] for library in threadpoolctl.threadpool_info()})

if __name__ == "__main__":
    ctx = mp.get_context(sys.argv[1])
    with ctx.Pool(1, threads_per_worker=1) as pool:
        print(pool.apply(threads))
        pool._pool[0].kill()
        print(pool.apply(threads))
    with mp.ProcessPoolExecutor(1, ctx, threads_per_worker=1) as executor:
        print(executor.submit(threads).result())
"""


def test_a_forked_worker_limits_the_threads_of_loaded_libraries(start_method: str, tmp_path: Path) -> None:
    pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    assert succeeded(run_script(tmp_path, THREADS, start_method, OPENBLAS_NUM_THREADS="2")) == "[1]\n" * 3


def test_a_forked_pool_names_threadpoolctl_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "threadpoolctl", None)
    with (
        pytest.warns(UserWarning, match="pip install threadpoolctl"),
        mp.get_context("fork").Pool(1, threads_per_worker=1) as pool,
    ):
        assert pool.apply(tasks.square, (2,)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mp.get_context("spawn").Pool(1, threads_per_worker=1).terminate()


def fork_and_stay(path: str, forks: bool) -> None:
    """Leave the pid of this process, and of one that it *forks*, and stay, both."""
    pid = os.fork() if forks else os.getpid()
    if pid:
        Path(path).write_text(f"{pid} {os.getpid()}\n")
    time.sleep(300)


def start_a_pool_and_children(path: str, method: str) -> list[int]:
    """Leave the pids of a nested pool and of forked and spawned children, and of what those fork, and stay."""
    pool = mp.get_context(method).Pool(2)
    pids = [*{pool.apply(os.getpid) for _ in range(10)}]
    for each in {"fork", "spawn", method}:  # a forked process cannot ask its parent's fork server
        multiprocessing.get_context(each).Process(
            target=fork_and_stay, args=(f"{path}.{each}", each != "forkserver")
        ).start()
        assert until(
            lambda each=each: Path(f"{path}.{each}").exists() and "\n" in Path(f"{path}.{each}").read_text(), 60
        )
        pids += map(int, Path(f"{path}.{each}").read_text().split())
    Path(path).with_suffix(".part").write_text(repr(pids))
    Path(path).with_suffix(".part").rename(path)
    threading.Event().wait()
    return []


def square_in_a_pool(number: int) -> int:
    with mp.Pool(2) as pool:
        return sum(pool.map(tasks.square, [number]))


def test_tasks_of_a_pool_without_daemons_may_have_pools(ctx: BaseContext) -> None:
    with ctx.Pool(2, daemon=False) as pool:
        assert pool.map(square_in_a_pool, range(4), 1) == [0, 1, 4, 9]
    with ctx.Pool(1) as pool, pytest.raises(AssertionError, match="daemonic processes"):
        pool.apply(square_in_a_pool, (2,))


def ranks_of_a_task(threads: int | None) -> list[tuple[int, str | None]]:
    return mp.run(rank_and_threads, nprocs=2, threads_per_rank=threads)


def rank_and_threads(rank: int) -> tuple[int, str | None]:
    return rank, os.environ.get("OMP_NUM_THREADS")


@pytest.mark.parametrize("threads", [None, 1], ids=["forked", "in interpreters of their own"])
def test_tasks_of_a_pool_without_daemons_may_have_ranks(ctx: BaseContext, threads: int | None) -> None:
    number = os.environ.get("OMP_NUM_THREADS") if threads is None else "1"
    with ctx.Pool(1, daemon=False) as pool:
        assert pool.apply(ranks_of_a_task, (threads,)) == [(0, number), (1, number)]


@pytest.mark.parametrize("by", ["kill", "cancel", "terminate"])
def test_pools_and_children_of_a_worker_end_with_it(
    ctx: BaseContext, start_method: str, tmp_path: Path, by: str
) -> None:
    path = tmp_path / "pids"
    with ctx.Pool(1, daemon=False) as pool:
        result = pool.apply_async(start_a_pool_and_children, (str(path), start_method))
        assert until(path.exists, tasks.PATIENCE)
        pids = eval(path.read_text())
        assert len(pids) >= 5
        if by == "kill":
            pool._pool[0].kill()
        elif by == "cancel":
            assert result.cancel(running=True)
        else:
            pool.terminate()
        assert until(lambda: not any(runs(pid) for pid in pids), tasks.PATIENCE), pids


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def draw(item: int) -> list[float]:
    return [mp.rng().random(), *mp.rng().standard_normal(2).tolist(), float(item)]


def draw_unevenly(item: int, folder: str = "") -> list[float]:
    if folder and random.random() < 0.3 and not Path(folder, str(item)).exists():
        Path(folder, str(item)).touch()
        os._exit(1)
    return draw(item)


def expected(seed: Any, call: int, index: int) -> list[float]:
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(call, index)))
    return [generator.random(), *generator.standard_normal(2).tolist(), float(index)]


def test_a_task_has_the_same_numbers_in_any_worker_and_chunk_and_after_any_death(
    ctx: BaseContext, tmp_path: Path
) -> None:
    wanted = [expected(7, 0, index) for index in range(30)]
    for size, chunksize in [(1, 1), (2, 4), (3, None)]:
        with ctx.Pool(size, seed=7) as pool:
            assert pool.map(draw, range(30), chunksize) == wanted
            assert list(pool.imap(draw, iter(range(30)), chunksize or 7)) == [expected(7, 1, n) for n in range(30)]
            assert pool.apply(draw, (0,)) == expected(7, 2, 0)
            assert pool.starmap(draw, [(n,) for n in range(9)], 4) == [expected(7, 3, n) for n in range(9)]
    with ctx.Pool(2, seed=7, retries=20) as pool:
        assert pool.map(tasks.Bound(draw_unevenly, str(tmp_path)), range(30), 1) == wanted
    with mp.ProcessPoolExecutor(2, ctx, seed=(1, 2)) as executor:
        assert list(executor.map(draw, range(30), chunksize=4)) == [expected((1, 2), 0, n) for n in range(30)]
        assert executor.submit(draw, 0).result() == expected((1, 2), 1, 0)


def test_functions_of_a_program_have_the_numbers_too(tmp_path: Path, start_method: str) -> None:
    program = """
import sys
import mp_all as mp
if __name__ == "__main__":
    with mp.get_context(sys.argv[1]).Pool(2, seed=3) as pool:
        a = pool.map(lambda n: mp.rng().integers(1000), range(8))
        b = [pool.apply_async(lambda: mp.rng().integers(1000)).get() for _ in range(2)]
    with mp.get_context(sys.argv[1]).Pool(3, seed=3) as pool:
        assert a == pool.map(lambda n: mp.rng().integers(1000), range(8), 3)
        assert b == [pool.apply_async(lambda: mp.rng().integers(1000)).get() for _ in range(2)]
    print(len(set(a + b)) > 2)
"""
    assert succeeded(run_script(tmp_path, program, start_method)) == "True\n"


@both
def test_without_a_seed_and_outside_of_a_task_the_remedy_is_named(kind: str, ctx: BaseContext) -> None:
    with pytest.raises(RuntimeError, match=r"numpy\.random\.default_rng\(\)"):
        mp.rng()
    with tasks.either(kind, ctx, 1) as either:
        assert isinstance(tasks.outcome(either.submit(draw, 0)), RuntimeError)
    with pytest.raises(ValueError, match="seed must be 0 or more, not -1"):
        mp.Pool(1, seed=-1)
    with pytest.raises(TypeError):
        mp.Pool(1, seed="x")  # type: ignore[arg-type]


def power(base: int, exponent: int = 1, offset: Any = None) -> Any:
    return base**exponent + (0 if offset is None else int(offset.sum()))


def power_of_two_arguments(base: int, exponent: int, *, offset: Any = 0) -> Any:
    return base**exponent + int(np.sum(offset))


def test_map_and_its_kin_take_keywords(ctx: BaseContext) -> None:
    offset = np.ones(100_000)
    with ctx.Pool(2) as pool:
        assert pool.map(power, range(4), kwds={"exponent": 2}) == [0, 1, 4, 9]
        assert pool.map_async(power, range(4), kwds={"exponent": 2}).get() == [0, 1, 4, 9]
        assert list(pool.imap(power, range(4), kwds={"exponent": 3})) == [0, 1, 8, 27]
        assert sorted(pool.imap_unordered(power, range(4), kwds={"exponent": 3})) == [0, 1, 8, 27]
        before = mp.memory_stats()["copied_bytes"]
        assert pool.starmap(power_of_two_arguments, [(2, 3), (3, 2)], 1, kwds={"offset": offset}) == [100_008, 100_009]
        assert mp.memory_stats()["copied_bytes"] - before == offset.nbytes
        assert pool.starmap_async(power_of_two_arguments, [(2, 3)], kwds={"offset": 1}).get() == [9]


def doubled(block: Any, factor: int = 2) -> Any:
    assert mp.is_shared(block)
    return block * factor


def product(matrix: Any) -> Any:
    return matrix * matrix


def shape_of(block: Any) -> tuple[int, ...]:
    return block.shape  # type: ignore[no-any-return]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_blocks_are_views_of_one_shared_array_and_results_become_one(ctx: BaseContext, axis: int) -> None:
    array = np.arange(400_000.0).reshape(400, 1000)
    with ctx.Pool(2) as pool:
        before = mp.memory_stats()["copied_bytes"]
        result = pool.map_blocks(doubled, array, 3, axis, kwds={"factor": 3})
        assert mp.memory_stats()["copied_bytes"] - before <= array.nbytes  # the workers copy their results
        assert np.array_equal(result, array * 3) and mp.is_shared(result)
        shared = mp.share_memory(array)
        before = mp.memory_stats()["copied_bytes"]
        assert pool.map_blocks(shape_of, shared, axis=axis) == ([(200, 1000)] * 2 if axis == 0 else [(400, 500)] * 2)
        assert mp.memory_stats()["copied_bytes"] == before


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_results_of_different_kinds_are_a_list(ctx: BaseContext) -> None:
    with ctx.Pool(2) as pool:
        assert pool.map_blocks(np.sum, np.arange(10), 5) == [1, 5, 9, 13, 17]
        masked: Any = np.ma.masked_array(np.arange(6.0), [0, 1, 0, 0, 1, 0])
        assert np.ma.allequal(pool.map_blocks(np.negative, masked, 3), -masked)
        assert pool.map_blocks(np.negative, masked, 3).mask.tolist() == masked.mask.tolist()
        square: Any = np.matrix([[1, 2], [3, 4]])
        assert np.array_equal(pool.map_blocks(product, square, 1), square * square)
        different = pool.map_blocks(np.unique, np.array([1, 1, 2, 3]), 2)
        assert np.array_equal(different, [1, 2, 3])
        assert pool.map_blocks(shape_of, np.zeros((0, 3))) == [(0, 3)]
        assert isinstance(pool.map_blocks(as_kind_of_its_sum, np.arange(4), 2), list)
    with mp.Pool(1) as pool:
        with pytest.raises(ValueError, match="no dimension"):
            pool.map_blocks(np.sum, 3.0)
        with pytest.raises(ValueError, match="blocks must be at least 1, not 0"):
            pool.map_blocks(np.sum, [1, 2], 0)


def as_kind_of_its_sum(block: Any) -> Any:
    return block.astype("f4" if block.sum() > 1 else "f8")


IN_THE_BACKGROUND = """
    import signal, subprocess, sys
    import mp_all as mp

    def program_ignores(_):
        code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
        return subprocess.check_output([sys.executable, "-c", code], text=True).strip()

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        context = mp.get_context(sys.argv[1])
        with context.Pool(1) as pool, mp.ProcessPoolExecutor(1, context) as executor:
            print(pool.apply(program_ignores, (0,)), executor.submit(program_ignores, 0).result())
        print(*mp.run(program_ignores, nprocs=1, start_method=sys.argv[1]))
"""


def test_a_program_in_the_background_of_a_shell_which_ignores_sigint_has_workers(
    tmp_path: Path, start_method: str
) -> None:
    assert succeeded(run_script(tmp_path, IN_THE_BACKGROUND, start_method)).split() == ["True"] * 3


def test_an_executor_has_the_processes_that_its_calls_need_though_another_thread_starts_them(
    ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mp.ProcessPoolExecutor(3, mp_context=ctx) as executor:
        monkeypatch.setattr(executor._scheduler, "hand_out", executor._scheduler.wake)  # as if it had the lock
        calls = [executor.submit(time.sleep, 0.5) for _ in range(3)]
        assert len(executor._processes) == 3
        for call in calls:
            call.result(tasks.PATIENCE)
