"""Aliases: every submodule of multiprocessing under the name of a package of ours, as the same module object.

`import mp_all.pool` finds `multiprocessing.pool` through a finder on `sys.meta_path` that answers for our
packages only. Nothing is imported before a program imports it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

__all__ = ["install"]

# `mp_all.spawn` is the launcher function. `import mp_all.spawn` still imports the standard library's module, and must
# not replace the launcher. The launcher has the module's functions as attributes, so that a program that calls
# `multiprocessing.spawn.set_executable(...)` works with the import changed: they set the module's state.
_ECLIPSED = "spawn"


if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    # Importing importlib.abc takes longer than the rest of this package; the import system needs the methods only.
    Loader = object


class _SameModule(Loader):
    def __init__(self, original: str) -> None:
        self.original = original

    def create_module(self, spec: ModuleSpec) -> None:
        """
        Return None, which asks for a module as usual.
        """

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the entry of sys.modules after this call, so the alias *is* the original: its
        # __spec__ and __name__ stay the standard library's, and classes keep their identity.
        assert module.__spec__ is not None
        sys.modules[module.__spec__.name] = importlib.import_module(self.original)


class _Finder:
    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package not in self.packages or not name:
            return None
        original = f"multiprocessing.{name}"
        try:
            if importlib.util.find_spec(original) is None:
                return None
        except ModuleNotFoundError:
            return None
        return ModuleSpec(fullname, _SameModule(original))


_finder = _Finder()


def install(package: str) -> None:
    """Give *package* every submodule of multiprocessing that it does not define itself."""
    _finder.packages.add(package)
    if _finder not in sys.meta_path:
        # First, because a submodule of an alias (dummy.connection) has a path that other finders would search.
        sys.meta_path.insert(0, _finder)
    launcher = vars(sys.modules[package]).get(_ECLIPSED)
    if launcher is not None:
        # The import system does not set a module that it finds in sys.modules as an attribute of its package.
        eclipsed = importlib.import_module(f"multiprocessing.{_ECLIPSED}")
        sys.modules[f"{package}.{_ECLIPSED}"] = eclipsed
        functions = {name: value for name, value in vars(eclipsed).items() if isinstance(value, FunctionType)}
        vars(launcher).update(functions)
