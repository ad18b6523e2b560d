"""Run several series of commands at once, each with a /dev/shm and a runtime folder of its own.

Most tests wait rather than compute. Side by side, though, a test that leaves shared memory behind on purpose is a leak
to the tests of the other series, so each series (a lane) runs in a mount namespace of its own. Where the kernel grants
none, the lanes run one after the other.

    python -m tools.lanes "pytest tests/core ; pytest tests/crash" "pytest tests/spawn"
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

__all__ = ["can_isolate", "parse", "run"]

Lane = list[list[str]]
# The new namespace keeps everything but /dev/shm.
ISOLATED = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs shm /dev/shm && exec "$@"', "sh"]


def run(lanes: list[Lane]) -> list[str]:
    """
    Run the commands of each lane in order, and the lanes at once; return the commands that failed.

    The first lane shows its progress. The output of another command is shown when it has ended.
    """
    if not can_isolate():
        return [failed for lane in lanes for failed in _run_lane(lane, [], shown=True)]
    with ThreadPoolExecutor(len(lanes)) as executor:
        futures = [executor.submit(_run_lane, lane, ISOLATED, shown=lane is lanes[0]) for lane in lanes]
    return [failed for future in futures for failed in future.result()]


def can_isolate() -> bool:
    """
    Return whether this user may make a mount namespace.
    """
    return (
        shutil.which("unshare") is not None and not subprocess.run([*ISOLATED, "true"], capture_output=True).returncode
    )


def _run_lane(lane: Lane, prefix: list[str], *, shown: bool) -> list[str]:
    failed = []
    with tempfile.TemporaryDirectory(prefix="mp-lane-", ignore_cleanup_errors=True) as folder:
        own = dict(os.environ)
        if prefix:
            own["MPSHM_RUNTIME_DIR"] = folder
        for command in lane:
            log = Path(folder, "output")
            with log.open("w") as output:
                to = None if shown else output
                code = subprocess.call(
                    [*prefix, *command], env=own, stdout=to, stderr=subprocess.STDOUT if to else None
                )
            if code:
                failed.append(shlex.join(command))
            print(f"\n{shlex.join(command)}: exit code {code}\n{log.read_text(errors='replace')}", flush=True)
    return failed


def parse(text: str) -> Lane:
    """
    Return the commands of a lane, which the text separates with semicolons between spaces.
    """
    return [list(words) for end, words in groupby(shlex.split(text), lambda word: word == ";") if not end]


if __name__ == "__main__":
    if failed := run([parse(text) for text in sys.argv[1:]]):
        sys.exit("failed: " + "; ".join(failed))
