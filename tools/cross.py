"""Compile libshm for other Linux systems: `nox -s cross [-- aarch64-linux-gnu.2.28]`. The results are not run.

zig is a C compiler for all of them in one wheel. For each target libshm's own Makefile makes the archive, with warnings
as errors, and a program that refers to every function of mpshm.h is linked with it: so none is missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIBSHM = Path(__file__).parents[1] / "libshm"
TARGETS = [
    "x86_64-linux-gnu.2.28",
    "aarch64-linux-gnu.2.28",
    "x86_64-linux-musl",
]


def functions(header: str) -> list[str]:
    """
    Return the names of the functions that *header* declares.

    >>> functions("/* f(x); */ int mpshm_a(int b);\\nvoid mpshm_c(int (*mpshm_not)(void));")
    ['mpshm_a', 'mpshm_c']
    """
    return re.findall(r"\b(mpshm_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL))


def program(names: list[str]) -> str:
    """
    Return C source that needs all *names* to be linked.
    """
    table = ", ".join(f"(void (*)(void)){name}" for name in names)
    return f'#include "mpshm.h"\nvoid (*const every[])(void) = {{{table}}};\nint main(void) {{ return !every[0]; }}\n'


def cross(target: str, folder: Path) -> None:
    zig = [sys.executable, "-m", "ziglang"]
    cc = [*zig, "cc", "-target", target]
    build = folder / target
    make = ["make", "-C", str(LIBSHM), f"BUILD={build}", f"CC={' '.join(cc)}", f"AR={' '.join([*zig, 'ar'])}"]
    # All warnings but one: musl's own macro for control messages compares signed with unsigned.
    subprocess.run([*make, "CFLAGS=-O2 -Werror -Wno-error=sign-compare", f"{build}/libshm.a"], check=True)
    source, linked = build / "every.c", build / "every"
    headers = sorted((LIBSHM / "include").rglob("*.h"))
    source.write_text(program(functions("".join(header.read_text() for header in headers))))
    command = [*cc, f"-I{LIBSHM / 'include'}", "-o", str(linked), str(source), str(build / "libshm.a"), "-pthread"]
    subprocess.run(command, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mp-cross-") as folder:
        for target in sys.argv[1:] or TARGETS:
            begun = time.monotonic()
            cross(target, Path(folder))
            print(f"ok  {target}: compiled and linked, not run ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
