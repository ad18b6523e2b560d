"""Make Debian's Python, a program for glibc, run on musl's C library: what Alpine does, without Alpine.

musl's dynamic linker loads programs that were linked with glibc, takes itself for their `libc.so.6`, and has nearly all
functions that they call. `musl_shim.c` has the others. So Python and each package run on musl's memory allocator,
threads, semaphores, sockets and name resolution, and the extensions of musllinux wheels load.
"""

from __future__ import annotations

from pathlib import Path

from tools.chroot import Chroot

DEBIAN = "musl-tools patchelf"
# Of musl's linker: first what stands for glibc's, which some libraries name.
FOLDER = Path("opt/musl")
SHIM = "libmusl-shim.so"


def install(chroot: Chroot, version: str, site: Path) -> str:
    """Make Debian's Python in *chroot* a program of musl, and let it find the extensions in *site*."""
    python = f"/usr/bin/python{version}"
    machine = next((chroot.root / "usr/lib").glob("*-linux-musl")).name.partition("-")[0]
    (chroot.root / FOLDER).mkdir(parents=True)
    chroot.must("musl-gcc", "-shared", "-fPIC", "-O2", "-o", f"/{FOLDER / SHIM}", "tools/musl_shim.c")
    for linker in ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"):
        (chroot.root / FOLDER / linker).symlink_to(SHIM)
    folders = f"/{FOLDER}:/lib:/usr/lib:/usr/lib/{machine}-linux-gnu\n"
    (chroot.root / "etc" / f"ld-musl-{machine}.path").write_text(folders)
    chroot.must("patchelf", "--set-interpreter", f"/lib/ld-musl-{machine}.so.1", "--add-needed", SHIM, python)
    for path in site.rglob(f"*-{machine}-linux-musl.so"):  # the names of a Python that was built on musl
        path.rename(path.with_name(path.name.replace("-musl.so", "-gnu.so")))
    chroot.must("python3", "-c", USES_MUSL)
    return f"Python {version} on musl"


USES_MUSL = """
libraries = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
assert any("musl" in path for path in libraries), libraries
assert not any("linux-gnu/libc.so" in path for path in libraries), libraries
"""
