"""The tests and files that documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


@pytest.mark.parametrize("document", ["coming-from-torch.md", "conformance.md"])
def test_a_document_names_existing_tests(document: str) -> None:
    text = (ROOT / "docs" / document).read_text()
    files = {path.removeprefix("tests/") for path in re.findall(r"(?:\w+/)+test_\w+\.py", text)}
    assert files
    assert {path for path in files if not (TESTS / path).is_file()} == set()
    # A name after a dot is one of CPython's own tests.
    functions = set(re.findall(r"(?<![.\w/])test_\w+\b(?!\.)", text))
    defined = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert {name for name in functions if f"def {name}(" not in defined} == set()


FOLDERS = ["", "docs", "examples", "packages/*", "benchmarks", "libshm"]
LINKED = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md".lstrip("/")))


@pytest.mark.parametrize("document", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_between_documents_has_a_target(document: Path) -> None:
    """Relative links must work in the repository and on the site, where Sphinx checks them too."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)|\bsrc=\"([^\"]+)\"", text)
    local = [link.partition("#")[0] for link in map("".join, links) if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (document.parent / link).exists()] == []


def test_each_page_of_the_site_can_be_reached() -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").glob("*.md")}
    toctrees = (ROOT / "docs" / "_templates" / "contents.md").read_text()
    listed = {
        name.strip("<>")  # a page, or `its title <page>`
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", toctrees, re.M | re.S)
        for name in tree.split()
    }
    assert pages - listed == {"index"}
