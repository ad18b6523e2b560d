"""Run commands in another distribution: a folder, its mounts and a process namespace. Needs root and Linux.

debootstrap makes the distribution in the folder. Each command runs by chroot in a mount namespace and a process
namespace of its own: when it ends, killed or not, the kernel unmounts everything and ends every process in it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.distributions import ROOT

NAMESPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
NAMESPACES += ["--pid", "--fork", "--kill-child", "--mount-proc"]
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
    """End the program if this machine cannot make a chroot."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SystemExit("the chroot is made and mounted by root, on Linux: run it as root, or in a container")
    for program in ("debootstrap", "unshare", "setpriv", "git"):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing (on Debian or Ubuntu: apt-get install debootstrap util-linux git)")


def bootstrap(root: Path, suite: str, packages: str, *options: str) -> None:
    """Make Debian's *suite* in *root* with these packages; *options* are debootstrap's."""
    names = packages.replace(" ", ",")
    command = [*NAMESPACES, "debootstrap", "--variant=minbase", f"--include={names}", *options, suite, str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        print(*done.stdout.splitlines()[-20:], sep="\n")
        raise SystemExit(f"debootstrap failed with {done.returncode}; check that Debian {suite} has {packages}")
    # Resolve names and trust certificates as on this machine.
    for name in (Path("etc/resolv.conf"), Path("etc/hosts"), CERTIFICATES):
        if (Path("/") / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
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
    Convert the output of `pip config list` to environment variables, without a file of constraints of this machine.

    >>> settings_of_pip("global.find-links='/opt/wheels'\\n:env:.timeout='9'")
    {'PIP_FIND_LINKS': '/opt/wheels'}
    """
    found = re.findall(r"^global\.([\w-]+)='(.*)'$", listed, flags=re.MULTILINE)
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found if name != "constraint"}


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


@contextmanager
def empty_folder(name: str, work: Path) -> Iterator[Path]:
    """Yield an empty folder, and remove it: nothing is mounted in it outside the namespaces."""
    # A signal ends the program by an exception, so that the folder is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    root = work / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        yield root
    finally:
        shutil.rmtree(root)
