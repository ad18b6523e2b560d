"""Run the sessions of `./do`: those of the C library beside the checks, then the test suite.

The tests of the C library wait more than they compute, and each check keeps one processor busy. What the tests of the
library print comes when both are done.

    python -m tools.all_parts
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from typing import IO, Any

__all__ = ["run"]


def run() -> int:
    """Run the parts; return the highest exit code. A Ctrl-C reaches all processes of the terminal's group."""
    with tempfile.TemporaryFile() as output:
        library = _start("library", output)
        try:
            codes = [_start("checks").wait()]
        finally:
            library.wait()
            output.seek(0)
            sys.stdout.flush()
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return max([*codes, library.returncode, _start("suite").wait()], key=abs)


def _start(part: str, output: IO[bytes] | None = None) -> subprocess.Popen[Any]:
    """Start nox with the sessions of a part, which noxfile.py names."""
    own = os.environ | {"DO_PART": part}
    return subprocess.Popen([sys.executable, "-m", "nox"], env=own, stdout=output, stderr=output and subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(run())
