"""Ranks have their environment, threads and processors, and are restarted after failures."""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rank_functions as ranks
from support.processes import ended
from support.scripts import run_script, succeeded
from support.waiting import until

from mp_spawn import ProcessRaisedException, run, start_processes
from mp_spawn.jobs import context
from mp_spawn.jobs.options import options_among


def test_env_is_a_mapping_or_a_function_of_the_rank(start_method: str) -> None:
    result = run(ranks.variable, ("MP_TEST_X",), 2, start_method=start_method, env={"MP_TEST_X": "same"})
    assert result == ["same", "same"]
    result = run(
        ranks.variable, ("MP_TEST_X",), 2, start_method=start_method, env=lambda rank: {"MP_TEST_X": f"{rank}!"}
    )
    assert result == ["0!", "1!"]
    assert "MP_TEST_X" not in os.environ


@pytest.mark.parametrize("engine", [None, "local"])
@pytest.mark.parametrize(
    ("env", "error", "text"),
    [
        (5, TypeError, "env is 5; give a mapping, or a function of the rank that returns one"),
        (lambda rank: 5, TypeError, "env is 5; give a mapping"),
        ({"A": 1}, TypeError, "env has 'A': 1; the name and the value of a variable are of type str"),
        ({1: "a"}, TypeError, "env has 1: 'a'; the name and the value"),
        ({"A=": "b"}, ValueError, "env has 'A=': 'b'; a name is not empty and has no '='"),
        ({"A": "b\0"}, ValueError, "neither has a null character"),
    ],
)
def test_variables_that_cannot_be_set_are_refused_with_their_value(
    env: Any, error: type[Exception], text: str, engine: str | None
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        run(ranks.nothing, nprocs=2, env=env, engine=engine)


def test_threads_per_rank_is_set_before_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert run(ranks.threads_of_numpy, nprocs=2, threads_per_rank=1) == [1, 1]


def test_threads_per_rank_sets_the_variables(start_method: str) -> None:
    names = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
    for name in names:
        result = run(ranks.variable, (f"{name}_NUM_THREADS",), start_method=start_method, threads_per_rank=3)
        assert result == ["3"]


def test_variables_that_an_interpreter_reads_as_it_starts_take_effect() -> None:
    assert run(ranks.hash_is_random, nprocs=2, env={"PYTHONHASHSEED": "0"}) == [False, False]
    with pytest.raises(ProcessRaisedException, match="boom"):
        start_processes(ranks.raise_odd, (1,), 2, env={"PYTHONHASHSEED": "0"})


def test_a_thread_started_by_sitecustomize_runs_in_every_rank(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(
            """
            import threading
            threading.Thread(target=threading.Event().wait, name="from site", daemon=True).start()
            """
        )
    )
    program = """
        import threading
        import mp_spawn

        def threads(rank):
            return [thread.name for thread in threading.enumerate()]

        if __name__ == "__main__":
            print(mp_spawn.run(threads, nprocs=2))
    """
    names = ["MainThread", "from site"]
    assert succeeded(run_script(tmp_path, program, PYTHONPATH=str(tmp_path))) == f"{[names, names]}\n"


def test_ranks_are_spread_over_the_processors(start_method: str) -> None:
    mine = os.sched_getaffinity(0)
    count = len(mine)
    cpus = run(ranks.processors, nprocs=count, start_method=start_method, cpu_affinity="spread")
    assert set().union(*cpus) == mine
    assert [len(each) for each in cpus] == [1] * count
    assert run(ranks.processors, nprocs=1, start_method=start_method, cpu_affinity="spread") == [mine]


def test_processors_can_be_given(start_method: str) -> None:
    first = min(os.sched_getaffinity(0))
    cpus = run(ranks.processors, nprocs=2, start_method=start_method, cpu_affinity=[first, {first}])
    assert cpus == [{first}, {first}]


def test_a_rank_that_fails_is_started_again_with_a_new_pid(
    start_method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = run(ranks.fail_at_first, (tmp_path, 2), 3, start_method=start_method, max_restarts=2)
    assert result == [0, 1, 2]
    pids = (tmp_path / "1").read_text().split()
    assert len(set(pids)) == 3
    assert [len((tmp_path / str(rank)).read_text().split()) for rank in (0, 2)] == [1, 1]
    assert [record.message.split("; ")[1] for record in caplog.records] == [
        "it is started again (1 of 2)",
        "it is started again (2 of 2)",
    ]


def test_ranks_that_fail_together_are_started_again_by_one_interpreter(tmp_path: Path) -> None:
    job = start_processes(ranks.note_parent_and_fail_at_first, (tmp_path,), 5, join=False, max_restarts=1)
    assert job is not None
    for pid in job.pids():
        assert until(lambda pid=pid: ended(pid), 60)
    interpreter = int((tmp_path / "0").read_text())  # it has told how each ended when it ends
    assert until(lambda: ended(interpreter), 60)
    assert job.join(timeout=60)
    parents = [(tmp_path / str(rank)).read_text().split() for rank in range(5)]
    assert [len(each) for each in parents] == [2] * 5
    assert len({second for _, second in parents}) == 1


FEW_DESCRIPTORS = """
    import os, resource, sys
    import mp_spawn, rank_functions
    from pathlib import Path
    from support.processes import ended
    from support.waiting import until

    if __name__ == "__main__":
        fail = rank_functions.note_parent_and_fail_at_first
        job = mp_spawn.start_processes(fail, (Path(sys.argv[1]),), 8, join=False, max_restarts=1)
        assert all(until(lambda: ended(pid), 30) for pid in job.pids())
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, max(held) + 1))
        for fd in held[:16]:  # enough for some ranks, and not for all
            os.close(fd)
        print(job.join(timeout=30))
"""


def test_ranks_that_fail_together_are_started_again_with_few_descriptors(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent)])
    (tmp_path / "ranks").mkdir()
    done = run_script(tmp_path, FEW_DESCRIPTORS, str(tmp_path / "ranks"), PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_rank_is_restarted_at_most_max_restarts_times(start_method: str, tmp_path: Path) -> None:
    job = start_processes(ranks.fail_at_first, (tmp_path, 9), 2, join=False, start_method=start_method, max_restarts=2)
    assert job is not None
    with pytest.raises(ProcessRaisedException) as caught:
        job.join(timeout=60)
    assert caught.value.failures[0].restarts == 2
    assert sum("it was started again" in note for note in caught.value.__notes__) == 2
    assert job.pids()[1] == caught.value.error_pid == int((tmp_path / "1").read_text().split()[-1])


def test_a_restarted_rank_appends_to_its_output_file(start_method: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    run(ranks.fail_at_first, (tmp_path, 1), 2, start_method=start_method, max_restarts=1, output=folder)
    assert (folder / "rank-1.out").read_text() == "attempt 1\nattempt 2\n"
    result = run(ranks.fail_at_first, (tmp_path, 3), 2, start_method=start_method, max_restarts=1, output="prefix")
    assert result == [0, 1]


def test_a_rank_that_raises_and_hangs_is_killed_before_it_is_started_again(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "TERM_TO_KILL", 0.2)
    assert run(ranks.raise_and_hang, (tmp_path,), 2, start_method=start_method, max_restarts=1) == [0, 1]


@pytest.mark.parametrize("function", [start_processes, run])
def test_each_option_of_the_signature_is_passed_on(function: Callable[..., Any]) -> None:
    not_of_ranks = {"fn", "args", "nprocs", "join", "timeout", "grace_period", "engine"}
    options = set(inspect.signature(function).parameters) - not_of_ranks
    assert set(options_among(dict.fromkeys(options))) == options
