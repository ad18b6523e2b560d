"""torch_install: the tensors of torch, for those who have mp-torch."""

from __future__ import annotations

import importlib


def torch_install() -> None:
    """
    Send torch's CPU tensors through shared memory too, in this process and in children started from now on.

    It calls ``mp_torch.install()``. mp-torch is a package of its own, which mp-all does not install. ``MP_TORCH=1`` in
    the environment makes ``import mp_all`` call it.

    Raises
    ------
    ImportError
        mp-torch or torch is not installed, or torch is older than 2.12.

    Examples
    --------
    >>> mp.torch_install()  # doctest: +SKIP
    """
    try:
        mp_torch = importlib.import_module("mp_torch")
    except ModuleNotFoundError as error:
        if error.name != "mp_torch":
            raise
        raise ImportError(
            "mp_all.torch_install() and MP_TORCH=1 need mp-torch, which is not installed: pip install mp-torch"
        ) from None
    mp_torch.install()
