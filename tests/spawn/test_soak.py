"""Repeat the main tests of the launcher: a few times by default, a thousand ranks with MP_SOAK=1."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import rank_functions as ranks
from descendants import Watched, printed_pids, program
from test_lifetime_of_ranks import GRANDCHILDREN, started

from mp_spawn import ProcessContext, ProcessException, run, start_processes

SOAK = os.environ.get("MP_SOAK") == "1"
pytestmark = pytest.mark.timeout(900 if SOAK else 120)
Pipe = tuple[Connection, Connection]
RANKS, JOBS = (20, 50) if SOAK else (10, 2)  # a thousand ranks
TREES = 100 if SOAK else 2
FAILURES = 250 if SOAK else 6


def test_many_ranks_outlive_the_thread_that_started_them(start_method: str, pipe: Pipe, back: Pipe) -> None:
    ended_well = 0
    for _ in range(JOBS):
        contexts: list[ProcessContext] = []

        def start(contexts: list[ProcessContext] = contexts) -> None:
            args = (pipe[1], back[0])
            contexts.append(started(ranks.tell_and_wait_for_byte, *args, nprocs=RANKS, start_method=start_method))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(60)
        for _ in range(RANKS):
            pipe[0].recv()
        os.write(back[1].fileno(), b"x" * RANKS)
        assert contexts[0].join(timeout=60)
        goodbyes = [pipe[0].recv() for _ in range(RANKS)]
        ended_well += goodbyes.count("goodbye")
    assert ended_well == RANKS * JOBS


def test_killed_parents_leave_no_descendant(tmp_path: Path, start_method: str) -> None:
    for _ in range(TREES):
        with program(tmp_path, GRANDCHILDREN, start_method) as process:
            descendants = Watched(printed_pids(process, 6))
            process.kill()
            assert descendants.wait(2) == []
            descendants.close()


def test_a_parent_killed_at_any_moment_leaves_no_descendant(tmp_path: Path, start_method: str) -> None:
    """
    Two seconds later no process has the program's output open, even if ranks were being started.

    Pids would tell less: one that has ended keeps its pid until process 1 waits for it, and then another may get it.
    """
    chance = random.Random(4711)
    for _ in range(TREES):
        with program(tmp_path, GRANDCHILDREN, start_method) as process:
            assert process.stdout is not None
            time.sleep(chance.uniform(0.02, 0.5))
            process.kill()
            killed, output = time.monotonic(), process.stdout.fileno()
            while readable := select.select([output], [], [], max(0.0, killed + 2 - time.monotonic()))[0]:
                if not os.read(output, 65536):
                    break
            assert readable


def test_consecutive_failures_are_reported_correctly(start_method: str) -> None:
    chance = random.Random(42)
    for _ in range(FAILURES):
        kind = chance.choice(["raise", "kill", "exit", "well"])
        bad = chance.randrange(4)
        try:
            if kind == "raise":
                start_processes(ranks.raise_odd, (bad,), 4, start_method=start_method)
            elif kind == "kill":
                start_processes(ranks.kill_self, (bad, signal.SIGKILL), 4, start_method=start_method)
            elif kind == "exit":
                bad = 1
                start_processes(ranks.leave_hard, (3,), 4, start_method=start_method)
            else:
                assert run(ranks.give_back, nprocs=4, start_method=start_method) == [(i,) for i in range(4)]
            reported = "well"
        except ProcessException as error:
            assert error.error_index == bad
            reported = {"Odd": "raise"}.get(type(error.__cause__).__name__) or (
                "kill" if "SIGKILL" in str(error) else "exit"
            )
        assert reported == kind
