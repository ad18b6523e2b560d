"""Report the files of code that have more than 800 lines: `python -m tools.file_lengths [PATH ...]`.

Prose and data may be long.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tools.tracked import ROOT, tracked

LONGEST = 800
PROSE_AND_DATA = {".md", ".rst", ".json", ".svg"}


def too_long(root: Path, names: Iterable[Path]) -> list[str]:
    """Return a complaint for each file of code below *root* that is too long."""
    return [
        f"{name}:{LONGEST + 1}: {lines} lines, where {LONGEST} is the limit: split the file"
        for name in names
        if name.suffix not in PROSE_AND_DATA and "corpus" not in name.parts
        if (lines := len((root / name).read_bytes().splitlines())) > LONGEST
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.file_lengths", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="*", help="read these; by default every tracked file")
    found = too_long(ROOT, tracked(parser.parse_args().paths))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
