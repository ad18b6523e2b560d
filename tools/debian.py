"""Run the tests on a Python of Debian's unstable distribution: `nox -s tests-debian -- 3.14`. Needs root and Linux.

debootstrap makes the distribution in a folder, and the tests run in it by chroot. Each command runs in a mount
namespace and a process namespace of its own: when it ends, killed or not, the kernel unmounts everything and ends every
process in it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = "python{0} python{0}-venv python{0}-dev libpython{0}-testsuite gcc make ca-certificates"
NAMESPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
NAMESPACES += ["--pid", "--fork", "--kill-child", "--mount-proc"]
STRATEGIES = ["file_descriptor", "file_system"]
# The launcher does not depend on the strategy: its tests run once, in a process without other children.
SHARING = ["tests/core", "tests/reductions", "tests/contract", "tests/crash", "--ignore=tests/contract/programs"]
LAUNCHER = ["tests/spawn"]
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")

# The first process of its namespace is a shell that waits: it reaps processes that have lost their parents. The folder
# is mounted on itself: some tests make a mount namespace, and the root of a process that does must be a mount point.
INSIDE = """
set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount -t sysfs -o ro sysfs "$0/sys"
mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts"
chroot "$0" "$@" && exit
exit $?
"""


def check_machine() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SystemExit("the chroot is made and mounted by root, on Linux: run it as root, or in a container")
    for program in ("debootstrap", "unshare", "setpriv", "git"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing (on Debian or Ubuntu: apt-get install debootstrap util-linux git)")


def bootstrap(root: Path, version: str) -> None:
    """Make Debian's unstable distribution in *root*, with that Python and a C compiler."""
    names = PACKAGES.format(version).replace(" ", ",")
    command = [*NAMESPACES, "debootstrap", "--variant=minbase", f"--include={names}", "sid", str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        print(*done.stdout.splitlines()[-20:], sep="\n")
        raise SystemExit(
            f"debootstrap failed with {done.returncode}; check that Debian's unstable distribution has python{version}"
        )
    # Resolve names and trust certificates as on this machine.
    for name in (Path("etc/resolv.conf"), Path("etc/hosts"), CERTIFICATES):
        if (Path("/") / name).exists():
            shutil.copyfile(Path("/") / name, root / name)


def copy_sources(to: Path) -> None:
    """Copy the working tree: the files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (ROOT / name).is_file():  # not a file whose deletion is not committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def settings_of_pip(listed: str) -> dict[str, str]:
    """
    Convert the output of `pip config list` to environment variables.

    >>> settings_of_pip("global.find-links='/opt/wheels'\\n:env:.timeout='9'")
    {'PIP_FIND_LINKS': '/opt/wheels'}
    """
    found = re.findall(r"^global\.([\w-]+)='(.*)'$", listed, flags=re.MULTILINE)
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found}


def environment() -> dict[str, str]:
    """Return the environment of the commands inside: a plain one, with pip's settings of this machine."""
    config = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(config, stdout=subprocess.PIPE, text=True, check=True).stdout
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    return {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PIP_ROOT_USER_ACTION": "ignore",
        **settings_of_pip(listed),
        **own,
    }


class Chroot:
    """Runs commands in the chroot."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = environment()

    def run(self, *command: str, **variables: str) -> int:
        """Run *command* in /src and return its exit code."""
        inside = ["/bin/sh", "-c", 'cd /src && "$0" "$@"', *command]
        print("$", *(f"{name}={value}" for name, value in variables.items()), *command, flush=True)
        return subprocess.run(
            [*NAMESPACES, "/bin/sh", "-c", INSIDE, str(self.root), *inside],
            env={**self.environment, **variables},
            check=False,
        ).returncode

    def must(self, *command: str) -> None:
        """Run *command* in /src; end the program when it fails."""
        if code := self.run(*command):
            raise SystemExit(f"{' '.join(command)} failed in the chroot with {code}")


def install(chroot: Chroot, version: str) -> None:
    """Install the seven packages, as a user would, and the tools of the tests in /venv."""
    names = ["mp-core", "mp-reductions", "mp-spawn", "mp-pool", "mp-cuda", "mp-torch", "mp-all"]
    chroot.must(f"/usr/bin/python{version}", "-m", "venv", "/venv")
    chroot.must("pip", "install", "-qq", "--group", "test", *(f"./packages/{name}" for name in names))
    chroot.must("python", "-m", "mp_all")


def run_tests(chroot: Chroot, asked: list[str]) -> list[str]:
    """Run the suite, or pytest with the arguments *asked*, and return the failed runs."""
    runs = [(asked, strategy) for strategy in STRATEGIES] if asked else [(SHARING, s) for s in STRATEGIES]
    if not asked:
        runs.append((LAUNCHER, STRATEGIES[0]))
    failed = []
    for tests, strategy in runs:
        if chroot.run("pytest", *tests, MP_TEST_STRATEGY=strategy, MP_SHARING_STRATEGY=strategy):
            failed.append(f"{' '.join(tests)} under {strategy}")
    return failed


@contextmanager
def folder_for(version: str, work: Path) -> Iterator[Path]:
    """Yield an empty folder, and remove it: nothing is mounted in it outside the namespaces."""
    root = work / f"sid-{version}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        yield root
    finally:
        shutil.rmtree(root)


def main() -> None:
    if len(sys.argv) < 3 or not re.fullmatch(r"3\.\d+", sys.argv[2]):
        raise SystemExit("usage: nox -s tests-debian -- 3.14 [arguments of pytest]")
    work, version, asked = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    check_machine()
    # A signal ends the program by an exception, so that the folder is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    begun = time.monotonic()
    with folder_for(version, work) as root:
        bootstrap(root, version)
        copy_sources(root / "src")
        chroot = Chroot(root)
        install(chroot, version)
        failed = run_tests(chroot, asked)
    print(f"Python {version} of Debian's unstable distribution: {time.monotonic() - begun:.0f} s in all")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
