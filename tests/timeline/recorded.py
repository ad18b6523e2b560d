"""Programs whose run is recorded, and what their reports have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.scripts import run_script, succeeded


def trace_of(folder: Path, program: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    """Run a program that writes `run.json` in *folder*; return the events of the report."""
    succeeded(run_script(folder, program, *arguments, **environment))
    return events_in(folder / "run.json")


def events_in(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def spans(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def data_of(path: Path) -> dict[str, Any]:
    """Return what a page has inside."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data
