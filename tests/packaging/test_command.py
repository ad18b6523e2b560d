"""The command mp-all, and `python -m mp_all`, which is the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mp_all

COMMAND = str(Path(sys.executable).with_name("mp-all"))
HOW = {"mp-all": [COMMAND], "python -m mp_all": [sys.executable, "-m", "mp_all"]}


@pytest.fixture(params=HOW)
def command(request: pytest.FixtureRequest) -> list[str]:
    """
    Each way to call it.
    """
    return HOW[request.param]


def run(command: list[str], *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, cwd=cwd)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_each_form(command: list[str], option: str) -> None:
    done = run(command, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("script.py", "-m module", "-c code", "stat", "top", "--version"))


def test_the_version_is_that_of_the_package(command: list[str]) -> None:
    done = run(command, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"mp-all {mp_all.__version__}\n", "")


PROGRAM = """
import multiprocessing, sys
multiprocessing.freeze_support()

if __name__ == "__main__":
    print("mp_core" in sys.modules, sys.argv[1:])
"""


def test_a_program_runs_with_mp_all_in_the_place_of_multiprocessing(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    expected = "True ['--help', 'x']\n"
    for form in (["program.py"], ["-m", "program"], ["-c", PROGRAM]):
        done = run(command, *form, "--help", "x", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_the_exit_code_is_the_program_s(command: list[str]) -> None:
    assert run(command, "-c", "raise SystemExit(7)").returncode == 7


def test_an_unknown_option_is_an_error_with_the_usage(command: list[str]) -> None:
    done = run(command, "--helm")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("usage: mp-all ") and "there is no option --helm" in done.stderr


def test_a_missing_file_is_named_in_one_line(command: list[str], tmp_path: Path) -> None:
    done = run(command, "nowhere.py", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "nowhere.py" in done.stderr


def test_stat_and_the_facts_are_there(command: list[str]) -> None:
    assert run(command, "stat", "--help").returncode == 0
    assert run(command).stdout.startswith("versions\n")


@pytest.mark.parametrize("arguments", [["stat", "--json"], ["top", "--count", "1"], ["--help"]])
def test_an_output_that_cannot_be_written_is_a_failure_told_in_one_line(
    command: list[str], arguments: list[str]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "mp-all: [Errno 28] No space left on device\n")


def test_stat_runs_without_an_output(command: list[str]) -> None:
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *command, "stat"]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_demo_compares_the_same_program_on_both(command: list[str], tmp_path: Path) -> None:
    done = run(command, "demo", "--timeline", "here.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "import mp_all as multiprocessing" in done.stdout
    assert re.search(r"^multiprocessing: +\d+ ms for the first call, +\d+ ms for a later one$", done.stdout, re.M)
    last = re.search(r"mp_all is ([\d.]+) times as fast in the first call and (\d+) times in a later one", done.stdout)
    assert last is not None and float(last[1]) > 0
    assert (tmp_path / "here.html").stat().st_size > 1000
    assert run(command, "demo", "--timline").returncode == 2


def test_a_shell_completes_the_commands(command: list[str]) -> None:
    line = run(command, "--print-completion", "bash").stdout
    assert line == 'complete -o default -W "demo run stat timeline top --help --version" mp-all\n'
    assert run(command, "--print-completion", "fish").returncode == 2
