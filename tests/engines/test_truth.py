"""Each rank on an engine has exactly one verdict, and the result, arguments and output are as on one machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_functions import (
    are_ranges,
    bytes_copied,
    environment,
    fail_once,
    misbehave,
    raise_an_array,
    returns,
    say,
    wait_for_ever,
    write_to_both,
)
from support.waiting import until

import mp_all as mp

SOAK = os.environ.get("MP_SOAK") == "1"


def test_each_rank_has_its_place_in_its_environment(engine: Any) -> None:
    found = mp.run(environment, nprocs=6, engine=engine)
    assert [row[:5] for row in found] == [[str(r), str(r % 2), "6", "2", str(r // 2)] for r in range(6)]
    assert len({tuple(row[5:]) for row in found}) == 1
    assert int(found[0][6]) > 0


def test_a_private_array_is_each_ranks_own_and_a_shared_one_is_the_nodes(engine: Any) -> None:
    private, shared = np.ones(300_000), mp.shared.zeros(6)
    found = mp.run(write_to_both, (private, shared, 2), nprocs=6, engine=engine)
    for rank, (first, of_node, is_shared, writable, total) in enumerate(found):
        neighbours = {rank // 2 * 2, rank // 2 * 2 + 1}
        assert of_node == [1 + r if r in neighbours else 0 for r in range(6)]
        assert (first, is_shared, writable, total) == (1 + rank, True, True, 300_000 + rank)
    assert (private == 1).all()
    assert not shared.any()


def test_no_rank_copies_an_array_argument(engine: Any) -> None:
    arrays = (np.arange(200_000.0), mp.shared.array(np.arange(200_000.0)), np.arange(200_000.0)[::-1])
    found = mp.run(bytes_copied, arrays, nprocs=3, engine=engine)
    assert found == [(0, 199_999.0 * 2)] * 3


def test_large_and_many_arrays_arrive_as_they_left(engine: Any) -> None:
    large = (np.arange(5_000_001), mp.shared.array(np.arange(5_000_001)), np.arange(2 << 20), np.arange(0))
    small = (np.arange(10_000 + size) for size in range(1100))
    assert all(mp.run(are_ranges, (*large, *small), nprocs=4, engine=engine))


@pytest.mark.parametrize(
    "value",
    [np.arange(5), np.arange(100_000).reshape(10, -1).T, np.array(["a", None]), {"a": [np.float32(1)]}, b"x" * 100_000],
    ids=["small", "not contiguous", "objects", "nested", "bytes"],
)
def test_values_arrive_and_return_as_they_left(engine: Any, value: Any) -> None:
    for rank, (number, back) in enumerate(mp.run(returns(value), nprocs=2, engine=engine)):
        assert number == rank
        np.testing.assert_equal(back, value)


def test_a_file_map_arrives_by_value(engine: Any, tmp_path: Path) -> None:
    file = np.memmap(tmp_path / "file", dtype="i4", mode="w+", shape=1000)
    file[:] = np.arange(1000)
    (_, back), *_ = mp.run(returns(file), nprocs=1, engine=engine)
    assert type(back) is np.ndarray
    np.testing.assert_equal(back, np.arange(1000))


def test_an_exception_is_the_cause_and_names_its_node(engine: Any) -> None:
    started = time.monotonic()
    with pytest.raises(mp.ProcessRaisedException, match="boom") as caught:
        mp.run(misbehave, (4, "raise"), nprocs=6, engine=engine)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.error_index == 4
    assert [failure.rank for failure in caught.value.failures] == [4]
    assert "node" in caught.value.failures[0].describe()
    assert time.monotonic() - started < 30


def test_an_exception_with_an_array_arrives(engine: Any) -> None:
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.run(raise_an_array, nprocs=1, engine=engine)
    np.testing.assert_equal(caught.value.__cause__.args[0], np.arange(100_000))  # type: ignore[union-attr]


@pytest.mark.parametrize(("how", "code", "name"), [("kill", -9, "SIGKILL"), ("exit", 3, None)])
def test_an_exit_and_a_signal_are_told_apart(engine: Any, how: str, code: int, name: str | None) -> None:
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.run(misbehave, (1, how), nprocs=6, engine=engine)
    assert (caught.value.error_index, caught.value.exit_code, caught.value.signal_name) == (1, code, name)
    assert len(caught.value.failures) == 1


def test_a_timeout_ends_all_ranks(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="3 of 3 ranks"):
        mp.run(wait_for_ever, (str(tmp_path),), nprocs=3, timeout=4, engine=engine)
    for path in tmp_path.glob("[0-9]"):
        assert not Path("/proc", path.read_text()).exists()


def test_a_rank_is_started_again_on_its_node(engine: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert mp.run(fail_once, (str(tmp_path),), nprocs=3, max_restarts=1, engine=engine) == [0, 1, 2]
    assert "started again (1 of 1)" in caplog.text


def test_output_has_node_and_rank_in_front(engine: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with mp.start_processes(say, ("hello",), nprocs=3, join=False, output="prefix", engine=engine) as context:
        names = [node.name for node in context.nodes]  # type: ignore[attr-defined]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(f"[{name}:{rank}] {rank} hello" for rank, name in enumerate(names))
    assert sorted(err.splitlines()) == sorted(f"[{name}:{rank}] {rank} to stderr" for rank, name in enumerate(names))


def test_output_is_captured_or_put_into_files(engine: Any, tmp_path: Path) -> None:
    with mp.start_processes(say, ("hello",), nprocs=2, join=False, output="capture", engine=engine) as context:
        context.join()
    assert [text.stdout for text in context.captured] == ["0 hello\n", "1 hello\n"]
    mp.start_processes(say, ("hello",), nprocs=2, output=tmp_path, engine=engine)
    assert (tmp_path / "rank-1.out").read_text() == "1 hello\n"
    assert (tmp_path / "rank-0.err").read_text() == "0 to stderr\n"


def test_terminate_ends_the_ranks_of_all_nodes(engine: Any, tmp_path: Path) -> None:
    context = mp.start_processes(wait_for_ever, (str(tmp_path),), nprocs=3, join=False, engine=engine)
    assert until(lambda: len(list(tmp_path.glob("[0-9]"))) == 3, 60)
    assert sorted(context.pids()) == sorted(int(path.read_text()) for path in tmp_path.glob("[0-9]"))
    assert not context.join(0.1)
    context.terminate()
    assert not any(Path("/proc", str(pid)).exists() for pid in context.pids())
    with pytest.raises(mp.ProcessExitedException, match="SIGTERM"):
        context.join()


def test_a_channel_of_this_machine_is_refused(engine: Any) -> None:
    ours, theirs = mp.Pipe()
    with pytest.raises(Exception, match="another machine"):
        mp.run(returns(theirs), nprocs=1, engine=engine)
    ours.close()
    theirs.close()


def test_options_that_make_no_sense_are_refused() -> None:
    for options, words in (
        ({"start_method": "fork", "engine": "local"}, "start_method='fork'"),
        ({"engine": "kubernetes"}, "'kubernetes' is unknown"),
        ({"engine": "local", "cpu_affinity": [0]}, "cpu_affinity"),
        ({"engine": "local", "nprocs": 0}, "nprocs=0"),
    ):
        with pytest.raises(ValueError, match=words):
            mp.run(os.getpid, **options)  # type: ignore[arg-type]


@pytest.mark.timeout(3600 if SOAK else 120)
def test_runs_in_a_row_leave_nothing(engine: Any) -> None:
    # The leak check looks at processes, names, folders and descriptors.
    for _ in range(100 if SOAK else 3):
        assert mp.run(divmod, (2,), nprocs=3, engine=engine) == [(0, 0), (0, 1), (1, 0)]
