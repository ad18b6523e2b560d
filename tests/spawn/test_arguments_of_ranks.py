"""Arguments are pickled once for all ranks. Shared arrays stay shared; of a private array each rank has its own."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import argument_functions as arguments
import numpy as np
import pytest
import rank_functions as ranks
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_spawn import ProcessRaisedException, run, start_processes
from mp_spawn.calls import payload

Pipe = tuple[Connection, Connection]
MB = 1 << 20


def test_no_rank_waits_for_the_imports_of_another(start_method: str, pipe: Pipe, back: Pipe) -> None:
    """Each rank waits for all others while it unpickles, before an argument larger than a pipe."""
    if start_method == "fork":
        pytest.skip("needs a start method that pickles; fork does not")
    args = (arguments.WaitsWhenUnpickled(pipe[1], back[0]), b"z" * MB)
    context = start_processes(ranks.nothing, args, 4, join=False, start_method=start_method)
    assert context is not None
    for _ in range(4):
        pipe[0].recv()
    os.write(back[1].fileno(), b"1234")
    assert context.join(timeout=60)


def test_arguments_of_every_kind_are_pickled_once(start_method: str, strategy: str) -> None:
    """A block has one receiver, a queue has descriptors, and a private array is copied."""
    queue = mp.get_context(start_method).SimpleQueue()
    ranks.CountsItsPickles.pickled = 0
    args = (ranks.CountsItsPickles(), mp.shared.ones(1000), queue, np.ones(100_000), mp.Block(100))
    assert run(arguments.sums, args, 3, start_method=start_method) == [101_000] * 3
    assert ranks.CountsItsPickles.pickled == (0 if start_method == "fork" else 1)
    assert [queue.get() for _ in range(3)] == [101_000] * 3
    queue.close()


def test_arguments_beside_a_lambda_are_pickled_once(start_method: str) -> None:
    if start_method != "fork":
        pytest.importorskip("cloudpickle", reason="needs cloudpickle, which is not installed")
    ranks.CountsItsPickles.pickled = 0
    args = (ranks.CountsItsPickles(), mp.shared.ones(1000))
    assert run(lambda rank, _, a: a.sum() + rank, args, 3, start_method=start_method) == [1000, 1001, 1002]
    # The attempt without cloudpickle stops at the function, before the arguments.
    assert ranks.CountsItsPickles.pickled == (0 if start_method == "fork" else 1)


def test_the_bytes_of_a_private_array_are_copied_once(start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    original = payload.memory_file

    def counted(*parts: bytes | memoryview) -> int:
        written.append(sum(len(part) for part in parts))
        return original(*parts)

    monkeypatch.setattr(payload, "memory_file", counted)
    before = mp.memory_stats()["copied_bytes"]
    assert run(arguments.sum_of, (np.ones(MB, np.uint8),), 4, start_method=start_method) == [MB] * 4
    assert mp.memory_stats()["copied_bytes"] == before
    assert MB * (start_method != "fork") <= sum(written) < 1.1 * MB


ARRAYS = {
    "plain": np.arange(50_000.0),
    "two-dimensional": np.arange(60_000).reshape(200, 300),
    "in Fortran order": np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
    "with gaps": np.arange(100_000)[::2],
    "backwards": np.arange(50_000)[::-1],
    "a broadcast": np.broadcast_to(np.float64(3), (300, 300)),
    "of the other byte order": np.arange(50_000, dtype=">i4"),
    "dates": np.arange(50_000).astype("datetime64[s]"),
    "records": np.zeros(20_000, [("a", "i4"), ("b", "f8")]),
    "texts": np.array(["text", "longer"] * 10_000),
    "objects": np.array([{"x": 1}, None] * 20_000, object),
    "small": np.arange(3),
    "empty": np.empty((0, 7)),
    "zero-dimensional": np.array(7.5),
}


def test_each_rank_has_its_own_private_array(start_method: str) -> None:
    before = {name: array.copy() for name, array in ARRAYS.items()}
    for result in run(arguments.describe_and_change_all, (ARRAYS,), 2, start_method=start_method):
        for name, (seen, changed) in result.items():
            assert seen == arguments.description(ARRAYS[name]), name
            assert changed, name
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_ranks_do_not_see_each_others_writes_to_a_private_array(start_method: str, pipe: Pipe, back: Pipe) -> None:
    """Each rank writes, and reads when all have written."""
    array = np.zeros(50_000)
    args = (array, pipe[1], back[0])
    context = start_processes(arguments.write_and_read_again, args, 3, join=False, start_method=start_method)
    assert context is not None
    assert sorted(pipe[0].recv() for _ in range(3)) == [0, 1, 2]
    os.write(back[1].fileno(), b"123")
    assert context.join(timeout=60)
    assert not array.any()


def test_a_read_only_array_stays_read_only(start_method: str) -> None:
    array = np.ones(50_000)
    array.flags.writeable = False
    assert run(arguments.is_writable, (array,), 2, start_method=start_method) == [False, False]


def test_two_views_of_a_shared_array_share_memory_in_a_rank(start_method: str, strategy: str) -> None:
    shared = mp.shared.zeros(1000)
    assert run(arguments.overlap, (shared[:600], shared[400:]), 2, start_method=start_method) == [True, True]


class Counted:
    """A class whose reducer is not declared for several receivers."""

    reduced = 0


def reduce_counted(thing: Counted) -> Any:
    Counted.reduced += 1
    return Counted, ()


def test_a_foreign_reducer_is_called_for_each_rank() -> None:
    ForkingPickler.register(Counted, reduce_counted)
    try:
        Counted.reduced = 0
        run(ranks.nothing, (Counted(),), 3)
        assert Counted.reduced == 3
    finally:
        del ForkingPickler._extra_reducers[Counted]  # type: ignore[attr-defined]


def test_a_rank_without_arrays_does_not_load_numpy(start_method: str, tmp_path: Path) -> None:
    if start_method == "fork":
        pytest.skip("needs a start method with a fresh interpreter; a fork has NumPy already")
    # A program of its own, since a fork server that runs already may have NumPy.
    (tmp_path / "loaded.py").write_text(Path(__file__).with_name("loaded.py").read_text())
    program = """
        import sys
        import loaded
        from mp_all import run

        if __name__ == "__main__":
            import numpy
            print(run(loaded.is_loaded, ("numpy",), 2, start_method=sys.argv[1]))
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "[False, False]\n"


def test_nothing_is_left_behind_when_the_arguments_cannot_be_pickled(strategy: str, start_method: str) -> None:
    """The leak check looks for descriptors and memory."""
    if start_method == "fork":
        pytest.skip("needs a start method that pickles; fork does not")
    args = (mp.shared.zeros(1000), np.zeros(100_000), (x for x in ()))
    with pytest.raises(Exception, match="cannot be pickled"):
        run(ranks.nothing, args, 3, start_method=start_method)


def test_an_fn_that_cannot_be_unpickled_is_the_ranks_failure(
    start_method: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception is raised while `fn` is unpickled."""
    if start_method == "fork":
        pytest.skip("needs a start method that pickles; fork does not")
    with pytest.raises(ProcessRaisedException) as caught:
        start_processes(arguments.RaisingFunction(), (), 2, start_method=start_method)
    assert type(caught.value.__cause__) is ValueError
    assert "the target" in str(caught.value)
    assert caught.value.failures[0].reason == "ValueError: the target"


EMPTY = """
    import sys
    import mp_spawn
    import numpy as np

    def shapes(rank, *arrays):
        assert "mp_reductions" not in sys.modules
        return [(array.shape, array.dtype.str, array.flags.writeable) for array in arrays]

    if __name__ == "__main__":
        fixed = np.empty((0, 3), "f4")
        fixed.flags.writeable = False
        for arrays in [(np.empty(0),), (np.empty(0), fixed), (np.empty(0), np.ones(2, int), fixed)]:
            for result in mp_spawn.run(shapes, arrays, 2, start_method=sys.argv[1]):
                print(result)
"""


def test_empty_arrays_are_received_without_mp_reductions(start_method: str, tmp_path: Path) -> None:
    """NumPy's own pickle puts their zero bytes out of band."""
    one, two, three = "((0,), '<f8', True)", "((2,), '<i8', True)", "((0, 3), '<f4', False)"
    lines = [[one], [one, three], [one, two, three]]
    said = succeeded(run_script(tmp_path, EMPTY, start_method))
    assert said.splitlines() == [f"[{', '.join(line)}]" for line in lines for _ in range(2)]
