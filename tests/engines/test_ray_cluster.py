"""Ranks on a Ray cluster: room, resources, a node that is killed, a driver that is killed, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import conftest
import numpy as np
import pytest
from drivers import start_driver
from node_functions import devices, environment, wait_for_ever, wait_once
from support.processes import ended
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
import mp_nodes as engines
from mp_nodes.engines.ray_agents import RayAgents

pytest.importorskip("ray", reason="ray is not installed")

# The promise, and some time for a loaded machine.
PROMISED = 5.0 + 5.0


def test_ranks_fill_as_few_nodes_as_have_room(cluster: Any) -> None:
    assert [row[4] for row in mp.run(environment, nprocs=2, engine="ray")] == ["0", "0"]
    assert [row[4] for row in mp.run(environment, nprocs=6, engine="ray")] == ["0"] * 4 + ["1"] * 2
    assert [row[4] for row in mp.run(environment, nprocs=3, engine=engines.Ray(nodes=2))] == ["0"] * 2 + ["1"]
    assert len(mp.run(environment, nprocs=12, engine="ray")) == 12


@pytest.mark.parametrize(
    ("nprocs", "options", "words"),
    [
        (13, {}, "asked for 13 ranks, each with CPU 1; .* 4 ranks"),
        (4, {"nodes": 4}, "asked for 4 ranks on 4 nodes"),
        (1, {"resources": {"GPU": 1}}, "GPU 0: 0 ranks"),
    ],
)
def test_a_cluster_too_small_is_an_error_at_once(cluster: Any, nprocs: int, options: Any, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(engines.EngineError, match=words):
        mp.run(environment, nprocs=nprocs, engine=engines.Ray(**options))
    assert time.monotonic() - started < 5


def test_resources_that_others_hold_are_waited_for_and_then_named(cluster: Any, tmp_path: Path) -> None:
    context = mp.start_processes(wait_for_ever, (str(tmp_path),), nprocs=12, join=False, engine="ray")
    with pytest.raises(engines.EngineError, match=r"other programs still hold them, .* CPU 0 free"):
        mp.run(environment, nprocs=1, engine=engines.Ray(wait=1))
    context.terminate()


@pytest.mark.parametrize("victims", ["raylet", "raylet and workers", "stopped"])
def test_a_lost_node_is_named_with_its_ranks(cluster: Any, tmp_path: Path, victims: str) -> None:
    folder = tmp_path / "extra"
    folder.mkdir()
    node = conftest.add_node(cluster, folder, resources={"extra": 2})
    raylet = node.all_processes["raylet"][0].process.pid
    engine = engines.Ray(resources={"extra": 1})
    try:
        context: Any = mp.start_processes(wait_for_ever, (str(folder),), nprocs=2, join=False, engine=engine)
        assert until(lambda: len(list(folder.glob("[0-9]"))) == 2, 60)
        lost = time.monotonic()
        for pid in [raylet] if victims == "raylet" else [raylet, *children_of(raylet)]:
            os.kill(pid, signal.SIGSTOP if victims == "stopped" else signal.SIGKILL)
        with pytest.raises(mp.ProcessExitedException, match="process 0 was lost with its node") as caught:
            context.join()
        print("reported after", time.monotonic() - lost)
        assert time.monotonic() - lost < PROMISED
        assert [failure.rank for failure in caught.value.failures] == [0, 1]
        assert context.nodes[0].address in str(caught.value)
        # A machine that is stopped and goes on: its agent ends the ranks.
        for pid in [raylet, *children_of(raylet)] if victims == "stopped" else []:
            os.kill(pid, signal.SIGCONT)
        assert until(lambda: all(map(ended, context.pids())), PROMISED)
    finally:
        cluster.remove_node(node, allow_graceful=False)


def test_the_ranks_of_a_lost_node_are_started_again_on_another(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "extra"
    folder.mkdir()
    node = conftest.add_node(cluster, folder, resources={"extra": 2})
    other = conftest.add_node(cluster, tmp_path, resources={"extra": 2})
    try:
        context: Any = mp.start_processes(
            wait_once,
            (str(folder), np.arange(200_000.0)),
            nprocs=2,
            join=False,
            max_restarts=1,
            engine=engines.Ray(nodes=1, resources={"extra": 1}),
        )
        assert until(lambda: len(list(folder.glob("[0-9]"))) == 2, 60)
        first = context.nodes[0]
        # Ray may have chosen either of the two.
        chosen = node if first.name.endswith(node.node_id[:6]) else other
        raylet = chosen.all_processes["raylet"][0].process.pid
        for pid in [raylet, *children_of(raylet)]:
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: (folder / "again-0").exists() and (folder / "again-1").exists(), 60)
        assert context.join(30)
        assert context.nodes[0].name != first.name
    finally:
        for each in node, other:
            cluster.remove_node(each, allow_graceful=False)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_no_rank_outlives_a_driver_on_ray(cluster: Any, tmp_path: Path, signum: int) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    driver = start_driver(tmp_path, folder, 6, f"engines.Ray({cluster.address!r}, nodes=3)")
    assert until(lambda: len(list(folder.glob("[0-9]"))) == 6, 60)
    pids = [int(path.read_text()) for path in folder.glob("[0-9]")]
    os.kill(driver.pid, signum)
    assert until(lambda: all(map(ended, pids)), PROMISED)
    driver.wait(30)


def test_each_rank_has_the_devices_that_ray_has_given(cluster: Any, tmp_path: Path) -> None:
    node = conftest.add_node(cluster, tmp_path, num_gpus=4)
    try:
        found = mp.run(devices, nprocs=2, engine=engines.Ray(resources={"GPU": 2}))
        assert len(set(",".join(found).split(","))) == 4
    finally:
        cluster.remove_node(node)


def test_the_command_runs_a_script_on_ray(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    done = subprocess.run(
        [sys.executable, "-m", "mp_spawn", "--engine", "ray", "--nnodes", "2", "-n", "2", str(script)],
        env=os.environ | {"RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert said == ["rank 0 of 2", "rank 1 of 2"], (done.stdout, done.stderr)


def test_a_signal_to_the_command_reaches_the_handlers_of_ranks_on_ray(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "path = f'{sys.argv[1]}/{os.environ[\"RANK\"]}'\n"
        "def save(*_):\n"
        "    open(path + '.saved', 'x').close()\n"
        "    sys.exit(40)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open(path + '.ready', 'x').close()\n"
        "time.sleep(300)\n"
    )
    command = [sys.executable, "-m", "mp_spawn", "--engine", "ray", "-n", "2", str(script), str(tmp_path)]
    with subprocess.Popen(command, env=os.environ | {"RAY_ADDRESS": cluster.address}, stderr=subprocess.PIPE) as job:
        try:
            assert until(lambda: len(list(tmp_path.glob("*.ready"))) == 2, 60)
            job.terminate()
            err = job.communicate(timeout=60)[1]
        finally:
            job.kill()
    assert (job.returncode, len(list(tmp_path.glob("*.saved")))) == (40, 2), err


def test_a_program_on_ray_keeps_its_handler_and_leaves_a_pool_open(cluster: Any, tmp_path: Path) -> None:
    program = """
        import signal, sys
        import mp_all as mp

        def note(*_):
            print("came")

        if __name__ == "__main__":
            signal.signal(signal.SIGTERM, note)
            pool = mp.Pool(2, engine=mp.engines.Ray(sys.argv[1]))
            print(pool.map(abs, [-1, 2]))
            signal.raise_signal(signal.SIGTERM)
    """
    assert succeeded(run_script(tmp_path, program, cluster.address)) == "[1, 2]\ncame\n"


def test_the_address_of_another_cluster_is_refused_in_a_program_that_is_connected(cluster: Any) -> None:
    with pytest.raises(engines.EngineError, match=r"connected to the Ray cluster at .*, and not to '10.0.0.1:6379'"):
        mp.run(environment, nprocs=1, engine=engines.Ray("10.0.0.1:6379"))
    assert len(mp.run(environment, nprocs=1, engine=engines.Ray(cluster.address))) == 1


@pytest.mark.parametrize("resources", [{"CPU": 0}, {"CPU": -1}, {"GPU": -1}])
def test_resources_that_nothing_can_have_are_refused(resources: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"a rank needs 0 or more of each, and more than 0 of one"):
        engines.Ray(resources=resources)


@pytest.mark.parametrize("how", ["left", "leaves"])
def test_a_job_of_a_program_that_leaves_the_cluster_fails(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    class Shut:
        is_initialized = staticmethod(lambda: how == "leaves")

        @staticmethod
        def wait(*args: Any, **options: Any) -> Any:
            sys.exit(0)

    agents = RayAgents.__new__(RayAgents)
    agents._ray, agents._polls = Shut, {object(): (0, None)}
    with pytest.raises(engines.EngineError, match=r"this program has left the Ray cluster, by ray.shutdown\(\)"):
        agents.receive(1.0)
