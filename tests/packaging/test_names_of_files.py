"""A name of a file says where to look: no two files of a package have one name, and a file that is named exists."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tools.tracked import ROOT, tracked

PARTS = [ROOT / "libshm/src", *sorted(ROOT.glob("packages/*/src")), *sorted(ROOT.glob("packages/*/native"))]
SPECIAL = {"__init__.py", "__main__.py"}

# A file by its name, or by the end of its path.
NAMED = re.compile(r"(?<![\w/.<{*-])((?:[\w-]+/)*[a-z_][\w-]*\.(?:pyi?|c|h|md|rst|toml|yml))(?![\w(./*-])")
#: Programs of examples, and files of CPython and NumPy.
OTHERS = {"a.py", "first_call.py", "nothing.py", "script.py", "this_file_is_not_there.py", "train.py"}
OTHERS |= {"ndarraytypes.h", "popen_spawn_win32.py", "process.py"}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part.relative_to(ROOT)))
def test_no_two_files_of_a_package_have_one_name(part: Path) -> None:
    names = Counter(
        file.name for kind in ("py", "c", "h") for file in part.rglob(f"*.{kind}") if file.name not in SPECIAL
    )
    assert names and not [name for name, count in names.items() if count > 1]


def words_of(path: Path, text: str) -> str:
    """Return the comments and docstrings of a file of code; a page without its blocks of code."""
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        is_text = {tokenize.COMMENT: "#", tokenize.STRING: ('"""', 'r"""')}
        return "\n".join(each.string for each in tokens if each.string.startswith(is_text.get(each.type, "no such")))
    if path.suffix in (".c", ".h"):
        return "\n".join(re.findall(r"/\*.*?\*/", text, re.DOTALL))
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_each_file_that_a_comment_or_a_page_names_exists() -> None:
    ends = {"/".join(path.parts[at:]) for path in tracked(["."]) for at in range(len(path.parts))}
    ends |= {re.sub(r"^mp-(\w+)/native/", r"mp_\1/native/", end) for end in ends}  # short for packages/mp-core/native
    kinds = (".py", ".c", ".h", ".md", ".rst")
    places = [path for path in tracked(["packages", "libshm", "docs"]) if path.suffix in kinds]
    named = [(path, name) for path in places for name in NAMED.findall(words_of(path, (ROOT / path).read_text()))]
    assert len(named) > 500
    assert sorted({f"{path}: {name}" for path, name in named if name not in ends | OTHERS}) == []
    assert {name for _, name in named} >= OTHERS, "an exception that is not needed"
