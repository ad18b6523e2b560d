"""The packages that mp_all assembles; their hooks find the rest."""

from __future__ import annotations

from PyInstaller.utils.hooks import collect_submodules  # type: ignore[import-untyped, unused-ignore]

hiddenimports = ["mp_core", "mp_pool", "mp_reductions", "mp_spawn", "mp_cuda", *collect_submodules("mp_all")]
