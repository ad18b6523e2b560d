"""Others' modules with `mp_all` in the place of `multiprocessing`, changed in memory when they are loaded.

Their files are not in this repository; they come from their installation. Only the import lines change, as a user
would change them, in the code and in the programs that it has as strings.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import marshal
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["SUITES", "install", "redirected"]

# The modules of the interpreter's package `test` that are loaded changed.
SUITES = ("test._test_multiprocessing", "test.test_concurrent_futures", "test.mp_preload")

_SUBMODULE = re.compile(r"\bimport multiprocessing\.([\w.]+)(?! *as\b)\b")
_PACKAGE = re.compile(r"\bimport multiprocessing(?![\w.]| +as\b)")
_RENAMED = re.compile(r"\bimport multiprocessing(?= +as\b)")
_NAMES = re.compile(r"\bfrom multiprocessing(?=[. ])")


def redirected(source: str) -> str:
    """
    *source* with its imports changed, line by line as long as it was.

    >>> redirected("import multiprocessing.pool")
    'import mp_all.pool, mp_all as multiprocessing'
    """
    source = _SUBMODULE.sub(r"import mp_all.\1, mp_all as multiprocessing", source)
    source = _PACKAGE.sub("import mp_all as multiprocessing", source)
    source = _RENAMED.sub("import mp_all", source)
    return _NAMES.sub("from mp_all", source)


class _Changed(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # Past the interpreter's cache of compiled files, which holds the unchanged one. Every child of a suite loads
        # it again, so there is a cache of this run, in MP_CONTRACT_CACHE.
        cache = Path(os.environ["MP_CONTRACT_CACHE"], fullname)
        try:
            return marshal.loads(cache.read_bytes())
        except FileNotFoundError:
            pass
        source = self.get_source(fullname)
        assert source is not None
        code = compile(redirected(source), self.get_filename(fullname), "exec", dont_inherit=True)
        mine = cache.with_name(f"{fullname}.{os.getpid()}")
        mine.write_bytes(marshal.dumps(code))
        mine.replace(cache)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, modules: tuple[str, ...]) -> None:
        self.modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self.modules):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        spec.loader = _Changed(spec.loader.name, spec.loader.path)
        return spec


def install(*modules: str) -> None:
    """Load *modules*, and what is below them, changed: from now on and in this process."""
    assert not any(name in sys.modules for name in modules), "a module was loaded before its imports could be changed"
    sys.meta_path.insert(0, _Finder(modules))
