"""The files of this repository, as git lists them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tracked(only: Sequence[str] = ()) -> list[Path]:
    """Return the files that git tracks, and new ones that it does not ignore, relative to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *only]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    return [Path(name) for name in sorted({*listed} - {""}) if (ROOT / name).is_file()]
