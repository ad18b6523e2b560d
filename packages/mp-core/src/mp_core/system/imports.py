"""Imports that something waits for, and submodules under another name: one finder on `sys.meta_path`.

    load("mp_core.memory.block")              the module, imported now if that is necessary
    when_imported("numpy", call)       `call()` runs after numpy has been imported: now, if it is there already
    defer("a.module", "tempfile")      tempfile, which a.module imports and seldom uses, is imported at its first use
    alias_submodules("mp_all")         `import mp_all.pool` finds `multiprocessing.pool`, the same module object

Note [When an import is waited for]
-----------------------------------
The finder answers for the names that somebody waits for and for the aliases, and is silent about every other. It lets
the other finders find a module, and replaces its loader until the module has been executed: then the calls run, in the
thread that imports and under the lock of that module. So a call must not wait for another thread. An exception of a
call is the exception of the import; a call that may fail handles that itself.

Note [A fork during an import]
------------------------------
Modules are imported when they are needed, in any thread. A child that is forked meanwhile by another thread inherits
the locks of the modules that are being imported, and no thread that releases them: it would wait for ever at its first
use. So `load` holds one lock for all of our late imports, and a hook, which is registered by the first of them, takes
it before each fork. A fork waits a second at most, for an import that itself waits for the thread that forks.

A program that reloads a module, or removes it from `sys.modules` and imports it again, runs the calls again: each
replaces names only if they are not replaced yet.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_waiting: dict[str, list[Callable[[], object]]] = {}
# By module: the modules that it imports and that are imported at their first use.
_deferred: dict[str, tuple[str, ...]] = {}
# Each package with aliases, and its own names that bear the name of a submodule.
_aliased: dict[str, tuple[str, ...]] = {}
# The names in multiprocessing's folder, once they are known.
_submodules: set[str] = set()
# Aliases of modules that are not multiprocessing's.
_others: dict[str, str] = {}


_loading = threading.RLock()
_hooked = False


def load(module: str) -> Any:
    """
    Return *module*, imported now if that is necessary: so that no other thread forks in the middle of it.

    >>> load("fractions").__name__
    'fractions'
    """
    found = sys.modules.get(module)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found
    global _hooked
    if not _hooked:
        _hooked = True
        _keep_forks_out()
    with _loading:
        return importlib.import_module(module)


def _keep_forks_out() -> None:
    """Like `forks.keep_out`, but without libshm, which may be the module being imported. Each hook is in C."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=functools.partial(_loading.acquire, timeout=1),
            after_in_parent=_loading.release,
            after_in_child=_loading._at_fork_reinit,  # type: ignore[attr-defined]
        )


def when_imported(module: str, call: Callable[[], object]) -> None:
    """
    Call *call* when *module* has been imported; at once if it has been.

    Parameters
    ----------
    module : str
        The full name of a module. It is not imported.
    call : callable
        It takes no arguments. It runs in the thread that imports the module, after each execution of the module.

    Examples
    --------
    >>> mp_core.system.imports.when_imported("fractions", lambda: print("now"))
    >>> import fractions
    now
    """
    _install()
    calls = _waiting.setdefault(module, [])
    if call in calls:
        return
    calls.append(call)
    if sys.modules.get(module) is not None:
        importlib.import_module(module)  # another thread may be in the middle of it
        call()


def defer(module: str, *imported: str) -> None:
    """
    Import each module *imported* when *module* uses it first, and not with *module*, unless it is there already.

    Parameters
    ----------
    module : str
        The full name of a module that is not imported yet; otherwise nothing changes.
    *imported : str
        Names of modules that it imports as they are called, by ``import name``.

    Examples
    --------
    >>> mp_core.system.imports.defer("wave", "sys")
    """
    _install()
    _waiting.setdefault(module, [])
    _deferred[module] = imported


def alias_submodules(package: str, own: tuple[str, ...] = (), others: dict[str, str] | None = None) -> None:
    """
    Give *package* every submodule of multiprocessing that it does not define itself.

    Nothing is imported before a program imports it.

    Parameters
    ----------
    package : str
        The name of an imported package.
    own : tuple of str, optional
        Names of the package that a submodule also has. ``import package.name`` imports the submodule, and
        leaves the attribute of the package as it is.
    others : dict of str to str, optional
        More submodules, by name, and the modules that they are.

    Examples
    --------
    >>> mp_core.system.imports.alias_submodules("mp_core")
    >>> import mp_core.pool
    >>> mp_core.pool is multiprocessing.pool
    True
    """
    _install()
    _aliased[package] = own
    _others.update({f"{package}.{name}": original for name, original in (others or {}).items()})
    if own:
        sys.modules[package].__class__ = _Package


def submodule(name: str) -> ModuleType:
    """
    Return the submodule *name* of multiprocessing, imported now if that is necessary; otherwise an `AttributeError`.

    A type checker knows `multiprocessing.managers` without an import of its own, so it has to work without one.

    >>> submodule("managers").__name__
    'multiprocessing.managers'
    """
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"multiprocessing.{name}")
        except ModuleNotFoundError:
            pass
    raise AttributeError(f"module 'multiprocessing' has no attribute {name!r}")


class _Importable(ModuleType):
    """A module that is pickled as its import: cloudpickle does so for the type of modules itself, for no subclass."""

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class _Package(_Importable):
    """A package with names that submodules also have: the import system sets a submodule as an attribute of it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _aliased[self.__name__] and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


class _StandIn(_Importable):
    """
    The place of a module that is imported at its first use.

    Another thread that imports the same module at that moment also gets this object, and can use it in the same way.
    """

    def _module(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module(), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self._module(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self._module())


class _Finder:
    """Find aliases, and the modules that somebody waits for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in _waiting:
            spec = _found_by_others(name, path, target)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = _Watched(name, spec.loader)  # type: ignore[assignment]
            return spec
        package, _, rest = name.partition(".")
        if package not in _aliased or not rest:
            return None
        if name in _others:
            return ModuleSpec(name, _SameModule(_others[name]))  # type: ignore[arg-type]
        original = f"multiprocessing.{rest}"
        return ModuleSpec(name, _SameModule(original)) if _exists(original, rest) else None  # type: ignore[arg-type]


def _found_by_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if finder is _Finder or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


class _Watched:
    """The loader of a module until it has been executed; the module sees only its own loader."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name, self._loader = name, loader  # a module may give itself another name, as cuda.core does

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        spec.loader = self._loader
        module: ModuleType | None = self._loader.create_module(spec)
        spec.loader = self  # type: ignore[assignment]
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        stand_ins = [_StandIn(name) for name in _deferred.get(self._name, ()) if name not in sys.modules]
        for each in stand_ins:
            sys.modules[each.__name__] = each
        try:
            self._loader.exec_module(module)
        finally:
            for each in stand_ins:
                if sys.modules.get(each.__name__) is each:
                    del sys.modules[each.__name__]
        for call in list(_waiting.get(self._name, ())):
            call()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _exists(original: str, rest: str) -> bool:
    """Return whether there is a module *original*, which is *rest* in multiprocessing; quickly for our own modules."""
    if not _submodules:
        try:
            _submodules.update(name.partition(".")[0] for name in os.listdir(multiprocessing.__path__[0]))
        except OSError:
            pass  # a frozen program
    if _submodules:
        first, _, more = rest.partition(".")
        if not more or first not in _submodules:
            return first in _submodules
    import importlib.util  # it takes as long as all of this package

    try:
        return importlib.util.find_spec(original) is not None
    except ModuleNotFoundError:
        return False


class _SameModule:
    """The loader of an alias."""

    def __init__(self, original: str) -> None:
        self.original = original

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, which asks for a module as usual."""

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the entry of sys.modules after this call, so the alias *is* the original: its
        # __spec__ and __name__ stay the standard library's, and classes keep their identity.
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = importlib.import_module(self.original)


def _install() -> None:
    if _Finder not in sys.meta_path:
        # First, because a submodule of an alias (dummy.connection) has a path that other finders would search.
        sys.meta_path.insert(0, _Finder)
