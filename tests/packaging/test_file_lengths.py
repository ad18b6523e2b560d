"""The limit on the length of a file counts code, and neither prose nor data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.file_lengths import LONGEST, too_long


@pytest.mark.parametrize("name", ["a.py", "a.pyi", "a.c", "a.h", "a.pml", "a.sh", "a.toml", "a.yml", "Makefile", "do"])
def test_code_of_more_than_800_lines_is_reported(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("x\n" * LONGEST)
    assert too_long(tmp_path, [Path(name)]) == []
    file.write_text("x\n" * LONGEST + "x")
    assert too_long(tmp_path, [Path(name)]) == [f"{name}:801: 801 lines, where 800 is the limit: split the file"]


@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.json", "a.svg", "corpus/01"])
def test_prose_and_data_may_be_longer(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("x\n" * 2 * LONGEST)
    assert too_long(tmp_path, [Path(name)]) == []
