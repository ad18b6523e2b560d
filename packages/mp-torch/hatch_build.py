"""The build hook, which is mp-core's; an unpacked sdist has a copy."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "mp-core")]

from extension_build import ExtensionBuildHook  # noqa: E402

__all__ = ["ExtensionBuildHook"]
