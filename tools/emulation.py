"""Run aarch64 programs on this machine: qemu-user, registered with the kernel. Needs root.

The emulator is that of Debian 13: version 7.2, which Debian 12 has, takes five times as long, and now and then minutes.

The kernel stays this machine's. So the tests show that the packages work on aarch64's instructions, sizes and system
call numbers, not on its memory order.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.chroot import bootstrap

BINFMT = Path("/proc/sys/fs/binfmt_misc")
HANDLER = "mp-tests-aarch64"
# The first 20 bytes of an aarch64 program: ELF of 64 bits, little-endian, of any system, a program or a shared library,
# for machine 183.
MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"


def install_emulator(root: Path, suite: str) -> str:
    """Install qemu-user of Debian's *suite* in the folder *root*, and return the path of that for aarch64."""
    bootstrap(root, suite, "qemu-user")
    return str(root / "usr/bin/qemu-aarch64")


def version(qemu: str) -> str:
    """Return the name and version of the emulator."""
    return subprocess.run([qemu, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]


def rule(qemu: str) -> bytes:
    r"""
    Return the line that makes the kernel run aarch64 programs by *qemu*, which it opens now (F).

    >>> rule("/q")[:29]
    b':mp-tests-aarch64:M::\\x7f\\x45'
    """
    magic, mask = ("".join(f"\\x{byte:02x}" for byte in text) for text in (MAGIC, MASK))
    return f":{HANDLER}:M::{magic}:{mask}:{qemu}:F".encode()


@contextmanager
def programs_emulated(qemu: str) -> Iterator[None]:
    """Let the kernel run aarch64 programs, for as long as the context lasts, unless it does already."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
    ours = BINFMT / HANDLER
    if ours.exists():  # of a run that was killed
        ours.write_bytes(b"-1")
    (BINFMT / "register").write_bytes(rule(qemu))
    try:
        yield
    finally:
        ours.write_bytes(b"-1")
