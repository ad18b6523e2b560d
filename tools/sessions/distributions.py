"""Files for users: each package alone, the documentation, sdists and wheels."""

from __future__ import annotations

from pathlib import Path

import nox

from tools.sessions import GROUPS, PACKAGES, install_all


@nox.session(tags=["ci"])
@nox.parametrize("package", [nox.param(p, id=p) for p in PACKAGES])
def alone(session: nox.Session, package: str) -> None:
    """Test one package from sdists in a fresh environment: it works and installs only its dependencies."""
    work = Path(session.create_tmp()).resolve()
    session.install(*GROUPS["build"])
    several = {"mp-all": PACKAGES, "mp-nodes": ["mp-core", "mp-spawn", "mp-pool", "mp-nodes"]}
    needs = several.get(package) or sorted({"mp-core", package})
    session.run("python", "-m", "tools.distributions", "--sdist", f"{work}/sdists", *needs, silent=True)
    session.run("python", "-m", "tools.installations", f"{work}/sdists", "--work", str(work), "--sdist", package)


@nox.session(tags=["ci"])
def docs(session: nox.Session) -> None:
    """Build the documentation in build/docs, and test it; a warning is an error. It needs no GPU and no network."""
    install_all(session, "docs", "test")
    out = session.posargs or ["build/docs"]
    session.run("sphinx-build", "-q", "-E", "-b", "html", "-W", "--keep-going", "docs", *out)
    session.run("pytest", "-q", "tests/packaging/test_site.py")
    session.log(f"now: open {out[0]}/index.html")


@nox.session(default=False, tags=["ci"])
def build(session: nox.Session) -> None:
    """
    Build, check and install all sdists and wheels for the upload, in dist/: nox -s build [-- --short].

    The compiled wheels are for x86-64 and aarch64, glibc and musl. Those for this machine are installed on each
    interpreter without an index; `-- --python 3.12` selects interpreters. nox -s tests-other installs the others.
    """
    session.install(*GROUPS["build"], *GROUPS["wheels"])
    session.run("python", "-m", "tools.distributions", "dist")
    session.run("python", "-m", "tools.other_wheels", "dist")
    work = Path(session.create_tmp()).resolve()
    session.run("python", "-m", "tools.installations", "dist", "--work", str(work), *session.posargs)
