"""Programs without the engine run in interpreters of their own: this process may have it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scripts import run_script

HERE = Path(__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def default_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Remove the strategy that a session chooses: without the engine there is one strategy only.
    """
    monkeypatch.delenv("MP_SHARING_STRATEGY", raising=False)


@pytest.fixture(params=["Linux with MP_WITHOUT_ENGINE=1", "macOS"])
def platform(request: pytest.FixtureRequest) -> str:
    """
    Each platform that can be stood in for.
    """
    return request.param


@pytest.fixture
def run(platform: str, tmp_path: Path) -> Run:
    """
    Run a program on that platform.
    """
    path = os.pathsep.join(filter(None, [str(HERE / "macos"), os.environ.get("PYTHONPATH", "")]))
    environment = {"PYTHONPATH": path} if platform == "macOS" else {"MP_WITHOUT_ENGINE": "1"}

    def run(text: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_script(tmp_path, text, *arguments, **environment, **more)

    return run


def warnings_in(done: subprocess.CompletedProcess[str]) -> list[str]:
    """
    Return the warnings on stderr.
    """
    return [line for line in done.stderr.splitlines() if "Warning" in line]
