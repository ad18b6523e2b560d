"""The fork server imports, before its first fork, what its children would import each.

Note [What the fork server preloads]
------------------------------------
The server starts as a bare interpreter. A child of it that receives a queue imports our modules and loads libshm,
which takes ten times as long as its fork. So the server gets more modules to preload than the program has asked for:
our part for children, and those of `CANDIDATES` that this process has imported when it starts the server. A child does
not import NumPy if this process has not.

The program's own list stays as it is, and comes first; a module that cannot be imported is passed over, as in the
standard library. The server attaches no session: its children belong to that of the process that asks for them. A
server that died is started again with the list of that time.

Numerical libraries read the number of their threads when they are imported. `start_without_libraries` is for a caller
that sets it in each child: it leaves NumPy and the main module out.
"""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Modules that children need if their parent has imported them; the module that each needs in the server.
CANDIDATES = {
    "mp_all": "mp_all",
    "mp_pool.workers.worker_main": "mp_pool.workers.worker_main",
    "mp_spawn.ranks.child": "mp_spawn.ranks.child",
    "numpy": "mp_reductions",
}
_LIBRARIES = ("__main__", "mp_reductions", "numpy")
_with_libraries = True


def modules() -> list[str]:
    """Return the modules that a fork server started now preloads for us."""
    found = [module for subject, module in CANDIDATES.items() if subject in sys.modules]
    return [
        "mp_core.installation.forkserver_preload",
        *(module for module in found if _with_libraries or module not in _LIBRARIES),
    ]


def install() -> None:
    """Let each fork server that this process starts preload `modules`."""
    from multiprocessing import forkserver  # whose import calls this function

    kind: Any = forkserver.ForkServer
    ensure_running = kind.ensure_running
    if getattr(ensure_running, "_preloads", False):
        return

    @functools.wraps(ensure_running)
    def preloading(self: Any) -> None:
        asked = self._preload_modules
        # Two threads may do this at once: then one of them may leave the list with our modules.
        theirs = [module for module in asked if _with_libraries or module not in _LIBRARIES]
        self._preload_modules = theirs + [module for module in modules() if module not in theirs]
        try:
            ensure_running(self)
        finally:
            self._preload_modules = asked

    preloading._preloads = True  # type: ignore[attr-defined]
    kind.ensure_running = preloading
    # These names of the module are methods of its one server, bound before.
    server: Any = forkserver._forkserver
    forkserver.ensure_running = server.ensure_running


def start_without_libraries() -> None:
    """Start the fork server, if none runs, without NumPy and the main module: children set counts of threads first."""
    from multiprocessing import forkserver

    global _with_libraries
    _with_libraries = False
    try:
        forkserver.ensure_running()
    finally:
        _with_libraries = True  # not what it was before: another thread may be in here
