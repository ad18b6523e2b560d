"""The modules of mp_nodes, and the entry points by which mp_spawn and mp_pool find it."""

from __future__ import annotations

from PyInstaller.utils.hooks import collect_submodules, copy_metadata  # type: ignore[import-untyped, unused-ignore]

hiddenimports = collect_submodules("mp_nodes", filter=lambda name: name != "mp_nodes.engines.ray_actor")
datas = copy_metadata("mp-nodes")
