"""Programs whose main module no process can import. Under fork, those of python -m package are their children's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What a task does to its process, seen by the next task: three messages through a queue, two calls and a map.
PROGRAM = """
import multiprocessing, sys

CACHE, G = {}, 0

class Counter:
    n = 0

def setup():
    global G
    G = 5

def task(x):
    CACHE[x] = 1
    Counter.n += 1
    return G, len(CACHE), Counter.n

def serve(requests, answers):
    setup()
    for function, args in iter(requests.get, None):
        answers.put((function(*args), function is task, type(Counter()) is Counter))

if __name__ == "__main__":
    multiprocessing.set_start_method(METHOD)
    requests, answers = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=serve, args=(requests, answers))
    process.start()
    for i in range(3):
        requests.put((task, (i,)))
        print(answers.get())
    requests.put(None)
    process.join()
    with multiprocessing.Pool(1, setup) as pool:
        print(pool.apply(task, (1,)), pool.apply(task, (2,)), pool.map(task, [3]))
    print(task, Counter)
"""
WAYS = ["file", "-m", "-c", "-", "<"]


def run(folder: Path, way: str, package: str, method: str, program: str = PROGRAM) -> list[str]:
    """Return the lines of the program, run in that way with this package as its multiprocessing."""
    text = program.replace("import multiprocessing", f"import {package} as multiprocessing").replace(
        "METHOD", repr(method)
    )
    (folder / "a_package").mkdir(exist_ok=True)
    path = folder / "a_package" / "__main__.py"
    path.write_text(text)
    arguments = {"file": [str(path)], "-m": ["-m", "a_package"], "-c": ["-c", text], "-": ["-"], "<": []}[way]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text if way in ("-", "<") else "",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return [line.partition(" at 0x")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("way", ["file", "-m"])
def test_forked_children_do_as_those_of_multiprocessing(tmp_path: Path, way: str) -> None:
    assert run(tmp_path, way, "mp_all", "fork") == run(tmp_path, way, "multiprocessing", "fork")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_children_get_the_definitions(tmp_path: Path, way: str, method: str) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    lines = run(tmp_path, way, "mp_all", method)
    assert len(lines) == 5
    assert lines[0].startswith("((5, 1, 1)")


BOTH = """
import multiprocessing

def task(x):
    return x + 1

if __name__ == "__main__":
    for method in "fork", "spawn", "fork":
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.apply(task, (METHOD and 1,)))
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_program_with_both_kinds_of_children_sends_definitions_to_those_that_need_them(
    tmp_path: Path, way: str
) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    assert run(tmp_path, way, "mp_all", "", BOTH.replace("METHOD and 1", "1")) == ["2", "2", "2"]


SINGLE_DISPATCH = """
import functools
import multiprocessing

@functools.singledispatch
def kind(thing):
    return "another"

@kind.register
def _(thing: int):
    return "a number"

class Knows:
    @functools.singledispatchmethod
    def kind(self, thing):
        return kind(thing)

    def ask(self, thing):
        return self.kind(thing)

if __name__ == "__main__":
    with multiprocessing.get_context(METHOD).Pool(1) as pool:
        print(pool.map(kind, [1, "x", None]), pool.map(Knows().ask, [1, "x", None]))
"""


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_function_that_dispatches_by_the_type_of_its_argument_travels(
    tmp_path: Path, start_method: str, way: str
) -> None:
    expected = str(["a number", "another", "another"])
    assert run(tmp_path, way, "mp_all", start_method, SINGLE_DISPATCH) == [f"{expected} {expected}"]
