"""The command mp-spawn runs scripts and modules, forwards signals, and exits with the code of the first failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from descendants import Watched
from jobs import running_command
from support.waiting import until

SCRIPT = """
    import os, signal, sys, time

    rank = int(os.environ["RANK"])
    if sys.argv[1] == "show":
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
        print(*(os.environ.get(name) for name in names), __name__, sys.argv[1:], int(os.environ["MASTER_PORT"]) > 0)
    elif sys.argv[1] == "wait":
        print(os.getpid(), flush=True)
        time.sleep(300)
    elif sys.argv[1] in ("tidy", "count"):
        # sigwait instead of handlers: a signal between two of Python's instructions would not end a sleep.
        expected = {signal.SIGTERM} if sys.argv[1] == "tidy" else set(map(int, sys.argv[2:]))
        signal.pthread_sigmask(signal.SIG_BLOCK, expected)
        print(os.getpid(), flush=True)
        while sys.argv[1] == "count":
            print(int(signal.sigwait(expected)), "came", flush=True)
        signal.sigwait(expected)
        time.sleep(0.3 * rank)
        print("tidied")
    elif rank == 1:
        eval(sys.argv[1])
    else:
        time.sleep(300)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "a_script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def command(*arguments: str, cwd: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """
    Run ``python -m mp_spawn``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    return subprocess.run(
        [sys.executable, "-m", "mp_spawn", *arguments],
        env=kept | environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def pids_of(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(count)]


def test_a_rank_has_its_rank_and_world_size_in_its_environment(script: str, start_method: str) -> None:
    done = command("-n", "2", "--start-method", start_method, script, "show", "-n", "--x")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == [
        f"[rank {i}] {i} {i} 2 2 127.0.0.1 None __main__ ['show', '-n', '--x'] True" for i in range(2)
    ]


def test_variables_that_are_set_are_kept_and_options_reach_the_ranks(script: str) -> None:
    options = ("--threads-per-rank", "3", "--output", "inherit", "--")
    done = command(*options, script, "show", MASTER_ADDR="10.0.0.1", MASTER_PORT="77")
    assert done.stdout == "0 0 1 1 10.0.0.1 3 __main__ ['show'] True\n", done.stderr


def test_a_module_can_be_run(script: str) -> None:
    for option in ("-m", "--module"):
        done = command("-n", "2", "--output", "capture", option, "a_script", "show", cwd=os.path.dirname(script))
        assert [line.split()[:2] for line in done.stdout.splitlines()] == [["0", "0"], ["1", "1"]], done.stderr


@pytest.mark.parametrize(
    ("failure", "code", "reason"),
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("os._exit(9)", 9, "exit code 9"),
        ("sys.exit('no')", 1, r"exit code 1, sys.exit\('no'\)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "signal SIGKILL"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
    ],
)
def test_the_exit_code_is_that_of_the_first_failure(script: str, failure: str, code: int, reason: str) -> None:
    done = command("-n", "3", script, failure)
    assert done.returncode == code
    assert re.search(rf"mp-spawn: rank 1 \(pid \d+\): {reason}\n", done.stderr), done.stderr
    assert done.stderr.count("Traceback") == (1 if failure == "1 / 0" else 0)
    assert "\x1b" not in done.stderr


def test_a_failure_prints_a_row_for_each_rank(script: str) -> None:
    done = command("-n", "3", script, "os._exit(3)")
    rows = [re.split(r" {2,}", line) for line in done.stderr.splitlines()[1:]]
    rows = [row for row in rows if len(row) == 4]
    assert [row[0] for row in rows] == ["rank 0", "rank 1", "rank 2"], done.stderr
    assert [row[-1] for row in rows] == ["ended by mp-spawn", "exit code 3", "ended by mp-spawn"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_forwarded(script: str, signum: signal.Signals, start_method: str) -> None:
    with running_command("-n", "2", "--start-method", start_method, script, "wait") as process:
        pids = pids_of(process, 2)
        process.send_signal(signum)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signum
    assert "Traceback" not in err
    assert f"signal {signum.name}" in err
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


WARNINGS = [
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGXCPU, signal.SIGALRM, signal.SIGRTMIN + 2),
    *(signal.SIGWINCH, signal.SIGURG, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO),
]


@pytest.mark.parametrize("signum", WARNINGS)
def test_ranks_that_live_on_after_a_signal_keep_running(script: str, signum: int, start_method: str) -> None:
    expected = [str(int(each)) for each in WARNINGS]
    with running_command("-n", "2", "--start-method", start_method, script, "count", *expected) as process:
        pids = pids_of(process, 2)
        for _ in range(2):  # the second signal is forwarded, too
            process.send_signal(signum)
            lines = sorted(process.stdout.readline() for _ in pids)
            assert lines == [f"[rank {rank}] {signum:d} came\n" for rank in range(2)]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def test_ranks_with_a_signal_handler_have_time_for_it(script: str, start_method: str) -> None:
    with running_command("-n", "3", "--start-method", start_method, script, "tidy") as process:
        pids_of(process, 3)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out.count("tidied")) == (0, 3), err


def test_ranks_end_with_the_command(script: str) -> None:
    with running_command("-n", "3", script, "wait") as process:
        trio = Watched(pids_of(process, 3))
        process.kill()
        assert trio.wait(2) == []
        trio.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-n", "0", __file__], "nprocs=0 is too small; give 1 or more"),
        (["no_such_file.py"], "there is no file 'no_such_file.py'; for a module, give -m"),
        (["--output", "prefx", __file__], "output='prefx' is none of"),
        (["--start-method", "thread", __file__], "invalid choice: 'thread'"),
        (["-"], "there is no file '-'; for a program on standard input, give /dev/stdin"),
        ([], "script"),
    ],
)
def test_bad_options_are_described_in_one_line(arguments: list[str], text: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert text in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_script_with_a_null_character_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(b"print(1)\n\0\n")
    assert f'File "{path}", line 2' in command("-n", "1", str(path)).stderr


def test_max_restarts_restarts_a_failed_rank(script: str, tmp_path: Path) -> None:
    once = f"os.path.exists({str(tmp_path / 'x')!r}) or (open({str(tmp_path / 'x')!r}, 'w').close(), os._exit(1))"
    Path(script).write_text(Path(script).read_text().replace("else:\n    time.sleep(300)", ""))
    done = command("-n", "2", "--max-restarts", "1", script, once)
    assert done.returncode == 0, done.stderr
    assert "exit code 1; it is started again (1 of 1)" in done.stderr


@pytest.mark.parametrize("restart", ["rank", "all"])
def test_the_traceback_of_a_failure_is_shown_before_the_restart(restart: str) -> None:
    text = "import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': {}['missing key']\nprint('fine')"
    done = command("-n", "1", "--max-restarts", "1", "--restart", restart, "-c", text)
    assert (done.returncode, done.stdout.count("fine")) == (0, 1), done.stderr
    first, *_, last = done.stderr.splitlines()
    assert (first, "KeyError: 'missing key'; " in last) == ("Traceback (most recent call last):", True), done.stderr
    assert 'File "<string>", line 2' in done.stderr


def test_the_console_script_is_the_same_command() -> None:
    path = Path(sys.executable).with_name("mp-spawn")
    if not path.exists():
        pytest.skip("needs mp-spawn installed with its console script")
    assert "usage: mp-spawn" in subprocess.run([path, "--help"], capture_output=True, text=True, timeout=30).stdout


def test_a_folder_and_a_second_double_dash(script: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    done = command("-n", "2", "--output", str(folder), "--", script, "show", "--", "x")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for rank in range(2):
        assert (folder / f"rank-{rank}.out").read_text().split(maxsplit=7)[7] == "['show', '--', 'x'] True\n"


ON_A_TERMINAL = """
    import os, sys, time

    if sys.argv[1] == "long":
        for number in range(200):
            print(f"<{number} {'x' * 200}>")
    elif sys.argv[1] == "fail":
        sys.exit(3)
    elif os.environ["RANK"] == "0":
        os.write(1, b"caf\\xe9\\n")
        for number in range(3):
            os.write(2, b"\\r%d of 3" % number)
            while not os.path.exists(f"{sys.argv[2]}/{number}"):
                time.sleep(0.01)
        os.write(2, b"\\n")
"""


def on_a_terminal(*arguments: str, seen: Callable[[bytes], object] = bool, **environment: str) -> tuple[int, str]:
    """
    Run the command on a terminal; return the exit code and the output, which is given to *seen* as it comes.
    """
    ours, theirs = os.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", *arguments],
        env=kept | {"TERM": "xterm"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        said = b""
        try:
            with open(ours, "rb", buffering=0) as terminal:
                while data := terminal.read(1 << 16):
                    said += data
                    seen(said)
        except OSError:
            pass  # no process has the terminal open any more
        return process.wait(60), said.decode(errors="surrogateescape")


@pytest.fixture
def terminal_script(tmp_path: Path) -> str:
    path = tmp_path / "on_a_terminal.py"
    path.write_text(textwrap.dedent(ON_A_TERMINAL))
    return str(path)


def test_on_a_terminal_progress_is_drawn_between_whole_lines(terminal_script: str) -> None:
    pytest.importorskip("tqdm", reason="needs tqdm, which is not installed")
    code, said = on_a_terminal("-n", "2", terminal_script, "long")
    assert code == 0, said
    assert "ranks ended" in said
    for number in range(200):
        line = f"<{number} {'x' * 200}>\r\n"
        assert said.count(line) == 2
    # A line is preceded by its prefix, and that by the begin of a line. Blanks have erased the progress line before.
    lines = [line.split("\r") for line in said.replace("\r\n", "\n").splitlines() if "<" in line]
    assert len(lines) == 400
    assert not [line for *_, line in lines if not re.match(r"\x1b\[\d+m\[rank \d\] \x1b\[0m<", line)]
    assert not [drawn for *drawn, _ in lines if drawn and drawn[-1].strip()]


@pytest.mark.parametrize("disabled", [{}, {"TQDM_DISABLE": "1"}], ids=["", "without tqdm"])
def test_on_a_terminal_a_progress_line_moves_and_bytes_are_as_they_came(
    terminal_script: str, tmp_path: Path, disabled: dict[str, str]
) -> None:
    pytest.importorskip("tqdm", reason="needs tqdm, which is not installed")

    def go_on(said: bytes) -> None:
        for number in range(3):
            if b"%d of 3" % number in said:
                (tmp_path / str(number)).touch()

    code, said = on_a_terminal("-n", "2", terminal_script, "moves", str(tmp_path), seen=go_on, **disabled)
    assert code == 0, said
    assert "caf\udce9\r\n" in said
    assert ("ranks ended" in said) is not bool(disabled)


@pytest.mark.parametrize("disabled", [{}, {"TQDM_DISABLE": "1"}], ids=["", "without tqdm"])
def test_a_terminal_that_has_stopped_keeps_no_signal_from_ending_the_job(
    tmp_path: Path, disabled: dict[str, str]
) -> None:
    code = "import os, sys\nopen(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'x').close()\nwhile True: print('x' * 1000)"
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "mp_spawn", "-n", "2", "--grace-period", "1", "-c", code, str(tmp_path)]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(command, env=os.environ | disabled, start_new_session=True, **streams) as process:
        os.close(theirs)
        try:
            assert until(lambda: len(os.listdir(tmp_path)) == 2, 60)
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_gets_colour_unless_no_color_is_set(terminal_script: str, colour: bool) -> None:
    code, said = on_a_terminal("-n", "2", terminal_script, "fail", **({} if colour else {"NO_COLOR": "1"}))
    assert code == 3
    assert "exit code 3" in said
    assert bool(re.search(r"\x1b\[[0-9;]*3[1-6]m", said)) is colour


def test_a_job_inside_a_rank_has_a_port_of_its_own(tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text("import os\nprint('inner', os.environ['MASTER_PORT'])\n")
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import os, subprocess, sys\n"
        "print('outer', os.environ['MASTER_PORT'], flush=True)\n"
        f"subprocess.run([sys.executable, '-m', 'mp_spawn', '-n', '1', {str(inner)!r}], check=True)\n"
    )
    done = command("-n", "2", str(outer))
    assert done.returncode == 0, done.stderr
    ports = re.findall(r"(outer|inner) (\d+)", done.stdout)
    assert len(ports) == 4
    assert len({port for _, port in ports}) == 3, "one of the outer job, and one of each inner job"
