"""Measure, print the tables and the targets that are met, and store the run as JSON and as plots.

python -m benchmarks                     all rows, all peers that are installed; build/bench/latest.json
python -m benchmarks P1 P4 --scale 0.2   two rows, a fifth of the repetitions
python -m benchmarks --compare           ratios to docs/performance.json
python -m benchmarks --write             docs/performance.json, docs/img, and the tables of the documents
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from benchmarks import compare, machine, readme, record, table
from benchmarks.bench import Bench, opened
from benchmarks.driver import WorkFailed
from benchmarks.peers import PEERS
from benchmarks.rows import ROWS
from benchmarks.samples import Line


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure mp-all and its peers in one run."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="PEER")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer repetitions (1.0)")
    parser.add_argument("--long", action="store_true", help="P11 for ten minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", default=record.LATEST, help="where to store the run")
    parser.add_argument("--write", action="store_true", help="make the run the record that the documents show")
    parser.add_argument(
        "--compare", type=Path, nargs="?", const=record.SHOWN, metavar="FILE", help="print ratios to that record"
    )
    parser.add_argument(
        "--fail-above", type=float, metavar="RATIO", help="with --compare: exit with 1 when a ratio is above it"
    )
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    if options.write and (options.rows or options.only != list(PEERS)):
        parser.error("--write is for a whole run: name no rows and no peers with it")
    if options.fail_above is not None and options.compare is None:
        parser.error("--fail-above needs --compare")
    return options


def main() -> int:
    options = arguments()
    with_cached_bytecode()
    # Before any measurement or writing: it may be the file that is written below.
    old = record.read(options.compare) if options.compare else None
    found = run(options.rows or list(ROWS), options)
    path = record.SHOWN if options.write else options.json
    record.write(path, found)
    new = record.read(path)
    print(table.terminal(new))
    print(f"stored in {path}")
    draw(new, record.ROOT / "docs" / "img" if options.write else path.parent)
    if options.write:
        readme.write(new)
    return compare.show(new, old, options.fail_above) if old else 0


def with_cached_bytecode() -> None:
    """
    Start again without PYTHONDONTWRITEBYTECODE.

    Users' packages have cached bytecode. Without it P9 measures the compiler, since each rank compiles all it
    imports. Spawned interpreters inherit the flag, so it has to be off from the start.
    """
    if sys.flags.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]])


def run(rows: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure *rows* and return the record as a JSON object."""
    about: dict[str, Any] = {"date": record.now(), "scale": options.scale, "load before": machine.load()}
    lines: list[Line] = []
    seconds: dict[str, float] = {}
    with opened(options.only, scale=options.scale, long=options.long) as bench:
        for row in (bar := tqdm(rows, file=sys.stderr)):
            bar.set_description(row)
            start = time.monotonic()
            lines += measured(bench, row)
            seconds[row] = round(time.monotonic() - start, 1)
    peers = {
        name: {"version": bench.versions[name], "how": peer.how()}
        for name, peer in PEERS.items()
        if name in bench.versions
    }
    return {
        "schema": record.SCHEMA,
        "machine": machine.describe(),
        "run": {**about, "load after": machine.load(), "seconds": seconds},
        "peers": peers,
        "missing": bench.missing,
        "failed": bench.failed,
        "lines": [line.as_json() for line in lines],
    }


def measured(bench: Bench, row: str) -> list[Line]:
    """Return the lines of one row; if it fails, none, and `failed` has the reason."""
    try:
        bench.on_stage(ROWS[row].PEERS)
        lines: list[Line] = ROWS[row].measure(bench)
    except WorkFailed as error:
        bench.failed[row] = str(error).strip().splitlines()[-1]
        return []
    return lines


def draw(found: record.Record, folder: Path) -> None:
    try:
        from benchmarks import plots
    except ImportError as error:
        print(f"no plots: {error}")
        return
    for path in plots.draw(found, folder):
        print(f"drawn: {path}")


if __name__ == "__main__":
    sys.exit(main())
