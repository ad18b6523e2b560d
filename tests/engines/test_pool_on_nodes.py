"""A pool over nodes: the interface of a pool, and a worker, a node or the driver that ends."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from multiprocessing import shared_memory
from multiprocessing.pool import MaybeEncodingError
from pathlib import Path
from typing import Any

import node_pool_tasks as tasks
import numpy as np
import pytest
from support.processes import ended
from support.scripts import run_script
from support.waiting import until

import mp_all as mp
import mp_nodes as engines
from mp_nodes import by_value
from mp_nodes.agent import node_payload
from mp_nodes.driver import node_service
from mp_nodes.pool import buffers

# The promise, and some time for a loaded machine.
PROMISED = 5.0 + 5.0


def written(folder: Path, count: int) -> list[list[int]]:
    """
    Wait for the files that `wait_for_ever` writes: the pids of each worker and of its rank, and its node.
    """
    assert until(lambda: len(list(folder.glob("[0-9]"))) == count, 60)
    return [[int(word) for word in path.read_text().split()] for path in sorted(folder.glob("[0-9]"))]


def outcomes(results: Iterator[Any]) -> Iterator[Any]:
    """
    Yield each result, or the exception in its place.
    """
    while True:
        try:
            yield next(results)
        except StopIteration:
            return
        except mp.WorkerLostError as error:
            yield error


def test_its_methods_return_what_those_of_a_pool_return(engine: Any) -> None:
    with mp.Pool(6, engine=engine) as pool:
        assert isinstance(pool, multiprocessing.pool.Pool)
        squares = [i * i for i in range(1000)]
        assert pool.map(tasks.square, range(1000)) == squares
        assert pool.map(tasks.square, range(100), chunksize=1) == squares[:100]
        assert list(pool.imap(tasks.square, iter(range(100)))) == squares[:100]
        assert sorted(pool.imap_unordered(tasks.square, range(100), chunksize=7)) == squares[:100]
        assert pool.starmap(divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]
        assert pool.apply(divmod, (7, 2)) == (3, 1)
        assert pool.apply_async(dict, kwds={"a": 1}).get(30) == {"a": 1}
        assert pool.map(lambda x: x + 1, [1, 2]) == [2, 3]
        done: list[int] = []
        pool.map_async(tasks.square, [2], callback=done.extend).wait(30)
        assert done == [4]
        # The generator is endless.
        assert list(itertools.islice(pool.imap(tasks.square, itertools.count(), buffersize=10), 30)) == squares[:30]
        pool.close()
        pool.join()


def test_arrays_go_there_and_back_and_one_for_all_tasks_is_copied_once_for_each_node(engine: Any) -> None:
    large = np.arange(300_000.0)
    with mp.Pool(6, engine=engine) as pool:
        for value in (np.arange(5), large, mp.shared.array(large), np.array(["a", None])):
            np.testing.assert_equal(pool.map(np.copy, [value])[0], value)
        np.testing.assert_equal(pool.apply(tasks.square, (large,)), large * large)
        assert pool.apply(tasks.square, (large,)).flags.writeable
        found = pool.map(functools.partial(tasks.place_of_memory, large), range(12), chunksize=1)
    places = {(node, inode) for node, inode, _ in found}
    assert len(places) == len({node for node, _ in places}) == 3
    assert all(writable for _, _, writable in found)


LOCKS = mp.Lock, mp.RLock, mp.Semaphore, mp.Condition, mp.Event, functools.partial(mp.Barrier, 2)
QUEUES = mp.Pipe, mp.Queue, mp.SimpleQueue, mp.JoinableQueue
CTYPES = functools.partial(mp.Value, "i"), functools.partial(mp.RawArray, "d", 2)


@pytest.mark.parametrize("make", [*LOCKS, *QUEUES, *CTYPES])
def test_what_belongs_to_this_machine_is_refused_before_it_is_sent(make: Callable[[], Any]) -> None:
    thing = make()
    thing = thing[0] if isinstance(thing, tuple) else thing
    with pytest.raises(pickle.PicklingError, match=r"objects.* cannot reach another machine"):
        by_value.dumps_by_value([thing], "a task")
    with pytest.raises(pickle.PicklingError, match=r"objects.* cannot reach another machine"):
        node_payload.pack(tasks.square, (thing,))


def test_memory_that_another_machine_would_look_up_by_its_name_is_refused() -> None:
    memory, items = shared_memory.SharedMemory(create=True, size=8), shared_memory.ShareableList([1, 2])
    try:
        for thing in (memory, items):
            with pytest.raises(pickle.PicklingError, match=f"{type(thing).__name__} objects cannot reach another"):
                by_value.dumps_by_value(thing, "a task")
    finally:
        for each in (memory, items.shm):
            each.close()
            each.unlink()


def test_a_refused_task_leaves_the_pool_as_it_was() -> None:
    ends = mp.Pipe()
    with mp.Pool(1, engine="local") as pool:
        for thing in (mp.Lock(), mp.Value("i"), ends[0]):
            with pytest.raises(pickle.PicklingError, match="cannot reach another machine"):
                pool.apply(tasks.square, (thing,))
        assert pool.apply(tasks.square, (3,)) == 9
    for end in ends:
        end.close()


def test_a_task_and_a_result_that_cannot_be_pickled_are_the_errors_of_a_pool_on_one_machine() -> None:
    with mp.Pool(1, engine="local") as pool:
        with pytest.raises(pickle.PicklingError) as raised:
            pool.map(tasks.square, [1, lambda: 1, [threading.Lock()]], 3)
        assert "item 2[0] in the task square, of type 'lock'" in raised.value.__notes__[0]
        with pytest.raises(MaybeEncodingError, match=r"<_thread\.lock|lock object at .*cannot pickle") as raised:
            pool.apply(threading.Lock)
        assert "start_method" not in str(raised.value)
        assert pool.apply(tasks.square, (3,)) == 9


def test_an_array_of_several_tasks_goes_to_each_node_once_and_each_task_has_its_own(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = node_service.NodeService.send
    monkeypatch.setattr(
        node_service.NodeService, "send", lambda self, node, data: (sent.append(len(data)), send(self, node, data))[1]
    )
    large, constant = np.arange(1_000_000.0), np.arange(200_000.0)
    constant.flags.writeable = False
    with mp.Pool(6, engine=engine) as pool:
        calls = [(large, i, constant, [large[500_000:], large[:500_000]]) for i in range(12)]
        calls[0][3].append(large[:])
        found = pool.starmap(tasks.add_in_place, calls, chunksize=1)
        nodes = len(pool._scheduler._nodes)
        sums = [[view.sum() for view in call[3]] for call in calls]
        assert found == [(large.sum() + i * large.size, False, constant.sum(), sums[i]) for i in range(12)]
        assert sum(sent) < nodes * 1.1 * (2 * large.nbytes + constant.nbytes) + large.nbytes
        # Many arrays: each arrives as it is, and a node does not keep them.
        many = [np.full(20_000, i) for i in range(30)]
        assert pool.map(tasks.first_of, many, chunksize=1) == list(range(30))
        assert all(len(node._buffers) <= buffers.KEPT for node in pool._scheduler._nodes)
        del many, calls
        large, constant = large[:1].copy(), constant[:1].copy()
        assert until(lambda: pool.apply(abs, (-1,)) and not any(node._buffers for node in pool._scheduler._nodes))


def test_an_item_that_a_generator_changes_later_is_sent_as_it_was(engine: Any) -> None:
    with mp.Pool(3, engine=engine) as pool:
        assert list(pool.imap(tasks.first_of, tasks.refilled(np.zeros(100_000), 20))) == list(range(20))


def test_an_exception_arrives_with_its_traceback_and_ends_no_other_task(engine: Any) -> None:
    with mp.Pool(3, engine=engine) as pool:
        results = [pool.apply_async(tasks.raise_at_three, (i,)) for i in range(6)]
        with pytest.raises(ValueError, match="three") as caught:
            results[3].get(30)
        assert "raise_at_three" in str(caught.value.__cause__)
        assert caught.value.__notes__[0].startswith("in raise_at_three(3), node "), caught.value.__notes__
        assert [result.get(30) for i, result in enumerate(results) if i != 3] == [0, 1, 2, 4, 5]
        with pytest.raises(ValueError, match="three") as caught:
            pool.map(tasks.raise_at_three, range(2, 6), chunksize=3)
        assert caught.value.__notes__[0].startswith("in raise_at_three(3), item 1, node "), caught.value.__notes__


def test_a_killed_worker_fails_its_task_alone_and_names_its_node(engine: Any) -> None:
    with mp.Pool(3, engine=engine) as pool:
        found = list(outcomes(pool.imap(tasks.die_at_three, range(8))))
        error = found.pop(3)
        assert found == [0, 1, 2, 4, 5, 6, 7]
        assert (error.signal_name, error.function, error.index) == ("SIGKILL", "die_at_three", 3)
        assert error.node
        assert error.node in str(error)


def test_the_task_of_a_killed_worker_is_repeated_if_asked(engine: Any, tmp_path: Path) -> None:
    die = functools.partial(tasks.die_once, str(tmp_path / "died"))
    with mp.Pool(3, engine=engine, retries=1) as pool:
        assert pool.map(die, range(8), chunksize=1) == list(range(8))


def test_the_initializer_runs_in_each_worker_and_its_failure_is_that_of_all_tasks(engine: Any) -> None:
    with mp.Pool(3, tasks.begin, ("a word",), engine=engine) as pool:
        assert pool.map(tasks.words, range(6), chunksize=1) == [["a word"]] * 6
    with mp.Pool(3, tasks.fail_to_begin, engine=engine) as pool, pytest.raises(LookupError, match="no begin"):
        pool.map(tasks.square, range(6))


def test_tasks_that_wait_behind_long_ones_go_to_an_idle_node(tmp_path: Path) -> None:
    with mp.Pool(2, engine=engines.Local(nodes=2)) as pool:
        pool.map(abs, range(5000), chunksize=1)  # both nodes have been seen to be fast, so each gets many tasks at once
        results = [pool.apply_async(tasks.wait_for_go, (str(tmp_path), i)) for i in range(20)]
        # One node waits for the other one's tasks.
        assert results[19].get(60) == 19
        assert all(result.get(60) == i for i, result in enumerate(results) if i)
        assert not results[0].ready()
        (tmp_path / "go").touch()
        assert results[0].get(60) == 0


def test_a_task_that_takes_too_long_is_ended() -> None:
    with mp.Pool(2, engine="local", timeout=0.5) as pool:
        with pytest.raises(mp.TaskTimeoutError, match="sleep, task 0, ran longer than"):
            pool.apply(time.sleep, (60,))
        assert pool.apply(abs, (-1,)) == 1


def test_what_no_node_has_can_be_cancelled_and_what_a_worker_runs_goes_on(tmp_path: Path) -> None:
    with mp.Pool(1, engine="local") as pool:
        results = [pool.apply_async(tasks.wait_for_go, (str(tmp_path), i)) for i in range(50)]
        mapped, rest = pool.map_async(tasks.square, range(500), chunksize=1), pool.imap(tasks.square, range(500))
        assert until(Path(tmp_path, "begun").exists, 60)
        for each in (results[0], mapped, rest):
            with pytest.raises(ValueError, match="cannot end a task of a pool with engine="):
                each.cancel(running=True)
        assert not results[0].cancel() and results[49].cancel() and mapped.cancel() and rest.cancel()
        for get in (results[49].get, mapped.get, rest.next):
            with pytest.raises(CancelledError):
                get()
        (tmp_path / "go").touch()
        assert [result.get(60) for result in results[:49]] == list(range(49))
        assert pool.apply(abs, (-1,)) == 1


def test_cancelled_tasks_come_back_from_nodes_that_were_fast_before(tmp_path: Path) -> None:
    with mp.Pool(2, engine=engines.Local(nodes=2)) as pool:
        pool.map(abs, range(5000), chunksize=1)  # each node gets many tasks at once from now on
        slow = functools.partial(tasks.note_and_wait_for_go, str(tmp_path))
        mapped = pool.map_async(slow, range(60), chunksize=1)
        assert until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, 60)
        assert mapped.cancel()
        assert until(lambda: pool._scheduler.unfinished() == 2, 60)
        (tmp_path / "go").touch()
        assert pool.apply(abs, (-1,)) == 1
        assert pool.map(tasks.square, range(100), chunksize=1) == [i * i for i in range(100)]
    assert len(list(tmp_path.glob("begun-*"))) == 2


def test_a_pool_that_is_closed_before_its_nodes_have_started_ends(engine: Any) -> None:
    for use in (lambda pool: None, lambda pool: pool.map(abs, []), lambda pool: pool.map_async(abs, [1]).cancel()):
        pool = mp.Pool(2, engine=engine)
        use(pool)
        pool.close()
        joined = threading.Thread(target=pool.join)
        joined.start()
        joined.join(60)
        assert not joined.is_alive()


def test_where_memory_cannot_be_shared_jobs_and_pools_on_nodes_run_by_value(tmp_path: Path) -> None:
    program = """
        import numpy as np
        import mp_all as mp

        def total(rank, array):
            return float(rank + array.sum())

        if __name__ == "__main__":
            engine = mp.engines.Local(nodes=2)
            print(mp.run(total, (np.ones(100_000),), nprocs=2, engine=engine))
            with mp.Pool(2, engine=engine) as pool:
                print(pool.starmap(total, [(rank, np.ones(100_000)) for rank in range(3)]))
    """
    done = run_script(tmp_path, program, MPSHM_RUNTIME_DIR=str(tmp_path / "missing"))
    assert done.stdout == "[100000.0, 100001.0]\n[100000.0, 100001.0, 100002.0]\n", done.stderr


@pytest.mark.parametrize("victim", ["agent", "rank"])
def test_a_lost_node_fails_its_tasks_names_itself_and_the_others_go_on(tmp_path: Path, victim: str) -> None:
    with mp.Pool(6, engine=engines.Local(nodes=3)) as pool:
        results = [pool.apply_async(tasks.wait_for_ever, (str(tmp_path), i)) for i in range(6)]
        pids = written(tmp_path, 6)
        on_node_1 = [i for i, (_, _, node) in enumerate(pids) if node == 1]
        agents = pool._scheduler._service._agents.processes
        lost = time.monotonic()
        os.kill(agents[1].pid if victim == "agent" else pids[on_node_1[0]][1], signal.SIGKILL)
        for index in on_node_1:
            with pytest.raises(mp.WorkerLostError, match="node local-1 was lost while it had wait_for_ever") as caught:
                results[index].get(PROMISED)
            assert caught.value.node == "local-1"
        assert time.monotonic() - lost < PROMISED
        assert until(lambda: all(ended(pids[i][0]) for i in on_node_1), PROMISED)
        assert not any(result.ready() for i, result in enumerate(results) if i not in on_node_1)
        pool.terminate()
        with pytest.raises(multiprocessing.ProcessError):
            results[0 if 0 not in on_node_1 else 5].get(PROMISED)
        assert until(lambda: all(ended(worker) for worker, _, _ in pids), PROMISED)


def test_the_tasks_of_a_lost_node_are_repeated_on_others_if_asked(tmp_path: Path) -> None:
    with mp.Pool(3, engine=engines.Local(nodes=3), retries=1) as pool:
        results = [pool.apply_async(tasks.wait_for_ever_once, (str(tmp_path), i)) for i in range(3)]
        written(tmp_path, 3)
        agents = pool._scheduler._service._agents.processes
        for agent in agents[:2]:
            os.kill(agent.pid, signal.SIGKILL)
        # The third node has its own task, which waits for ever.
        assert until(lambda: sum(result.ready() for result in results) == 0, 0.1)
        kept = next(i for i, (_, _, node) in enumerate(written(tmp_path, 3)) if node == 2)
        os.kill(written(tmp_path, 3)[kept][0], signal.SIGKILL)
        assert [result.get(60) for result in results] == [0, 1, 2]


def test_without_a_node_an_endless_iterator_fails_with_the_lost_node_alone(tmp_path: Path) -> None:
    with mp.Pool(2, engine=engines.Local(nodes=2)) as pool:
        results = pool.imap(functools.partial(tasks.wait_for_ever, str(tmp_path)), itertools.count(), buffersize=4)
        for _, rank, _ in written(tmp_path, 2):
            os.kill(rank, signal.SIGKILL)
        failures = []
        while True:
            try:
                next(results)
            except StopIteration:
                break
            except Exception as error:
                failures.append(type(error))
    assert set(failures) == {mp.WorkerLostError}


def test_without_a_node_all_tasks_fail(tmp_path: Path) -> None:
    with mp.Pool(2, engine=engines.Local(nodes=2)) as pool:
        result = pool.map_async(functools.partial(tasks.wait_for_ever, str(tmp_path)), range(8), chunksize=1)
        written(tmp_path, 2)
        for agent in pool._scheduler._service._agents.processes:
            os.kill(agent.pid, signal.SIGKILL)
        with pytest.raises(mp.WorkerLostError, match="node local-"):
            result.get(PROMISED)
        with pytest.raises(mp.WorkerLostError, match="node local-"):
            pool.apply_async(abs, (1,)).get(PROMISED)


def test_a_bug_in_the_scheduler_fails_every_task_and_ends_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("a bug")

    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    with mp.Pool(4, engine=engines.Local(nodes=2)) as pool:
        wait = functools.partial(tasks.wait_for_ever, str(tmp_path))
        pending = [pool.apply_async(wait, (i,)) for i in range(4)]
        pids = written(tmp_path, 4)
        pending += [pool.map_async(wait, range(10), chunksize=2), pool.apply_async(wait, (4,))]
        iterated = pool.imap(wait, itertools.count(), buffersize=3)
        for node in pool._scheduler._nodes:
            monkeypatch.setattr(node, "answered", fail)
        os.kill(pids[0][0], signal.SIGKILL)  # its outcome meets the bug
        for result in pending:
            with pytest.raises(RuntimeError, match="a bug"):
                result.get(PROMISED)
        with pytest.raises(RuntimeError, match="a bug"):
            iterated.next(PROMISED)
        with pytest.raises(RuntimeError, match="a bug"):
            pool.apply_async(abs, (1,)).get(PROMISED)
        assert until(lambda: all(ended(worker) and ended(rank) for worker, rank, _ in pids), PROMISED)
        assert until(lambda: not pool._scheduler.thread.is_alive(), PROMISED)
        assert all(agent.poll() is not None for agent in pool._scheduler._service._agents.processes)
    assert [each.exc_type for each in shown] == [RuntimeError]


PROGRAM = """
import functools, sys
import mp_all as mp
sys.path.insert(0, sys.argv[2])
import node_pool_tasks as tasks

if __name__ == "__main__":
    with mp.Pool(4, engine=mp.engines.Local(nodes=2)) as pool:
        pool.map(functools.partial(tasks.wait_for_ever, sys.argv[1]), range(4), chunksize=1)
"""


FUNCTIONS_OF_MAIN = """
import mp_all as mp

def square(x):
    return x * x

if __name__ == "__main__":
    exec("def typed(x): return x + 1", globals())
    with mp.Pool(2, engine=mp.engines.Local(nodes=2)) as pool:
        for function in square, typed, lambda x: x + 2:
            print(pool.map(function, range(3)), pool.apply(function, (3,)), list(pool.imap(function, range(2))))
"""


@pytest.mark.parametrize("by_file", [True, False], ids=["file", "standard input"])
def test_workers_get_the_functions_of_a_main_module(tmp_path: Path, by_file: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(FUNCTIONS_OF_MAIN)
    with program.open() as file:
        arguments = [str(program)] if by_file else ["-"]
        done = subprocess.run([sys.executable, *arguments], stdin=file, capture_output=True, text=True, timeout=90)
    assert done.stdout.splitlines() == ["[0, 1, 4] 9 [0, 1]", "[1, 2, 3] 4 [1, 2]", "[2, 3, 4] 5 [2, 3]"], done.stderr


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_the_driver(tmp_path: Path, signum: int) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "pids"
    program.write_text(PROGRAM)
    folder.mkdir()
    driver = subprocess.Popen(
        [sys.executable, str(program), str(folder), str(Path(__file__).parent)], stderr=subprocess.PIPE, text=True
    )
    try:
        pids = written(folder, 4)
        driver.send_signal(signum)
        assert until(lambda: all(ended(worker) and ended(rank) for worker, rank, _ in pids), PROMISED)
        _, err = driver.communicate(timeout=30)
        assert err.count("KeyboardInterrupt") == (signum == signal.SIGINT)
    finally:
        driver.kill()
        driver.communicate()


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="on all nodes together"):
        mp.Pool(engine="local")
    with pytest.raises(ValueError, match="always spawns its workers: drop context='fork'"):
        mp.get_context("fork").Pool(2, engine="local")
    with pytest.raises(ValueError, match="'kubernetes' is unknown"):
        mp.Pool(2, engine="kubernetes")
    refused = {"retry_on": OSError, "memory_limit": 1 << 30, "cpu_affinity": "spread", "seed": 3, "daemon": False}
    for name, value in refused.items():
        with pytest.raises(ValueError, match=f"a pool with engine= has no .*{name}="):
            mp.Pool(2, engine="local", **{name: value})  # type: ignore[call-overload]
    with mp.Pool(1, engine="local") as pool, pytest.raises(ValueError, match="engine="):
        pool.options(retries=1)
