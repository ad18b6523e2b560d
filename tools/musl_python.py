"""Make Debian's Python, a program for glibc, run on musl's C library: what Alpine does, without Alpine.

musl's dynamic linker loads programs that were linked with glibc, takes itself for their `libc.so.6`, and has nearly all
functions that they call. `musl_shim.c` has the others. So Python and each package run on musl's memory allocator,
threads, semaphores, sockets and name resolution, and the extensions of musllinux wheels load.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.chroot import Chroot

DEBIAN = "musl"
# Of musl's linker: first what stands for glibc's, which some libraries name.
FOLDER = Path("opt/musl")
# musl takes itself for the library of mathematics, too: Python asks for the shim in its place.
MATHEMATICS, SHIM = b"\0libm.so.6\0", b"\0libM.so.6\0"
# The type of the program header that names pages to write-protect: Debian's Python for aarch64 has a copy of the stack
# guard there, which musl writes later. 0 is a header to ignore.
RELRO, IGNORED = bytes.fromhex("52e57464"), bytes(4)
HEADERS = 1024
LINKERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def program_of_musl(program: bytes, machine: str) -> bytes:
    r"""
    Return a program of glibc with musl's dynamic linker and the shim; each name takes the place of another.

    >>> program_of_musl(b"/lib64/ld-linux-x86-64.so.2\0libm.so.6\0", "x86_64")
    b'/lib/ld-musl-x86_64.so.1\x00\x00\x00\x00libM.so.6\x00'
    """
    folder = b"/lib64/" if machine == "x86_64" else b"/lib/"
    linker, ours = folder + LINKERS[machine].encode(), f"/lib/ld-musl-{machine}.so.1".encode()
    for old, new in ((linker, ours.ljust(len(linker), b"\0")), (MATHEMATICS, SHIM)):
        if program.count(old) != 1:
            raise SystemExit(f"{program.count(old)} places name {old!r}, instead of 1")
        program = program.replace(old, new)
    return program[:HEADERS].replace(RELRO, IGNORED) + program[HEADERS:]


def install(chroot: Chroot, machine: str, version: str, site: Path) -> str:
    """Make Debian's Python in *chroot* a program of musl, and let it find the extensions in *site*."""
    root, shim = chroot.root, SHIM.strip(b"\0").decode()
    (root / FOLDER).mkdir(parents=True)
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", "-dynamic", "-shared"]
    source, to = Path(__file__).with_name("musl_shim.c"), root / FOLDER / shim
    subprocess.run([*compiler, "-fPIC", "-O2", "-o", str(to), str(source)], check=True)
    (root / FOLDER / LINKERS[machine]).symlink_to(shim)
    folders = f"/{FOLDER}:/lib:/usr/lib:/usr/lib/{machine}-linux-gnu\n"
    (root / "etc" / f"ld-musl-{machine}.path").write_text(folders)
    python = root / "usr/bin" / f"python{version}"
    python.write_bytes(program_of_musl(python.read_bytes(), machine))
    for path in site.rglob(f"*-{machine}-linux-musl.so"):  # the names of a Python that was built on musl
        path.rename(path.with_name(path.name.replace("-musl.so", "-gnu.so")))
    chroot.must("python3", "-c", USES_MUSL)
    return f"Python {version} on musl"


USES_MUSL = """
libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
assert any("musl" in path for path in libraries), libraries
assert not any("linux-gnu/libc.so" in path for path in libraries), libraries
"""
