"""Install peers one at a time: `python -m benchmarks.install GROUP ...`, and record pip's errors.

The other peers are measured even if one cannot be installed: the table names it as missing, with pip's reason.
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
    """Return the requirements in these dependency groups of pyproject.toml."""
    named: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return [requirement for group in groups for requirement in named[group]]


def distribution(requirement: str) -> str:
    """Return the name in a requirement: `faster-fifo` of `faster-fifo>=1.5`."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def reason(output: str) -> str:
    """Return the line of pip's output that has the reason."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    return (errors or output.strip().splitlines() or ["pip said nothing"])[-1].removeprefix("ERROR:").strip()


def why_not(name: str) -> str:
    """Return why pip did not install a peer; empty if pip was not called, or succeeded."""
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
