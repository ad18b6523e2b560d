"""`python -m benchmarks.install GROUP ...`: install peers one at a time, and keep what pip said of those that will not.

A peer that cannot be installed here is no reason to measure nothing: the table names it as missing, with pip's reason.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from benchmarks.record import ROOT

REASONS = Path(sys.prefix) / "benchmark-peers.json"


def requirements(groups: list[str]) -> list[str]:
    """What the dependency groups of pyproject.toml name."""
    named: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return [requirement for group in groups for requirement in named[group]]


def distribution(requirement: str) -> str:
    """`faster-fifo>=1.5` to `faster-fifo`."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def reason(output: str) -> str:
    """The line of pip's output that says why."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    return (errors or output.strip().splitlines() or ["pip said nothing"])[-1].removeprefix("ERROR:").strip()


def why_not(name: str) -> str:
    """Why pip did not install it; nothing when it was never asked to, or did."""
    found: dict[str, str] = json.loads(REASONS.read_text()) if REASONS.exists() else {}
    return found.get(name, "")


def main(groups: list[str]) -> None:
    reasons = {}
    for requirement in requirements(groups):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", requirement],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            reasons[distribution(requirement)] = reason(done.stdout)
            print(f"{requirement} is not installed: {reason(done.stdout)}")
    REASONS.write_text(json.dumps(reasons))


if __name__ == "__main__":
    main(sys.argv[1:])
