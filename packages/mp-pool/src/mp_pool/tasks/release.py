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
from multiprocessing.resource_sharer import DupFd

from mp_core.messages.pickling import close_waiting
from mp_core.messages.standard_pools import Blank, Outline, outline
from mp_core.sharing.backend import load_out_of_band, rebuild_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OURS = frozenset({"mp_core", "mp_cuda", "mp_reductions", "mp_torch"})
_DESCRIPTORS = frozenset({"multiprocessing.connection", "multiprocessing.reduction", "multiprocessing.resource_sharer"})


def release(data: Any) -> None:
    """Receive what is in the message *data* except for the user's objects, and drop it."""
    resources = _Resources(io.BytesIO(data))
    try:
        resources.load()
    except Exception:
        pass  # it has been received, or is gone
    for duplicate in resources.duplicates:
        duplicate.drop()


class _Resources(Outline):
    """Unpickle references to shared memory and descriptors; everything else becomes a blank."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.duplicates: list[_Duplicate] = []

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (DupFd.__module__, DupFd.__name__):
            # The object that would take the descriptor may be the user's.
            return type("_Duplicate", (_Duplicate,), {"found": self.duplicates})
        if (module, name) == ("mp_core.messages.pickling", "load_with"):
            return lambda data, places: release(data)
        if (module, name) == ("mp_core.messages.pickling", "load_divided"):
            return _release_divided
        if (module, name) == (load_out_of_band.__module__, "load_out_of_band"):
            return _release_beside
        if (module, name) == ("numpy", "dtype") or module in _DESCRIPTORS or module.partition(".")[0] in _OURS:
            found = super(Outline, self).find_class(module, name)
            if not isinstance(found, type):
                return _Attempt(found)
            # What a queue has is in its two ends.
            return Blank if any(base.__module__ == "multiprocessing.queues" for base in found.__mro__) else found
        return Blank


class _Duplicate(DupFd):
    """A descriptor that waits in this process for its receiver."""

    found: list[_Duplicate]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.found.append(self)

    def detach(self) -> int:
        """Raise `OSError`: to receive it here, too late, would print an error of the thread that sends it."""
        raise OSError("nobody receives this descriptor")

    def drop(self) -> None:
        """Close the descriptor unless it has been received."""
        close_waiting(vars(self)["_id"])


def _release_beside(data: bytes, objects: bytes) -> None:
    release(objects)
    release(data)


def _release_divided(stream: bytes, pieces: list[tuple[int, int, bytes]], places: Any) -> None:
    for _, _, handle in pieces:
        _Attempt(rebuild_copy)(handle)
    release(outline(stream, pieces))


class _Attempt:
    """Call a function; its failure, of a blank among the arguments or of a lost reference, leaves the others alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        try:
            return self.function(*args)
        except Exception:
            return Blank()
