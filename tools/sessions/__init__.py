"""The sessions of nox by subject, and what several of them need. `noxfile.py` loads them."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parents[2]
PACKAGES = ["mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-nodes", "mp-cuda", "mp-torch", "mp-all"]
WHEELS = [f"./packages/{name}" for name in PACKAGES]
STRATEGIES = ["file_descriptor", "file_system"]
GROUPS = nox.project.load_toml(ROOT / "pyproject.toml")["dependency-groups"]


def wheelhouse(session: nox.Session) -> tuple[str, list[str]]:
    """Return the wheels of the eight packages as they are now, and a key of their content; build what is not there."""
    content = hashlib.sha256()
    for path in sorted(path for folder in ("packages", "libshm") for path in (ROOT / folder).rglob("*")):
        if path.is_file() and not {"__pycache__", "build", "tests", "fuzz"} & set(path.relative_to(ROOT).parts):
            content.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    key = content.hexdigest()[:16]
    folder = ROOT / "build" / "wheelhouse" / key
    if not folder.exists():
        # Not nox's temporary folder, which would be that of the tests as well: a path of a socket has 107 bytes.
        temporary = Path(session.virtualenv.location, "wheels").resolve()
        made, builders = temporary / "wheelhouse", temporary / "builders"
        for path in (made, builders):
            shutil.rmtree(path, ignore_errors=True)
        # What builds the wheels, once: pip would install it for each of the eight, as it does in the sessions `alone`.
        session.run("python", "-m", "pip", "install", "-q", "--target", str(builders), *GROUPS["build"])
        wheel = ("python", "-m", "pip", "wheel", "-q", "--no-cache-dir", "--no-deps", "--no-build-isolation")
        session.run(*wheel, "-w", str(made), *WHEELS, env={"PYTHONPATH": str(builders)})
        folder.parent.mkdir(parents=True, exist_ok=True)
        for old in folder.parent.iterdir():
            if old.name != key:
                shutil.rmtree(old, ignore_errors=True)
        # Another session beside this one may have built them meanwhile.
        with contextlib.suppress(OSError):
            made.rename(folder)
    return key, [str(path) for path in sorted(folder.glob("*.whl"))]


def install_all(session: nox.Session, *groups: str) -> None:
    """Install the eight packages as a user would, from wheels, and the requirements of the groups."""
    if groups:
        # Python compiles the modules that a session imports; pip would compile all, and take as long as to load them.
        session.install("--no-compile", *(req for group in groups for req in GROUPS[group]))
    key, wheels = wheelhouse(session)
    installed = Path(session.virtualenv.location, "mp-all-installed")
    if installed.exists() and installed.read_text() == key:
        return
    session.install("-q", *wheels)
    # By force, since the version does not change during development.
    session.install("-q", "--force-reinstall", "--no-deps", *wheels)
    installed.write_text(key)
