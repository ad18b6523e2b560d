"""The one version, set in every place that repeats it: `nox -s bump -- X.Y.Z`. tests/packaging compares the places."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def current() -> str:
    """
    The version that the sources have.
    """
    return str(tomllib.loads((ROOT / "packages/mp-core/pyproject.toml").read_text())["project"]["version"])


def numbers(version: str) -> tuple[int, ...]:
    """
    What a version is compared by; ends the program when it is not X.Y.Z.

    >>> numbers("0.12.3") > numbers("0.9.0")
    True
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise SystemExit(f"a version is three numbers, as in {current()}, and not {version!r}")
    return tuple(map(int, version.split(".")))


def set_version(new: str) -> None:
    """
    Write *new* for the current version: in six projects, in their pins of each other, in Python and in C.
    """
    numbers(new)
    old = current()
    for place in [
        *(ROOT / "packages").glob("*/pyproject.toml"),
        ROOT / "packages/mp-core/src/mp_core/_version.py",
        ROOT / "libshm/src/base/version.c",
    ]:
        text = place.read_text()
        for form in ('version = "{}"', "=={}", '__version__ = "{}"', 'MPSHM_VERSION "{}"'):
            text = text.replace(form.format(old), form.format(new))
        place.write_text(text)
    print(f"{old} -> {new}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: nox -s bump -- X.Y.Z")
    set_version(sys.argv[1])
