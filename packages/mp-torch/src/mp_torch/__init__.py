"""Send torch's CPU tensors between processes through mp-core's shared memory, with torch's semantics.

    mp_torch.install()        tensors, Parameters and storages travel in blocks from now on; DataLoader too

Importing this package changes nothing, and does not import torch.
"""

import importlib as _importlib
import typing as _typing

from mp_core import __version__ as __version__
from mp_torch._install import init_reductions, install

__all__ = ["init_reductions", "install"]

# Messages name these functions by this package. It imports torch before their modules: when torch registers its
# reducers, in the middle of its import, ours must be there already or not yet begun.
_REBUILD = {
    "rebuild_one": "small_message",
    "rebuild_storage": "storage",
    "rebuild_tensor": "tensor",
    "rebuild_whole": "tensor",
}

if not _typing.TYPE_CHECKING:  # with this, a type checker would accept any name

    def __getattr__(name: str) -> _typing.Any:
        if name not in _REBUILD:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _importlib.import_module("torch")
        value = globals()[name] = getattr(_importlib.import_module(f"{__name__}.{_REBUILD[name]}"), name)
        return value
