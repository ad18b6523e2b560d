"""The main module of each child that a test starts: a test's module is imported there without pytest and Hypothesis.

Note [Children without pytest]
------------------------------
A child that is not forked imports the module of its target, and so of the test. What the module imports of pytest and
Hypothesis would take longer there than all else, for decorators that no child needs:

    spawn, or the fork server --> __mp_main__, this file --> the test's module --> the target
                                   `pytest`, `hypothesis`     @pytest.mark... does nothing

conftest.py names this file as the main module. What a target calls, as `pytest.raises`, is the real pytest's.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["Inert", "install"]

#: Names of pytest that modules use while they are imported.
DECORATORS = ("fixture", "mark", "param")
HYPOTHESIS = ("hypothesis", "hypothesis.extra", "hypothesis.extra.numpy", "hypothesis.strategies")


class Inert:
    """A decorator, a mark or a strategy that does nothing: its attributes, its calls and its alternatives are inert."""

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwds: Any) -> Inert:
        return self

    def __or__(self, other: object) -> Inert:
        return self


class InertPytest(ModuleType):
    """Stands for pytest; it becomes the real one when anything but a decorator is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in DECORATORS:
            return Inert()
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class InertHypothesis(ModuleType):
    """Stands for a module of Hypothesis, whose names are inert."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()


def install() -> None:
    """Let imports find the inert modules, unless the real ones are there."""
    sys.modules.setdefault("pytest", InertPytest("pytest"))
    if "hypothesis" not in sys.modules:
        sys.modules.update((name, InertHypothesis(name)) for name in HYPOTHESIS)


if __name__ == "__mp_main__":
    install()
