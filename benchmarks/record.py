"""A run as JSON: what was measured, of whom, where and when; written by one run and read by everything else.

`docs/performance.json` is the record whose numbers the README and `docs/performance.md` show.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.samples import Entry

SCHEMA = 1
ROOT = Path(__file__).parents[1]
SHOWN = ROOT / "docs" / "performance.json"
LATEST = ROOT / "build" / "bench" / "latest.json"


@dataclass(frozen=True)
class Record:
    """
    One run.
    """

    machine: dict[str, str]
    """Processor, cores, memory, kernel, Python, NumPy."""
    run: dict[str, Any]
    """Date (UTC), scale of the repetitions, load averages before and after, seconds that each row took."""
    peers: dict[str, dict[str, str]]
    """Who was measured: version, and how it was used."""
    missing: dict[str, str]
    """Who was not, and why."""
    failed: dict[str, str]
    """What was begun and not finished, and why."""
    entries: list[Entry]

    def of(self, *rows: str) -> list[Entry]:
        """The entries of those rows."""
        return [entry for entry in self.entries if entry.row in rows]

    def find(self, what: str) -> Entry | None:
        """The entry with that name; `None` when it was not measured."""
        return next((entry for entry in self.entries if entry.what == what), None)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def from_json(found: dict[str, Any]) -> Record:
    """The record of a JSON object; `ValueError` when it is of another schema."""
    if found.get("schema") != SCHEMA:
        raise ValueError(f"the record has schema {found.get('schema')}, this reads {SCHEMA}: measure again")
    entries = [Entry.from_json(line) for line in found["lines"]]
    return Record(found["machine"], found["run"], found["peers"], found["missing"], found["failed"], entries)


def read(path: Path) -> Record:
    """The record in *path*; `FileNotFoundError`, or `ValueError` naming the file."""
    try:
        return from_json(json.loads(path.read_text()))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from error


def write(path: Path, found: dict[str, Any]) -> None:
    """Write *found*, a JSON object, one fact on a line, so that versions of it can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
