"""No two files of a package have one name, so a name says where to look."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = [ROOT / "libshm/src", *sorted(ROOT.glob("packages/*/src")), *sorted(ROOT.glob("packages/*/native"))]
SPECIAL = {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part.relative_to(ROOT)))
def test_no_two_files_of_a_package_have_one_name(part: Path) -> None:
    names = Counter(
        file.name for kind in ("py", "c", "h") for file in part.rglob(f"*.{kind}") if file.name not in SPECIAL
    )
    assert names and not [name for name, count in names.items() if count > 1]
