"""A node of a Ray cluster behind a link of its own: the link is slow, or set down while ranks run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import ended
from support.waiting import until

pytest.importorskip("ray", reason="ray is not installed")

PROMISED = 5.0
# The agent of a node that is cut off ends its ranks by itself; a loaded machine adds some.
ALL_ENDED = PROMISED + 5.0
PROGRAM = """
import sys
import time
import mp_all as mp
import numpy as np
sys.path.insert(0, sys.argv[2])
from node_functions import are_ranges, wait_for_ever

if __name__ == "__main__":
    import ray
    from ray.cluster_utils import Cluster
    cluster = Cluster()
    options = {"include_dashboard": False, "object_store_memory": 200 << 20}
    cluster.add_node(num_cpus=2, node_ip_address="10.199.77.1", **options)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error", _node_ip_address="10.199.77.1")
        print(cluster.address, flush=True)
        while sum(node["Alive"] for node in ray.nodes()) < 2:
            time.sleep(0.1)
        engine = mp.engines.Ray(nodes=2)
        if sys.argv[3] == "wait":
            mp.run(wait_for_ever, (sys.argv[1],), nprocs=4, engine=engine)
        print(all(mp.run(are_ranges, (np.arange(14 << 20),), nprocs=4, engine=engine)))
    finally:
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.fixture
def driver(request: pytest.FixtureRequest, tmp_path: Path, link: tuple[str, str]) -> Iterator[Any]:
    """
    Run the program, with a Ray cluster of a node here and one in the namespace. The parameter is what it does.
    """
    space, ours = link
    if request.param == "transfer":
        limit = f"tc qdisc add dev {ours} root tbf rate 60mbit burst 256kb latency 100ms"
        if shutil.which("tc") is None or subprocess.run(limit.split(), stderr=subprocess.DEVNULL).returncode:
            pytest.skip("a link cannot be made slow here")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "pids"
    folder.mkdir()
    command = [sys.executable, str(program), str(folder), str(Path(__file__).parent), request.param]
    # The path of a socket has a limit of about 100 characters.
    rays = Path(f"/tmp/{os.getpid()}-ray")
    environment = os.environ | {"RAY_TMPDIR": str(rays)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            ray = [str(Path(sys.executable).with_name("ray")), "start", "--address", address, "--num-cpus", "2"]
            more = ["--node-ip-address", "10.199.77.2", "--object-store-memory", str(200 << 20)]
            # Its processes are killed together, and then nobody is left to remove their session.
            node = os.environ | {"MPSHM_RUNTIME_DIR": str(rays)}
            subprocess.run(["ip", "netns", "exec", space, *ray, *more], check=True, stdout=subprocess.DEVNULL, env=node)
            yield process
        finally:
            # The processes of the node, of which no other can know while it is cut off.
            for pid in subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            shutil.rmtree(rays, ignore_errors=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", ["wait"], indirect=True)
def test_a_node_of_ray_that_is_cut_off_is_named_and_ends_its_ranks(
    driver: Any, tmp_path: Path, link: tuple[str, str]
) -> None:
    folder = tmp_path / "pids"
    assert until(lambda: len(list(folder.glob("[0-9]"))) == 4, 120)
    pids = [int(path.read_text()) for path in folder.glob("[0-9]")]
    cut = time.monotonic()
    subprocess.run(["ip", "link", "set", link[1], "down"], check=True)
    line = next(line for line in driver.stderr if "was lost with its ranks" in line)
    named = time.monotonic() - cut
    assert "at 10.199.77.2 was lost with its ranks" in line
    assert named < PROMISED
    assert until(lambda: all(map(ended, pids)), ALL_ENDED)
    print("named after", named, "all ranks ended after", time.monotonic() - cut)
    assert "ProcessExitedException" in driver.stderr.read()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", ["transfer"], indirect=True)
def test_an_array_crosses_a_slow_link_once(driver: Any, link: tuple[str, str]) -> None:
    # It takes 16 seconds. After 10, Ray would send an object of that size again.
    assert driver.stdout.read() == "True\n", driver.stderr.read()
    crossed = int(Path(f"/sys/class/net/{link[1]}/statistics/tx_bytes").read_text())
    assert 1 <= crossed / (8 * (14 << 20)) < 1.2
