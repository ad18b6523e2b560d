"""Bad input raises an error of one line, with the value and what to do, before any rank is started."""

from __future__ import annotations

import pickle
from multiprocessing import get_all_start_methods
from typing import Any

import pytest
import rank_functions as ranks
from support.scripts import run_script

from mp_spawn import ProcessRaisedException, run, spawn, start_processes

METHODS = ", ".join(map(repr, get_all_start_methods()))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"nprocs": 0}, ValueError, "nprocs=0 is too small; give 1 or more"),
        ({"nprocs": 10**8}, ValueError, "nprocs=100000000 is too large; this machine allows at most"),
        ({"nprocs": -3}, ValueError, "nprocs=-3 is too small; give 1 or more"),
        ({"nprocs": 2.0}, TypeError, "nprocs=2.0 is a float; give an integer"),
        ({"nprocs": "2"}, TypeError, "nprocs='2' is a str; give an integer"),
        ({"args": "ab"}, TypeError, "args is a str, 'ab'; it must be a tuple or a list, as in args=(x,)"),
        ({"args": 7}, TypeError, "args is a int, 7; it must be a tuple or a list"),
        ({"start_method": "thread"}, ValueError, f"start_method='thread' is unknown here; give one of {METHODS}"),
        ({"context": "spawn"}, TypeError, "context is 'spawn'; give multiprocessing.get_context(...)"),
        (
            {"output": "prefx"},
            ValueError,
            "output='prefx' is none of 'inherit', 'prefix', 'capture', nor a folder",
        ),
        ({"output": None}, ValueError, "output=None is none of"),
        ({"threads_per_rank": 0}, ValueError, "threads_per_rank=0 is too small; give 1 or more"),
        ({"max_restarts": -1}, ValueError, "max_restarts=-1 is too small; give 0 or more"),
        ({"cpu_affinity": [0]}, ValueError, "cpu_affinity=[0] is not for 2 ranks; give 'spread'"),
        ({"cpu_affinity": [99_999, 0]}, ValueError, "cpu_affinity names no processor in [99999] that this process may"),
        ({"cpu_affinity": [0, ()]}, ValueError, "cpu_affinity names no processor in [] that this process may use"),
        ({"cpu_affinity": "all"}, ValueError, "cpu_affinity='all' is not for 2 ranks; give 'spread'"),
    ],
)
def test_a_bad_option_is_described_in_one_line(options: dict[str, Any], error: type[Exception], text: str) -> None:
    for launcher in (start_processes, run):
        with pytest.raises(error) as caught:
            launcher(ranks.nothing, **{"nprocs": 2, **options})  # type: ignore[operator]
        assert str(caught.value).startswith(text)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["timeout", "grace_period"])
def test_no_number_is_no_time_limit(name: str) -> None:
    with start_processes(ranks.nothing, join=False) as context:
        for call in (lambda **options: run(ranks.nothing, **options), context.join):
            with pytest.raises(ValueError, match=f"{name}=nan is no number of seconds"):
                call(**{name: float("nan")})
            with pytest.raises(TypeError, match=f"{name}='1' is a str; give a number of seconds"):
                call(**{name: "1"})


@pytest.mark.parametrize("seconds", [float("inf"), 1e7])
def test_a_time_limit_may_be_longer_than_any_wait(start_method: str, seconds: float) -> None:
    with pytest.raises(ProcessRaisedException, match="the second one"):
        run(ranks.fail_unless_first, nprocs=2, timeout=seconds, grace_period=seconds, start_method=start_method)


def test_fn_must_be_callable() -> None:
    with pytest.raises(TypeError, match="fn is 'hello', which cannot be called"):
        spawn("hello")  # type: ignore[arg-type]


def test_an_unpicklable_argument_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(pickle.PicklingError) as caught:
        spawn(lambda rank: None)
    text = str(caught.value)
    assert "<lambda>" in text
    assert "pip install cloudpickle" in text
    assert "start_method='fork'" in text
    assert "\n" not in text
    with pytest.raises(pickle.PicklingError, match=r"fn=nothing with args of \(generator\)"):
        spawn(ranks.nothing, args=((x for x in ()),))


def test_an_argument_that_cloudpickle_cannot_pickle_is_named() -> None:
    pytest.importorskip("cloudpickle")
    with pytest.raises(pickle.PicklingError, match=r"args of \(generator\) cannot be pickled for"):
        spawn(ranks.nothing, args=((x for x in ()),))


def test_a_program_without_a_main_guard_gets_an_error(tmp_path: Any) -> None:
    done = run_script(
        tmp_path,
        """
        import time
        import mp_spawn
        mp_spawn.spawn(time.sleep, nprocs=1)
        """,
    )
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr.replace("'", '"')


def test_a_daemon_gets_an_error_when_it_starts_ranks(start_method: str) -> None:
    with pytest.raises(Exception, match="daemon"):
        start_processes(ranks.start_ranks, (start_method,), daemon=True, start_method=start_method)
