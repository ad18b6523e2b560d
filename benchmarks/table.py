"""The table: what a reader sees at the end, in the terminal or in Markdown."""

from __future__ import annotations

from benchmarks.samples import Line

COLUMNS = ["ours", "stdlib", "by hand", "torch fd", "torch fs", "floor"]


def markdown(lines: list[Line], missing: dict[str, str]) -> str:
    """The measurements as one table, aligned so that it reads well unrendered."""
    columns = [c for c in COLUMNS if c not in missing]
    rows = [["", "", *columns], *([line.row, line.what, *_cells(line, columns)] for line in lines)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    text = [f"| {' | '.join(row)} |" for row in padded]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _cells(line: Line, columns: list[str]) -> list[str]:
    return [str(line.samples[c]) if c in line.samples else "-" for c in columns]


def verdicts(lines: list[Line]) -> str:
    """Every claim with its number, its limit, and met or missed."""
    text = []
    for line in lines:
        if line.claims:
            text.append(f"{line.row:4}{line.what}" + (f"  ({line.note})" if line.note else ""))
            text += [f"      {claim}" for claim in line.claims]
    met = [claim.met for line in lines for claim in line.claims]
    text.append(f"{sum(met)} of {len(met)} targets met")
    return "\n".join(text)
