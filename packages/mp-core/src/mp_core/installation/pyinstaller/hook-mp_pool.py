"""The modules of mp_pool that are imported by name, and mp_nodes, which it finds by entry points."""

from __future__ import annotations

from importlib.util import find_spec

from PyInstaller.utils.hooks import collect_submodules  # type: ignore[import-untyped, unused-ignore]

hiddenimports = collect_submodules("mp_pool")
if find_spec("mp_nodes"):
    hiddenimports.append("mp_nodes")
