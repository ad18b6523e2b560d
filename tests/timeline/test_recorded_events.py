"""A report has what the processes of a run did, whatever became of them."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from recorded import events_in, spans, trace_of
from support.ports import free_port
from support.scripts import run_python, succeeded

from mp_core.sharing import backend
from mp_core.timeline.remote import NodeTimeline

POOL = """
    import os, signal, sys, time
    import mp_all as mp

    def work(x):
        time.sleep(0.02)
        if x == 5:
            raise ValueError(x)
        return bytes(1000)

    def die(x):
        os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        with mp.timeline("run.json"):
            with context.Pool(2) as pool:
                results = [pool.apply_async(work, (i,)) for i in range(8)]
                assert len([result for result in results if result.wait() is None and result.successful()]) == 7
                pool.map(work, [0] * 6, chunksize=3)
                if sys.argv[2] == "die":
                    try:
                        pool.apply(die, (1,))
                    except mp.WorkerLostError:
                        pass
"""


def test_each_task_of_a_pool_is_a_span_with_its_bytes_its_index_and_its_error(
    tmp_path: Path, start_method: str
) -> None:
    tasks = spans(trace_of(tmp_path, POOL, start_method, "live"), "task")
    assert {task["name"] for task in tasks} == {"work"}
    assert len(tasks) == 8 + 2
    assert all(task["dur"] >= 20_000 for task in tasks)
    assert sum(task["args"]["error"] for task in tasks) == 1
    chunks = sorted((task["args"]["index"], task["args"]["items"]) for task in tasks if task["args"]["items"] > 1)
    assert chunks == [(0, 3), (3, 3)]
    assert all(task["args"]["argument_bytes"] > 0 for task in tasks)
    assert all(task["args"]["result_bytes"] > 1000 for task in tasks if not task["args"]["error"])


SHORT_CALLS = """
    import sys
    import mp_all as mp

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        with mp.timeline("run.json"), mp.ProcessPoolExecutor(1, context) as executor:
            assert [executor.submit(abs, -n).result() for n in range(200)] == [*range(200)]
            assert [*executor.map(abs, range(100), chunksize=10)] == [*range(100)]
"""


def test_short_calls_whose_caller_receives_the_results_itself_are_spans_with_their_items(
    tmp_path: Path, start_method: str
) -> None:
    tasks = spans(trace_of(tmp_path, SHORT_CALLS, start_method), "task")
    assert sorted(task["args"]["items"] for task in tasks) == [1] * 200 + [10] * 10


def test_a_killed_worker_leaves_its_events_and_the_task_in_which_it_died(tmp_path: Path, start_method: str) -> None:
    events = trace_of(tmp_path, POOL, start_method, "die")
    (killed,) = [task for task in spans(events, "task") if task["args"]["killed"]]
    assert killed["name"] == "die"
    (process,) = [process for process in spans(events, "process") if process["pid"] == killed["pid"]]
    assert process["args"]["how"] == "was killed"
    assert process["ts"] <= killed["ts"] and killed["ts"] + killed["dur"] <= process["ts"] + process["dur"] + 1
    assert len(spans(events, "task")) == 8 + 2 + 1


def test_processes_have_the_names_that_the_program_gave_them(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys
        import mp_all as mp

        def nothing():
            pass

        if __name__ == "__main__":
            with mp.timeline("run.json"):
                child = mp.get_context(sys.argv[1]).Process(target=nothing, name="the reader")
                child.start()
                child.join()
                print(child.pid)
    """
    events = trace_of(tmp_path, program, start_method)
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"MainProcess", "the reader"} <= names
    assert [span["name"] for span in spans(events, "start")] == ["start the reader"]


def test_waits_for_messages_for_room_and_for_locks_are_spans(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys, time
        import mp_all as mp

        def child(full, empty, lock):
            time.sleep(0.5)
            lock.release()
            time.sleep(0.5)
            full.get()
            time.sleep(0.5)
            empty.put(1)

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            with mp.timeline("run.json"):
                full, empty, lock = context.Queue(1), context.Queue(), context.Lock()
                lock.acquire()
                process = context.Process(target=child, args=(full, empty, lock))
                process.start()
                full.put(1)
                lock.acquire()
                full.put(2)
                empty.get()
                process.join()
                full.get()
    """
    events = trace_of(tmp_path, program, start_method)
    parent = events[0]["pid"]
    for category in ("wait.lock", "wait.put", "wait.get"):
        found = [span for span in spans(events, category) if span["pid"] == parent]
        assert max(span["dur"] for span in found) >= 250_000, (category, found)
    assert any("program.py:16" in span["args"].get("queue", "") for span in spans(events, "wait.put"))


def test_each_message_is_an_arrow_from_its_put_to_its_get(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys
        import mp_all as mp

        def child(queue, answers):
            while (item := queue.get()) is not None:
                answers.put(item)

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            with mp.timeline("run.json"):
                queue, answers = context.Queue(), context.Queue()
                process = context.Process(target=child, args=(queue, answers))
                process.start()
                for i in range(20):
                    queue.put(bytes(i))
                queue.put(bytes(300_000).decode("latin1"))
                queue.put(None)
                for i in range(21):
                    answers.get()
                process.join()
    """
    events = trace_of(tmp_path, program, start_method)
    puts = {event["id"]: event for event in events if event["ph"] == "s"}
    gets = {event["id"]: event for event in events if event["ph"] == "f"}
    assert puts.keys() == gets.keys()
    assert len(puts) == 22 + 21
    assert all(put["ts"] <= gets[number]["ts"] and put["pid"] != gets[number]["pid"] for number, put in puts.items())


def test_long_copies_and_memory_in_use_are_in_the_report(tmp_path: Path) -> None:
    program = """
        import os, time
        import mp_all as mp

        def samples(nbytes):
            folder = os.environ["MP_TIMELINE_RUN"].partition(":")[2]
            with open(os.path.join(folder, "memory")) as file:
                return [line for line in file if int((line.split() + ["0", "0"])[1]) >= nbytes]

        if __name__ == "__main__":
            with mp.timeline("run.json"):
                queue = mp.Queue()  # its large bytes need no pickler
                queue.put(bytes(64 << 20))
                deadline = time.monotonic() + 30
                while not samples(64 << 20) and time.monotonic() < deadline:
                    time.sleep(0.01)
                queue.get()
    """
    events = trace_of(tmp_path, program)
    copies = spans(events, "copy")
    assert {span["name"] for span in copies} == {"copy into shared memory", "copy out of shared memory"}
    assert all(span["args"]["bytes"] == 64 << 20 and span["dur"] >= 100 for span in copies)
    used = [event["args"]["used"] for event in events if event["ph"] == "C" and event["name"] == "shared memory"]
    assert max(used) >= 64 << 20
    resident = [event["args"]["bytes"] for event in events if event["name"] == "resident memory"]
    assert max(resident) > 1 << 20


def test_a_full_ring_keeps_the_newest_events_and_the_report_says_how_many_are_lost(tmp_path: Path) -> None:
    program = """
        import mp_all as mp

        with mp.timeline("run.json", events=64):
            queue = mp.SimpleQueue()
            for i in range(100):
                queue.put(i)
                queue.get()
            queue.put(bytes(500))
            queue.get()
    """
    events = trace_of(tmp_path, program)
    (process,) = spans(events, "process")
    assert process["args"]["lost_events"] == 202 - 64
    flows = [event for event in events if event["ph"] == "s"]
    assert len(flows) == 32
    assert flows[-1]["args"]["bytes"] > 500


def test_ranks_and_programs_that_a_process_starts_are_in_its_timeline(tmp_path: Path) -> None:
    program = """
        import subprocess, sys
        import mp_all as mp

        def rank(i):
            queue = mp.SimpleQueue()
            queue.put(i)

        if __name__ == "__main__":
            with mp.timeline("run.json"):
                mp.run(rank, nprocs=2)
                subprocess.run([sys.executable, "-c", "import mp_all"], check=True)
    """
    events = trace_of(tmp_path, program)
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"MainProcess", "rank 0", "rank 1", "import mp_all"} <= names


def test_a_worker_that_is_ended_while_it_waits_for_a_task_has_waited(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys, time
        import mp_all as mp

        if __name__ == "__main__":
            with mp.timeline("run.json"), mp.get_context(sys.argv[1]).Pool(1) as pool:
                pool.apply(abs, (1,))
                time.sleep(1)
    """
    events = trace_of(tmp_path, program, start_method)
    (task,) = spans(events, "task")
    after = [wait for wait in spans(events, "wait.get") if wait["pid"] == task["pid"] and wait["ts"] >= task["ts"]]
    assert sum(wait["dur"] for wait in after) >= 300_000  # its end is that of its last sample of memory


def test_tasks_and_results_of_a_pool_are_arrows(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys
        import mp_all as mp

        if __name__ == "__main__":
            with mp.timeline("run.json"), mp.get_context(sys.argv[1]).Pool(1) as pool:
                for number in range(5):
                    pool.apply(abs, (number,))
    """
    events = trace_of(tmp_path, program, start_method)
    (worker,) = {task["pid"] for task in spans(events, "task")}
    parent = events[0]["pid"]
    arrows = [(event["ph"], event["pid"]) for event in events if event["ph"] in "sf" and event["cat"] == "message"]
    assert arrows.count(("s", parent)) == arrows.count(("f", worker)) >= 5
    assert arrows.count(("s", worker)) == arrows.count(("f", parent)) >= 5


def test_waits_at_barriers_events_and_conditions_are_spans(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys, time
        import mp_all as mp

        def late(barrier, event, condition):
            time.sleep(0.2)
            barrier.wait()
            time.sleep(0.2)
            event.set()
            time.sleep(0.2)
            with condition:
                condition.notify()

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            with mp.timeline("run.json"):
                barrier, event, condition = context.Barrier(2), context.Event(), context.Condition()
                process = context.Process(target=late, args=(barrier, event, condition))
                process.start()
                barrier.wait()
                event.wait()
                with condition:
                    condition.wait()
                process.join()
    """
    events = trace_of(tmp_path, program, start_method)
    waited = {wait["name"]: wait["dur"] for wait in spans(events, "wait.lock") if wait["pid"] == events[0]["pid"]}
    assert all(waited[name] >= 150_000 for name in ("barrier", "event", "condition")), waited


def test_a_task_that_calls_the_users_function_bears_its_name(tmp_path: Path) -> None:
    pytest.importorskip("joblib", reason="joblib is not installed")
    program = """
        import joblib
        import mp_all as mp

        def half(x):
            return x / 2

        if __name__ == "__main__":
            mp.joblib_install()
            with mp.timeline("run.json"):
                assert joblib.Parallel(n_jobs=2)(joblib.delayed(half)(x) for x in (2, 4)) == [1, 2]
                with mp.Pool(1, engine=mp.engines.Local(nodes=1)) as pool:
                    assert pool.apply(half, (2,)) == 1
                    assert pool.map(half, [2, 4]) == [1, 2]
    """
    names = [task["name"] for task in spans(trace_of(tmp_path, program), "task")]
    assert names.count("half") >= 4 and set(names) == {"half"}, names


def test_processes_of_the_nodes_of_an_engine_are_in_the_timeline(tmp_path: Path) -> None:
    program = """
        import mp_all as mp

        def rank(i):
            with mp.Pool(1) as pool:
                return pool.apply(divmod, (i, 2))

        if __name__ == "__main__":
            with mp.timeline("run.json"):
                print(mp.run(rank, nprocs=3, engine=mp.engines.Local(nodes=2)))
    """
    events = trace_of(tmp_path, program)
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 0 on local-0", "rank 1 on local-1", "rank 2 on local-1"} <= names, names
    tasks = spans(events, "task")
    assert [task["name"] for task in tasks] == ["divmod"] * 3
    (whole,) = [process for process in spans(events, "process") if process["name"] == "MainProcess"]
    assert all(whole["ts"] <= task["ts"] <= whole["ts"] + whole["dur"] for task in tasks)
    assert {task["pid"] // 10_000_000 for task in tasks} == {1, 2}


def test_a_node_without_room_for_events_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    timeline = NodeTimeline(64, "a node")
    assert not backend.recorders and list(timeline.files()) == []
    timeline.close()


def test_one_command_of_several_nodes_writes_the_timeline(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("import mp_all")
    common = ["-m", "mp_spawn", "--nnodes", "2", "-n", "2", "--master-addr", "127.0.0.1", "--timeline", "run.json"]
    common += ["--master-port", str(free_port())]
    with ThreadPoolExecutor() as threads:
        done = threads.map(
            lambda node: run_python(
                *common, "--node-rank", node, "rank.py", cwd=tmp_path, MP_SPAWN_KEY="a secret for the tests"
            ),
            ["0", "1"],
        )
        list(map(succeeded, done))
    names = {event["args"]["name"] for event in events_in(tmp_path / "run.json") if event["name"] == "process_name"}
    ranks = sorted(name.partition(" on ")[0] for name in names if name.startswith("rank"))
    assert ranks == ["rank 0", "rank 1"], names


def test_the_bytes_of_a_task_count_its_arrays_copied_and_shared_apart(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys
        import numpy as np
        import mp_all as mp

        def double(a):
            return a * 2

        def same(a):
            return a

        if __name__ == "__main__":
            with mp.timeline("run.json"), mp.get_context(sys.argv[1]).Pool(1) as pool:
                pool.apply(double, (np.ones(1 << 20, np.uint8),))
                pool.apply(same, (mp.shared.zeros(1 << 20, np.uint8),))
    """
    moved, shared = (task["args"] for task in spans(trace_of(tmp_path, program, start_method), "task"))
    assert 1 << 20 < moved["argument_bytes"] < 2 << 20 and 1 << 20 < moved["result_bytes"] < 2 << 20
    assert moved["shared_argument_bytes"] == moved["shared_result_bytes"] == 0
    assert shared["argument_bytes"] < 1000 and shared["result_bytes"] < 1000
    assert shared["shared_argument_bytes"] == shared["shared_result_bytes"] == 1 << 20


def test_a_task_under_way_when_its_pool_is_terminated_is_shown_as_such(tmp_path: Path, start_method: str) -> None:
    program = """
        import sys, time
        import mp_all as mp

        def work(begun):
            begun.set()
            time.sleep(60)

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            begun = context.Event()
            with mp.timeline("run.json"):
                with context.Pool(1) as pool:
                    pool.apply(abs, (1,))
                    pool.apply_async(work, (begun,))
                    begun.wait()
                    time.sleep(0.3)
    """
    done, under_way = spans(trace_of(tmp_path, program, start_method), "task")
    assert (done["name"], under_way["name"]) == ("abs", "work")
    assert under_way["args"]["terminated"] and under_way["dur"] > 200_000


def test_queues_of_one_line_are_told_apart(tmp_path: Path) -> None:
    program = """
        import mp_all as mp

        with mp.timeline("run.json"):
            tasks, results = mp.Queue(), mp.Queue()
            for queue in (tasks, results):
                try:
                    queue.get(timeout=0.05)
                except Exception:
                    pass
    """
    waits = spans(trace_of(tmp_path, program), "wait.get")
    assert [wait["args"]["queue"].partition(" made")[0] for wait in waits] == ["queue 1", "queue 2"]
