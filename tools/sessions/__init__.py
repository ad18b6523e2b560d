"""The sessions of nox by subject, and what several of them need. `noxfile.py` loads them."""

from __future__ import annotations

from pathlib import Path

import nox

ROOT = Path(__file__).parents[2]
PACKAGES = ["mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-cuda", "mp-torch", "mp-all"]
WHEELS = [f"./packages/{name}" for name in PACKAGES]
STRATEGIES = [nox.param(s, id=s) for s in ("file_descriptor", "file_system")]
GROUPS = nox.project.load_toml(ROOT / "pyproject.toml")["dependency-groups"]


def install_all(session: nox.Session, *groups: str) -> None:
    """Install the seven packages as a user would, from wheels, and the requirements of the groups."""
    if groups:
        session.install(*(req for group in groups for req in GROUPS[group]))
    # A separate step and never from a cache: the version does not change during development.
    session.install("--no-cache-dir", "--force-reinstall", "--no-deps", *WHEELS)
    session.install(*WHEELS)
