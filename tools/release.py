"""Do a release except for the upload: `nox -s release -- X.Y.Z [--dry-run]`.

From a clean tree it sets the version, dates the entries under "Unreleased" in CHANGELOG.md, commits, builds from the
commit, checks and installs the results, puts them into dist/ and tags the commit. The commit comes before the build
because its time is the time inside the files: building the tag again gives the same bytes. A failure, and a dry
run at its end, leave commit, tag, files and dist/ as they were.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
UNRELEASED = re.compile(r"^## Unreleased\n(?P<entries>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def current() -> str:
    """Return the version of the sources."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["bumpversion"]["current_version"])


def numbers(version: str) -> tuple[int, ...]:
    """
    Return the three numbers of a version, and end the program if it is not X.Y.Z.

    >>> numbers("0.12.3") > numbers("0.9.0")
    True
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise SystemExit(f"a version is three numbers, as in {current()}, and not {version!r}")
    return tuple(map(int, version.split(".")))


def git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(args)} failed (exit code {done.returncode})")
    return done.stdout.strip()


def dated(changelog: str, version: str, day: datetime.date) -> str:
    """
    Return *changelog* with its unreleased entries under *version*, and an empty "Unreleased" before them.

    >>> print(dated("# Changes\\n\\n## Unreleased\\n\\n### Added\\n\\n- b\\n", "1.2.3", datetime.date(2030, 1, 2)))
    # Changes
    <BLANKLINE>
    ## Unreleased
    <BLANKLINE>
    ## 1.2.3 - 2030-01-02
    <BLANKLINE>
    ### Added
    <BLANKLINE>
    - b
    <BLANKLINE>
    """
    found = UNRELEASED.search(changelog)
    if found is None:
        raise SystemExit('CHANGELOG.md has no section "## Unreleased"')
    if not re.search(r"^- ", found["entries"], re.MULTILINE):
        raise SystemExit('CHANGELOG.md has no entry ("- what changed") under "## Unreleased"')
    at = found.start("entries")
    return f"{changelog[:at]}\n## {version} - {day.isoformat()}\n{changelog[at:]}"


def notes(changelog: str, version: str) -> str:
    """
    Return the entries of *version* in *changelog*.

    >>> print(notes("# Changes\\n\\n## 1.2.3 - 2030-01-02\\n\\n- b\\n\\n## 1.2.2\\n", "1.2.3"))
    - b
    """
    found = re.search(rf"^## {re.escape(version)}\b.*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f'CHANGELOG.md has no section "## {version}"')
    return found[1].strip()


def next_version() -> str:
    """Return the version that development versions lead to: the patch after the version of the sources."""
    major, minor, patch = numbers(current())
    return f"{major}.{minor}.{patch + 1}" if git("tag", "--list", f"v{current()}") else current()


def refuse(version: str) -> None:
    """
    End the program if this tree cannot become that release.
    """
    if numbers(version) < numbers(current()):
        raise SystemExit(f"{version} is before {current()}, the version of the sources")
    if git("tag", "--list", f"v{version}"):
        raise SystemExit(f"v{version} is a tag already: that version has been released")
    changed = git("status", "--porcelain")
    if changed:
        raise SystemExit(f"commit these changes first:\n{changed}")


def build(dist: Path) -> None:
    programs = ["tools.distributions"], ["tools.other_wheels"], ["tools.installations", "--short", "--python", here()]
    for program, *args in programs:
        done = subprocess.run([sys.executable, "-m", program, str(dist), *args], cwd=ROOT, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{program} failed (exit code {done.returncode})")


def here() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def release(version: str, dry_run: bool) -> None:
    refuse(version)
    changelog = dated(CHANGELOG.read_text(), version, datetime.datetime.now(datetime.UTC).date())
    before = git("rev-parse", "HEAD")
    done = False
    with tempfile.TemporaryDirectory(prefix="mp-release-") as folder:
        try:
            bump = [sys.executable, "-m", "bumpversion", "bump", "--new-version", version]
            subprocess.run(bump, cwd=ROOT, check=True)
            CHANGELOG.write_text(changelog)
            git("commit", "--all", "--quiet", "-m", f"release: {version}")
            build(Path(folder) / "dist")
            if dry_run:
                print(f"{version} can be released; this was a dry run, and everything is as it was")
                return
            git("tag", "--annotate", f"v{version}", "-m", f"mp-all {version}")
            done = True
        finally:
            if not done:
                git("reset", "--hard", "--quiet", before)
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(Path(folder) / "dist", ROOT / "dist")
    print(f"v{version} is committed, built and tagged. Two commands are left for you:")
    print(f"  git push origin HEAD v{version}\n  {Path(sys.executable).parent.relative_to(ROOT)}/twine upload dist/*")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="nox -s release --", description=__doc__.splitlines()[0])
    parser.add_argument("version", metavar="X.Y.Z", nargs="?")
    parser.add_argument("--dry-run", action="store_true", help="do everything, then restore the tree")
    parser.add_argument("--notes", action="store_true", help="only print the changelog's part for X.Y.Z")
    parser.add_argument("--next", action="store_true", help="only print the version that comes next")
    arguments = parser.parse_args()
    if arguments.next:
        print(next_version())
    elif arguments.version is None:
        parser.error("name the version: X.Y.Z")
    elif arguments.notes:
        print(notes(CHANGELOG.read_text(), arguments.version))
    else:
        release(arguments.version, arguments.dry_run)
