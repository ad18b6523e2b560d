"""Run the programs of the pages in order, as a reader would type them, and compare their output."""

from __future__ import annotations

import doctest
import os
import re
import sys
from pathlib import Path

import pytest
from support.scripts import run_python

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "tutorial",
    "who-shares",
    "shared-allocator",
    "strategies",
    "launcher",
    "preemption",
    "beyond-one-machine",
    "coming-from-torchrun",
    "pool",
    "locks",
    "jupyter",
    "finding-leaks",
    "troubleshooting",
    "coming-from-shared-memory",
    "named-arrays",
    "asyncio",
    "timeline",
]
FENCE = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# ([\w/-]+\.py)\n")


def blocks(page: str) -> list[tuple[str, str]]:
    return FENCE.findall((DOCS / f"{page}.md").read_text())


def typed(commands: str, folder: Path) -> str:
    """
    Return the output of the commands in a shell in *folder* that finds this interpreter first.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # A page that lists every program must not show those of other tests.
    own = {"PATH": path, "PYTHONFAULTHANDLER": "1", "MPSHM_RUNTIME_DIR": str(folder)}
    done = run_python("-c", SHELL, commands, cwd=folder, **own)
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    # The launcher logs the processes that it ends; a page cannot know their pids.
    return done.stdout + re.sub(r"(?m)^Terminating process \d+ via signal SIG\w+\n", "", done.stderr)


# A shell in place of an interpreter, with the same bound on its time.
SHELL = "import os, sys; os.execvp('sh', ['sh', '-e', '-c', sys.argv[1]])"


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_the_output_on_the_page(page: str, tmp_path: Path) -> None:
    printed = ""
    for kind, text in blocks(page):
        if kind == "python":
            name = NAME.match(text)
            assert name is not None, f"a program without a name in its first line:\n{text}"
            (tmp_path / name[1]).write_text(text)
        elif kind == "sh":
            printed = typed(text, tmp_path)
        else:
            same = doctest.OutputChecker().check_output(text, printed, doctest.ELLIPSIS)
            assert same, f"promised:\n{text}\nprinted:\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_all_its_programs(page: str) -> None:
    shown = {name[1] for kind, text in blocks(page) if kind == "python" and (name := NAME.match(text))}
    run = "".join(text for kind, text in blocks(page) if kind == "sh")
    assert shown
    assert {name for name in shown if name not in run} == set()
