"""What a rank of the command has started gets the signals of a terminal, and ends with a rank that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from descendants import Watched
from jobs import running_command
from support.waiting import until

# Each rank starts a program, which writes its pid.
WRAPPER = "sh -c 'echo $$ > {folder}/$RANK; exec sleep 300'"
PROGRAM = """
import os, subprocess, sys
begun = subprocess.Popen(["sleep", "300"])
with open(f"{sys.argv[1]}/{os.environ['RANK']}.new", "w") as file:
    print(begun.pid, file=file)
os.rename(file.name, file.name.removesuffix(".new"))
"""


def watch(pids: Iterator[int]) -> Watched:
    """Watch those of the processes that have not ended yet."""
    watched = Watched([])
    for pid in pids:
        with suppress(ProcessLookupError):
            watched.add(pid)
    return watched


@contextmanager
def running(folder: Path, *arguments: str, script: str = "") -> Iterator[tuple[subprocess.Popen[str], Watched]]:
    """Run two ranks; yield the command, and what its ranks have started."""
    with running_command(*arguments) as command:
        pids = [folder / "0", folder / "1"]
        deadline = time.monotonic() + 60
        while not all(path.exists() and path.read_text() for path in pids):
            assert time.monotonic() < deadline and command.poll() is None, command.communicate()
            time.sleep(0.01)
        watched = watch(int(path.read_text()) for path in pids)
        try:
            yield command, watched
        finally:
            watched.close()


def end_of(command: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = command.communicate(timeout=60)
    return command.returncode, err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_what_a_shell_of_a_rank_waits_for(tmp_path: Path, signum: signal.Signals) -> None:
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(WRAPPER.format(folder=tmp_path) + "\necho after\n")
    with running(tmp_path, "-n", "2", "--no-python", "sh", str(wrapper)) as (command, begun):
        command.send_signal(signum)
        code, err = end_of(command)
        assert begun.wait(5) == []
    assert code == 128 + signum, err


@pytest.mark.parametrize("why", ["SIGINT", "SIGTERM", "timeout", "failure", "other", "ignores"])
def test_what_a_failed_rank_has_started_ends_with_it(tmp_path: Path, why: str) -> None:
    script = tmp_path / "script.py"
    fails = """
import time
while not all(os.path.exists(f"{sys.argv[1]}/{rank}") for rank in range(2)):
    time.sleep(0.01)
sys.exit(3)
"""
    other = f"""
if os.environ["RANK"] == "0":
    begun.wait()
{fails}"""
    ends = {"failure": fails, "other": other, "ignores": fails}
    text = PROGRAM + ends.get(why, "begun.wait()")
    if why == "ignores":
        text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + text
    script.write_text(text)
    options = ["--timeout", "10"] if why == "timeout" else ["--grace-period", "1"]
    with running(tmp_path, "-n", "2", *options, str(script), str(tmp_path)) as (command, begun):
        if why.startswith("SIG"):
            command.send_signal(getattr(signal, why))
        code, err = end_of(command)
        assert begun.wait(5) == []
    assert code == {"SIGINT": 130, "SIGTERM": 143, "timeout": 124}.get(why, 3), err


def test_what_a_rank_leaves_that_ends_well_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    with running(tmp_path, "-n", "2", "--output", "inherit", str(script), str(tmp_path)) as (command, begun):
        assert command.wait(60) == 0  # the programs have its output
        assert len(begun.alive()) == 2


@pytest.mark.parametrize("output", ["prefix", "capture"])
def test_what_a_rank_has_started_may_write_a_moment_later_than_it(tmp_path: Path, output: str) -> None:
    script = "exec > >(sleep 0.2; cat); echo late"
    with running_command("-n", "2", "--output", output, "--no-python", "bash", "-c", script) as command:
        out, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (0, "")
    assert out.count("late\n") == 2, out


@pytest.mark.parametrize("output", ["prefix", "capture"])
def test_what_a_failed_rank_has_started_writes_its_last_words(tmp_path: Path, output: str) -> None:
    script = "exec > >(mapfile lines; printf %s \"${lines[@]}\" | sort | cat); printf '%s\\n' first last; exit 3"
    with running_command("-n", "1", "--output", output, "--no-python", "bash", "-c", script) as command:
        out, err = command.communicate(timeout=60)
    assert command.returncode == 3, err
    assert [line.rpartition(" ")[2] for line in out.splitlines()] == ["first", "last"]


def test_what_a_failed_rank_has_started_gets_sigterm_however_short_its_time_is(tmp_path: Path) -> None:
    script = f"(trap 'echo > {tmp_path}/saved; exit' TERM; echo > {tmp_path}/waits; while :; do sleep 0.02; done) & "
    script += f"while ! [ -e {tmp_path}/waits ]; do sleep 0.02; done; exit 3"
    with running_command("-n", "1", "--shutdown-timeout", "0.48", "--no-python", "bash", "-c", script) as command:
        code, err = end_of(command)
    assert code == 3, err
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("ignored", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_what_a_failed_rank_has_started_ends_before_it_is_started_again(tmp_path: Path, ignored: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        ignored
        + PROGRAM
        + """
path = f"{sys.argv[1]}/{os.environ['RANK']}"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.rename(path, path + ".first")
    sys.exit(3)
with open(path + ".first") as file:
    left = f"/proc/{int(file.read())}/stat"
if os.path.exists(left):
    with open(left) as stat:
        assert stat.read().rpartition(")")[2].split()[0] in "ZX"
sys.exit(4)
"""
    )
    with running_command(
        "-n", "1", "--max-restarts", "1", "--grace-period", "1", str(script), str(tmp_path)
    ) as command:
        code, err = end_of(command)
    assert code == 4, err
    assert "AssertionError" not in err
    assert os.path.exists(tmp_path / "0.first")


@pytest.mark.parametrize("restart", ["rank", "all"])
def test_what_a_failed_rank_leaves_keeps_its_restart_waiting_for_five_seconds_at_most(
    tmp_path: Path, restart: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + PROGRAM
        + "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    )
    options = ["--max-restarts", "1", "--restart", restart, "--grace-period", "600", "--output", "inherit"]
    with running_command("-n", "1", *options, str(script), str(tmp_path)) as command:
        begun = time.monotonic()
        assert command.wait(300) == 0
        assert time.monotonic() - begun > 5  # a bound of the kill from below; from above it is the grace period
    os.kill(int((tmp_path / "0").read_text()), signal.SIGKILL)  # of the rank that ended well


def test_a_signal_that_comes_while_a_restart_waits_ends_the_job_with_its_failure(tmp_path: Path) -> None:
    left, told, script = tmp_path / "left", tmp_path / "told", tmp_path / "script.py"
    shell = f"trap 'echo > {told}' TERM; echo $$ > {left}.new; mv {left}.new {left}; while :; do sleep 0.05; done"
    script.write_text(
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen(['sh', '-c', {shell!r}], stdin=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"while not os.path.exists({str(left)!r}): time.sleep(0.01)\n"
        "sys.exit(4)\n"
    )
    options = ["--max-restarts", "3", "--restart", "all", "--grace-period", "3"]
    with running_command("-n", "1", *options, str(script)) as command:
        assert until(told.exists, 60)  # the rank has ended, and what it has left was told to
        watched = Watched([int(left.read_text())])
        command.terminate()
        code, err = end_of(command)
        assert watched.wait(5) == []
        watched.close()
    assert code == 4, err
    assert "exit code 4" in err and "started" not in err, err
