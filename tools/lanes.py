"""Run files of tests from one queue in several lanes, each with a /dev/shm and a runtime folder of its own.

Most tests wait rather than compute. Side by side, though, a test that leaves shared memory behind on purpose is a leak
to the tests beside it, so each lane runs in a mount namespace of its own. Where the kernel grants none, there is one
lane. Options are pytest's, for every file, and NAME=value sets a variable; `--and` begins another series in the queue.

    python -m tools.lanes tests --ignore=tests/contract/programs
    python -m tools.lanes tests --and MP_SHARING_STRATEGY=file_system --only-strategy-tests tests/core tests/crash

Note [Batches]
--------------
A process of pytest takes a second to start, and a queue of files ends when its last file does. So short files of one
folder share a process, up to BATCH seconds, long ones have their own, and the longest are first. How long each took
with the same options is in SECONDS, which `--record` writes; a file that is not in there counts as UNKNOWN.

    queue   [test_long] [test_longer_than_most] [four files of core] [three of pool] ...
    lane 1  test_long ------------------------> three of pool ->
    lane 2  test_longer... -----> four files of core ----------->
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

__all__ = ["Batch", "batches", "can_isolate", "run"]

# The new namespace keeps everything but /dev/shm.
ISOLATED = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs shm /dev/shm && exec "$@"', "sh"]
SECONDS = Path(__file__).parent / "seconds.json"
BATCH = 120.0  # seconds
UNKNOWN = 20.0  # seconds
# A process of pytest that has not ended by then never will, be it at its exit, where no limit of a test holds.
MOST = 1200.0  # seconds
# With three, no processor was idle and the whole took as long: more would only make tests wait for each other.
LANES_PER_PROCESSOR = 2


@dataclass
class Batch:
    """Files of one folder that one process of pytest runs, and how long they take."""

    files: list[Path]
    seconds: float
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    code: int = 0
    output: str = ""
    computed: float = 0.0  # seconds of processor time, of all its processes
    taken: Counter[str] = field(default_factory=Counter)


def can_isolate() -> bool:
    """Return whether this user may make a mount namespace."""
    return (
        shutil.which("unshare") is not None and not subprocess.run([*ISOLATED, "true"], capture_output=True).returncode
    )


def batches(files: Iterable[Path], seconds: dict[str, float]) -> list[Batch]:
    """Return the *files* in batches, if they take these *seconds*."""
    made: list[Batch] = []
    begun: dict[Path, Batch] = {}
    for file in sorted(files):
        takes = seconds.get(file.as_posix(), UNKNOWN)
        batch = begun.get(file.parent)
        if batch is None or batch.seconds + takes > BATCH:
            batch = Batch([], 0.0)
            made.append(batch)
            if takes < BATCH:  # otherwise the batch that was begun may take more
                begun[file.parent] = batch
        batch.files.append(file)
        batch.seconds += takes
    return made


def run(todo: list[Batch], lanes: int) -> list[Batch]:
    """Run the batches *todo*, the longest first; return those that failed."""
    todo = sorted(todo, key=lambda batch: -batch.seconds)
    prefix = ISOLATED if can_isolate() else []
    waiting: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    for batch in todo:
        waiting.put(batch)
    printing = threading.Lock()
    number = iter(range(1, len(todo) + 1))

    def lane() -> None:
        while True:
            try:
                batch = waiting.get_nowait()
            except queue.Empty:
                return
            start = time.monotonic()
            _run(batch, prefix)
            with printing:
                names = ", ".join(file.name for file in batch.files)
                last = batch.output.rstrip().rpartition("\n")[2].strip("= ")
                took = f"{time.monotonic() - start:.0f} s, computing {batch.computed:.0f}"
                print(f"[{next(number)}/{len(todo)}] {took}  {names}: {last}", flush=True)
                if batch.code:
                    print(batch.output, flush=True)

    threads = [threading.Thread(target=lane) for _ in range(lanes if prefix else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [batch for batch in todo if batch.code]


def _run(batch: Batch, prefix: list[str]) -> None:
    """Run the files in a process of pytest; note its exit code, its output, and the seconds of each file."""
    with tempfile.TemporaryDirectory(prefix="mp-lane-", ignore_cleanup_errors=True) as folder:
        report = Path(folder, "report.xml")
        # Side by side, pytest's own clean-ups of one folder of old runs would meet.
        own = os.environ | {"PYTEST_DEBUG_TEMPROOT": folder} | batch.variables
        if prefix:
            own["MPSHM_RUNTIME_DIR"] = folder
        command = ["pytest", "-q", f"--junitxml={report}", *batch.options, *map(str, batch.files)]
        with Path(folder, "output").open("w+") as output:
            tests = subprocess.Popen(
                [*prefix, *command], env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            killer = threading.Timer(MOST, os.kill, (tests.pid, signal.SIGKILL))
            killer.start()
            _, status, used = os.wait4(tests.pid, 0)
            killer.cancel()
            batch.code = tests.returncode = os.waitstatus_to_exitcode(status)
            batch.computed = used.ru_utime + used.ru_stime
            output.seek(0)
            batch.output = output.read()
        if batch.code == 5:  # no test of these files was selected
            batch.code = 0
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                module = case.get("classname", "").split(".")
                name = next((f for f in batch.files if f.with_suffix("").parts == tuple(module[: len(f.parts)])), None)
                if name is not None:
                    batch.taken[name.as_posix()] += float(case.get("time", 0))


def _series(words: list[str], seconds: dict[str, dict[str, float]]) -> list[Batch]:
    """Return the batches of one series of the command line."""
    ignored = [Path(word.removeprefix("--ignore=")) for word in words if word.startswith("--ignore=")]
    options = tuple(word for word in words if word.startswith("-") and not word.startswith("--ignore="))
    variables = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
    files: list[Path] = []
    for path in (Path(word) for word in words if "=" not in word and not word.startswith("-")):
        files += [path] if path.is_file() else path.rglob("test_*.py")
    files = [file for file in files if not any(file.is_relative_to(each) for each in ignored)]
    made = batches(files, seconds.get(" ".join(options), {}))
    for batch in made:
        batch.options, batch.variables = options, variables
    return made


def main() -> None:
    """Run the series of the command line; exit with the files that failed."""
    record = "--record" in sys.argv
    given = [word for word in sys.argv[1:] if word != "--record"]
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    series = [list(words) for end, words in groupby(given, lambda word: word == "--and") if not end]
    todo = [batch for words in series for batch in _series(words, seconds)]
    failed = run(todo, LANES_PER_PROCESSOR * (os.cpu_count() or 1))
    if record:
        for batch in todo:
            known = seconds.setdefault(" ".join(batch.options), {})
            known |= {file.as_posix(): round(batch.taken[file.as_posix()], 1) for file in batch.files}
        SECONDS.write_text(json.dumps(seconds, indent=0, sort_keys=True) + "\n")
    if failed:
        sys.exit("failed: " + "; ".join(shlex.join(str(file) for file in batch.files) for batch in failed))


if __name__ == "__main__":
    main()
