"""Installation: in this process, and in the children that it starts.

Note [Replaced attributes]
--------------------------
    ForkingPickler's table          the entries of torch.Tensor, Parameter and UntypedStorage    tensor.py, storage.py
    torch.UntypedStorage            share_memory_, is_shared, _new_shared                        storage.py
    torch.Tensor                    share_memory_                                                storage.py
    torch.multiprocessing           set_sharing_strategy                                         this module
    DataLoader's iterator           __init__, _shutdown_workers                                  data_loader.py

Note [A process that does not use torch]
----------------------------------------
A child inherits the installation, and importing torch takes a second or two. So a child only waits for torch: torch
registers its reducers when it is imported, and `reducers.when_registered` sees that, in the middle of torch's import.
The classes exist by then. The DataLoader may not, so its part waits for the import of its module.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from mp_core.sharing import strategy
from mp_core.system import packages, reducers

OURS = {
    "torch.Tensor": "reduce_tensor",
    "torch.nn.parameter.Parameter": "reduce_tensor",
    "torch.storage.UntypedStorage": "reduce_storage",
}


def install() -> None:
    """
    Send torch's CPU tensors through shared memory, in this process and in children that it starts from now on.

    Tensors, Parameters and storages keep torch's semantics: sending moves the storage in place, so sender and receiver
    share it afterwards. ``share_memory_()`` and ``is_shared()`` use the same memory, and DataLoader workers collate
    their batches in it. CUDA tensors and events are still sent by torch.

    ``mp_all.torch_install()`` calls it, as does ``import mp_all`` with ``MP_TORCH=1`` in the environment. Calling it
    again does nothing.

    Raises
    ------
    ImportError
        torch is not installed, or is older than 2.12.

    Examples
    --------
    >>> mp_torch.install()  # doctest: +SKIP
    """
    if importlib.util.find_spec("torch") is None:
        raise ImportError("mp_torch.install() needs torch, which is not installed: pip install torch")
    import torch

    if not (
        hasattr(torch.UntypedStorage, "_swap_data_ptr_") and importlib.import_module("mp_torch.storage").can_move()
    ):
        raise ImportError(f"mp_torch.install() needs torch 2.12 or newer, and this is {torch.__version__}")
    init_reductions()


def init_reductions() -> None:
    """
    Install as `install` does, but do not import torch: wait until the process imports it.

    Children of a process that called `install` call it.

    Examples
    --------
    >>> mp_torch.init_reductions()  # doctest: +SKIP
    """
    packages.register("mp_torch", "torch")
    reducers.when_registered("torch", _reducer_for, last=True)


def _reducer_for(kind: type, theirs: reducers.Reducer) -> reducers.Reducer:
    """Return our reducer for a class of torch for which we have one, otherwise *theirs*."""
    name = OURS.get(f"{kind.__module__}.{kind.__name__}")
    if name is None:
        return theirs
    from mp_torch import data_loader, small_message, storage, tensor

    if not storage.can_move():
        return theirs
    storage.install()
    _follow_strategy()
    if kind.__name__ == "Tensor":
        small_message.install()
        data_loader.install()
    ours: reducers.Reducer = getattr(storage if name == "reduce_storage" else tensor, name)
    return ours


def _follow_strategy() -> None:
    """Let either of the two ``set_sharing_strategy`` set both."""
    theirs: Any = sys.modules["torch.multiprocessing"]
    setter = getattr(theirs, "set_sharing_strategy", None)
    if setter is None or getattr(setter, "_sets_ours", False):
        return

    def set_sharing_strategy(new_strategy: str) -> None:
        setter(new_strategy)
        if strategy.get_sharing_strategy() != new_strategy:
            strategy.set_sharing_strategy(new_strategy)

    set_sharing_strategy.__doc__ = setter.__doc__
    set_sharing_strategy._sets_ours = True  # type: ignore[attr-defined]
    theirs.set_sharing_strategy = set_sharing_strategy
    strategy.followed_by(_set_torchs_strategy)


def _set_torchs_strategy(name: str) -> None:
    sys.modules["torch.multiprocessing"].set_sharing_strategy(name)
