"""Check the English of documents, docstrings and comments: `python -m tools.prose [PATH ...]`.

It reports sentences whose subject is a clause ("What is small is copied") instead of a noun, and the words of
`retired_words.toml`. vale would do both, but its package downloads a program from GitHub when it first runs; proselint
can take neither rule from a file. So this is a script.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.tracked import ROOT, tracked

WORDS = Path(__file__).with_name("retired_words.toml")
PROSE = {".md", ".rst"}
C = {".c", ".h"}
OTHER = {".py", ".pyi", ".toml", ".yml", ".yaml", ".svg", ""}
# Files with examples of both.
OURS = ["tools/prose.py", "tools/retired_words.toml", "tests/packaging/test_prose.py"]
# A sentence begins a text, a table cell or a list item, or follows the end of another sentence.
CLAUSE = re.compile(
    r"(?:\A|\n\s*\n|[.!?][\"'”)*]*\s|^\s*(?:[-*>|#]+|\d+\.)\s|\|\s)\s*(?:\*\*|[\"“*_])?"
    r"((?:What|Who|Whoever|Whatever|Whichever|Whose|One that|One who)\b(?! if\b)[^.!?|]*)([.!?|]|\Z|\n\s*\n)",
    re.MULTILINE,
)
TEST_NAME = re.compile(r"\bdef (test_(?:what|who|whoever|whatever|whose|one_that|one_who)_\w+)")


class Found(NamedTuple):
    """One complaint: `path:line: message`."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def clauses(text: str) -> Iterator[tuple[int, str]]:
    """
    Yield the offset and the first words of each sentence whose subject is a clause; questions are none.

    >>> list(clauses("It works. What is small is copied. What is small?"))
    [(10, 'What is small is copied')]
    """
    for found in CLAUSE.finditer(text):
        if found[2] != "?":
            yield found.start(1), " ".join(found[1].split()[:6])


def retired() -> dict[str, re.Pattern[str]]:
    """Return a message for each retired word, and the pattern that finds the word."""
    table = tomllib.loads(WORDS.read_text())
    patterns = {}
    for word, instead in table["use_instead"].items():
        lower = word.replace(" ", r"[\s_-]+")
        pattern = rf"(?:(?<![A-Za-z])(?i:{lower})|{lower[0].upper()}{lower[1:]})(?:s|S)?(?![a-z])"
        patterns[f"{word!r} is retired: {instead}"] = re.compile(pattern)
    return patterns


def allowed() -> list[str]:
    """Return the texts in which a retired word may stand."""
    return list(tomllib.loads(WORDS.read_text())["allowed"])


def without_code(markdown: str) -> str:
    """
    Blank out the code of a Markdown document, and keep its lines.

    >>> without_code("a `what` b")
    'a `____` b'
    """
    fences = re.compile(r"^(```|~~~).*?^\1$|<!--.*?-->", re.MULTILINE | re.DOTALL)
    text = fences.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), markdown)
    return re.sub(r"`([^`\n]+)`", lambda found: f"`{'_' * len(found[1])}`", text)


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and each block of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield begin, "\n".join(block)
                block = []
            if not block:
                begin = token.start[0]
            block.append(token.string.lstrip("#! "))
            last = token.start[0]
    if block:
        yield begin, "\n".join(block)


def c_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment."""
    for found in re.finditer(r"/\*.*?\*/", source, re.DOTALL):
        text = re.sub(r"(?m)^[ \t]*\*[ \t]?", "", found[0][2:-2])
        yield source.count("\n", 0, found.start()) + 1, text.strip(" *")


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the English parts of a file, each with its first line."""
    suffix = Path(path).suffix
    if suffix in PROSE:
        yield 1, without_code(text)
    elif suffix in (".py", ".pyi"):
        yield from python_prose(text)
    elif suffix in C:
        yield from c_prose(text)


def check(path: str, text: str) -> list[Found]:
    """Return the complaints about one file."""
    found = []
    for begin, part in prose(path, text):
        for at, words in clauses(part):
            line = begin + part.count("\n", 0, at)
            found.append(Found(path, line, f'"{words} …": begin the sentence with a noun, or with "you"'))
    for name in TEST_NAME.finditer(text):
        line = text.count("\n", 0, name.start()) + 1
        found.append(Found(path, line, f"{name[1]}: begin the name with a noun"))
    for phrase in allowed():
        text = text.replace(phrase, "_" * len(phrase))
    for message, pattern in retired().items():
        if pattern.search(path):
            found.append(Found(path, 1, f"the path: {message}"))
        found += [Found(path, text.count("\n", 0, at.start()) + 1, message) for at in pattern.finditer(text)]
    return sorted(found, key=lambda each: each.line)


def files(only: list[str]) -> list[str]:
    """Return the tracked files to read, relative to the repository."""
    return [
        str(path)
        for path in tracked(only)
        if path.suffix in PROSE | C | OTHER and "corpus" not in path.parts and str(path) not in OURS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="*", help="read these; by default every tracked file")
    options = parser.parse_args()
    names = files(options.paths)
    found = [each for name in names for each in check(name, (ROOT / name).read_text())]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
