"""Run every event in every library, and write the table of docs/pool.md: python -m benchmarks.comparison [--write]"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.comparison.libraries import LIBRARIES, Library

LIMIT = 60  # seconds
EVENTS = (
    "killed_task",
    "killed_idle",
    "killed_often",
    "segfault",
    "initializer_raises",
    "endless_task",
    "strange_exception",
    "cancel_running",
    "repeated_exception",
    "growing_task",
    "which_item",
    "queue_argument",
    "random_numbers",
    "pool_in_a_task",
)
PAGE = Path(__file__).parents[2] / "docs" / "pool.md"
BEGIN, END = "<!-- comparison -->", "<!-- /comparison -->"


def outcome(event: str, library: str) -> str:
    """Run one event in one library, in a process group of its own, and return what it printed."""
    # Not a pipe: workers that outlive the program would keep it open.
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.comparison.{event}", library],
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=PAGE.parents[1],
        )
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return "hangs"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        file.seek(0)
        out = file.read()
    last = next((line for line in reversed(out.splitlines()) if line.startswith(("outcome: ", "missing: "))), "")
    if last.startswith("missing: "):
        return "not installed"
    return last.removeprefix("outcome: ") or "the program dies"


def headed(library: type[Library]) -> str:
    """Return the name of a library, with its version if it is installed; of loky, that of joblib, which has it."""
    package = library.needs.partition(".")[0]
    try:
        if package.startswith(("mp_", "multiprocessing", "concurrent")):
            return library.name
        return f"{library.name} ({'joblib ' * (package == 'joblib')}{version(package)})"
    except PackageNotFoundError:
        return library.name


def table() -> str:
    """Return the table: a row for each event, a column for each library."""
    names = list(LIBRARIES)
    lines = ["| | " + " | ".join(headed(LIBRARIES[name]) for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for event in EVENTS:
        module = importlib.import_module(f"benchmarks.comparison.{event}")
        cells = []
        for name in names:
            cells.append(outcome(event, name))
            print(f"{event:20} {name:16} {cells[-1]}", flush=True)
        what = (module.__doc__ or "").splitlines()[0].rstrip(".")
        lines.append(f"| {what} (`{event}`) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into the page."""
    text = table()
    if "--write" not in sys.argv:
        print(text)
        return
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


if __name__ == "__main__":
    main()
