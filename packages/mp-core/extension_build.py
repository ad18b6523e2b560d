"""Compile the extension module of a package into its wheel: the build hook of mp-core, and of packages over its table.

The Makefile of the package compiles it. What a package needs from other folders of the repository (this file,
`extension.mk`, headers) is copied into its sdist, and an unpacked sdist is built from its copies. On macOS and Windows
nothing is compiled.
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

__all__ = ["ExtensionBuildHook", "refuse_without_tools"]


def without_libshm() -> bool:
    """Return whether to build without libshm: off Linux, or if ``MP_WITHOUT_LIBSHM=1`` asks for it."""
    return sys.platform != "linux" or os.environ.get("MP_WITHOUT_LIBSHM") == "1"


def refuse_without_tools(package: str) -> None:
    """End the program if this machine cannot compile the module, before anything is begun."""
    if sys.version_info < (3, 11):  # noqa: UP036  (pip learns it from the wheel that is built here)
        raise SystemExit(f"{package} needs Python 3.11 or later, and this is Python {sys.version.split()[0]}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(
            f"{package} is built for CPython's stable ABI, which a free-threaded build does not have: "
            "use the ordinary build of this Python, or set MP_WITHOUT_LIBSHM=1 to work without shared memory"
        )
    compiler = (shlex.split(os.environ.get("CC", "")) or ["cc"])[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    lacks = {
        "make": None if shutil.which("make") else "make",
        "gcc libc6-dev": None if shutil.which(compiler) else f"a C compiler ({compiler!r}; CC names another)",
        "python3-dev": None if header.is_file() else f"the headers of this Python ({header})",
    }
    if any(lacks.values()):
        raise SystemExit(
            f"{package} is compiled from source here, and this is missing: {', '.join(filter(None, lacks.values()))}. "
            f"On Debian or Ubuntu: apt-get install {' '.join(name for name, lack in lacks.items() if lack)}"
        )


class ExtensionBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def copies(self, repository: Path) -> dict[Path, str]:
        """Return what the sdist has of other folders of the repository, and where."""
        core, libshm = repository / "packages" / "mp-core", repository / "libshm"
        files = {core / name: name for name in ("extension.mk", "extension_build.py")}
        return {**files, core / "native" / "mp_core.h": "include/mp_core.h", libshm / "include": "include"}

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root, package = Path(self.root), self.metadata.core.name.replace("-", "_")
        if self.target_name == "sdist":
            if (root.parent / "mp-core" / "extension.mk").is_file():  # an unpacked sdist has them
                copies = self.copies(root.parents[1])
                build_data["force_include"] |= {str(path): name for path, name in copies.items()}
            return
        build_data["pure_python"] = False
        # A wheel without libshm also has a platform: no Linux must prefer it to the sdist.
        platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
        if without_libshm():
            build_data["tag"] = f"py3-none-{platform}"
            return
        build_data["tag"] = f"cp311-abi3-{platform}"
        refuse_without_tools(self.metadata.core.name)
        # make cannot name a file in a folder with a space in its name.
        folder = "/var/tmp" if re.search(r"\s", tempfile.gettempdir()) else None
        self.build = tempfile.TemporaryDirectory(prefix=f"{self.metadata.core.name}-build-", dir=folder)
        command = ["make", f"-j{os.cpu_count() or 1}", f"BUILD={self.build.name}", f"PYTHON={sys.executable}"]
        environment = {name: value for name, value in os.environ.items() if name != "CC" or value.strip()}
        subprocess.run([*command, "dev" if version == "editable" else "all"], cwd=root, check=True, env=environment)
        if version != "editable":
            for made in Path(self.build.name, "installed").iterdir():
                build_data["force_include"][str(made)] = f"{package}/{made.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "build"):
            self.build.cleanup()
