"""Run the sessions of `./do`: the test suite, and beside it those of the C library and the checks.

Most tests wait rather than compute, and the checks keep one processor busy. Where the kernel grants no mount namespace,
a test of the suite would meet what the tests of the library leave in /dev/shm for a moment: there the checks run beside
the library, and the suite after both. What runs beside another prints when it has ended. The last lines say which tests
have failed and why, and name the sessions as a command that runs them.

    python -m tools.all_parts
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO

from tools import lanes

__all__ = ["failed_tests", "last_line", "run"]

# Of what all failed tests say; the rest is above.
MOST_LINES = 60


def run() -> int:
    """Run the parts; return the highest exit code. A Ctrl-C reaches all processes of the terminal's group."""
    beside, shown = ("library checks", ["suite"]) if lanes.can_isolate() else ("library", ["checks", "suite"])
    with tempfile.TemporaryDirectory() as reports, ThreadPoolExecutor(1) as thread:
        other = thread.submit(_run_quietly, beside, reports)
        codes = []
        for parts in shown:
            if parts == "suite" and beside == "library":
                wait([other])
            codes.append(_start(parts, reports).wait())
        code = max([*codes, other.result()], key=abs)
        if code:
            print(*failed_tests(Path(reports)), sep="\n")
            print(last_line(Path(reports)), flush=True)
    return code


def last_line(reports: Path) -> str:
    """
    Return what has failed, by the reports of nox in a folder.
    """
    failed = []
    for report in sorted(reports.glob("*.json")):
        for session in json.loads(report.read_text())["sessions"]:
            if session["result"] == "failed":
                failed.append(session["signatures"][-1] if session["signatures"] else session["name"])
    if not failed:
        return "do: nox has failed, see above"
    return f"do: failed: {', '.join(failed)}. Alone: ./do -s {shlex.join(failed)}"


def failed_tests(reports: Path) -> list[str]:
    """
    Return lines with the names of the tests that have failed, and their errors, which tests/conftest.py has noted.
    """
    notes = reports / "notes"
    return notes.read_text(errors="replace").splitlines()[:MOST_LINES] if notes.exists() else []


def _run_quietly(parts: str, reports: str) -> int:
    """Run parts; print all that they say at their end; return the exit code."""
    with tempfile.TemporaryFile() as output:
        code = _start(parts, reports, output).wait()
        output.seek(0)
        sys.stdout.flush()
        shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    return code


def _start(parts: str, reports: str, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start nox with the sessions of the parts, which noxfile.py names."""
    own = os.environ | {"DO_PARTS": parts, "MP_TEST_NOTES": os.path.join(reports, "notes")}
    command = [sys.executable, "-m", "nox", "--report", os.path.join(reports, f"{parts}.json")]
    return subprocess.Popen(command, env=own, stdout=output, stderr=output and subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(run())
