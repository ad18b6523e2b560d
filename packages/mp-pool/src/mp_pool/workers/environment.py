"""The environment of a worker that limits the threads of numerical libraries.

Note [Before the main module]
-----------------------------
OpenMP, OpenBLAS and MKL read their variables once, when they are loaded. A worker started by spawn or forkserver
imports the program's main module, which may import NumPy, before it unpickles its process object. The first thing that
it unpickles, before that, has the name of the process in it. So the name's pickle sets the environment. It uses only
standard modules: the path to this one may not be set yet.

A fork server imports NumPy before it forks if this process has it, and since Python 3.14.10 the main module. So the
server is started without them. A server that runs already is left as it is, and its workers keep its libraries'
threads.

A forked worker has the libraries that the program has loaded before, which read no variables any more. threadpoolctl
tells them.
"""

from __future__ import annotations

import importlib
import operator
import sys
import warnings

from mp_core.system.pickled_call import PickledCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

THREADS = ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "NUMBA", "RAYON")


def for_threads(count: int | None, forks: bool = False) -> dict[str, str]:
    """
    Return the variables for *count* threads in each library; none for None. Warn where they come too late for a worker
    that *forks*.

    >>> for_threads(2)["OMP_NUM_THREADS"]
    '2'
    """
    if count is None:
        return {}
    if forks and "numpy" in sys.modules:
        try:
            import threadpoolctl  # noqa: F401  the workers have it by their fork
        except ImportError:
            from mp_core.system.errors import user_stack_level

            warnings.warn(
                "threads_per_worker= does not limit the libraries that are loaded already, which forked workers have "
                "from this process: pip install threadpoolctl, or use the start method spawn",
                stacklevel=user_stack_level(),
            )
    return dict.fromkeys((f"{name}_NUM_THREADS" for name in THREADS), str(count))


def limit_loaded_libraries(environment: dict[str, str]) -> None:
    """Limit the threads of the libraries that this forked worker has from its parent, if threadpoolctl is installed."""
    threadpoolctl: Any = sys.modules.get("threadpoolctl")
    if threadpoolctl is not None:
        threadpoolctl.threadpool_limits(int(environment[f"{THREADS[0]}_NUM_THREADS"]))


class NameThatSets(str):
    """
    The name of a process; unpickling it sets variables of the environment.

    >>> import os, pickle
    >>> pickle.loads(pickle.dumps(NameThatSets("a name", {"SOME_VARIABLE": "3"}))), os.environ.pop("SOME_VARIABLE")
    ('a name', '3')
    """

    environment: dict[str, str]

    def __new__(cls, name: str, environment: dict[str, str]) -> NameThatSets:
        made = super().__new__(cls, name)
        made.environment = environment
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        environ = PickledCall(operator.attrgetter("environ"), PickledCall(importlib.import_module, "os"))
        update = PickledCall(operator.methodcaller("update", self.environment), environ)
        return operator.getitem, ((str(self), update), 0)
