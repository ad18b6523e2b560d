"""A node that is lost, a driver that is killed: all ends within seconds, and the error names the node."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drivers import start_driver
from node_functions import refuse_to_end, wait_for_ever, wait_once
from support.processes import ended
from support.waiting import until

import mp_all as mp
import mp_nodes as engines

# The promise, in seconds: the node is named, and on an idle machine all has ended. A loaded machine adds some.
PROMISED = 5.0
ALL_ENDED = PROMISED + 3.0
# A process may be stopped for so long.
SHORT = 2.0


def pids_in(folder: Path, count: int) -> dict[int, int]:
    """
    Wait for the pids that the ranks of `wait_for_ever` write.
    """
    assert until(lambda: len(list(folder.glob("[0-9]"))) == count, 60)
    return {int(path.name): int(path.read_text()) for path in folder.glob("[0-9]")}


def agents_of(context: Any) -> list[int]:
    return [process.pid for process in context._agents.processes]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_dies_or_is_silent_is_named_with_its_ranks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, signum: int
) -> None:
    context = mp.start_processes(wait_for_ever, (str(tmp_path),), nprocs=6, join=False, engine=engines.Local(nodes=3))
    pids = pids_in(tmp_path, 6)
    victim = agents_of(context)[1]
    started = time.time()
    os.kill(victim, signum)
    with pytest.raises(mp.ProcessExitedException, match="process 2 was lost with its node local-1") as caught:
        context.join()
    print("named after", caplog.records[0].created - started, "reported after", time.time() - started)
    assert caplog.records[0].created - started < PROMISED
    assert time.time() - started < ALL_ENDED
    assert [failure.rank for failure in caught.value.failures] == [2, 3]
    assert all(failure.lost and failure.node == "local-1" for failure in caught.value.failures)
    assert caught.value.exit_code != 0
    assert until(lambda: all(map(ended, pids.values())), ALL_ENDED)


def test_the_log_names_a_lost_node_while_ranks_refuse_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = mp.start_processes(refuse_to_end, (str(tmp_path),), nprocs=4, join=False, engine=engines.Local(nodes=2))
    pids = pids_in(tmp_path, 4)
    started = time.time()
    os.kill(agents_of(context)[1], signal.SIGSTOP)
    assert until(lambda: bool(caplog.records), ALL_ENDED)
    assert caplog.records[0].created - started < PROMISED
    assert "node local-1 was lost with its ranks [2, 3]: no sign of life for 3 s" in caplog.text
    assert not context.join(0)
    assert not ended(pids[0])
    with pytest.raises(mp.ProcessExitedException, match="process 2 was lost with its node local-1"):
        context.join()
    assert until(lambda: all(map(ended, pids.values())), ALL_ENDED)


def test_agents_are_reaped_although_a_handler_has_left_the_locks_of_subprocess_locked() -> None:
    context: Any = mp.start_processes(divmod, (2,), nprocs=2, join=False, engine=engines.Local(nodes=2))
    agents = list(context._agents.processes)
    for agent in agents:
        assert agent._waitpid_lock.acquire(timeout=30)
    assert context.join(60)
    for agent in agents:
        with pytest.raises(ChildProcessError):
            os.waitpid(agent.pid, os.WNOHANG)


@pytest.mark.parametrize("victim", ["agent", "driver"])
def test_a_process_that_is_stopped_for_a_short_time_is_not_lost(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    driver = start_driver(tmp_path, folder, 2, "engines.Local(nodes=2)")
    try:
        pids = pids_in(folder, 2)
        agents = [parent_of(parent_of(pid)) for pid in pids.values()]
        stopped = driver.pid if victim == "driver" else agents[1]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(SHORT)
        os.kill(stopped, signal.SIGCONT)
        # If it were taken for lost, that would be now.
        assert not until(lambda: any(map(ended, pids.values())), SHORT)
    finally:
        driver.kill()
        driver.wait()
    assert until(lambda: all(map(ended, [*pids.values(), *agents])), ALL_ENDED)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_the_ranks_of_a_lost_node_are_started_again_on_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, signum: int
) -> None:
    context: Any = mp.start_processes(
        wait_once,
        (str(tmp_path), np.arange(200_000.0)),
        nprocs=4,
        join=False,
        max_restarts=1,
        engine=engines.Local(nodes=2),
    )
    pids = pids_in(tmp_path, 4)
    os.kill(agents_of(context)[1], signum)
    # These two return when the ranks of the lost node have been started again.
    assert until(lambda: (tmp_path / "again-2").exists() and (tmp_path / "again-3").exists(), ALL_ENDED + 10)
    assert (tmp_path / "again-2").read_text() == "199999.0"
    assert [node.name for node in context.nodes] == ["local-0", "local-2"]
    assert not ended(pids[0])
    (tmp_path / "go").touch()
    assert context.join(30)
    assert "they are started again on another (1 of 1)" in caplog.text
    assert until(lambda: all(map(ended, pids.values())), ALL_ENDED)


def test_the_ranks_of_a_node_that_is_lost_after_a_signal_to_end_are_not_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context: Any = mp.start_processes(
        refuse_to_end, (str(tmp_path),), nprocs=2, join=False, max_restarts=1, engine=engines.Local(nodes=2)
    )
    pids = pids_in(tmp_path, 2)
    context.send_signal(signal.SIGTERM)
    os.kill(agents_of(context)[1], signal.SIGKILL)
    with pytest.raises(mp.ProcessExitedException, match="process 1 was lost with its node local-1"):
        context.join()
    assert "again" not in caplog.text
    assert until(lambda: all(map(ended, pids.values())), ALL_ENDED)


def test_a_node_may_be_lost_as_often_as_max_restarts_says(tmp_path: Path) -> None:
    context: Any = mp.start_processes(
        wait_for_ever, (str(tmp_path),), nprocs=2, join=False, max_restarts=1, engine=engines.Local(nodes=2)
    )
    first = pids_in(tmp_path, 2)[1]
    os.kill(agents_of(context)[1], signal.SIGKILL)
    assert until(lambda: pids_in(tmp_path, 2)[1] != first, 30)
    os.kill(agents_of(context)[2], signal.SIGKILL)
    with pytest.raises(mp.ProcessExitedException, match="process 1 was lost with its node local-2"):
        context.join()


def test_a_node_whose_driver_is_silent_ends_its_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    driver = start_driver(tmp_path, folder, 4, "engines.Local(nodes=2)")
    pids = pids_in(folder, 4)
    os.kill(driver.pid, signal.SIGSTOP)
    try:
        assert until(lambda: all(map(ended, pids.values())), ALL_ENDED)
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_rank_outlives_its_driver(tmp_path: Path, signum: int) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    driver = start_driver(tmp_path, folder, 4, "engines.Local(nodes=2)")
    pids = pids_in(folder, 4)
    driver.send_signal(signum)
    assert until(lambda: all(map(ended, pids.values())), ALL_ENDED)
    driver.wait(30)
