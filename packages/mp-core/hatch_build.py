"""Carry libshm into the sdist, compile it into the wheel; on macOS and Windows compile nothing.

`libshm/` is at the top of the repository, and inside an unpacked sdist. Its own Makefile compiles it, so the wheel
links the code that the C tests have tested.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The stable ABI of 3.11 is the first with the buffer protocol, which a Block needs.
LIMITED_API = "0x030b0000"
# Without a procedure linkage table, each call into the interpreter is one jump less.
FLAGS = ["-fvisibility=hidden", "-std=gnu11", "-O2", "-fno-plt"]
# Errors with GCC 14 and with clang, warnings before.
FLAGS += [f"-Werror={e}" for e in ("implicit-function-declaration", "int-conversion", "incompatible-pointer-types")]
EXTENSION = "_libshm.abi3.so"
MANAGER = "shm-manager"


def interface(include: Path) -> str:
    """Return mpshm.h and the headers that it includes, in order, without preprocessor lines: the rest is for cffi."""
    header = (include / "mpshm.h").read_text()
    parts = [(include / name).read_text() for name in re.findall(r'(?m)^#include "(.+)"', header)]
    return re.sub(r"(?m)^#.*$", "", "".join([*parts, header]))


def without_libshm() -> bool:
    """Return whether to build without libshm: off Linux, or if ``MP_WITHOUT_LIBSHM=1`` asks for it."""
    return sys.platform != "linux" or os.environ.get("MP_WITHOUT_LIBSHM") == "1"


def platform_tag() -> str:
    """Return the platform of the wheel. A wheel without libshm also has one: no Linux must prefer it to the sdist."""
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


def refuse_without_tools() -> None:
    """End the program if this machine cannot compile the library, before anything is begun."""
    if sys.version_info < (3, 11):  # noqa: UP036  (pip learns it from the wheel that is built here)
        raise SystemExit(f"mp-core needs Python 3.11 or later, and this is Python {sys.version.split()[0]}")
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacks = {
        "make": None if shutil.which("make") else "make",
        "gcc libc6-dev": None if shutil.which(compiler) else f"a C compiler ({compiler!r}; CC names another)",
        "python3-dev": None if header.is_file() else f"the headers of this Python ({header})",
    }
    if any(lacks.values()):
        raise SystemExit(
            f"mp-core is compiled from source here, and this is missing: {', '.join(filter(None, lacks.values()))}. "
            f"On Debian or Ubuntu: apt-get install {' '.join(name for name, lack in lacks.items() if lack)}"
        )


def compile_extension(libshm: Path, native: Path, build: Path) -> Path:
    """Build libshm.a with make, link it and the hand-written `_block` into one extension; return its path."""
    import cffi

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(
            "mp-core is built for CPython's stable ABI, which a free-threaded build does not have: "
            "use the ordinary build of this Python, or set MP_WITHOUT_LIBSHM=1 to work without shared memory"
        )
    refuse_without_tools()
    subprocess.run(["make", "-C", str(libshm), f"-j{os.cpu_count() or 1}", f"BUILD={build}"], check=True)
    ffi = cffi.FFI()
    ffi.cdef(interface(libshm / "include"))
    ffi.set_source(
        "_libshm",
        '#include "mpshm.h"',
        sources=[str(source) for source in sorted(native.rglob("*.c"))],
        include_dirs=[str(libshm / "include"), str(native)],
        extra_objects=[str(build / "libshm.a")],
        extra_compile_args=FLAGS,
        define_macros=[("Py_LIMITED_API", LIMITED_API)],
        libraries=["rt", "pthread", "dl"],
        py_limited_api=True,
    )
    return Path(ffi.compile(tmpdir=str(build), target=EXTENSION))


class LibshmBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        libshm = next(p for p in (root / "libshm", root.parents[1] / "libshm") if p.is_dir())
        if self.target_name == "sdist":
            for part in ("Makefile", "README.md", "DESIGN.md", "include", "src", "cmd", "tests", "fuzz"):
                build_data["force_include"][str(libshm / part)] = f"libshm/{part}"
            return

        build_data["pure_python"] = False
        if without_libshm():
            build_data["tag"] = f"py3-none-{platform_tag()}"
            return
        self.build = tempfile.TemporaryDirectory(prefix="mp-core-build-")
        extension = compile_extension(libshm, root / "native", Path(self.build.name))
        manager = Path(self.build.name) / MANAGER
        if version == "editable":
            for made, name in ((extension, EXTENSION), (manager, MANAGER)):
                replacement = root / "src" / "mp_core" / f"{name}.new"
                shutil.copy2(made, replacement)
                replacement.rename(replacement.with_name(name))  # running processes keep the old file
        else:
            build_data["force_include"][str(extension)] = f"mp_core/{EXTENSION}"
            build_data["force_include"][str(manager)] = f"mp_core/{MANAGER}"
        build_data["tag"] = f"cp311-abi3-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "build"):
            self.build.cleanup()
