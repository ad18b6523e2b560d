"""`./do` says at its end what has failed, and how to run that alone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tools.all_parts import failed_tests, last_line

TESTS = Path(__file__).parents[1]


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


def test_the_errors_of_failed_tests_are_noted_for_the_end(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "def test_wrong():\n    assert 'MP_TEST_NOTES' in os.environ\n"
        "def test_leaving():\n    globals()['left'] = os.open('/dev/zero', os.O_RDONLY)\n"
        "def test_right():\n    pass\n"
    )
    own = os.environ | {"MP_TEST_NOTES": str(tmp_path / "notes"), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    subprocess.run(command, env=own | {"MP_TEST_LEAK_PATIENCE": "0.1"}, capture_output=True, timeout=120)
    said = failed_tests(tmp_path)
    assert [line for line in said if line.startswith("test_it.py::test_wrong (call): AssertionError: ")], said
    assert [line for line in said if line.startswith("test_it.py::test_leaving (teardown): AssertionError: left")], said
    assert any("descriptor of /dev/zero (x1)" in line for line in said)
    assert not any("test_right" in line for line in said)


def test_without_notes_nothing_is_said(tmp_path: Path) -> None:
    assert failed_tests(tmp_path) == []
