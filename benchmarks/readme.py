"""Write the numbers of the documents from their records: `python -m benchmarks.readme`.

README.md and docs/performance.md show docs/performance.json, docs/latency.md shows docs/latency.json. This module
replaces the text between `<!-- measured: NAME -->` and `<!-- /measured -->`; the rest is prose.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks import record, table
from benchmarks.record import Record
from benchmarks.samples import Entry, in_words

DOCUMENTS = [record.ROOT / "README.md", record.ROOT / "docs" / "performance.md"]
LATENCY = record.ROOT / "docs" / "latency.json"
BLOCK = re.compile(r"(<!-- measured: (?P<name>[^>]+?) -->\n).*?(<!-- /measured -->)", re.DOTALL)

# Heading in the README: name of the peer.
COLUMNS = {
    "mp-all": "ours",
    "multiprocessing": "stdlib",
    "`SharedMemory` by hand": "by hand",
    "torch": "torch fd",
    "joblib": "joblib",
    "Ray": "Ray",
}
# Line in the README: line of the record.
LINES = {
    "200 B, there and back": "round trip, fresh 200 B",
    "64 KiB": "round trip, fresh 64 KiB",
    "1 MiB": "round trip, fresh 1 MiB",
    "16 MiB": "round trip, fresh 16 MiB",
    "128 MiB": "round trip, fresh 128 MiB",
    "a list of 1000 arrays of 1 KiB": "round trip, 1000 private arrays of 1 KiB",
    "stream of 1 MiB through a `Queue(8)`": "stream, fresh 1 MiB",
    "`Pool(2).map`, 64 results of 16 MiB": "Pool(2).map, 64 results of 16 MiB",
}

# Line of the first screen: line of the record.
GAINS = {
    "16 MiB to another process and a number back": "round trip, fresh 16 MiB",
    "64 results of 16 MiB from `Pool(2).map`": "Pool(2).map, 64 results of 16 MiB",
    "such results in the first call of a program, start of the pool included": "first_call.py, its first call",
    "in a later call of it": "first_call.py, a later call",
    "an int there and back": "round trip, an int",
}
IMPORT = "a program that only imports"


def gain(found: Record) -> str:
    """Return the lines of the first screen: the time, and how many times faster than multiprocessing it is."""
    lines = []
    for name, what in GAINS.items():
        entry = found.find(what)
        if entry is not None and {"ours", "stdlib"} <= entry.figures.keys():
            ours, theirs = entry.figures["ours"], entry.figures["stdlib"]
            ratio = theirs.median / ours.median
            lines.append(f"- {name}: **{in_words(ours.median, ours.unit)}, {ratio:.0f} times faster**")
    entry = found.find(IMPORT)
    if entry is not None and {"ours", "stdlib"} <= entry.figures.keys():
        ours, theirs = entry.figures["ours"], entry.figures["stdlib"]
        lines.append(f"- the import: **{in_words(ours.median - theirs.median, ours.unit)} more**")
    return "\n".join(lines)


def short(found: Record) -> str:
    """Return the table of the README: medians, the best of each line in bold."""
    rows = []
    for name, what in LINES.items():
        entry = found.find(what)
        if entry is not None:
            rows.append([name, *medians(entry)])
    return table.markdown(["", *COLUMNS], rows)


def medians(entry: Entry) -> list[str]:
    figures = [entry.figures.get(peer) for peer in COLUMNS.values()]
    there = [figure for figure in figures if figure is not None]
    best = (max if there[0].rate else min)(figure.median for figure in there)
    cells = []
    for figure in figures:
        text = in_words(figure.median, figure.unit) if figure else "-"
        cells.append(f"**{text}**" if figure and figure.median == best else text)
    return cells


def block(name: str, found: Record) -> str:
    """Return the text between the markers of *name*; raise `KeyError` for an unknown name."""
    whole = {"gain": gain, "short": short, "where": table.where, "peers": table.peers}
    if name in whole:
        return whole[name](found)
    kind, _, rows = name.partition(" ")
    return {"figures": table.measured, "ratios": table.ratios}[kind](found.of(*rows.split()))


def written(text: str, found: Record) -> str:
    """Return *text* with every block replaced."""
    return BLOCK.sub(lambda match: f"{match[1]}{block(match['name'], found)}\n{match[3]}", text)


def write(found: Record) -> None:
    """Write the documents of the record of a whole run whose numbers have changed."""
    write_documents(DOCUMENTS, found)


def write_documents(documents: list[Path], found: Record) -> None:
    for path in documents:
        text = path.read_text()
        if (new := written(text, found)) != text:
            path.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("json", type=Path, nargs="?", default=record.SHOWN)
    write(record.read(parser.parse_args().json))
    write_documents([LATENCY.with_suffix(".md")], record.read(LATENCY))


if __name__ == "__main__":
    main()
