"""Messages of workers that the scheduler's thread must not unpickle, because a module that they name is being imported.

Note [Tasks, results and imports]
---------------------------------
A program may use a pool while a module is being imported. The thread that imports has the module's lock and waits for
a result; whoever pickles or unpickles an object of the module's classes waits for the lock. If that were the
scheduler's thread, both would wait for ever. So while any import is under way, tasks are pickled by the thread that
submits them; and the scheduler's thread looks which modules a result names, and delivers the message itself if one of
them is not ready:

    scheduler's thread   message --> names a module that is not ready? --> the result gets an `Unopened`, and is ready
    `get`, `result`, …   `outcome()` imports the modules, in the thread that waits; then it unpickles, once

The thread that imports the module has its lock, and goes on at once. Another thread waits for the module before it
takes the lock of the message, so it keeps nobody from it. A thread of its own opens it for callbacks, and for a result
whose class is not ours; who waits for the result does not wait for the callbacks.

The first part of such an outcome is None, where that of others is True or False.

- No import is under way: the scheduler's thread unpickles as before, and this costs one look at a dictionary.
- The message is never opened: its shared memory and descriptors are released with the `Unopened`.
- A fork in the middle: a child has no results of its parent's pools.
- A signal handler raises in `outcome`: what it has received of the message is lost, as in any receive.

An import that begins after the look, and in whose course the same pool is used, can still meet a scheduler's thread
that is itself importing a module which needs the first one. It takes a result whose module was not imported before.
"""

from __future__ import annotations

import importlib
import importlib._bootstrap as bootstrap
import io
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from mp_core.messages.standard_pools import Outline
from mp_pool.tasks import task_messages
from mp_pool.tasks.task_messages import DONE, FAILED, RICH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mp_pool.tasks.task import Outcome


class Unopened:
    """The message of a worker, until somebody needs the outcome in it."""

    def __init__(self, modules: set[str], kind: int, data: Any, cause: Callable[[str], BaseException]) -> None:
        self._modules, self._kind, self._data, self._cause = modules, kind, data, cause
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None

    def outcome(self) -> Outcome:
        """Return the outcome; wait for the modules that it needs."""
        for module in self._modules:
            with suppress(Exception):  # unpickling finds the error again
                importlib.import_module(module)
        with self._lock:
            if self._outcome is None:
                self._outcome = task_messages.outcome(self._kind, self._data, self._cause)
                self._data = None
            return self._outcome

    def __del__(self) -> None:
        if self._data is not None:
            task_messages.drop(self._kind, self._data)


def unopened(kind: int, data: Any, cause: Callable[[str], BaseException]) -> Unopened | None:
    """Return the message of a task unopened if it names a module that is not ready; None if it can be unpickled."""
    pickled = data
    if kind & ~RICH == FAILED:
        pickled = pickle.loads(data)[2]
    elif kind & ~RICH != DONE:
        return None
    if pickled is None:
        return None
    names = _Names(io.BytesIO(pickled))
    with suppress(Exception):  # what cannot be read fails where it is unpickled
        names.load()
    modules = {module for module in names.modules if not _is_ready(module)}
    return Unopened(modules, kind, data, cause) if modules else None


#: The modules that any thread is importing, with their locks: empty if none is.
imports_under_way: Any = getattr(bootstrap, "_module_locks", (True,))


def _is_ready(module: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and not getattr(getattr(found, "__spec__", None), "_initializing", False)


class _Names(Outline):
    """Find the modules that a pickle names; its objects are blanks."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)

    def part(self, data: bytes) -> Any:
        inner = _Names(io.BytesIO(data))
        inner.modules = self.modules
        return inner.load()

    def beside(self, data: bytes, objects: bytes) -> Any:
        self.part(objects)
        return self.part(data)
