"""Read and write a run as JSON: figures, peers, machine and date.

The README and `docs/performance.md` show the numbers of the record `docs/performance.json`.
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
    """Date (UTC), scale of the repetitions, load averages before and after, seconds of each row."""
    peers: dict[str, dict[str, str]]
    """The measured peers: version and use."""
    missing: dict[str, str]
    """The missing peers, with reasons."""
    failed: dict[str, str]
    """The unfinished measurements, with reasons."""
    entries: list[Entry]

    def of(self, *rows: str) -> list[Entry]:
        """Return the entries of those rows."""
        return [entry for entry in self.entries if entry.row in rows]

    def find(self, what: str) -> Entry | None:
        """Return the entry with that name; `None` if it was not measured."""
        return next((entry for entry in self.entries if entry.what == what), None)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def from_json(found: dict[str, Any]) -> Record:
    """Return the record in a JSON object; raise `ValueError` for another schema."""
    if found.get("schema") != SCHEMA:
        raise ValueError(f"the record has schema {found.get('schema')}, this reads {SCHEMA}: measure again")
    entries = [Entry.from_json(line) for line in found["lines"]]
    return Record(found["machine"], found["run"], found["peers"], found["missing"], found["failed"], entries)


def read(path: Path) -> Record:
    """Return the record in *path*; raise `FileNotFoundError`, or `ValueError` with the file's name."""
    try:
        return from_json(json.loads(path.read_text()))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from error


def write(path: Path, found: dict[str, Any]) -> None:
    """Write *found*, a JSON object, with one measurement, peer or fact on a line, for readable diffs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_lines(found) + "\n")


def json_lines(found: dict[str, Any]) -> str:
    """
    Return JSON that has a line for each part of an object's parts.

    >>> print(json_lines({"schema": 1, "peers": {"ours": {"a": 1}}, "lines": [[1, 2], [3]]}))
    {
    "schema": 1,
    "peers": {
     "ours": {"a": 1}
    },
    "lines": [
     [1, 2],
     [3]
    ]
    }
    """
    parts = []
    for name, part in found.items():
        if isinstance(part, dict) and part:
            inside = [f"{_json(key)}: {_json(value)}" for key, value in part.items()]
            text = "{\n " + ",\n ".join(inside) + "\n}"
        elif isinstance(part, list) and part:
            text = "[\n " + ",\n ".join(map(_json, part)) + "\n]"
        else:
            text = _json(part)
        parts.append(f"{_json(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _json(part: Any) -> str:
    return json.dumps(part, ensure_ascii=False)
