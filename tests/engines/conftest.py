"""Fixtures of the engines' tests: three nodes of agents on this machine, or a Ray cluster of three nodes."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import leaks
from support.waiting import until

import mp_nodes as engines

# The ranks of the command show their place, wait, or let rank 2 do something.
SCRIPT = """
    import os, pathlib, signal, sys, time

    rank = int(os.environ["RANK"])
    if sys.argv[1] == "show":
        print(*(os.environ[name] for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")))
    elif sys.argv[1] == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(40 + rank))
        path = pathlib.Path(sys.argv[2], f".{rank}")
        path.write_text(str(os.getpid()))
        path.rename(path.with_name(str(rank)))
        time.sleep(300)
    elif rank == 2:
        eval(sys.argv[1])
    else:
        time.sleep(300)
"""

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """
    A Ray cluster of three nodes with 4 CPUs each, and a runtime folder each for shared memory.
    """
    if not HAS_RAY:
        pytest.skip("ray is not installed")
    import ray

    cluster = start_cluster(tmp_path_factory)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        engines.Ray().place(3).close(0)  # starts the threads and connections that ray makes once
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        for folder in Path("/tmp").glob(f"{os.getpid()}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """
    Start the cluster. Ray gives each raylet 30 seconds to start, which are not enough on an overloaded machine.
    """
    from ray.cluster_utils import Cluster

    attempts = 3
    while True:
        cluster = Cluster()
        try:
            for index in range(3):
                add_node(cluster, tmp_path_factory.mktemp(f"node-{index}"))
            return cluster
        except Exception:
            cluster.shutdown()
            attempts -= 1
            if not attempts:
                raise


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest, resources_made_once: None) -> Iterator[None]:
    """
    Check as every test does; with Ray, check for processes that are not Ray's, and for sessions of shared memory.

    Ray opens descriptors and starts workers at any time.
    """
    failed = request.session.testsfailed
    if "cluster" not in request.fixturenames and "[ray" not in request.node.name:
        before = leaks.snapshot()
        yield
        remaining = leaks.leaks_since(before) if request.session.testsfailed == failed else []
        assert not remaining, "left behind:\n  " + "\n  ".join(remaining)
        return
    request.getfixturevalue("cluster")
    processes = leaks.processes()
    yield
    if request.session.testsfailed > failed:
        return

    def left() -> list[str]:
        new = leaks.processes().keys() - processes.keys()
        found = [f"process {pid} {command}" for pid in new if not is_of_ray(command := command_of(pid))]
        # Not Path.glob, which raises when a folder goes while it looks.
        return found + [f"folder {path}" for path in glob.glob(f"/tmp/{os.getpid()}-node-*/mpshm-*/*")]

    until(lambda: not left(), leaks.PATIENCE)
    assert not left()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_of_ray(command: str) -> bool:
    return not command or command.startswith("ray::IDLE") or ("/ray/" in command and "RayAgent" not in command)


def add_node(cluster: Any, folder: Path, **options: Any) -> Any:
    """
    Add a node whose processes have *folder* as their runtime folder.
    """
    # The path of a socket has a limit of about 100 characters.
    short = Path(f"/tmp/{os.getpid()}-{folder.name}")
    short.mkdir(exist_ok=True)
    variables = {"MPSHM_RUNTIME_DIR": str(short)}
    more = {"include_dashboard": False} if cluster.head_node is None else {}
    size = 200 << 20
    return cluster.add_node(num_cpus=4, object_store_memory=size, env_vars=variables, **more, **options)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.skipif(not HAS_RAY, reason="no ray"))])
def engine(request: pytest.FixtureRequest) -> Any:
    """
    Three nodes under each engine in turn.
    """
    if request.param == "local":
        return engines.Local(nodes=3)
    request.getfixturevalue("cluster")
    return engines.Ray(nodes=3)


@pytest.fixture
def script(tmp_path: Path) -> str:
    """
    Write the script of the command's ranks, and return its path.
    """
    path = tmp_path / "a_script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


@pytest.fixture
def link() -> Iterator[tuple[str, str]]:
    """
    Make a network namespace with a link of its own: its name, and that of our end of the link, at 10.199.77.1.
    """
    space, ours = f"mp-{os.getpid()}", f"mp{os.getpid()}"
    commands = [
        f"ip netns add {space}",
        f"ip link add {ours} type veth peer name theirs netns {space}",
        f"ip addr add 10.199.77.1/30 dev {ours}",
        f"ip link set {ours} up",
        f"ip -n {space} addr add 10.199.77.2/30 dev theirs",
        f"ip -n {space} link set theirs up",
        f"ip -n {space} link set lo up",
    ]
    try:
        for command in commands:
            try:
                done = subprocess.run(command.split(), capture_output=True, text=True)
            except FileNotFoundError:
                pytest.skip("the command ip is missing")
            if done.returncode:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        yield space, ours
    finally:
        if shutil.which("ip") is not None:
            subprocess.run(["ip", "link", "del", ours], capture_output=True)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
