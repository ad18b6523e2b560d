"""Each public name has a docstring in NumPy's format: what it is, what goes in and comes out, a line that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import multiprocessing
import os
import re
import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mp_all as mp
import mp_cuda

PACKAGES = ["mp_core", "mp_reductions", "mp_spawn", "mp_pool", "mp_cuda"]
# Constants have no docstring of their own; the page that lists them says what they are.
CONSTANTS = {"ENV_VAR_PARALLEL_START"}


def public(package: str) -> dict[str, Any]:
    """
    The names that *package* itself offers, those of its public modules included.
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


def sections(thing: Any) -> dict[str, str]:
    """
    What stands under each heading of its docstring; the summary under "".
    """
    parts = re.split(r"^([A-Z][A-Za-z ]+)\n-{3,}\n", inspect.cleandoc(thing.__doc__ or ""), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(section: str) -> set[str]:
    """
    The names that a section describes: what is not indented, before the colon.
    """
    lines = (line.partition(" : ")[0] for line in section.splitlines() if line and not line.startswith(" "))
    return {name.strip().lstrip("*") for line in lines for name in line.split(",")}


def parameters(thing: Any) -> set[str]:
    if inspect.isclass(thing) and issubclass(thing, tuple):
        return set(thing._fields)
    if inspect.isclass(thing) and issubclass(thing, Exception) and "__init__" not in vars(thing):
        thing = thing.__base__ if issubclass(thing.__base__, mp.ProcessException) else object
    return set(inspect.signature(thing).parameters)


def test_the_packages_offer_what_they_should() -> None:
    assert {"mp_core.Block", "mp_reductions.shared.zeros", "mp_spawn.run", "mp_cuda.DeviceArray"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_begins_with_one_line_that_says_what_it_is(name: str) -> None:
    summary = sections(NAMES[name])[""].split("\n\n")[0]
    assert "\n" not in summary
    assert summary.endswith((".", "?"))


# Made by another name, whose docstring says what goes in.
NOT_MADE_BY_USERS = {"mp_spawn.ProcessContext", "mp_core.LeaseReference", "mp_cuda.Shared"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_MADE_BY_USERS])
def test_a_docstring_describes_each_parameter(name: str) -> None:
    found = sections(NAMES[name])
    assert parameters(NAMES[name]) <= described(found.get("Parameters", "")) | described(found.get("Attributes", ""))


@pytest.mark.parametrize("name", [name for name, thing in NAMES.items() if inspect.isfunction(thing)])
def test_the_docstring_of_a_function_says_what_it_returns(name: str) -> None:
    returns = inspect.signature(NAMES[name]).return_annotation
    assert ("Returns" in sections(NAMES[name])) == (returns not in (None, "None"))


@pytest.mark.parametrize("name", NAMES)
def test_each_example_is_true(name: str) -> None:
    """Those that need a GPU are marked with +SKIP."""
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
def test_each_public_method_of_a_class_says_what_it_does(name: str) -> None:
    thing = NAMES[name]
    missing = [
        attribute
        for attribute, member in vars(thing).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod))
        and not inspect.getdoc(member)
    ]
    assert missing == []
