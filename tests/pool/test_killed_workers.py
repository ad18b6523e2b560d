"""When a worker dies, its task fails with an error that names it; no other task is lost, repeated or delayed."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_sharer
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import pool_tasks as tasks
import pytest
from support.leaks import descriptors
from support.memory_groups import remove_group
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp

pytestmark = pytest.mark.parametrize("kind", tasks.KINDS)


@pytest.mark.parametrize(
    ("how", "exitcode", "name"),
    [("SIGKILL", -9, "SIGKILL"), ("exit", 3, None), ("segfault", -11, "SIGSEGV"), ("SIGABRT", -6, "SIGABRT")],
)
def test_a_task_whose_worker_ends_fails_with_the_exit_code_and_the_pool_continues(
    kind: str, ctx: BaseContext, how: str, exitcode: int, name: str | None
) -> None:
    with tasks.either(kind, ctx) as pool:
        before = [pool.submit(tasks.square, n) for n in range(10)]
        lost = pool.submit(tasks.end, how)
        after = [pool.submit(tasks.square, n) for n in range(10, 20)]
        error = tasks.outcome(lost)
        assert [wait() for wait in before + after] == [n * n for n in range(20)]
        assert pool.submit(tasks.square, 5)() == 25
    assert isinstance(error, mp.WorkerLostError) and isinstance(error, mp.ProcessError)
    assert isinstance(error, BrokenProcessPool) is (kind == "executor")  # by which programs survive a killed worker
    assert type(error).__name__ == "WorkerLostError"
    assert (error.exitcode, error.signal_name, error.function, error.index) == (exitcode, name, "end", 0)
    assert error.out_of_memory is False
    assert error.pid > 0
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error) and str(again) == str(error)


@pytest.mark.parametrize("how", ["segfault", "exit", "SIGSTOP"])
def test_a_task_that_ends_its_worker_when_it_is_unpickled_is_not_unpickled_by_the_pool(
    kind: str, ctx: BaseContext, strategy: str, how: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    with tasks.either(kind, ctx, timeout=1 if how == "SIGSTOP" else None) as pool:
        others = [pool.submit(tasks.square, n) for n in range(10)]
        lost = pool.submit(max, tasks.Deadly(how, seen), np.ones(100_000), tasks.Deadly(how, seen))
        error = tasks.outcome(lost)
        assert [wait() for wait in others] == [n * n for n in range(10)]
        assert until(lambda: mp.memory_stats()["in_flight_bytes"] == 0, tasks.PATIENCE)
    assert isinstance(error, mp.TaskTimeoutError if how == "SIGSTOP" else mp.WorkerLostError)
    assert not seen.exists()


def test_a_descriptor_in_such_a_task_is_closed(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    before = len(resource_sharer._resource_sharer._cache)
    with open(os.devnull, "rb") as file, tasks.either(kind, ctx) as pool:
        lost = pool.submit(max, tasks.Deadly("exit", tmp_path / "seen"), tasks.WithDescriptor(file.fileno()))
        assert isinstance(tasks.outcome(lost), mp.WorkerLostError)
        assert until(lambda: len(resource_sharer._resource_sharer._cache) == before, tasks.PATIENCE)


def test_no_task_fails_when_an_idle_worker_is_killed(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        for _ in range(5):
            for pid in {pool.submit(tasks.own_pid)() for _ in range(4)}:
                os.kill(pid, signal.SIGKILL)
                # The pool sees the death before it sends a task there, or takes the task back.
            answers = [tasks.outcome(pool.submit(tasks.square, n)) for n in range(20)]
            assert answers == [n * n for n in range(20)]


def test_only_the_task_fails_whose_large_result_a_killed_worker_was_sending(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    with tasks.either(kind, ctx) as pool:
        lost = pool.submit(tasks.end_while_sending, str(tmp_path / "flag"), 3_000_000)
        others = [pool.submit(tasks.fill, 2_000_000) for _ in range(6)]
        assert isinstance(tasks.outcome(lost), mp.WorkerLostError)
        assert [len(wait()) for wait in others] == [2_000_000] * 6


def test_a_result_that_was_sent_before_the_worker_died_is_delivered(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    with tasks.either(kind, ctx, 1) as pool:
        sent = [pool.submit(tasks.fill, 1000 + n) for n in range(50)]
        lost = pool.submit(tasks.end, "SIGKILL")
        late = [pool.submit(tasks.fill, n) for n in range(50)]
        assert [len(wait()) for wait in sent] == [1000 + n for n in range(50)]
        assert isinstance(tasks.outcome(lost), mp.WorkerLostError)
        assert [len(wait()) for wait in late] == list(range(50))


def test_a_long_task_arrives_complete_and_survives_the_failure_of_others(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    with tasks.either(kind, ctx) as pool:
        waits = []
        for n in range(8):
            waits.append(pool.submit(tasks.length, bytes(700_000 + n)))
            waits.append(pool.submit(tasks.end_on, n, 2, 5))
        answers = [tasks.outcome(wait) for wait in waits]
    assert answers[0::2] == [700_000 + n for n in range(8)]
    assert [n for n, answer in enumerate(answers[1::2]) if isinstance(answer, mp.WorkerLostError)] == [2, 5]


def test_a_worker_that_dies_in_the_initializer_is_replaced(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    with tasks.either(kind, ctx, initializer=tasks.end_once, initargs=(flag,)) as pool:
        assert [pool.submit(tasks.square, n)() for n in range(10)] == [n * n for n in range(10)]
        assert os.path.exists(flag)


def test_a_dead_worker_is_replaced_soon(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx, 2) as pool:
        waits = [pool.submit(time.sleep, 0.05) for _ in range(4)]
        [wait() for wait in waits]
        before = pool.pids()
        assert len(before) == 2
        killed = min(before)
        start = time.monotonic()
        os.kill(killed, signal.SIGKILL)
        assert until(lambda: killed not in (now := pool.pids()) and len(now) == 2, tasks.PATIENCE)
        # On an idle machine, the process of the new worker is started within 100 ms.
        assert time.monotonic() - start < 10


def test_killed_workers_leave_no_descriptor_for_the_collector(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        for _ in range(2):
            assert isinstance(tasks.outcome(pool.submit(tasks.end, "SIGKILL")), mp.WorkerLostError)
        before = descriptors().total()
        gc.disable()
        try:
            for _ in range(8):
                assert isinstance(tasks.outcome(pool.submit(tasks.end, "SIGKILL")), mp.WorkerLostError)
            assert pool.submit(tasks.square, 5)() == 25
            assert until(lambda: descriptors().total() <= before + 2)  # a worker may be on its way
        finally:
            gc.enable()


def test_sys_exit_in_a_task_does_not_end_the_program(kind: str, ctx: BaseContext) -> None:
    with tasks.either(kind, ctx) as pool:
        lost = pool.submit(tasks.end, "sys.exit")
        if kind == "pool":
            error = tasks.outcome(lost)
            assert isinstance(error, mp.WorkerLostError) and error.exitcode == 4
        else:
            with pytest.raises(SystemExit):  # as with concurrent.futures
                lost()
        assert pool.submit(tasks.square, 3)() == 9


def cut_itself_off(how: str) -> None:
    if how == "descriptors":
        os.closerange(3, 1024)
        time.sleep(3600)
    threading.Thread(target=time.sleep, args=(3600,)).start()
    sys.exit("the thread keeps the process")


def test_a_worker_from_which_no_result_can_come_is_killed_with_a_word(kind: str, ctx: BaseContext) -> None:
    how = "sys.exit" if kind == "pool" else "descriptors"  # an executor's task raises the former
    with tasks.either(kind, ctx, 1) as pool:
        error = tasks.outcome(pool.submit(cut_itself_off, how))
        assert isinstance(error, mp.WorkerLostError)
        assert "the pool has killed it: its main thread had ended" in str(error.__notes__)


def test_a_task_may_wait_for_a_later_one(kind: str, ctx: BaseContext, tmp_path: Path) -> None:
    """Workers have further tasks in their sockets; those of a busy worker are taken back and given to others."""
    with tasks.either(kind, ctx, 2) as pool:
        [wait() for wait in [pool.submit(tasks.square, n) for n in range(1000)]]  # both workers are measured as fast
        for round_ in range(10):
            path = str(tmp_path / str(round_))
            waits = [pool.submit(tasks.wait_for, path)]
            waits += [pool.submit(tasks.square, n) for n in range(100)]
            waits.append(pool.submit(tasks.touch, path))
            answers = [wait() for wait in waits]
            assert answers[0] == path


def test_tasks_that_a_killed_worker_has_not_begun_go_to_another_worker(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    with tasks.either(kind, ctx, 2) as pool:
        first, second, end = (str(tmp_path / name) for name in ("first", "second", "end"))
        one = pool.submit(tasks.touch_and_wait, first, end)
        two = pool.submit(tasks.touch_and_wait, second, end)
        assert until(lambda: os.path.exists(first) and os.path.exists(second), tasks.PATIENCE)
        behind = [pool.submit(tasks.own_pid) for _ in range(4)]
        os.kill(min(pool.pids()), signal.SIGKILL)
        assert len({wait() for wait in behind}) >= 1  # while the other worker still waits
        tasks.touch(end)
        answers = [tasks.outcome(one), tasks.outcome(two)]
        assert sorted(isinstance(answer, mp.WorkerLostError) for answer in answers) == [False, True]


def test_tasks_begin_in_the_order_of_their_submission_if_they_take_long(
    kind: str, ctx: BaseContext, tmp_path: Path
) -> None:
    """Also if the first worker was ready long before the second."""
    begun, late, end = tmp_path / "begun", str(tmp_path / "late"), str(tmp_path / "end")
    begun.mkdir()
    with tasks.either(kind, ctx, 2, initializer=tasks.wait_unless_first, initargs=(str(tmp_path), late)) as pool:
        waits = [pool.submit(tasks.touch_and_wait, str(begun / str(n)), end) for n in range(12)]
        assert until(lambda: os.listdir(begun) == ["0"], tasks.PATIENCE)
        tasks.touch(late)
        assert until(lambda: len(os.listdir(begun)) == 2, tasks.PATIENCE)
        assert sorted(os.listdir(begun)) == ["0", "1"]
        tasks.touch(end)
        [wait() for wait in waits]


OF_MEMORY = """
import os, resource, signal, sys
import mp_all as mp

def grow(megabytes, how):
    # The limit of a group counts pages that were written, that of a process addresses.
    held = [b"1" * (16 << 20) if how == "group" else bytes(16 << 20) for _ in range(megabytes // 16)]
    return len(held)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    kind, method, how, group = sys.argv[1:5]
    ctx = mp.get_context(method)
    if how == "group":
        open(group, "w").write(str(os.getpid()))
    limit = (resource.setrlimit, (resource.RLIMIT_AS, (3 << 30, 3 << 30))) if how == "ulimit" else (None, ())
    if kind == "pool":
        pool = ctx.Pool(2, *limit)
        submit = lambda function, *args: pool.apply_async(function, args).get
    else:
        pool = mp.ProcessPoolExecutor(2, ctx, *limit)
        submit = lambda function, *args: pool.submit(function, *args).result
    # One after the other: while the kernel takes a victim's memory back, it may kill another process of the group.
    for task in [(grow, 160, how), (grow, 16000, how), (kill,), (grow, 16, how)]:
        try:
            print(submit(*task)())
        except mp.WorkerLostError as error:
            print(error.function, error.signal_name, error.out_of_memory)
        except MemoryError:
            print("MemoryError")
    pool.terminate() if kind == "pool" else pool.shutdown()
"""


@pytest.mark.parametrize("how", ["group", "ulimit"])
def test_lack_of_memory_is_told_apart_from_other_kills(
    kind: str, start_method: str, tmp_path: Path, how: str, memory_group: Path
) -> None:
    """A control group has its worker killed; under `ulimit -v` the task gets a `MemoryError`, and the worker lives."""
    done = run_script(tmp_path, OF_MEMORY, kind, start_method, how, str(memory_group / "cgroup.procs"))
    lost = "grow SIGKILL True" if how == "group" else "MemoryError"
    assert succeeded(done).splitlines() == ["10", lost, "kill SIGKILL False", "1"]


def test_lack_of_memory_that_killed_an_idle_worker_explains_no_later_death(
    kind: str, ctx: BaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 0
    monkeypatch.setattr("mp_pool.scheduling.workers.oom_kills", lambda above: {"/group": kills})
    with tasks.either(kind, ctx, 1) as pool:
        for lost in [False, True, False]:
            idle = pool.submit(tasks.own_pid)()
            kills += 1
            os.kill(idle, signal.SIGKILL)
            assert until(lambda idle=idle: idle not in pool.pids(), tasks.PATIENCE)
            pool.submit(tasks.own_pid)()
            kills += lost
            error = tasks.outcome(pool.submit(tasks.end, "SIGKILL"))
            assert (isinstance(error, mp.WorkerLostError), error.out_of_memory) == (True, lost)


@pytest.fixture
def memory_group(how: str) -> Iterator[Path]:
    """Make a control group with a limit of 600 MiB."""
    group = Path(f"/sys/fs/cgroup/memory/mp-pool-test-{os.getpid()}")
    if how != "group":
        yield group
        return
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(600 << 20))
    except OSError:
        pytest.skip("needs a memory control group (v1) of its own, and the right to make one")
    try:
        yield group
    finally:
        remove_group(group)
