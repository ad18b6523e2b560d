"""A trace has what the trace-event format asks of it: the fields of each phase, spans that nest, flows in pairs."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from recorded import trace_of

FIELDS = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "s": {"name", "cat", "ts", "id", "pid", "tid", "args"},
    "f": {"name", "cat", "ts", "id", "pid", "tid", "bp"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "ts", "pid", "tid", "args"},
}

PROGRAM = """
    import os, signal, sys, threading, time
    import numpy as np
    import mp_all as mp

    def work(x):
        time.sleep(0.01)
        return np.ones(200_000)

    def die(x):
        os.kill(os.getpid(), signal.SIGKILL)

    def child(queue, barrier):
        threads = [threading.Thread(target=queue.put, args=(np.ones(100_000),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        barrier.wait()
        time.sleep(0.1)

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        with mp.timeline("run.json"):
            queue, barrier = context.Queue(2), context.Barrier(2)
            process = context.Process(target=child, args=(queue, barrier))
            process.start()
            for _ in range(4):
                queue.get()
            barrier.wait()
            process.join()
            with context.Pool(2) as pool:
                pool.map(work, range(8))
                failed = pool.apply_async(die, (1,))
                failed.wait()
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("run")
    return trace_of(folder, PROGRAM, "spawn")


def test_an_event_has_the_fields_of_its_phase(events: list[dict[str, Any]]) -> None:
    assert {event["ph"] for event in events} == set(FIELDS)
    for event in events:
        assert FIELDS[event["ph"]] <= event.keys(), event
        assert event["ts"] >= 0 and event.get("dur", 0) >= 0, event
        assert isinstance(event["pid"], int) and isinstance(event.get("tid", 0), int)
    for counter in (event for event in events if event["ph"] == "C"):
        assert counter["args"] and all(isinstance(value, int) for value in counter["args"].values())


def test_the_spans_of_a_thread_nest(events: list[dict[str, Any]]) -> None:
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for spans in threads.values():
        around: list[dict[str, Any]] = []
        for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
            while around and end_of(around[-1]) <= span["ts"] + 0.001:
                around.pop()
            assert not around or end_of(span) <= end_of(around[-1]) + 0.001, (around[-1], span)
            around.append(span)


def end_of(span: dict[str, Any]) -> float:
    return float(span["ts"] + span["dur"])


def test_each_flow_begins_once_and_ends_once(events: list[dict[str, Any]]) -> None:
    begins = Counter(event["id"] for event in events if event["ph"] == "s")
    ends = Counter(event["id"] for event in events if event["ph"] == "f")
    assert begins == ends and set(begins.values()) == {1}
