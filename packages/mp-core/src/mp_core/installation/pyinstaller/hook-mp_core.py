"""libshm, the program `shm-manager` and the modules that are imported by name."""

from __future__ import annotations

import os

from PyInstaller.utils.hooks import collect_submodules, get_package_paths  # type: ignore[import-untyped, unused-ignore]

_folder = get_package_paths("mp_core")[1]
excludedimports = ["jax", "polars"]  # of mp_core.messages.formats: they are there if the program imports them
_manager = os.path.join(_folder, "shm-manager")
hiddenimports = ["_cffi_backend", *collect_submodules("mp_core"), *collect_submodules("multiprocessing")]
if os.path.exists(_manager):
    binaries = [(_manager, "mp_core")]
