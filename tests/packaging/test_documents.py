"""Documents that name tests name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


@pytest.mark.parametrize("document", ["coming-from-torch.md", "conformance.md"])
def test_a_document_names_tests_that_are_there(document: str) -> None:
    text = (ROOT / "docs" / document).read_text()
    files = {path.removeprefix("tests/") for path in re.findall(r"(?:\w+/)+test_\w+\.py", text)}
    assert files
    assert {path for path in files if not (TESTS / path).is_file()} == set()
    # What follows a dot is a test of CPython's own.
    functions = set(re.findall(r"(?<![.\w/])test_\w+\b(?!\.)", text))
    defined = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert {name for name in functions if f"def {name}(" not in defined} == set()
