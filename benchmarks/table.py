"""Write tables of measurements, targets and peers, in Markdown that is also readable as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.record import Record
from benchmarks.samples import Claim, Entry

MANY = 6
"""The most columns that fit a page; with more the table is transposed, a line for each peer."""


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose columns are aligned in the source too."""
    cells = [list(heading), *(list(row) for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(heading))]
    text = [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in cells]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def who(entries: Iterable[Entry]) -> list[str]:
    """Return the names of the peers in *entries* in their first order, the floor at the end."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.figures))
    return [name for name in names if name != "floor"] + ["floor"] * ("floor" in names)


def measured(entries: list[Entry]) -> str:
    """Return the figures of *entries*: a line for each, or, with many peers, a line for each peer."""
    columns = who(entries)
    if len(columns) <= MANY:
        rows = [[entry.what, *(cell(entry, name) for name in columns)] for entry in entries]
        return markdown(["", *columns], rows)
    begin, short = shortened([entry.what for entry in entries])
    return markdown([begin, *short], [[name, *(cell(entry, name) for entry in entries)] for name in columns])


def cell(entry: Entry, name: str) -> str:
    return str(entry.figures[name]) if name in entry.figures else "-"


def shortened(names: list[str]) -> tuple[str, list[str]]:
    """Return the common first words of *names*, and each name without them."""
    words = [name.split(" ") for name in names]
    same = 0
    while len(words) > 1 and all(len(w) > same + 1 and w[same] == words[0][same] for w in words):
        same += 1
    return " ".join(words[0][:same]), [" ".join(w[same:]) for w in words]


def ratios(entries: Iterable[Entry]) -> str:
    """Return the distance of mp-all to its bound, and each claim with its target and its result."""
    rows = []
    for entry in entries:
        rows += [[entry.what, text, f"{value:.3g}", "", ""] for text, value in distance(entry)]
        rows += [
            [entry.what, c.text, f"{c.value:.3g}", c.target, "met" if c.met else "**missed**"] for c in entry.claims
        ]
    return markdown(["", "ratio or number", "measured", "target", ""], rows)


def distance(entry: Entry) -> list[tuple[str, float]]:
    """Return the ratio of mp-all to the floor, unless a claim has it already."""
    ours, floor = entry.figures.get("ours"), entry.figures.get("floor")
    claimed = any(claim.text in ("ours / floor", "ours / memcpy") for claim in entry.claims)
    if ours is None or floor is None or claimed:
        return []
    bound = entry.note.partition("floor: ")[2].partition(";")[0]
    return [(f"ours / floor ({bound})", ours.median / floor.median)]


def verdicts(entries: Iterable[Entry]) -> str:
    """Return the claims for a terminal, with notes and a sum."""
    text: list[str] = []
    claims: list[Claim] = []
    for entry in entries:
        claims += entry.claims
        if entry.claims:
            text.append(f"{entry.row:4}{entry.what}" + (f"  ({entry.note})" if entry.note else ""))
            text += [f"      {claim}" for claim in entry.claims]
    return "\n".join([*text, summary(claims)])


def summary(claims: list[Claim]) -> str:
    return f"{sum(claim.met for claim in claims)} of {len(claims)} targets met"


def peers(record: Record) -> str:
    """Return a table of the peers: measured, missing or failed, with reasons."""
    rows = [[name, found["version"] or "of Python", found["how"]] for name, found in record.peers.items()]
    rows += [[name, "missing", why.replace("|", "/")] for name, why in record.missing.items()]
    rows += [[what, "failed", why.replace("|", "/")] for what, why in record.failed.items()]
    return markdown(["", "version", "how it is used"], rows)


def where(record: Record) -> str:
    """Describe machine and date in one paragraph."""
    facts = ", ".join(f"{name} {value}" for name, value in record.machine.items())
    run = record.run
    text = f"{run['date']}. {facts}. Load average {run['load before']} before and {run['load after']} after"
    if run["scale"] != 1:
        text += f". **{run['scale']:g} of the repetitions only**"
    return text + "."


def terminal(record: Record) -> str:
    """Return the whole run for a terminal."""
    text = [where(record), ""]
    for row in dict.fromkeys(entry.row for entry in record.entries):
        text += [f"{row}", measured(record.of(row)), ""]
    text += ["median ± half the distance between the quartiles", "", verdicts(record.entries)]
    text += [f"missing: {name}: {why}" for name, why in record.missing.items()]
    text += [f"failed: {what}: {why}" for what, why in record.failed.items()]
    return "\n".join(text)
