"""The numbers of the documents are those of their records, and the plots are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import readme, record

ROOT = Path(__file__).parents[2]
FACTORS = {"s": 1, "ms": 1e-3, "µs": 1e-6, "GB/s": 1e9}
UNITS = "|".join(map(re.escape, FACTORS))
MEASURED = re.compile(rf"(?<![\w.])\d[\d.,]*\s?(?:{UNITS}|times|%)(?!\w)")


SOURCES = {**dict.fromkeys(readme.DOCUMENTS, record.SHOWN), readme.LATENCY.with_suffix(".md"): readme.LATENCY}


@pytest.mark.parametrize("document", SOURCES, ids=lambda path: path.name)
def test_the_text_between_the_marks_is_that_of_the_record(document: Path) -> None:
    text = document.read_text()
    assert readme.BLOCK.search(text)
    assert text.count("<!-- measured: ") == len(readme.BLOCK.findall(text)) == text.count("<!-- /measured -->")
    assert readme.written(text, record.read(SOURCES[document])) == text, "`python -m benchmarks.readme` writes it"


def test_every_cell_of_the_readme_is_a_median_of_the_record() -> None:
    """The test reads the file itself, without the code that wrote the table."""
    lines = {line["what"]: line for line in json.loads((ROOT / "docs" / "performance.json").read_text())["lines"]}
    found = re.search(r"<!-- measured: short -->\n(.*?)<!-- /measured -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    heading, _, *rows = ([c.strip() for c in row.split("|")[1:-1]] for row in found[1].strip().splitlines())
    assert heading[1:] == list(readme.COLUMNS) and len(rows) == len(readme.LINES)
    for name, *cells in rows:
        figures = lines[readme.LINES[name]]["figures"]
        for peer, cell in zip(readme.COLUMNS.values(), cells, strict=True):
            if cell == "-":
                assert peer not in figures, f"{name}, {peer}: it was measured"
                continue
            number, unit = cell.strip("*").split(" ")
            last_digit = 10.0 ** -len(number.partition(".")[2])
            off = abs(figures[peer]["median"] / FACTORS[unit] - float(number))
            assert off <= 0.501 * last_digit, f"{name}, {peer}: {cell} is not {figures[peer]['median']}"


def test_each_row_of_the_record_is_in_the_document() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    shown = {row for kind in re.findall(r"<!-- measured: figures ([^>]*?) -->", text) for row in kind.split()}
    assert shown == {entry.row for entry in record.read(record.SHOWN).entries}


def test_every_number_of_the_first_screen_is_that_of_the_record() -> None:
    """The test reads the file itself, without the code that wrote the lines."""
    lines = {line["what"]: line["figures"] for line in json.loads(record.SHOWN.read_text())["lines"]}
    found = re.search(r"<!-- measured: gain -->\n(.*?)<!-- /measured -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    shown = re.findall(r"^- (.+): \*\*([\d.]+) (\S+), (\d+) times faster\*\*$", found[1], re.MULTILINE)
    assert len(shown) == len(found[1].splitlines()) - 1 == len(readme.GAINS)
    price = re.search(r"^- the import: \*\*([\d.]+) ms more\*\*$", found[1], re.MULTILINE)
    figures = lines[readme.IMPORT]
    assert price and abs(figures["ours"]["median"] - figures["stdlib"]["median"] - float(price[1]) / 1000) <= 0.00001
    for name, number, unit, times in shown:
        figures = lines[readme.GAINS[name]]
        ours, theirs = figures["ours"]["median"], figures["stdlib"]["median"]
        last_digit = 10.0 ** -len(number.partition(".")[2])
        assert abs(ours / FACTORS[unit] - float(number)) <= 0.501 * last_digit, name
        assert abs(theirs / ours - int(times)) <= 0.501, name


def test_no_measured_number_stands_in_the_prose_beside_the_plots() -> None:
    text = (ROOT / "README.md").read_text()
    prose = readme.BLOCK.sub("", text[: text.index("## Try it")])
    assert MEASURED.findall(prose) == []
    assert MEASURED.findall("takes 78 µs, 3.5 times as long") == ["78 µs", "3.5 times"]


def test_the_plots_that_are_shown_are_there() -> None:
    for document in SOURCES:
        for image in map("".join, re.findall(r"!\[[^\]]*\]\(([^)]+)\)|<img src=\"([^\"]+)\"", document.read_text())):
            assert (document.parent / image).is_file(), f"{document.name} shows {image}"


def test_a_sentence_about_who_is_ahead_holds_in_the_record() -> None:
    """A comment beside the sentence says what it needs: the line, and the medians in their order."""
    text = (ROOT / "docs" / "performance.md").read_text()
    claims = re.findall(r"<!-- holds: (.+): (.+) ([<>]) (.+) -->", text)
    assert len(claims) == text.count("<!-- holds") > 5
    found = record.read(record.SHOWN)
    for what, first, sign, others in claims:
        entry = found.find(what)
        assert entry is not None, what
        for other in others.split(", "):
            one, two = entry.figures[first].median, entry.figures[other].median
            assert one < two if sign == "<" else one > two, f"{what}: {first} {one:g}, {other} {two:g}"
