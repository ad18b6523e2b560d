"""Warnings for users: shown by default, once, at their line."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scripts import run_script

import mp_all as mp
from mp_core.messages import unpicklable
from mp_core.system import errors
from mp_reductions import array as reducers

F = mp.reduction.ForkingPickler
LARGE = (32 << 20) // 8


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    monkeypatch.setattr(errors, "_told", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@pytest.fixture(params=["plain", "every other", "fortran order"])
def large(request: pytest.FixtureRequest) -> np.ndarray:
    if request.param == "plain":
        return np.zeros(LARGE)
    return np.zeros(2 * LARGE)[::2] if request.param == "every other" else np.zeros((2, LARGE // 2)).T


def test_a_large_array_sent_again_while_its_copy_waits_warns_once(
    strategy: str, large: np.ndarray, caught: list[Any]
) -> None:
    ours, theirs = mp.Pipe()
    for _ in range(3):
        ours.send(large)
    assert [warning.category for warning in caught] == [mp.RepeatedCopyWarning]
    assert caught[0].filename == __file__
    assert str(large.nbytes) in str(caught[0].message)
    assert "share_memory" in str(caught[0].message)
    for _ in range(3):
        theirs.recv()
    ours.close()
    theirs.close()


def test_an_array_whose_copy_is_in_use_warns_too(strategy: str, large: np.ndarray, caught: list[Any]) -> None:
    first = F.loads(F.dumps(large))
    assert caught == []
    F.loads(F.dumps(large))
    assert len(caught) == 1
    del first


def test_an_array_whose_copy_was_freed_does_not_warn(strategy: str, large: np.ndarray, caught: list[Any]) -> None:
    for _ in range(3):
        F.loads(F.dumps(large))
    assert caught == []


def test_other_arrays_do_not_warn(strategy: str, caught: list[Any]) -> None:
    kept = []
    for _ in range(2):
        kept += [F.loads(F.dumps(np.zeros(LARGE)))]  # each another object, maybe at the address of the one before
    small, shared = np.zeros(LARGE - 1), mp.shared.zeros(LARGE)
    for array in (small, small, shared, shared):
        kept.append(F.loads(F.dumps(array)))
    assert caught == []


def test_an_array_sent_by_value_for_lack_of_memory_warns_at_the_line_that_sends(
    strategy: str, caught: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: Any, **options: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(reducers, "allocate", no_room)
    ours, theirs = mp.Pipe()
    for _ in range(2):
        ours.send(np.zeros((100, 60)).T)
        assert not mp.is_shared(theirs.recv())
    assert [(warning.category, warning.filename) for warning in caught] == [(mp.SharedMemoryWarning, __file__)]
    ours.close()
    theirs.close()


SHOWN = """
    import resource, sys
    import numpy as np
    import mp_all as mp

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    ours, theirs = mp.Pipe()
    ours.send(np.zeros(6000))  # this line
"""


def test_the_warning_is_shown_by_default(tmp_path: Path, strategy: str) -> None:
    environment = {"MP_SHARING_STRATEGY": strategy, "MPSHM_RUNTIME_DIR": str(tmp_path), "PYTHONWARNINGS": ""}
    done = run_script(tmp_path, SHOWN, **environment)
    assert done.returncode == 0, done.stderr
    assert "SharedMemoryWarning: shared memory ran out" in done.stderr
    assert "ours.send(np.zeros(6000))  # this line" in done.stderr
    assert done.stderr.count("Warning") == 1


OF_A_POOL = """
    import resource, sys
    import numpy as np
    import mp_all as mp

    if __name__ == "__main__":
        arrays = [np.ones(2 << 20, "u1") for _ in range(2)]
        with mp.Pool(1) as pool, mp.ProcessPoolExecutor(1) as executor:
            pool.apply(len, ("a",)), executor.submit(len, "a").result()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))  # blocks count as files
            if sys.argv[1] == "map":
                pool.map(len, arrays)
            elif sys.argv[1] == "imap":
                list(pool.imap(len, iter(arrays)))
            elif sys.argv[1] == "executor":
                list(executor.map(len, arrays))
"""


@pytest.mark.parametrize(("call", "line"), [("map", 12), ("imap", 14), ("executor", 16)])
def test_the_warning_of_a_pool_points_at_the_line_of_the_program(tmp_path: Path, call: str, line: int) -> None:
    done = run_script(tmp_path, OF_A_POOL, call)
    assert done.returncode == 0, done.stderr
    assert f"program.py:{line}: SharedMemoryWarning: " in done.stderr.splitlines()[0]


def test_a_lack_of_memory_is_not_taken_for_an_object_that_cannot_be_pickled() -> None:
    error = MemoryError()
    unpicklable.note(error, "a task", args=(threading.Lock(),))
    assert not hasattr(error, "__notes__")
