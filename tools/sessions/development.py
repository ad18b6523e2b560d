"""A developer's environment, the version, a release."""

from __future__ import annotations

import nox

from tools.sessions import GROUPS, ROOT, WHEELS


@nox.session(default=False)
def dev(session: nox.Session) -> None:
    """Make a virtual environment in .venv with the eight packages editable and every tool."""
    python = ROOT / ".venv" / "bin" / "python"
    session.run("python", "-m", "venv", ".venv")
    # These groups are large, and belong to one session each.
    own_sessions = (
        "adoption",
        "containers",
        "torch",
        "peers",
        "ray",
        "wheels",
        "cross",
        "docs",
        "typing",
        "version",
    )
    groups = [group for name, group in GROUPS.items() if name not in own_sessions]
    tools = sorted({req for group in groups for req in group} | {"nox", "editables"})
    session.run(str(python), "-m", "pip", "install", "-q", *tools, external=True)
    editable = [arg for wheel in WHEELS for arg in ("-e", wheel)]
    session.run(str(python), "-m", "pip", "install", "-q", "--no-build-isolation", *editable, external=True)
    session.log("now: . .venv/bin/activate && pytest")


@nox.session(default=False)
def bump(session: nox.Session) -> None:
    """Set the one version everywhere: nox -s bump -- X.Y.Z"""
    session.install(*GROUPS["version"])
    session.run("bump-my-version", "bump", "--new-version", *session.posargs)


@nox.session(default=False)
def release(session: nox.Session) -> None:
    """Do a release except for the upload: nox -s release -- X.Y.Z [--dry-run]."""
    session.install(*GROUPS["build"], *GROUPS["wheels"], *GROUPS["version"])
    session.run("python", "-m", "tools.release", *session.posargs)
