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


def test_torchruns_variable_sets_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    from mp_spawn.command import command_line

    assert parsed(["train.py"]).shutdown_timeout == 30
    options = command_line.parser({**os.environ, "PET_SHUTDOWN_TIMEOUT": "7"})
    assert options.parse_args(["train.py"]).shutdown_timeout == 7
