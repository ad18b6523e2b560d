"""The modules of mp_reductions that are imported by name."""

from __future__ import annotations

from PyInstaller.utils.hooks import collect_submodules  # type: ignore[import-untyped, unused-ignore]

hiddenimports = collect_submodules("mp_reductions")
