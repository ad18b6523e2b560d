"""Item 3 of a `map` raises: what says which item it was."""

from __future__ import annotations

import traceback

from benchmarks.comparison.event import main
from benchmarks.comparison.libraries import Library


def fail_at_3(item: str) -> str:
    if item == "the item 3":
        raise LookupError("no such thing")
    return item


def event(library: type[Library]) -> str:
    pool = library()
    try:
        pool.map(fail_at_3, [f"the item {number}" for number in range(6)])
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        return "the error names the item" if "the item 3" in text else "nothing"
    return "no error"


if __name__ == "__main__":
    main(event)
