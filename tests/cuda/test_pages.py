"""The programs of docs/device-uses.md run, on whatever device the tests have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

PAGE = Path(__file__).parents[2] / "docs" / "device-uses.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_has_two_programs() -> None:
    assert len(PROGRAMS) == 2


@pytest.mark.parametrize("program", PROGRAMS, ids=["weights", "observations"])
def test_a_program_of_the_page_prints_what_it_promises(tmp_path: Path, program: str) -> None:
    (promised,) = re.findall(r"^    print\(.*\)  # (.+)$", program, re.MULTILINE)
    assert succeeded(run_script(tmp_path, program)) == promised + "\n"
