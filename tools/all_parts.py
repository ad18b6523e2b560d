"""Run the sessions of `./do`: those of the C library beside the checks, then the test suite.

The tests of the C library wait more than they compute, and each check keeps one processor busy. What the tests of the
library print comes when both are done. The last line names the sessions that have failed, as a command that runs them.

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
from pathlib import Path
from typing import IO, Any

__all__ = ["last_line", "run"]


def run() -> int:
    """Run the parts; return the highest exit code. A Ctrl-C reaches all processes of the terminal's group."""
    with tempfile.TemporaryDirectory() as reports, tempfile.TemporaryFile() as output:
        library = _start("library", reports, output)
        try:
            codes = [_start("checks", reports).wait()]
        finally:
            library.wait()
            output.seek(0)
            sys.stdout.flush()
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
        code = max([*codes, library.returncode, _start("suite", reports).wait()], key=abs)
        if code:
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


def _start(part: str, reports: str, output: IO[bytes] | None = None) -> subprocess.Popen[Any]:
    """Start nox with the sessions of a part, which noxfile.py names."""
    own = os.environ | {"DO_PART": part}
    command = [sys.executable, "-m", "nox", "--report", os.path.join(reports, f"{part}.json")]
    return subprocess.Popen(command, env=own, stdout=output, stderr=output and subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(run())
