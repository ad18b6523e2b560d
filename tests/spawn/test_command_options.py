"""Options of the command mp-spawn: number, processors, devices, environment, time, output, programs, standard input."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from descendants import Watched

from mp_core.system.control_groups import processors
from mp_spawn.command import command_options
from mp_spawn.command.command_line import parsed

SHOW = """
    import os, sys
    print(os.environ["RANK"], eval(sys.argv[1]), flush=True)
"""


@pytest.fixture
def show(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text(textwrap.dedent(SHOW))
    return str(path)


def command(*arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """
    Run ``python -m mp_spawn`` with a pipe as its standard input.
    """
    return subprocess.run(
        [sys.executable, "-m", "mp_spawn", *arguments],
        env=os.environ | environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return sorted(done.stdout.splitlines())


def test_auto_is_a_rank_for_each_processor_of_this_process(show: str) -> None:
    mine = max(1, int(processors()))
    assert len(lines(command("-n", "auto", show, "1"))) == mine
    one = f"import os, sys; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}]); os.execv(sys.executable, "
    one += f"[sys.executable, '-m', 'mp_spawn', '-n', 'auto', {show!r}, '1'])"
    done = subprocess.run([sys.executable, "-c", one], capture_output=True, text=True, timeout=60)
    assert lines(done) == ["[rank 0] 0 1"]
    assert len(lines(command("-n", "auto", "--threads-per-rank", str(mine), show, "1"))) == 1


@pytest.mark.parametrize(("granted", "threads", "ranks"), [(2.5, None, 2), (0.5, None, 1), (8.0, 3, 2)])
def test_auto_asks_for_the_processors_that_a_control_group_grants(
    monkeypatch: pytest.MonkeyPatch, granted: float, threads: int | None, ranks: int
) -> None:
    monkeypatch.setattr(command_options, "processors", lambda: granted)
    assert command_options.count_ranks("auto", threads) == ranks


def test_ranks_are_bound_to_the_processors_that_are_named(show: str) -> None:
    first, *_, last = [*sorted(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))]
    done = command("-n", "2", "--bind", f"{first}:{last}", show, "sorted(os.sched_getaffinity(0))")
    assert lines(done) == [f"[rank 0] 0 [{first}]", f"[rank 1] 1 [{last}]"]
    assert len(lines(command("-n", "2", "--bind", "spread", show, "1"))) == 2


def test_each_rank_gets_its_devices(show: str) -> None:
    arguments = ["--gpus-per-rank", "2", show, "os.environ['CUDA_VISIBLE_DEVICES']"]
    for number in ("2", "auto"):
        done = command("-n", number, *arguments, CUDA_VISIBLE_DEVICES="3, 5,MIG-a,7,9")
        assert lines(done) == ["[rank 0] 0 3,5", "[rank 1] 1 MIG-a,7"]
    done = command("-n", "auto", *arguments, CUDA_VISIBLE_DEVICES="3,5,-1,7,9")  # to CUDA, -1 ends the list
    assert lines(done) == ["[rank 0] 0 3,5"]


def test_devices_without_a_variable_are_those_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(command_options, "NVIDIA_DEVICES", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command_options.devices_by_rank(1, 2)[1] == {"CUDA_VISIBLE_DEVICES": "1"}
    assert command_options.count_ranks("auto", gpus_per_rank=1) == 2


def test_variables_reach_every_rank_and_an_interpreter_that_reads_them_early(show: str, start_method: str) -> None:
    options = ["--start-method", start_method, "--env", "A=1=2", "--env", "PYTHONHASHSEED=7", "-n", "2"]
    done = command(*options, show, "os.environ['A'], os.environ['PYTHONHASHSEED']")
    assert lines(done) == [f"[rank {k}] {k} ('1=2', '7')" for k in range(2)]


def test_ranks_that_are_too_slow_are_ended_with_their_stacks(show: str) -> None:
    both, seconds = ["[rank 0] 0 None", "[rank 1] 1 None"], 2
    asleep = "(print(os.environ['RANK'], None, flush=True), __import__('time').sleep(300))"
    while True:  # a busy machine may need longer until both ranks sleep
        done = command("-n", "2", "--timeout", str(seconds), show, asleep)
        assert done.returncode == 124
        told = f"mp-spawn: 2 of 2 ranks still ran after {seconds} s, and have been ended\nrank 0 (pid "
        assert done.stderr.startswith(told), done.stderr
        if sorted(done.stdout.splitlines()) == both or seconds >= 32:
            break
        seconds *= 4
    assert done.stderr.count("show.py") == 2, done.stderr
    assert lines(command("-n", "2", "--timeout", "2000000", show, "1")) == ["[rank 0] 0 1", "[rank 1] 1 1"]


def test_output_goes_to_files_and_with_tee_here_too(show: str, tmp_path: Path) -> None:
    text = "sys.stderr.write('to err\\n')"
    only = command("-n", "2", "--log-dir", str(tmp_path / "only"), show, text)
    assert (only.returncode, only.stdout, only.stderr) == (0, "", "")
    both = command("-n", "2", "--log-dir", str(tmp_path / "both"), "--tee", show, text)
    assert sorted(both.stdout.splitlines()) == ["[rank 0] 0 7", "[rank 1] 1 7"]
    assert sorted(both.stderr.splitlines()) == ["[rank 0] to err", "[rank 1] to err"]
    for folder in ("only", "both"):
        for rank in range(2):
            assert (tmp_path / folder / f"rank-{rank}.out").read_text() == f"{rank} 7\n"
            assert (tmp_path / folder / f"rank-{rank}.err").read_text() == "to err\n"


@pytest.mark.parametrize("tee", [(), ("--tee",)], ids=["files", "tee"])
def test_a_rank_that_is_started_again_appends_to_its_files(show: str, tmp_path: Path, tee: tuple[str, ...]) -> None:
    once = f"os.path.exists({str(tmp_path / 'x')!r}) or (open({str(tmp_path / 'x')!r}, 'w').close(), print('fails'), "
    once += "sys.stdout.flush(), sys.stderr.write('half'), sys.stderr.flush(), os._exit(3))"
    folder = str(tmp_path / "logs")
    for _ in range(2):  # the second job begins new files
        (tmp_path / "x").unlink(missing_ok=True)
        done = command("-n", "1", "--max-restarts", "1", "--log-dir", folder, *tee, show, once)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == (["[rank 0] fails", "[rank 0] 0 True"] if tee else [])
        assert (tmp_path / "logs" / "rank-0.out").read_text() == "fails\n0 True\n"
        err = (tmp_path / "logs" / "rank-0.err").read_text()
        assert re.search(r"(?m)^rank 0 \(pid \d+\): exit code 3$", err)
        assert tee or err.startswith("half\n")  # with --tee, it may come after the report


def test_rank_0_reads_the_standard_input_and_the_others_an_empty_one(show: str, start_method: str) -> None:
    done = command("-n", "2", "--start-method", start_method, show, "sys.stdin.read()", given="hello")
    assert lines(done) == ["[rank 0] 0 hello", "[rank 1] 1 "]
    done = command("-n", "2", "--start-method", start_method, "--no-python", "cat", given="hello\n")
    assert lines(done) == ["[rank 0] hello"]


@pytest.mark.parametrize("output", ["prefix", "inherit"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_runs(show: str, closed: str, output: str) -> None:
    for code in (0, 3):
        text = f"'print(1, file=sys.stderr) or {code} and sys.exit({code})'"
        line = f"exec {sys.executable} -m mp_spawn -n 2 --output {output} {show} {text} {closed}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert ("exit code 3" in done.stderr) == (code == 3 and "2>&-" not in closed)
        assert "mp-spawn" not in done.stdout
        if code == 0 and closed in ("<&-", "2>&-"):
            assert sorted(line[-3:] for line in done.stdout.splitlines()) == ["0 0", "1 0"]


def test_a_program_that_is_no_python_is_a_rank(tmp_path: Path, start_method: str) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$RANK of $WORLD_SIZE: $*"\nls /proc/self/fd | wc -l >&2\nexit "$RANK"\n')
    program.chmod(0o755)
    done = command("-n", "1", "--start-method", start_method, "--no-python", str(program), "a", "-n", "b")
    assert (done.returncode, done.stdout) == (0, "[rank 0] 0 of 1: a -n b\n"), done.stderr
    assert done.stderr == "[rank 0] 4\n"  # three, and the folder that ls reads: nothing of ours is inherited
    done = command("-n", "2", "--start-method", start_method, "--no-python", str(program))
    assert done.returncode == 1
    assert "rank 1 (pid" in done.stderr and "exit code 1" in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "-c 'import os; print(os.read(7, 9).decode().strip())' 7< <(echo data)",
        "-c 'import sys; print(open(sys.argv[1]).read().strip())' <(echo data)",
        "--env OMP_NUM_THREADS=1 -c 'import sys; print(open(sys.argv[1]).read().strip())' <(echo data)",
        "--no-python cat <(echo data)",
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash, whose <(...) is a descriptor")
def test_a_rank_inherits_the_descriptors_that_the_command_has_inherited(program: str) -> None:
    line = ["bash", "-c", f"{sys.executable} -m mp_spawn -n 1 {program}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, "[rank 0] data\n"), done.stderr


def test_a_removed_current_folder_is_named(tmp_path: Path) -> None:
    line = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m mp_spawn -n 1 -c pass"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    assert "the current folder has been removed" in done.stderr.splitlines()[-1]


def test_a_program_ends_with_the_command_even_if_that_is_killed(start_method: str) -> None:
    options = ["-n", "2", "--start-method", start_method, "--no-python", "sh", "-c", "echo $$; exec sleep 300"]
    with subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        pair = Watched([int(process.stdout.readline().split()[-1]) for _ in range(2)])
        process.kill()
        assert pair.wait(10) == []
        pair.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-n", "many", __file__], "-n many is no number; give one, or auto"),
        (["--bind", "near", __file__], "--bind near is neither spread nor a set"),
        (["-n", "2", "--bind", "0", __file__], "--bind 0 has 1 sets for 2 ranks"),
        (["--bind", "99999", __file__], "names processor 99999, which this process may not use"),
        (["--bind", "5-3", __file__], "--bind: 5-3 is no range of processors"),
        (["--log-dir", "", __file__], "--log-dir is an empty text; give a folder"),
        (["--env", "A", __file__], "--env A is no variable; give NAME=VALUE"),
        (["--env", "RANK=7", __file__], "--env RANK=7: the launcher sets RANK for each rank; leave it out"),
        (["--env", "TORCHELASTIC_RESTART_COUNT=7", __file__], "the launcher sets TORCHELASTIC_RESTART_COUNT for each"),
        (["-n", "2", "--local-ranks-filter", "5,3", __file__], "--local-ranks-filter 3,5 is none of the ranks 0 to 1"),
        (["--log-dir", "x", "--output", "prefix", __file__], "give --log-dir with --tee for both"),
        (["--timeout", "-1", __file__], "--timeout: -1 is no time to wait; give seconds, 2000000 at most"),
        (["--timeout", "3e6", __file__], "--timeout: 3e6 is no time to wait; give seconds, 2000000 at most"),
        (["--grace-period", "nan", __file__], "--grace-period: nan is no time to wait"),
        (["--gpus-per-rank", "0", __file__], "--gpus-per-rank 0 is too small"),
        (["-n", "2", "--gpus-per-rank", "1", __file__], "2 ranks with 1 devices each need 2"),
        (["--log-dir", "x", "--output", "capture", __file__], "give --log-dir or --output, and not both"),
        (["--no-python", "no-such-program"], "there is no program 'no-such-program'"),
    ],
)
def test_a_wrong_option_is_described_in_one_line(arguments: list[str], text: str) -> None:
    done = command(*arguments, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 2
    assert text in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_an_empty_port_of_the_environment_is_none_and_one_that_is_no_number_is_named(show: str) -> None:
    done = command("-n", "2", show, "int(os.environ['MASTER_PORT']) > 0", MASTER_PORT="", MASTER_ADDR="")
    assert lines(done) == ["[rank 0] 0 True", "[rank 1] 1 True"]
    done = command("-n", "2", show, "1", MASTER_PORT="abc")
    assert (done.returncode, "MASTER_PORT='abc' is not a number" in done.stderr) == (2, True)


SECOND_OF_TWO = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "localhost"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-n", "99999999"], "nprocs=99999999 is too large; this machine allows at most "),
        (["--nproc-per-node", "9" * 20], f"nprocs={'9' * 20} is too large; this machine allows at most "),
        (["--engine", "local", "-n", "99999999"], "nprocs=99999999 is too large; this machine allows at most "),
        ([*SECOND_OF_TWO, "-n", "99999999"], "nprocs=49999999 is too large; this machine allows at most "),
        ([*SECOND_OF_TWO, "--nproc-per-node", "9" * 20], f"nprocs={'9' * 20} is too large; this machine allows "),
        (["--bind", "0-99999999999"], ", which this process may not use"),
        (["-n", "2", "--bind", "0:0,0-99999999999"], ", which this process may not use"),
    ],
)
def test_a_number_that_is_too_large_is_refused_before_it_takes_memory(arguments: list[str], text: str) -> None:
    # With 1 GB of address space, a list of so many would be a MemoryError.
    limited = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", sys.executable, "-m", "mp_spawn"]
    call = [*limited, *arguments, "-c", "pass"]
    environment = os.environ | {"MP_SPAWN_KEY": "0123456789abcdef" * 2}
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_only_the_script_is_required() -> None:
    assert command().stderr.endswith("the following arguments are required: script\n")


@pytest.mark.parametrize(
    "line",
    [["-n", "1"], ["-n1"], ["--nproc-per", "1"], ["--nproc_per_node=1", "-r", "0:1", "--tee"], ["-n", "1", "--"]],
)
def test_what_follows_the_script_is_the_scripts(line: list[str]) -> None:
    theirs = ["--n", "3", "--output", "-t", "--", "--no_python", "-n", "--help"]
    chosen = parsed([*line, "train.py", *theirs])
    assert (chosen.script, chosen.arguments) == ("train.py", theirs)


def test_a_shell_completes_the_options() -> None:
    line = command("--print-completion", "bash").stdout
    words = shlex.split(line)[4]
    done = subprocess.run(["bash", "-c", f"{line}\ncompgen -W '{words}' -- --max"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("--max-restarts\n", "")
    assert command("--print-completion", "zsh").stdout.startswith("autoload -U +X bashcompinit")


def test_an_option_has_the_name_of_the_parameter_as_well() -> None:
    assert parsed(["--cpu-affinity", "spread", "train.py"]).bind == "spread"
