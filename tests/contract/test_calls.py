"""Each call ends as one of the standard library does, whatever the order: by every start method, and on nodes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from support.scripts import run_python

FOLDER = Path(__file__).parent / "calls"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("outcomes", "things"))
#: What differs: the calls, how they end here, and why.
DIFFERENCES: dict[str, dict[str, tuple[str, str]]] = {
    "pools": {
        ".*map.*: raise_stop": ("StopIteration", "there it ends the chunk, whose other results are lost"),
    },
    "executors": {
        ".*: raise_with_lock": ("MaybeEncodingError", "the error tells of the exception, and why it could not be sent"),
        "map in chunks: raise_stop": ("for item 0 of a chunk", "the error tells which item it was"),
    },
    "locks": {
        r"(Bounded)?Semaphore\((-1|1099511627776)\)": ("ValueError", "the error names the value and the bounds"),
    },
}
#: And on nodes, where everything goes by value.
ON_NODES: dict[str, tuple[str, str]] = {
    ".*: return_(lambda|local|module)": ("function|Local|module", "cloudpickle pickles it"),
    ".*: with a (lock of a thread|generator|file)": ("PicklingError", "it has the reason, and what the call was"),
}


@cache
def lines(program: str, *arguments: str, **environment: str) -> dict[str, str]:
    """Return how each call of the program ends, by its name."""
    done = run_python(str(FOLDER / f"{program}.py"), *arguments, timeout=200, **environment)
    assert done.returncode == 0, done.stderr  # which has the error of an initializer
    ends = [line.partition(" -> ") for line in done.stdout.splitlines()]
    assert len(ends) > 25
    assert len(ends) == len({name for name, *_ in ends})
    return {name: end for name, _, end in ends}


def compare(found: dict[str, str], expected: dict[str, str], differences: dict[str, tuple[str, str]]) -> None:
    assert list(found) == list(expected)
    unused = set(differences)
    for name, end in found.items():
        if end == expected[name]:
            continue
        known = [pattern for pattern in differences if re.fullmatch(pattern, name)]
        assert known, f"{name}\n  here:  {end}\n  there: {expected[name]}"
        assert re.search(differences[known[0]][0], end), f"{name}: {end}"
        unused.discard(known[0])
    assert not unused, "these do not differ"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_ends_as_in_the_standard_library(program: str, start_method: str, strategy: str) -> None:
    found = lines(program, "mp_all", start_method, MP_SHARING_STRATEGY=strategy)
    compare(found, lines(program, "multiprocessing", start_method), DIFFERENCES.get(program, {}))


def test_a_call_of_a_pool_on_nodes_ends_as_on_one_machine() -> None:
    there = dict(lines("pools", "multiprocessing", "spawn"))
    here = lines("pools", "mp_all", "spawn", "local")
    for name in ("a timeout", "not ready", "ready"):  # an event of this machine holds their tasks
        del there[name]
    compare(here, there, DIFFERENCES["pools"] | ON_NODES)
