"""`python -m benchmarks`: measure, print the table, say which targets are met, write JSON when asked.

python -m benchmarks                     all rows, all peers that are installed
python -m benchmarks P1 P4 --scale 0.2   two rows, a fifth of the repetitions
python -m benchmarks --long --json out.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import machine, table
from benchmarks.bench import opened
from benchmarks.peers import PEERS
from benchmarks.rows import ROWS
from benchmarks.samples import Line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside its peers, in one run.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; none named: all")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="PEER")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer repetitions (1.0)")
    parser.add_argument("--long", action="store_true", help="P11 for ten minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as JSON")
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")

    where, load = machine.describe(), machine.load()
    lines: list[Line] = []
    with opened(options.peers, scale=options.scale, long=options.long) as bench:
        for row in options.rows or ROWS:
            lines += ROWS[row].measure(bench)

    print(*(f"{name}: {value}" for name, value in where.items()), sep=" · ")
    print(f"load average before: {load} · after: {machine.load()}\n")
    print(table.markdown(lines, bench.missing))
    print("median ± half the distance between the quartiles\n")
    print(table.verdicts(lines))
    for name, why in bench.missing.items():
        print(f"missing: {name}: {why}")
    for what, why in bench.failed.items():
        print(f"failed: {what}: {why}")
    if options.json:
        everything = {
            "machine": where,
            "load": load,
            "missing": bench.missing,
            "failed": bench.failed,
            "lines": [line.as_json() for line in lines],
        }
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
