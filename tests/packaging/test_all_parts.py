"""`./do` says at its end what has failed, and how to run that alone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tools.all_parts import last_line


def report(path: Path, **results: str) -> None:
    """Write a report as nox writes it."""
    sessions = [
        {"name": name.partition("(")[0], "signatures": [name], "result": result} for name, result in results.items()
    ]
    path.write_text(json.dumps({"result": 0, "sessions": sessions}))


def test_the_last_line_is_a_command_that_runs_what_has_failed(tmp_path: Path) -> None:
    report(tmp_path / "suite.json", **{"tests(strategy='file_system')": "failed", "docs": "success"})
    report(tmp_path / "library.json", **{"libshm(san='thread')": "failed"})
    line = last_line(tmp_path)
    assert "\n" not in line
    failed = ["libshm(san='thread')", "tests(strategy='file_system')"]
    assert line.startswith("do: failed: " + ", ".join(failed))
    assert shlex.split(line.partition("Alone: ")[2]) == ["./do", "-s", *failed]


def test_without_a_report_the_last_line_says_so(tmp_path: Path) -> None:
    assert last_line(tmp_path) == "do: nox has failed, see above"
