"""The build hook. It carries libshm into the sdist: the wheel has the code that the C tests have tested."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import extension_build


class LibshmBuildHook(extension_build.ExtensionBuildHook):
    def copies(self, repository: Path) -> dict[Path, str]:
        """Return the parts of libshm, which the Makefile compiles by libshm's own."""
        parts = ("Makefile", "README.md", "DESIGN.md", "include", "src", "cmd", "tests", "fuzz")
        return {repository / "libshm" / part: f"libshm/{part}" for part in parts}
