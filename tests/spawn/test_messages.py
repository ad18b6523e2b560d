"""What the launcher says of mistakes: one line, with what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mp_all as mp
from mp_core import __version__


def command(*arguments: str, folder: Path) -> tuple[int, str, str]:
    """Run mp-spawn; return its exit code and what it printed."""
    line = [sys.executable, "-m", "mp_spawn", *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_command_tells_its_version(tmp_path: Path) -> None:
    assert command("--version", folder=tmp_path) == (0, f"mp-spawn {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--nprcs", "2", "a.py"), "did you mean --nprocs?"),
        (("--ouput", "capture", "a.py"), "did you mean --output?"),
        ((), "the following arguments are required: script\n"),
        (("--output", "./file", "a.py"), "mp-spawn: the output folder './file' cannot be made: it is a file\n"),
        (("--log-dir", "file/x", "a.py"), "cannot be made: Not a directory\n"),
    ],
)
def test_a_mistake_on_the_line_is_one_line(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "a.py").touch()
    code, _, err = command(*arguments, folder=tmp_path)
    assert code == 2 and err.endswith(text if text.endswith("\n") else f"{text}\n") and "Traceback" not in err


def without_a_rank() -> None:
    pass


def raises_inside(rank: int) -> None:
    raise TypeError("of the program")


def test_a_function_without_a_rank_is_told_that_the_rank_comes_first(start_method: str) -> None:
    with pytest.raises(mp.ProcessRaisedException, match="the rank is the first argument"):
        mp.run(without_a_rank, start_method=start_method)
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.run(raises_inside, start_method=start_method)
    assert "first argument" not in str(caught.value)
