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
from node_functions import wait_for_ever, wait_once
from support.processes import ended
from support.waiting import until

import mp_all as mp
from mp_spawn import engines

# The promise: everything has ended and has been reported after so many seconds. A loaded machine adds some.
PROMISED = 5.0 + 3.0


def pids_in(folder: Path, count: int) -> dict[int, int]:
    """
    Wait for the pids that the ranks of `wait_for_ever` write.
    """
    assert until(lambda: len(list(folder.glob("[0-9]"))) == count, 60)
    return {int(path.name): int(path.read_text()) for path in folder.glob("[0-9]")}


def agents_of(context: Any) -> list[int]:
    return [process.pid for process in context._agents.processes]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_dies_or_is_silent_is_named_with_its_ranks(tmp_path: Path, signum: int) -> None:
    context = mp.start_processes(wait_for_ever, (str(tmp_path),), nprocs=6, join=False, engine=engines.Local(nodes=3))
    pids = pids_in(tmp_path, 6)
    started = time.monotonic()
    victim = agents_of(context)[1]
    os.kill(victim, signum)
    with pytest.raises(mp.ProcessExitedException, match="process 2 was lost with its node local-1") as caught:
        context.join()
    assert time.monotonic() - started < PROMISED
    assert [failure.rank for failure in caught.value.failures] == [2, 3]
    assert all(failure.lost and failure.node == "local-1" for failure in caught.value.failures)
    assert caught.value.exit_code != 0
    assert until(lambda: all(map(ended, pids.values())), PROMISED)


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
    assert until(lambda: (tmp_path / "again-2").exists() and (tmp_path / "again-3").exists(), PROMISED + 10)
    assert (tmp_path / "again-2").read_text() == "199999.0"
    assert [node.name for node in context.nodes] == ["local-0", "local-2"]
    assert not ended(pids[0])
    (tmp_path / "go").touch()
    assert context.join(30)
    assert "they are started again on another (1 of 1)" in caplog.text
    assert until(lambda: all(map(ended, pids.values())), PROMISED)


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
        assert until(lambda: all(map(ended, pids.values())), PROMISED)
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
    assert until(lambda: all(map(ended, pids.values())), PROMISED)
    driver.wait(30)
