"""A signal handler that raises anywhere: its exception reaches the caller, no lock is kept, and nothing is left behind.

A share of the points of each scene runs here, the same in each run; `nox -s interrupts`, which runs each night, runs
them all. MP_INTERRUPTS sets the share, "all" or a number, and MP_INTERRUPTS_SEED the seed by which it is chosen.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_python

from interrupts.scene import KINDS
from interrupts.scenes import SCENES

SHARE = os.environ.get("MP_INTERRUPTS", "0.1")
SEED = os.environ.get("MP_INTERRUPTS_SEED", "1")
LIMIT = 600 if SHARE != "all" else 6000
# The standard library's own code often cannot take two signals in a row: those are compared with it in the long run.
SOON = tuple(kind for kind in KINDS if kind != "raises twice")
# A share of the points meets each kind with some scenes; all points, with all.
CASES = [
    (scene, kind)
    for number, scene in enumerate(SCENES)
    for kind in (KINDS if SHARE == "all" else [SOON[(number + int(SEED)) % len(SOON)]])
]


def play(scene: str, kind: str, *asked: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = "-m", "interrupts.program", scene, kind, "mp_all", SHARE, SEED, *asked
        done = run_python(*arguments, timeout=LIMIT, TMPDIR=folder, PYTHONPATH=str(Path(__file__).parents[1]))
    # A process whose start was interrupted may print that its parent has gone.
    assert done.returncode == 0, done.stderr
    print(done.stderr)  # pytest shows it with a failure
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("scene", "kind"), CASES)
@pytest.mark.timeout(LIMIT + 60)
def test_a_signal_handler_at_any_point_leaves_nothing_behind(scene: str, kind: str) -> None:
    count, *found = play(scene, kind)
    bad = [count] if count["problems"] else []
    bad += [each for each in found if each["problems"]]
    assert not bad, f"seed {SEED}, {count['run']} of {count['count']} points:\n" + "\n".join(map(json.dumps, bad))
    assert any(each["handled"] for each in found)


#: Where the start of a worker is undone.
UNDONE = {"WorkerEnds.close", "Worker.start", "Dispatcher.start_worker", "Scheduler.start", "closing.__exit__"}


@pytest.mark.timeout(LIMIT + 60)
def test_two_signals_in_the_start_of_a_worker_leave_no_worker_and_no_descriptor() -> None:
    places = play("executor_in_a_block", "raises twice", "list")[0]["places"]
    at = [number for number, (_, name, _) in enumerate(places) if name in UNDONE][-12:]
    _, *found = play("executor_in_a_block", "raises twice", *map(str, at))
    bad = [each for each in found if each["problems"]]
    assert not bad, "\n".join(map(json.dumps, bad))
    assert any(len(each["handled"]) > 1 for each in found)


#: What a second signal must not keep from being undone.
UNDONE_TWICE = {
    "pool_made_used_and_ended": {"Pool.__init__", "Finalize.__init__"},
    "manager": {"_receive_channel", "_descriptors"},
    "start_with_a_queue_by_spawn": {"closing", "_Child.close", "_Child.close_opened"},
    "condition": {"Condition.wait"},
}


@pytest.mark.parametrize("scene", UNDONE_TWICE)
@pytest.mark.timeout(LIMIT + 60)
def test_two_signals_where_resources_change_hands_leave_nothing_behind(scene: str) -> None:
    places = play(scene, "raises twice", "list")[0]["places"]
    at = [number for number, (_, name, _) in enumerate(places) if name in UNDONE_TWICE[scene]][-12:]
    _, *found = play(scene, "raises twice", *map(str, at))
    bad = [each for each in found if each["problems"]]
    assert not bad, "\n".join(map(json.dumps, bad))
    assert any(len(each["handled"]) > 1 for each in found)


#: Where resources change hands: a share of all points may leave them out.
HANDED_ON = {
    "pool_made_used_and_ended": {"Pool.__init__", "_pool"},
    "pool_terminated_again": {"Scheduler.begin_end", "Zygote.kill_if_childless"},
    "start_with_a_queue_by_spawn": {"closing"},
    "run": {"_Zygote.rank_ended", "reap"},
    "start_of_processes": {"Inbox.get_ready", "hold_both_ends", "Descriptor.close"},
    "command_with_few_descriptors": {"WakeUpPipe.__enter__", "WakeUpPipe._close_write", "hold_both_ends"},
    "manager": {"_receive_channel"},
}


@pytest.mark.parametrize("scene", HANDED_ON)
@pytest.mark.timeout(LIMIT + 60)
def test_a_signal_where_resources_change_hands_leaves_nothing_behind(scene: str) -> None:
    places = play(scene, "raises", "list")[0]["places"]
    at = [number for number, (_, name, _) in enumerate(places) if name in HANDED_ON[scene]]
    _, *found = play(scene, "raises", *map(str, at))
    bad = [each for each in found if each["problems"]]
    assert not bad, "\n".join(map(json.dumps, bad))
    assert any(each["handled"] for each in found)
