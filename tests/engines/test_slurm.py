"""A real Slurm on this machine: srun starts an mp-spawn on each of three nodes, which are slurmds with their own ports.

It needs root and Debian's slurmd, slurmctld, slurm-client and munge.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import ended
from support.waiting import until

KEY = "a secret for the tests"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "sinfo")
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=zz-2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
NodeName=zz-3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """
    Run Slurm; yield the environment for its commands.
    """
    if missing := [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]:
        pytest.skip(f"no {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root here")
    # The path of a socket has a limit of about 100 characters, and others than root go through the folder.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    for name in ("munge", "state"):
        (folder / name).mkdir()
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(4)))
    environment = os.environ | {
        "SLURM_CONF": str(configuration),
        "MP_SPAWN_KEY": KEY,
        "NO_COLOR": "1",
        "PATH": f"{os.environ['PATH']}:/usr/sbin",
    }
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    of_munge = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = [
        ["munged", "--foreground", f"--key-file={key}", *of_munge],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", name] for name in (host, "zz-2", "zz-3")),
    ]
    running: list[subprocess.Popen[bytes]] = []
    log = (folder / "log").open("wb")
    try:
        for command in commands:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
            if command[0] == "munged":
                assert until((folder / "munge" / "socket").exists, 20), (folder / "log").read_text()

        def idle() -> bool:
            shown = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
            return subprocess.run(shown, env=environment, capture_output=True, text=True).stdout.strip() == "3"

        assert until(idle, 60), (folder / "log").read_text()
        yield environment
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


SRUN = ["srun", "--nodes=3", "--ntasks-per-node=1", sys.executable, "-m", "mp_spawn", "-n", "6"]


def test_srun_starts_the_nodes_which_need_no_option(slurm: dict[str, str], script: str) -> None:
    done = subprocess.run([*SRUN, script, "show"], env=slurm, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split("] ")[1] for line in done.stdout.splitlines())
    assert lines == sorted(f"{rank % 2} 6 2 {rank // 2}" for rank in range(6))


def test_srun_exits_with_the_code_of_the_first_failure(slurm: dict[str, str], script: str) -> None:
    done = subprocess.run([*SRUN, script, "sys.exit(7)"], env=slurm, capture_output=True, text=True, timeout=90)
    assert done.returncode == 7, done.stderr
    assert "rank 2 (pid" in done.stderr


def test_a_cancelled_job_leaves_no_rank(slurm: dict[str, str], script: str, tmp_path: Path) -> None:
    process = subprocess.Popen([*SRUN, script, "wait", str(tmp_path)], env=slurm, stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: len(list(tmp_path.glob("[0-9]"))) == 6, 60)
        pids = [int(path.read_text()) for path in tmp_path.glob("[0-9]")]
        subprocess.run(["scancel", "--user=root"], env=slurm, check=True, timeout=30)
        assert until(lambda: all(map(ended, pids)), 20)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()


def test_a_killed_step_of_one_node_ends_the_ranks_of_all(slurm: dict[str, str], script: str, tmp_path: Path) -> None:
    process = subprocess.Popen([*SRUN, script, "wait", str(tmp_path)], env=slurm, stderr=subprocess.PIPE, text=True)
    try:
        assert until(lambda: len(list(tmp_path.glob("[0-9]"))) == 6, 60)
        pids = [int((tmp_path / str(rank)).read_text()) for rank in range(6)]
        # The mp-spawn of node 2, which has forked the process that has forked its ranks.
        zygote = int(Path(f"/proc/{pids[4]}/stat").read_text().rpartition(")")[2].split()[1])
        agent = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        assert until(lambda: all(map(ended, pids)), 20)
        _, err = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "lost with its node" in err
    finally:
        process.kill()
        process.communicate()
