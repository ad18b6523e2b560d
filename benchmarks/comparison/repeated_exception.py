"""A task fails twice by `OSError`, and is to be repeated after that."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.comparison.event import after, main, what_became_of
from benchmarks.comparison.libraries import Library


def fail_twice(folder: str) -> int:
    count = len(list(Path(folder).iterdir()))
    Path(folder, str(count)).touch()
    if count < 2:
        raise OSError(count)
    return count


def event(library: type[Library]) -> str:
    pool = library()
    with tempfile.TemporaryDirectory() as folder:
        told = what_became_of([pool.submit_repeated(2, OSError, fail_twice, folder)])
    return f"{told}; {after(pool)}"


if __name__ == "__main__":
    main(event)
