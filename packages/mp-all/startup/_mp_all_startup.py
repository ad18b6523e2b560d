"""Settings for an unchanged program, in its environment.

``MP_ALL=1`` puts mp_all in the place of multiprocessing when the program imports that. ``MP_TORCH=1`` sends torch's CPU
tensors through shared memory; by itself, it imports mp_all after torch.

Note [How an unchanged program gets mp_all]
-------------------------------------------
Python runs the line in ``mp_all.pth`` when it starts, and that line does nothing unless a setting is there.
Descendants inherit the variable: forked processes, those of spawn and forkserver, and every Python that a program
starts. They need no other mechanism; `python -m mp_all script.py` only sets the variable and starts Python again.

Why a ``.pth`` file: Python has no other hook for a package at the start of every process. The alternative, a
``sitecustomize`` on ``PYTHONPATH``, hides the machine's own, reaches Pythons of other environments, and does not work
for ``MP_ALL=1`` without the runner. Without a setting the file costs 26 µs of a start of 12 ms, and imports nothing
(`benchmarks/startup.py`).

    start               a finder for two modules; nothing else is imported
    multiprocessing     after its import: mp_all is imported, and multiprocessing.Pool makes mp_all's pools
    concurrent.futures.process            ProcessPoolExecutor is mp_all's

The other names of multiprocessing are the same objects in mp_all, so there is nothing to replace. The submodules, such
as `multiprocessing.pool`, stay the standard library's, as `mp_all.pool` is: subclasses of their classes use their
internal names.

The module concurrent.futures.process imports multiprocessing, and our packages import both. So the replacement waits
until the outermost of these imports is complete.

A program that never imports multiprocessing imports nothing of ours, unless `mp-all run` is to record a timeline, and
so does the process of the resource tracker.
This module is beside the package: importing a module of the package would import multiprocessing.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["start"]

#: The modules whose import a setting waits for.
_awaited: frozenset[str] = frozenset()
_REPLACED = frozenset({"multiprocessing", "concurrent.futures.process"})
_TORCH = frozenset({"torch"})
_OURS = frozenset({"mp_all", "mp_core", "mp_cuda", "mp_nodes", "mp_pool", "mp_reductions", "mp_spawn", "mp_torch"})
_TRACKER = "from multiprocessing.resource_tracker import "


class _Finder:
    """Find the awaited modules, and those that import them, with a loader that calls `_replace` at the end."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _awaited and fullname.partition(".")[0] not in _OURS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _Execution(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


class _Execution:
    """Execute a module, and replace names when no such execution of this thread is inside another one."""

    def __init__(self, execute: Callable[[ModuleType], None]) -> None:
        self.execute = execute

    def __call__(self, module: ModuleType) -> None:
        if getattr(_thread, "executes", False):
            self.execute(module)
            return
        _thread.executes = True
        try:
            self.execute(module)
            _replace()
        finally:
            _thread.executes = False


_thread = threading.local()


def _replace() -> None:
    """Set the names in those modules of `_REPLACED` that are imported."""
    if _awaited == _TORCH:
        _send_tensors()
        return
    import mp_all

    # Not the class, which would be imported now: the method of the default context returns an object of it.
    sys.modules["multiprocessing"].Pool = sys.modules["multiprocessing.context"]._default_context.Pool  # type: ignore[attr-defined]
    if "concurrent.futures.process" in sys.modules:
        sys.modules["concurrent.futures.process"].ProcessPoolExecutor = mp_all.ProcessPoolExecutor  # type: ignore[attr-defined]
    # The package takes the name from its submodule at the first use, and keeps it.
    futures = sys.modules.get("concurrent.futures")
    if futures is not None and "ProcessPoolExecutor" in vars(futures):
        futures.ProcessPoolExecutor = mp_all.ProcessPoolExecutor  # type: ignore[attr-defined]


def _send_tensors() -> None:
    """Import mp_all, which registers with torch under ``MP_TORCH=1``; say why that fails, and let the program go on."""
    if "torch" not in sys.modules:
        return
    try:
        import mp_all  # noqa: F401
    except ImportError as error:
        print(f"MP_TORCH=1 has no effect: {error}", file=sys.stderr)


def _is_on(variable: str) -> bool:
    """
    Like `mp_core.system.settings.is_on`, without an import.

    A wrong value ends Python, which would ignore an exception.
    """
    text = os.environ.get(variable, "").lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    print(f"{variable} must be 1 or 0, not {os.environ[variable]!r}", file=sys.stderr, flush=True)
    os._exit(1)  # while Python starts, SystemExit would print a traceback


def start() -> None:
    """Replace the names now if their modules are imported, and otherwise when they are."""
    global _awaited
    if _is_on("MP_ALL"):
        _awaited = _REPLACED
    elif _is_on("MP_TORCH"):
        _awaited = _TORCH
    if not _awaited or _Finder in sys.meta_path or any(each.startswith(_TRACKER) for each in sys.orig_argv):
        return
    sys.meta_path.insert(0, _Finder)
    if "MP_TIMELINE_PRINT" in os.environ:
        import mp_core  # noqa: F401  # begins the timeline that `mp-all run` was asked for, whatever the program imports
    if any(name in sys.modules for name in _awaited):
        _thread.executes = True
        try:
            _replace()
        except ImportError as error:  # as in a pex, which adds the folders of packages one by one
            sys.meta_path.remove(_Finder)
            _awaited = frozenset()
            print(
                f"MP_ALL=1 has no effect: multiprocessing was imported before mp_all can be: {error}. "
                "Start the program by `python -m mp_all`",
                file=sys.stderr,
            )
        finally:
            _thread.executes = False
