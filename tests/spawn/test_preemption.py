"""A job that is to end sends each rank one signal, gives it one grace period, and then kills it."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import running_command

from mp_spawn.command.command_line import parsed

SAVES = """
    import os, signal, sys, time

    RANK = os.environ["RANK"]

    def note(word):
        with open(f"{sys.argv[1]}/{RANK}", "a") as file:
            file.write(word + "\\n")

    def save(signum, frame):
        note(signal.Signals(signum).name)
        if RANK == "1":
            sys.exit(143)
        while not os.path.exists(f"{sys.argv[1]}/may-save"):
            time.sleep(0.01)
        note("saved")
        sys.exit(143)

    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGINT, save)
    note("ready")
    other_is_ready = f"{sys.argv[1]}/0"
    while sys.argv[2:] != ["fails"] or RANK == "0" or not os.path.exists(other_is_ready):
        time.sleep(0.01)
    os._exit(9)
"""


class Job:
    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.folder = folder

    def notes(self, rank: int) -> list[str]:
        path = self.folder / str(rank)
        return path.read_text().split() if path.exists() else []

    def wait_for(self, word: str, *ranks: int) -> None:
        deadline = time.monotonic() + 60
        while not all(word in self.notes(rank) for rank in ranks):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)


@contextmanager
def job(folder: Path, options: list[str], *arguments: str) -> Iterator[Job]:
    (folder / "saves.py").write_text(textwrap.dedent(SAVES))
    command = ["-n", "2", *options, str(folder / "saves.py"), str(folder), *arguments]
    with running_command(*command, stdout=subprocess.DEVNULL) as process:
        yield Job(folder, process)


NODES = ["--engine", "local", "--nnodes", "2"]


@pytest.mark.parametrize("more", [[], NODES], ids=["one machine", "nodes"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_saves_is_sent_no_second_signal_and_is_killed_after_the_grace_period(
    tmp_path: Path, signum: signal.Signals, more: list[str]
) -> None:
    with job(tmp_path, ["--grace-period", "1.5", *more]) as running:
        running.wait_for("ready", 0, 1)
        running.process.send_signal(signum)
        _, err = running.process.communicate(timeout=60)
        assert running.process.returncode == 143, err
        assert running.notes(0) == running.notes(1) == ["ready", signum.name]


@pytest.mark.parametrize("option", ["--grace-period", "--shutdown-timeout", "--grace_period", None])
def test_a_rank_has_the_grace_period_to_save_after_the_other_has_left(tmp_path: Path, option: str | None) -> None:
    with job(tmp_path, [] if option is None else [option, "100"]) as running:
        running.wait_for("ready", 0, 1)
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("SIGTERM", 0, 1)
        (tmp_path / "may-save").touch()
        _, err = running.process.communicate(timeout=60)
        assert running.process.returncode == 143, err
        assert running.notes(0) == ["ready", "SIGTERM", "saved"]


@pytest.mark.parametrize("more", [[], NODES], ids=["one machine", "nodes"])
def test_after_a_failure_a_rank_is_sent_sigterm_once_and_has_the_grace_period(tmp_path: Path, more: list[str]) -> None:
    with job(tmp_path, ["--grace-period", "100", *more], "fails") as running:
        running.wait_for("SIGTERM", 0)
        (tmp_path / "may-save").touch()
        _, err = running.process.communicate(timeout=60)
        assert running.process.returncode == 9, err
        assert running.notes(0) == ["ready", "SIGTERM", "saved"]


def test_after_a_failure_a_rank_that_does_not_end_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    with job(tmp_path, ["--grace-period", "1"], "fails") as running:
        _, err = running.process.communicate(timeout=60)
        assert running.process.returncode == 9, err
        assert "saved" not in running.notes(0)


WAITS = """
    import os, signal, sys, threading, time

    rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]

    def note(word):
        with open(f"{sys.argv[1]}/{rank}", "a") as file:
            file.write(word + "\\n")

    def may_end():
        while not os.path.exists(f"{sys.argv[1]}/may-end"):
            time.sleep(0.01)

    note("begun" + restarts)
    if rank == "1" and restarts == "0":
        threading.Thread(target=may_end).start()
        note("raises")
        raise ValueError("it has a thread that goes on")
    if rank == "0" and restarts == "0" and sys.argv[2:] == ["fails"]:
        while "raises" not in open(f"{sys.argv[1]}/1").read():
            time.sleep(0.01)
        sys.exit(3)
    signal.signal(signal.SIGTERM, lambda *_: (note("SIGTERM"), sys.exit(143)))
    note("ready")
    may_end()
"""


@contextmanager
def waiting(folder: Path, *arguments: str) -> Iterator[Job]:
    """A job whose rank 1 has raised, and is to be started again when its thread ends."""
    (folder / "waits.py").write_text(textwrap.dedent(WAITS))
    command = ["-n", "2", "--max-restarts", "3", "--grace-period", "100", str(folder / "waits.py"), str(folder)]
    with running_command(*command, *arguments, stdout=subprocess.DEVNULL) as process:
        yield Job(folder, process)


def test_a_signal_reaches_ranks_while_another_that_has_raised_does_not_end(tmp_path: Path) -> None:
    with waiting(tmp_path) as running:
        running.wait_for("ready", 0)
        running.wait_for("raises", 1)
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("SIGTERM", 0)
        (tmp_path / "may-end").touch()
        running.process.communicate(timeout=60)
        assert running.notes(0) == ["begun0", "ready", "SIGTERM"]
        assert running.notes(1) == ["begun0", "raises"]


def test_a_rank_is_started_again_while_another_that_has_raised_does_not_end(tmp_path: Path) -> None:
    with waiting(tmp_path, "fails") as running:
        running.wait_for("begun1", 0)
        assert running.notes(1) == ["begun0", "raises"]
        (tmp_path / "may-end").touch()
        _, err = running.process.communicate(timeout=60)
        assert running.process.returncode == 0, err
        assert running.notes(1)[:3] == ["begun0", "raises", "begun1"]


def test_torchruns_variable_sets_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    from mp_spawn.command import command_line

    assert parsed(["train.py"]).shutdown_timeout == 30
    options = command_line.parser({**os.environ, "PET_SHUTDOWN_TIMEOUT": "7"})
    assert options.parse_args(["train.py"]).shutdown_timeout == 7
