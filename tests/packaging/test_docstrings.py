"""Run the examples in the docstring of each public name.

The docs session checks the sections of the docstrings, with numpydoc's validation.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import multiprocessing
import os
import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mp_all as mp
import mp_cuda

PACKAGES = ["mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_nodes", "mp_cuda", "mp_torch"]
# Constants have no docstring; the page that lists them describes them.
CONSTANTS = {"ENV_VAR_PARALLEL_START"}


def public(package: str) -> dict[str, Any]:
    """
    Return the public names of *package* itself, and those of its public modules.
    """
    module = importlib.import_module(package)
    found = {}
    for name in module.__all__:
        thing = getattr(module, name)
        if name in CONSTANTS or thing == getattr(multiprocessing, name, None):
            continue
        if isinstance(thing, ModuleType):
            found |= {f"{name}.{each}": getattr(thing, each) for each in thing.__all__}
        else:
            found[name] = thing
    return {f"{package}.{name}": thing for name, thing in found.items()}


NAMES = {name: thing for package in PACKAGES for name, thing in public(package).items()}
NAMES["mp_all.memory_report"] = mp.memory_report  # all other names of mp_all are those of the packages


def test_the_packages_offer_their_main_names() -> None:
    assert {"mp_core.Block", "mp_reductions.shared.zeros", "mp_spawn.run", "mp_cuda.DeviceArray"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_example_is_true(name: str) -> None:
    """Examples that need a GPU, or torch, are marked with +SKIP."""
    names = {"mp": mp, "mp_cuda": mp_cuda, "np": np, "os": os, "time": time}
    examples = doctest.DocTestFinder(recurse=True).find(NAMES[name], name, globs=names)
    own = [example for example in examples if example.name == name]
    assert own
    assert own[0].examples != []
    strategy = mp.get_sharing_strategy()
    try:
        assert [doctest.DocTestRunner().run(example).failed for example in examples] == [0] * len(examples)
    finally:
        mp.set_sharing_strategy(strategy)


@pytest.mark.parametrize("name", [name for name, thing in NAMES.items() if inspect.isclass(thing)])
def test_each_public_method_of_a_class_has_a_docstring(name: str) -> None:
    thing = NAMES[name]
    missing = [
        attribute
        for attribute, member in vars(thing).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod))
        and not inspect.getdoc(member)
    ]
    assert missing == []
