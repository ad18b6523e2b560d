"""Compile the extension module into the wheel, carry the headers of mp-core and libshm into the sdist.

The module links nothing of mp-core or CUDA, so the build needs headers of mp-core only. In the repository they are
mp-core's and libshm's own; in an unpacked sdist they are copies in `include/`. On macOS and Windows nothing is
compiled.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# As mp-core: the stable ABI of 3.11 is the first with the buffer protocol.
LIMITED_API = "0x030b0000"
# Without a procedure linkage table, each call into the interpreter is one jump less.
FLAGS = ["-fvisibility=hidden", "-std=gnu11", "-O2", "-fno-plt"]
# Errors with GCC 14 and with clang, warnings before.
FLAGS += [f"-Werror={e}" for e in ("implicit-function-declaration", "int-conversion", "incompatible-pointer-types")]
EXTENSION = "_native.abi3.so"
HEADER = "mp_core.h"


def include_dirs(root: Path) -> list[Path]:
    """
    Return the folders of mp-core's header and libshm's, which are one folder in an unpacked sdist.
    """
    if (root / "include").is_dir():
        return [root / "include"]
    return [root.parent / "mp-core" / "native", root.parents[1] / "libshm" / "include"]


def without_libshm() -> bool:
    """Return whether to build without libshm: off Linux, or if ``MP_WITHOUT_LIBSHM=1`` asks for it."""
    return sys.platform != "linux" or os.environ.get("MP_WITHOUT_LIBSHM") == "1"


def platform_tag() -> str:
    """Return the platform of the wheel. A wheel without libshm also has one: no Linux must prefer it to the sdist."""
    return re.sub(r"[-.]", "_", sysconfig.get_platform())


def refuse_without_tools() -> None:
    """
    End the program if this machine cannot compile the module, before anything is begun.
    """
    if sys.version_info < (3, 11):  # noqa: UP036  (pip learns it from the wheel that is built here)
        raise SystemExit(f"mp-cuda needs Python 3.11 or later, and this is Python {sys.version.split()[0]}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(
            "mp-cuda is built for CPython's stable ABI, which a free-threaded build does not have: "
            "use the ordinary build of this Python, or set MP_WITHOUT_LIBSHM=1 to work without shared memory"
        )
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacks = {
        "gcc libc6-dev": None if shutil.which(compiler) else f"a C compiler ({compiler!r}; CC names another)",
        "python3-dev": None if header.is_file() else f"the headers of this Python ({header})",
    }
    if any(lacks.values()):
        raise SystemExit(
            "mp-cuda is compiled from source here, and this is missing: "
            f"{', '.join(filter(None, lacks.values()))}. "
            f"On Debian or Ubuntu: apt-get install {' '.join(name for name, lack in lacks.items() if lack)}"
        )


def compile_extension(root: Path, build: Path) -> Path:
    """
    Compile `native/*.c` into one extension module; return its path.
    """
    refuse_without_tools()
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extension = Extension(
        EXTENSION.partition(".")[0],
        sources=[str(source) for source in sorted((root / "native").glob("*.c"))],
        include_dirs=[*map(str, include_dirs(root))],
        extra_compile_args=FLAGS,
        define_macros=[("Py_LIMITED_API", LIMITED_API)],
        libraries=["pthread", "dl"],
        py_limited_api=True,
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = command.build_temp = str(build)
    command.ensure_finalized()
    command.run()
    # setuptools takes the first suffix of the interpreter with "abi3" in it, which Python 3.15 has two of.
    return Path(command.get_outputs()[0]).rename(build / EXTENSION)


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if self.target_name == "sdist":
            if not (root / "include").is_dir():  # otherwise this is an unpacked sdist, which has all
                mp_core, libshm = include_dirs(root)
                build_data["force_include"] |= {str(mp_core / HEADER): f"include/{HEADER}", str(libshm): "include"}
            return

        build_data["pure_python"] = False
        if without_libshm():
            build_data["tag"] = f"py3-none-{platform_tag()}"
            return
        self.build = tempfile.TemporaryDirectory(prefix="mp-cuda-build-")
        extension = compile_extension(root, Path(self.build.name))
        if version == "editable":
            replacement = root / "src" / "mp_cuda" / f"{EXTENSION}.new"
            shutil.copy2(extension, replacement)
            replacement.rename(replacement.with_name(EXTENSION))  # running processes keep the old file
        else:
            build_data["force_include"][str(extension)] = f"mp_cuda/{EXTENSION}"
        build_data["tag"] = f"cp311-abi3-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "build"):
            self.build.cleanup()
