"""Programs without libshm run in interpreters of their own: this process may have it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.leaks import names, names_in_use
from support.scripts import TIMEOUT, run_script

HERE = Path(__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def default_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Remove the strategy that a session chooses: without libshm there is one strategy only.
    """
    monkeypatch.delenv("MP_SHARING_STRATEGY", raising=False)


@pytest.fixture(params=["Linux with MP_WITHOUT_LIBSHM=1", "macOS", "handles"])
def platform(request: pytest.FixtureRequest) -> str:
    """
    Each platform that can be stood in for.
    """
    return request.param


@pytest.fixture
def run(platform: str, tmp_path: Path) -> Iterator[Run]:
    """
    Run a program on that platform.
    """
    folder = {"macOS": "macos", "handles": "handles"}.get(platform)
    path = os.pathsep.join(filter(None, [str(HERE / folder) if folder else "", os.environ.get("PYTHONPATH", "")]))
    environment = {"PYTHONPATH": path, "MP_WITHOUT_LIBSHM": "0" if platform == "macOS" else "1"}

    def run(text: str, *arguments: str, timeout: float = TIMEOUT, **more: str) -> subprocess.CompletedProcess[str]:
        return run_script(tmp_path, text, *arguments, timeout=timeout, **environment, **more)

    before = names()
    yield run
    if platform == "handles":  # only this stand-in sees that nobody has these open
        for name in names() - before - names_in_use():
            (Path("/dev/shm") / name).unlink(missing_ok=True)


def warnings_in(done: subprocess.CompletedProcess[str]) -> list[str]:
    """
    Return the warnings on stderr.
    """
    return [line for line in done.stderr.splitlines() if "Warning" in line]
