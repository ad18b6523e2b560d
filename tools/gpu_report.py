"""The results of `tools.gpu`: pytest's report, the tests of each behaviour of docs/cuda.md, and both as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

BEGIN, END = "<!-- hardware -->", "<!-- /hardware -->"


@dataclass
class Results:
    """All that a run has found."""

    stub: bool
    report: list[tuple[str, str]]  # of mp_cuda.device_report(), and of the machine
    versions: dict[str, str]
    tests_exit: int = -1
    outcomes: dict[str, str] = field(default_factory=dict)  # of each test: passed, failed or skipped
    behaviours: list[tuple[str, str, str]] = field(default_factory=list)  # number, text, outcome
    times: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test in pytest's JUnit report; nothing if pytest was ended before it wrote one."""
    if not report.exists():
        return {}
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        name = f"{case.get('classname')}::{case.get('name')}"
        # A test whose teardown fails has two entries.
        found[name] = "failed" if "failed" in (outcome, found.get(name)) else outcome
    return found


def behaviours(document: str, found: dict[str, str]) -> list[tuple[str, str, str]]:
    """
    Return number, text and outcome of each behaviour in the table of *document*.

    >>> table = "| 9, 10 | handles | `a_handle...`, `an_event` |"
    >>> behaviours(table, {"m::test_a_handle_opens[x]": "passed", "m::test_an_event": "skipped"})
    [('9, 10', 'handles', '1 passed, 1 skipped')]
    """
    rows = []
    for number, text, names in re.findall(r"^\| ([\d, ]+) \| ([^|]+) \| (.+) \|$", document, flags=re.MULTILINE):
        prefixes = [name.removesuffix("...") for name in re.findall(r"`(\w+(?:\.\.\.)?)`", names)]
        counts = Counter(
            outcome
            for test, outcome in found.items()
            if any(test.partition("::")[2].removeprefix("test_").startswith(prefix) for prefix in prefixes)
        )
        said = ", ".join(f"{counts[kind]} {kind}" for kind in ("failed", "passed", "skipped") if counts[kind])
        rows.append((number, text, said or "no test of its own"))
    return rows


def markdown(results: Results) -> str:
    """Return the results as docs/cuda.md shows them."""
    counts = Counter(results.outcomes.values())
    device = "**the stub driver, not a GPU**" if results.stub else "a GPU"
    lines = [f"This ran on {device}, in {results.seconds:.0f} s, by `python3 -m tools.gpu`.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in results.report]
    lines += ["| packages | " + ", ".join(f"{name} {version}" for name, version in results.versions.items()) + " |"]
    tests = (
        ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped")) + f" of {len(results.outcomes)}"
    )
    if results.tests_exit == 124:
        tests += "; pytest was ended, because the time was up"
    lines += [f"| tests | {tests} |", ""]
    failed = [name for name, outcome in results.outcomes.items() if outcome == "failed"]
    if failed:
        lines += ["Failed: " + ", ".join(f"`{name.partition('::')[2]}`" for name in failed), ""]
    lines += ["| | behaviour | tests |", "|---|---|---|"]
    lines += [f"| {number} | {text} | {outcome} |" for number, text, outcome in results.behaviours]
    if results.times:
        names = list(dict.fromkeys(name for row in results.times for name in row["microseconds"]))
        lines += ["", "A message to another process and a number back, median of microseconds:", ""]
        lines += ["| | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
        for row in results.times:
            cells = [f"{row['microseconds'][name]:.0f}" if name in row["microseconds"] else "" for name in names]
            lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_into(document: Path, text: str) -> None:
    """Replace the part of *document* between the marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
