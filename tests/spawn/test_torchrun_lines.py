"""A launch line of torchrun starts the same ranks under mp-spawn, on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mp_core.system.control_groups import processors
from mp_spawn.command import command_options
from mp_spawn.command.command_line import REFUSED, parsed

SHOW = """
    import os, pathlib, signal, sys, time

    def attempt():
        return int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def say(*words):
        print(*words, flush=True)

    rank = int(os.environ["RANK"])
    for text in sys.argv[1:]:
        exec(text)
"""
OF_A_RANK = [
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "MASTER_ADDR"),
]


@pytest.fixture
def show(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text(textwrap.dedent(SHOW))
    return str(path)


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """
    Run ``python -m mp_spawn`` without the variables that it reads.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "PET_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-m", "mp_spawn", *arguments],
        env=kept | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("number", ["-n", "--nproc-per-node", "--nproc_per_node"])
def test_a_rank_finds_all_that_torchrun_tells(show: str, number: str) -> None:
    told = command(number, "2", "--rdzv-id", "7", "--role", "trainer", show, f"say(*map(os.environ.get, {OF_A_RANK}))")
    assert lines(told) == [f"[rank {k}] {k} {k} 2 2 0 1 {k} 2 trainer 7 0 0 127.0.0.1" for k in range(2)]


@pytest.mark.parametrize(
    "line",
    [
        ["--standalone", "--nnodes=1", "--nproc-per-node=2"],
        ["--nnodes", "1:1", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
        ["--nproc_per_node=2", "--master_addr=localhost", "--master_port=29517", "--node_rank=0", "--nnodes=1"],
        ["--nproc-per-node", "2", "--rdzv-conf", "read_timeout=5,join_timeout=60", "--monitor-interval", "5"],
        ["--nproc-per-node", "2", "--start-method", "spawn", "--run-path", "--rdzv-backend=static"],
        ["--nproc-per-node=2", "--master-port=0"],
    ],
)
def test_lines_of_torchrun_start_two_ranks_that_can_meet(show: str, line: list[str]) -> None:
    where = "say(os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']) > 0)"
    host = "localhost" if any("localhost" in word for word in line) else "127.0.0.1"
    assert lines(command(*line, show, where)) == [f"[rank {k}] 2 {host} True" for k in range(2)]


def test_a_given_port_reaches_the_ranks_and_a_standalone_job_has_its_own(show: str) -> None:
    where = "say(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], os.environ['TORCHELASTIC_RUN_ID'])"
    environment = {"MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "7"}
    assert lines(command("--master-port", "29518", show, where, **environment)) == ["[rank 0] 10.9.8.7 29518 none"]
    (line,) = lines(command("--standalone", "--rdzv-id", "x", show, where, **environment))
    _, _, host, port, run_id = line.split()
    assert (host, len(run_id)) == ("127.0.0.1", 36)
    assert port != "7"


def test_counts_by_processors_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert [command_options.count_per_node(text) for text in ("auto", "gpu", "4", None)] == [3, 3, 4, 1]
    assert command_options.count_per_node("cpu") == max(1, int(processors()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert command_options.count_per_node("auto") == max(1, int(processors()))
    with pytest.raises(ValueError, match="--nproc-per-node gpu finds no CUDA device here"):
        command_options.count_per_node("gpu")


def test_several_ranks_of_a_node_have_one_thread_each_unless_the_user_says_otherwise(show: str) -> None:
    threads = "say(os.environ.get('OMP_NUM_THREADS'))"
    for line, environment, number in (
        (["--nproc-per-node", "2"], {}, "1"),
        (["--nproc-per-node", "1"], {}, "None"),
        (["--nproc-per-node", "2"], {"OMP_NUM_THREADS": "3"}, "3"),
        (["--nproc-per-node", "2", "--threads-per-rank", "4"], {}, "4"),
        (["-n", "2"], {}, "None"),
    ):
        assert lines(command(*line, show, threads, **environment))[0] == f"[rank 0] {number}"


def test_variables_stand_for_options_and_the_line_overrides_them(show: str) -> None:
    environment = {"PET_NPROC_PER_NODE": "3", "PET_ROLE": "r", "PET_STANDALONE": "1", "PET_TEE": "0"}
    role = "say(os.environ['WORLD_SIZE'], os.environ['ROLE_NAME'], len(os.environ['TORCHELASTIC_RUN_ID']))"
    assert lines(command(show, role, **environment)) == [f"[rank {k}] 3 r 36" for k in range(3)]
    assert lines(command("-n", "1", "--role", "q", show, role, **environment)) == ["[rank 0] 1 q 36"]
    # A command that a rank of several nodes starts is none of the job of the variables.
    assert lines(command(show, role, **environment, MP_SPAWN_INSIDE="1")) == ["[rank 0] 1 default 4"]


def test_the_arguments_of_the_script_stay_as_they_are(show: str) -> None:
    mine = ["pass", "'--a_b'", "'-t'", "'--tee'", "'--nproc_per_node=2'"]
    for tee in ([], ["-t", "0"], ["--tee=0"]):
        assert parsed([*tee, show, *mine, "--a_b", "--tee", "-t"]).arguments == [*mine, "--a_b", "--tee", "-t"]
    assert parsed(["--tee", show, "--tee", "x_y"]).script == show
    assert parsed(["-t", "0:1,1:3", show]).tee == "0:1,1:3"


BOTH = "print('out', rank, flush=True); print('err', rank, file=sys.stderr, flush=True)"


@pytest.mark.parametrize(
    ("options", "shown", "filed"),
    [
        (["-r", "3"], [], ["rank-0.err", "rank-0.out", "rank-1.err", "rank-1.out"]),
        (["-r", "1"], ["err 0", "err 1"], ["rank-0.out", "rank-1.out"]),
        (["--redirects", "0:1,1:3"], ["err 0"], ["rank-0.out", "rank-1.err", "rank-1.out"]),
        (["-t", "2"], ["err 0", "err 1", "out 0", "out 1"], ["rank-0.err", "rank-1.err"]),
        (["-r", "3", "-t", "0:1"], ["out 0"], ["rank-0.err", "rank-0.out", "rank-1.err", "rank-1.out"]),
        (
            ["-t", "3", "--local-ranks-filter", "1"],
            ["err 1", "out 1"],
            [f"rank-{k}.{e}" for k in (0, 1) for e in ("err", "out")],
        ),
    ],
)
def test_streams_of_ranks_go_to_files_and_are_shown(
    show: str, tmp_path: Path, options: list[str], shown: list[str], filed: list[str]
) -> None:
    folder = tmp_path / "logs"
    done = command("--nproc-per-node", "2", "--log-dir", str(folder), *options, show, BOTH)
    assert done.returncode == 0, done.stderr
    seen = [line.split("] ")[1] for line in (done.stdout + done.stderr).splitlines()]
    assert sorted(seen) == shown
    assert sorted(path.name for path in folder.iterdir()) == sorted(filed)
    for path in folder.iterdir():
        assert path.read_text() == f"{path.suffix[1:]} {path.stem[-1]}\n"


def test_output_can_be_shown_of_some_ranks_only(show: str) -> None:
    done = command("-n", "3", "--local-ranks-filter", "0,2", show, "say('hello')")
    assert lines(done) == ["[rank 0] hello", "[rank 2] hello"]


def test_files_without_a_folder_go_to_a_new_one_that_is_named(show: str, tmp_path: Path) -> None:
    done = command("--nproc-per-node", "1", "--tee", show, "say('hello')", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "[rank 0] hello\n")
    (folder,) = tmp_path.glob("mp-spawn-*")
    assert f"files in {folder};" in done.stderr
    assert (folder / "rank-0.out").read_text() == "hello\n"


# Rank 1 fails in the first attempt, while rank 0 waits for it, as in a collective operation.
FAIL_ONCE = """
say("attempt", attempt())
here = pathlib.Path(sys.argv[0] + ".here")
if attempt() == 0 and rank == 0:
    here.touch()
    time.sleep(300)
while rank == 1 and not here.exists():
    time.sleep(0.01)
if attempt() == 0:
    os._exit(3)
"""


@pytest.mark.parametrize("options", [["--nproc-per-node", "2"], ["-n", "2", "--restart", "all"]])
@pytest.mark.timeout(200)
def test_a_failure_starts_all_ranks_again(show: str, options: list[str], start_method: str) -> None:
    more = ["--max-restarts", "2", "--start-method", start_method]
    done = command(*options, *more, show, FAIL_ONCE)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank {k}] attempt {a}" for k in (0, 1) for a in (0, 1)]
    assert "exit code 3; all ranks are started again (1 of 2)" in done.stderr


def test_a_failure_with_a_number_of_ranks_in_all_starts_one_rank_again(show: str) -> None:
    both = (  # rank 0 waits for the second attempt of rank 1
        "say('attempt', attempt())",
        "again = pathlib.Path(sys.argv[0] + '.again')",
        "if rank == 1: attempt() or os._exit(3); again.touch()",
        "while not again.exists(): time.sleep(0.01)",
    )
    done = command("-n", "2", "--max-restarts", "1", show, *both)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] attempt 0", "[rank 1] attempt 0", "[rank 1] attempt 1"]


def test_the_last_failure_is_the_exit_code_and_the_earlier_ones_are_told(show: str) -> None:
    done = command("--nproc-per-node", "2", "--max-restarts", "1", show, "rank == 1 and os._exit(3 + attempt())")
    assert done.returncode == 4, done.stderr
    assert "exit code 3; all ranks are started again (1 of 1)" in done.stderr


@pytest.mark.parametrize("number", ["-n", "--nproc-per-node"])
def test_ranks_that_a_signal_ends_are_not_started_again(show: str, number: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", number, "2", "--max-restarts", "3", show, "say('here'); time.sleep(300)"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert "here" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert "started again" not in err


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_cannot_be_had_is_refused_by_name(option: str, show: str) -> None:
    for line in ([f"{option.replace('-', '_').replace('__', '--')}=1", show], [option, "1", show]):
        done = command(*line)
        assert done.returncode == 2
        assert f"{option} is an option of torchrun that mp-spawn does not have; " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-n", "2", "--nproc-per-node", "2"], "--nproc-per-node: not allowed with argument -n/--nprocs"),
        (["--nproc-per-node", "xpu"], "--nproc-per-node xpu is no number; give one, or auto, cpu or gpu"),
        (["--nproc-per-node", "0"], "--nproc-per-node 0 is too small"),
        (["--nnodes", "2:1"], "2:1 is no number of nodes"),
        (["--nnodes", "two"], "two is no number of nodes; give one, or MIN:MAX"),
        (["--standalone", "--nnodes", "2"], "--standalone is for one node, and --nnodes asks for 2"),
        (["--rdzv-backend", "etcd-v2"], "--rdzv-backend etcd-v2 is not supported; give static or c10d"),
        (["--rdzv-endpoint", "host:http"], "host:http is no place to meet; give HOST:PORT"),
        (["--rdzv-endpoint", "host:65536"], "--rdzv-endpoint: 65536 is no port; give a number from 0 to 65535"),
        (["--master-port", "99999"], "--master-port: 99999 is no port; give a number from 0 to 65535"),
        (["--master-port", "-1"], "--master-port: -1 is no port; give a number from 0 to 65535"),
        (["--rdzv-conf", "jointimeout=3"], "jointimeout is not known; give some of "),
        (["--rdzv-conf", "join_timeout=soon"], "join_timeout=soon has no value that join_timeout can have"),
        (["--rdzv-conf", "join_timeout=nan"], "--rdzv-conf: nan is no time to wait; give seconds"),
        (["--rdzv-conf", "last_call_timeout=1e99"], "--rdzv-conf: 1e99 is no time to wait; give seconds"),
        (["--redirects", "4"], "--redirects 4 selects no streams; give 0, 1 (standard output)"),
        (["--tee=out"], "--tee out selects no streams"),
        (["--local-ranks-filter", "first"], "--local-ranks-filter first is no list of ranks"),
        (["--tee", "3", "--output", "capture"], "give --redirects, --tee and --local-ranks-filter, or --output"),
        (["--run-path", "-m"], "--run-path and -m ask for programs of different kinds; give one of them"),
    ],
)
def test_a_wrong_value_is_described_in_one_line(arguments: list[str], text: str) -> None:
    done = command(*arguments, __file__)
    assert done.returncode == 2
    assert text in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
