"""Run the tests on a Python of Debian's unstable distribution: `nox -s tests-debian -- 3.14`. Needs root and Linux."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from tools.chroot import Chroot, bootstrap, check_machine, copy_sources, empty_folder
from tools.distributions import PACKAGES

DEBIAN = "python{0} python{0}-venv python{0}-dev libpython{0}-testsuite gcc make ca-certificates"
STRATEGIES = ["file_descriptor", "file_system"]
# As the session `tests` does: tests that do not depend on the strategy run once, and the launcher's and the pool's run
# each in a process without other children.
SHARING = ["tests/core", "tests/reductions", "tests/contract", "tests/crash", "--ignore=tests/contract/programs"]
RUNS = [
    (SHARING, STRATEGIES[0]),
    (["tests/spawn"], STRATEGIES[0]),
    (["--only-strategy-tests", *SHARING], STRATEGIES[1]),
    (["tests/channel"], STRATEGIES[0]),
    (["tests/pool"], STRATEGIES[0]),
]


def install(chroot: Chroot, version: str) -> None:
    """Install the eight packages, as a user would, and the tools of the tests in /venv."""
    chroot.must(f"/usr/bin/python{version}", "-m", "venv", "/venv")
    chroot.must("pip", "install", "-qq", "--group", "test", *(f"./packages/{name}" for name in PACKAGES))
    chroot.must("python", "-m", "mp_all")


def run_tests(chroot: Chroot, asked: list[str]) -> list[str]:
    """Run the suite, or pytest with the arguments *asked*, and return the failed runs."""
    failed = []
    for tests, strategy in [(asked, strategy) for strategy in STRATEGIES] if asked else RUNS:
        if chroot.run("pytest", *tests, MP_TEST_STRATEGY=strategy, MP_SHARING_STRATEGY=strategy):
            failed.append(f"{' '.join(tests)} under {strategy}")
    return failed


def main() -> None:
    if len(sys.argv) < 3 or not re.fullmatch(r"3\.\d+", sys.argv[2]):
        raise SystemExit("usage: nox -s tests-debian -- 3.14 [arguments of pytest]")
    work, version, asked = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    check_machine()
    begun = time.monotonic()
    with empty_folder(f"sid-{version}", work) as root:
        bootstrap(root, "sid", DEBIAN.format(version))
        copy_sources(root / "src")
        chroot = Chroot(root)
        install(chroot, version)
        failed = run_tests(chroot, asked)
    print(f"Python {version} of Debian's unstable distribution: {time.monotonic() - begun:.0f} s in all")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
