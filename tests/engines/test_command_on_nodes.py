"""One mp-spawn on each node, by hand, under mpirun and under Slurm's variables; here all nodes are this machine."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ports import free_port
from support.processes import ended
from support.waiting import until

from mp_nodes.job_place import first_host, place_in_job
from mp_spawn.command.command_line import parsed
from mp_spawn.command.several_nodes import several_nodes

KEY = "a secret for the tests"
# The promise is 5 seconds. A loaded machine adds some.
PROMISED = 5.0 + 3.0


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "MP_SPAWN_"))}
    return kept | more


@contextmanager
def nodes(*arguments: str, keys: tuple[str, ...] = (KEY, KEY, KEY)) -> Iterator[list[subprocess.Popen[str]]]:
    """
    Start an mp-spawn as each node of a job, the last one first.
    """
    common = ["--nnodes", str(len(keys)), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "mp_spawn", *common, "--node-rank", str(index), *arguments],
            env=environment(MP_SPAWN_KEY=keys[index]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in reversed(range(len(keys)))
    ][::-1]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_ranks_run_on_all_nodes_and_print_at_node_0(script: str) -> None:
    with nodes("-n", "6", script, "show") as (first, *others):
        code, out, err = finish(first)
        assert (code, err) == (0, "")
        lines = sorted(line.split("] ")[1] for line in out.splitlines())
        assert lines == sorted(f"{rank % 2} 6 2 {rank // 2}" for rank in range(6))
        assert all(f"-{rank // 2}:{rank}] " in out for rank in range(6))
        assert [finish(other) for other in others] == [(0, "", "")] * 2


@pytest.mark.parametrize(("how", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("1/0", 1)])
def test_every_node_exits_with_the_code_of_the_first_failure(script: str, how: str, code: int) -> None:
    with nodes("-n", "3", script, how) as (first, *others):
        found, _, err = finish(first)
        assert found == code
        assert "rank 2 (pid" in err
        assert [finish(other)[0] for other in others] == [code, code]


@pytest.mark.parametrize("signalled", ["node 0", "every node"])
def test_a_signal_reaches_the_ranks_of_all_nodes_once(script: str, tmp_path: Path, signalled: str) -> None:
    with nodes("-n", "3", script, "wait", str(tmp_path)) as started:
        pids = ranks_in(tmp_path, 3)
        for process in started if signalled == "every node" else started[:1]:
            process.send_signal(signal.SIGTERM)
        codes = [finish(process)[0] for process in started]
        assert codes[0] in (40, 41, 42)
        assert set(codes) == {codes[0]}
        assert all(map(ended, pids))


def test_a_killed_node_is_named_and_all_end(script: str, tmp_path: Path) -> None:
    with nodes("-n", "3", script, "wait", str(tmp_path)) as started:
        pids = ranks_in(tmp_path, 3)
        killed = time.monotonic()
        started[1].kill()
        code, _, err = finish(started[0])
        assert code == 255
        assert "lost with its node" in err
        assert "127.0.0.1" in err
        assert time.monotonic() - killed < 20
        assert until(lambda: all(map(ended, pids)), 10)


def test_the_ranks_of_a_killed_node_are_started_again_on_node_0(script: str, tmp_path: Path) -> None:
    once = "print('again') if os.path.exists(sys.argv[2]) else (open(sys.argv[2], 'x'), time.sleep(300))"
    with nodes("-n", "3", "--max-restarts", "1", script, once, str(tmp_path / "once")) as started:
        assert until((tmp_path / "once").exists, 60)
        started[2].kill()
        assert started[0].stdout is not None
        assert "-again-1:2] again" in started[0].stdout.readline()
        started[0].terminate()


def test_no_rank_outlives_node_0(script: str, tmp_path: Path) -> None:
    with nodes("-n", "3", script, "wait", str(tmp_path)) as started:
        pids = ranks_in(tmp_path, 3)
        started[0].kill()
        assert until(lambda: all(map(ended, pids)), 8)
        assert [process.wait(30) for process in started[1:]] == [1, 1]


def test_a_node_that_ends_since_node_0_is_silent_says_so(script: str, tmp_path: Path) -> None:
    with nodes("-n", "3", script, "wait", str(tmp_path)) as started:
        pids = ranks_in(tmp_path, 3)
        started[0].send_signal(signal.SIGSTOP)
        for process in started[1:]:
            code, _, err = finish(process)
            assert code == 1
            assert "this node has ended its ranks: it heard nothing from the driver for 3.5 s" in err
        started[0].kill()
        assert until(lambda: all(map(ended, pids)), 8)


def ranks_in(folder: Path, count: int) -> list[int]:
    assert until(lambda: len(list(folder.glob("[0-9]"))) == count, 60)
    return [int(path.read_text()) for path in folder.glob("[0-9]")]


def test_a_node_with_another_key_is_turned_away(script: str) -> None:
    with nodes("-n", "2", script, "show", keys=(KEY, "another secret of tests")) as (first, other):
        code, _, err = finish(other)
        assert code == 1
        assert "another key" in err
        assert first.poll() is None


def test_nothing_is_unpickled_from_a_peer_without_the_key(script: str, tmp_path: Path) -> None:
    port = free_port()
    command = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    node_0 = subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", *command, "-n", "2", script, "show"],
        env=environment(MP_SPAWN_KEY=KEY, NO_COLOR="1"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: listens(port), 30)
        witness = tmp_path / "unpickled"
        with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
            assert peer.recv(1000).startswith(b"mp-spawn nodes ")
            data = pickle.dumps(WritesAFile(str(witness)))
            peer.sendall(struct.pack("!i", len(data)) + data)
            assert not any(peer.recv(1000))
        assert not witness.exists()
        assert node_0.poll() is None
    finally:
        node_0.kill()
        node_0.communicate()


class WritesAFile:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def listens(port: int) -> bool:
    """
    Tell whether a process listens on the port, and then only on the loopback interface.
    """
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return f"0100007F:{port:04X}" in [fields[1] for fields in lines if fields[3] == "0A"]


# Open MPI sets OMPI_*, MPICH sets PMI_*. Debian has both side by side.
MPIRUN = {"openmpi": ["--oversubscribe", "--allow-run-as-root", "-x", "MP_SPAWN_KEY"], "mpich": []}


def mpirun_of(kind: str) -> str | None:
    """
    Return the launcher of Open MPI or MPICH.
    """
    path = os.environ.get(f"MPIRUN_{kind.upper()}") or shutil.which(f"mpirun.{kind}") or shutil.which("mpirun")
    if path is None:
        return None
    version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
    return path if ("Open MPI" in version) == (kind == "openmpi") else None


@pytest.mark.parametrize("kind", MPIRUN)
def test_mpirun_starts_the_nodes(script: str, kind: str) -> None:
    if (launcher := mpirun_of(kind)) is None:
        pytest.skip(f"no mpirun of {kind}")
    mpirun = [launcher, *MPIRUN[kind], "-n", "3"]
    for how, code in (("show", 0), ("sys.exit(7)", 7)):
        done = subprocess.run(
            [*mpirun, sys.executable, "-m", "mp_spawn", "-n", "6", script, how],
            env=environment(MP_SPAWN_KEY=KEY, NO_COLOR="1"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, done.stderr
        if how == "show":
            lines = sorted(line.split("] ")[1] for line in done.stdout.splitlines())
            assert lines == sorted(f"{rank % 2} 6 2 {rank // 2}" for rank in range(6))


NOTHING = parsed(["script.py"])
SLURM = {
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "3",
    "SLURM_STEP_NODELIST": "node[07-09,12]",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "MP_SPAWN_KEY": KEY,
}


def test_a_launchers_variable_that_is_not_a_number_is_named() -> None:
    for several in (several_nodes, place_in_job):
        assert not several(NOTHING, {"PMI_SIZE": ""})
        with pytest.raises(ValueError, match="PMI_SIZE='two' is not a number"):
            several(NOTHING, {"PMI_SIZE": "two"})


@pytest.mark.parametrize(("size", "number"), [("SLURM_STEP_NUM_NODES", "SLURM_NODEID"), ("PMI_SIZE", "PMI_RANK")])
def test_a_launchers_variable_that_is_missing_is_named(size: str, number: str) -> None:
    with pytest.raises(ValueError, match=f"{size} is 2, but {number} is not set"):
        place_in_job(NOTHING, {size: "2"})
    with pytest.raises(ValueError, match=f"{number}='x' is not a number"):
        place_in_job(NOTHING, {size: "2", number: "x", "SLURM_STEP_NODELIST": "a,b"})


def test_slurms_variables_give_the_place() -> None:
    place = place_in_job(NOTHING, SLURM)
    assert place is not None
    assert place[:3] == (4, 3, "node07")
    assert 20000 <= place.port < 30000
    assert place_in_job(NOTHING, SLURM | {"SLURM_STEP_ID": "1"}) != place
    assert place_in_job(NOTHING, SLURM | {"SLURM_STEP_NUM_NODES": "1"}) is None
    assert place_in_job(NOTHING, SLURM | {"MP_SPAWN_INSIDE": "1"}) is None
    with pytest.raises(ValueError, match="--ntasks-per-node 1"):
        place_in_job(NOTHING, SLURM | {"SLURM_STEP_NUM_TASKS": "8"})
    with pytest.raises(ValueError, match="openssl rand"):
        place_in_job(NOTHING, {name: value for name, value in SLURM.items() if name != "MP_SPAWN_KEY"})
    assert first_host("gpu[1,3]x,b") == "gpu1x"


def test_a_key_file_must_be_the_users_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o644)
    chosen = argparse.Namespace(**{**vars(NOTHING), "key_file": str(file)})
    with pytest.raises(ValueError, match="chmod 600"):
        place_in_job(chosen, SLURM)
    chosen.key_file = str(tmp_path)
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        place_in_job(chosen, SLURM)
    chosen.key_file = str(file)
    file.chmod(0o600)
    place = place_in_job(chosen, SLURM)
    assert place is not None
    assert place.key == KEY.encode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nnodes", "2"], "both --nnodes and --node-rank"),
        (["--nnodes", "2", "--node-rank", "2"], "number the nodes from 0"),
        (["--nnodes", "2", "--node-rank", "0"], "--master-addr"),
    ],
)
def test_an_incomplete_place_is_refused(script: str, options: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mp_spawn", *options, script, "show"],
        env=environment(MP_SPAWN_KEY=KEY, NO_COLOR="1"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert words in done.stderr


def test_the_command_tries_nodes_on_this_machine(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mp_spawn", "--engine", "local", "--nnodes", "2", "-n", "4", script, "show"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines())[3] == "[local-1:3] 1 4 2 1"


def test_a_node_that_is_cut_off_is_reported_and_ends_its_ranks(
    script: str, tmp_path: Path, link: tuple[str, str]
) -> None:
    space, ours = link
    common = ["--nnodes", "2", "--master-addr", "10.199.77.1", "--master-port", str(free_port()), "-n", "2"]
    command = [sys.executable, "-m", "mp_spawn", *common, "--node-rank"]
    end = [script, "wait", str(tmp_path)]
    options = {"env": environment(MP_SPAWN_KEY=KEY), "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with (
        subprocess.Popen([*command, "0", *end], **options) as node_0,  # type: ignore[call-overload]
        subprocess.Popen(["ip", "netns", "exec", space, *command, "1", *end], **options) as node_1,  # type: ignore[call-overload]
    ):
        try:
            pids = ranks_in(tmp_path, 2)
            cut = time.monotonic()
            subprocess.run(["ip", "link", "set", ours, "down"], check=True)
            line = node_0.stderr.readline()
            print("named after", time.monotonic() - cut)
            assert time.monotonic() - cut < 5.0
            assert b"was lost with its ranks [1]: no sign of life" in line
            assert node_0.wait(30) == 255
            print("reported after", time.monotonic() - cut)
            assert b"was lost with its node" in node_0.stderr.read()
            assert node_1.wait(30) == 1
            assert until(lambda: all(map(ended, pids)), 10)
            assert time.monotonic() - cut < PROMISED
        finally:
            node_0.kill()
            node_1.kill()
