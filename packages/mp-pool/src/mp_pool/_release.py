"""Release the resources of a message that nobody will receive, and run no code of the user for that.

Note [A message that killed its receiver]
-----------------------------------------
A task whose worker has died may have killed it: by an object that crashes or takes all memory when it is unpickled. The
pool must not unpickle it as the worker did. So only those functions of a message are called that take references and
descriptors, which are ours and those of `multiprocessing`. Each other object becomes a blank.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from mp_core._native import load_beside
from mp_core._standard_pools import _Blank, _Outline

__all__ = ["release"]

_OURS = frozenset({"mp_core", "mp_cuda", "mp_reductions", "mp_torch"})
_DESCRIPTORS = frozenset({"multiprocessing.connection", "multiprocessing.reduction", "multiprocessing.resource_sharer"})


def release(data: Any) -> None:
    """
    Receive what is in the message *data* except for the user's objects, and drop it.
    """
    try:
        _Resources(io.BytesIO(data)).load()
    except Exception:
        pass  # it has been received, or is gone


class _Resources(_Outline):
    """Unpickle references to shared memory and descriptors; everything else becomes a blank."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("mp_core._pickling", "load_with"):
            return lambda data, places: release(data)
        if (module, name) == ("mp_core._block", "load_beside"):
            return _release_beside
        if (module, name) == ("numpy", "dtype") or module in _DESCRIPTORS or module.partition(".")[0] in _OURS:
            found = super(_Outline, self).find_class(module, name)
            return found if isinstance(found, type) else _Attempt(found)
        return _Blank


def _release_beside(data: Any, tables: list[Any]) -> None:
    for table in tables:
        if table is not None:
            _Attempt(load_beside)(None, [table])
    if data is not None:
        release(data)


class _Attempt:
    """Call a function; its failure, of a blank among the arguments or of a lost reference, leaves the others alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        try:
            return self.function(*args)
        except Exception:
            return _Blank()
