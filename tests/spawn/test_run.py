"""`run` returns results by rank; arguments and results of many kinds can be sent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import rank_functions as ranks

import mp_all as mp
from mp_spawn import ProcessExitedException, ProcessRaisedException, run, start_processes

Pipe = tuple[Connection, Connection]
CLOUDPICKLE = "needs cloudpickle, which is not installed"


def test_results_are_ordered_by_rank(start_method: str) -> None:
    assert run(ranks.give_back, ("a", 2), 4, start_method=start_method) == [(i, "a", 2) for i in range(4)]


def test_results_of_any_size_are_received(start_method: str) -> None:
    results = run(ranks.make_bytes, (5_000_000,), 3, start_method=start_method)
    assert [(len(data), data[-1]) for data in results] == [(5_000_000, rank) for rank in range(3)]


def test_a_result_that_cannot_be_pickled_is_the_ranks_failure(start_method: str) -> None:
    with pytest.raises(ProcessRaisedException, match=r"the result of rank [01], generator, cannot be"):
        run(ranks.make_generator, nprocs=2, start_method=start_method)


def test_run_ends_ranks_that_are_too_slow(start_method: str, pipe: Pipe) -> None:
    with pytest.raises(TimeoutError, match=r"2 of 2 ranks still ran after 0.5 s"):
        run(ranks.tell_and_sleep, (pipe[1],), 2, start_method=start_method, timeout=0.5)
    assert mp.active_children() == []


def test_a_rank_that_was_killed_before_its_result_is_a_failure(start_method: str) -> None:
    with pytest.raises(ProcessExitedException, match="process 1 terminated with signal SIGKILL"):
        run(ranks.kill_self, (1, signal.SIGKILL), 2, start_method=start_method)


def test_arguments_may_be_a_list_as_those_of_a_process_may(start_method: str) -> None:
    assert run(divmod, [2], 2, start_method=start_method) == [(0, 0), (0, 1)]


def test_locks_queues_and_counters_can_be_arguments(start_method: str) -> None:
    ctx = mp.get_context(start_method)
    lock, queue, counter = ctx.Lock(), ctx.SimpleQueue(), mp.shared.zeros(1, int)
    assert run(ranks.count_up, (lock, queue, counter, 100), 3, start_method=start_method) == [None] * 3
    assert counter[0] == 300
    assert sorted(queue.get() for _ in range(3)) == [0, 1, 2]
    queue.close()


@pytest.mark.parametrize("name", ["Value", "Array", "RawValue", "RawArray"])
def test_all_ranks_share_an_object_of_ctypes(start_method: str, name: str) -> None:
    ctx = mp.get_context(start_method)
    shared = getattr(ctx, name)("i", 4 if name.endswith("Array") else 0)
    assert run(ranks.write_element, (shared, {"the same": shared}), 4, start_method=start_method) == [True] * 4
    assert shared[:] == [1, 2, 3, 4] if name.endswith("Array") else shared.value in (1, 2, 3, 4)


def test_all_ranks_share_the_memory_of_a_shared_array(start_method: str, strategy: str) -> None:
    shared = mp.shared.zeros(1000)
    assert run(ranks.write_share, (shared,), 4, start_method=start_method) == [True] * 4
    assert shared.tolist() == np.repeat(np.arange(4) + 1.0, 250).tolist()


def test_large_arrays_come_back_through_shared_memory(start_method: str, strategy: str) -> None:
    results = run(ranks.make_array, (100_000,), 2, start_method=start_method)
    assert [mp.is_shared(result) for result in results] == [True, True]
    assert [result.sum() for result in results] == [0.0, 100_000.0]


def test_arguments_are_pickled_once_for_all_ranks(start_method: str) -> None:
    ranks.CountsItsPickles.pickled = 0
    assert run(ranks.nothing, (ranks.CountsItsPickles(),), 3, start_method=start_method) == [None] * 3
    assert ranks.CountsItsPickles.pickled == (0 if start_method == "fork" else 1)


def test_all_ranks_start_before_one_needs_to_end(start_method: str, pipe: Pipe, back: Pipe) -> None:
    """Each rank waits for all others, with arguments larger than a pipe."""
    big = b"z" * 1_000_000
    args = (big, pipe[1], back[0])
    context = start_processes(ranks.wait_for_all, args, 4, join=False, start_method=start_method)
    assert context is not None
    assert sorted(pipe[0].recv() for _ in range(4)) == [0, 1, 2, 3]
    os.write(back[1].fileno(), b"1234")
    assert context.join(timeout=60)


def test_a_context_of_the_user_can_start_the_ranks(start_method: str) -> None:
    context = mp.get_context(start_method)
    assert run(ranks.give_back, nprocs=2, context=context) == [(0,), (1,)]
    with pytest.raises(ProcessRaisedException, match="boom"):
        start_processes(ranks.raise_odd, (1,), 2, context=context)


def test_cloudpickle_sends_lambdas_and_closures(start_method: str) -> None:
    if start_method != "fork":
        pytest.importorskip("cloudpickle", reason=CLOUDPICKLE)
    factor = 3
    assert run(lambda rank, x: x * factor + rank, (2,), 3, start_method=start_method) == [6, 7, 8]
    made = run(lambda rank: lambda: rank * factor, nprocs=2) if start_method != "fork" else []
    assert [make() for make in made] == ([0, 3] if start_method != "fork" else [])


def test_a_queue_can_be_sent_with_a_lambda(start_method: str) -> None:
    if start_method != "fork":
        pytest.importorskip("cloudpickle", reason=CLOUDPICKLE)
    queue = mp.get_context(start_method).SimpleQueue()
    run(lambda rank, q: q.put(rank), (queue,), 2, start_method=start_method)
    assert sorted([queue.get(), queue.get()]) == [0, 1]
    queue.close()


INTERACTIVE = """
    import sys
    import mp_spawn
    class Thing:
        def __init__(self, x): self.x = x

    class Trouble(Exception): pass

    def shift(rank, thing):
        if thing.x > 5: raise Trouble("too much")
        return Thing(thing.x + rank)

    results = mp_spawn.run(shift, (Thing(5),), 2)
    print([result.x for result in results], all(type(result) is Thing for result in results))
    try:
        mp_spawn.run(shift, (Thing(6),), 2)
    except mp_spawn.ProcessRaisedException as error:
        print(repr(error.__cause__), isinstance(error.__cause__, Trouble))

"""


def interactive(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """
    Run an interpreter with *text* as its input.
    """
    return subprocess.run(
        [sys.executable, *options, "-"],
        input=textwrap.dedent(text),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path[1:]])},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("options", [(), ("-i",)])
def test_functions_of_an_interactive_session_can_be_sent(options: tuple[str, ...]) -> None:
    pytest.importorskip("cloudpickle", reason=CLOUDPICKLE)
    done = interactive(INTERACTIVE, *options)
    assert done.stdout.splitlines() == ["[5, 6] True", "Trouble('too much') True"], done.stderr


def test_without_cloudpickle_an_interactive_session_gets_an_error() -> None:
    done = interactive("import sys; sys.modules['cloudpickle'] = None\n" + textwrap.dedent(INTERACTIVE))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "another process cannot import shift from __main__" in last
    assert "pip install cloudpickle" in last


def test_functions_of_the_main_script_can_be_sent(tmp_path: Path, start_method: str) -> None:
    from support.scripts import run_script, succeeded

    program = """
        import sys
        import mp_spawn

        class Thing:
            def __init__(self, x): self.x = x

        def shift(rank, thing):
            return Thing(thing.x + rank)

        if __name__ == "__main__":
            results = mp_spawn.run(shift, (Thing(5),), 2, start_method=sys.argv[1])
            print([result.x for result in results], all(type(result) is Thing for result in results))
    """
    assert succeeded(run_script(tmp_path, program, start_method)) == "[5, 6] True\n"


def test_numpy_is_not_needed_and_not_loaded() -> None:
    done = interactive(
        """
        import sys
        sys.modules["numpy"] = None
        import mp_spawn, loaded
        print(mp_spawn.run(loaded.is_loaded, ("numpy",), 2), mp_spawn.run(loaded.is_loaded, ("os",), 1))
        """
    )
    assert done.stdout == "[False, False] [True]\n", done.stderr


def test_the_zygote_imports_no_slow_modules() -> None:
    # Each of these takes as long to import as a tenth of all that the zygote needs.
    slow = ["importlib.abc", "importlib.resources", "pathlib", "logging", "inspect", "traceback", "ssl", "email"]
    program = f"""
        import sys
        before = set(sys.modules)
        import mp_core.children.inheritance, mp_spawn.jobs.zygote_main
        print(sorted((set(sys.modules) - before).intersection({slow})))
    """
    done = interactive(program)
    assert done.stdout == "[]\n", done.stderr


def test_results_outlive_the_ranks_that_made_them(strategy: str) -> None:
    results = run(ranks.make_array, (1_000_000,), 2)
    gc.collect()
    assert [result.mean() for result in results] == [0.0, 1.0]


CELLS = [
    """
    import mp_spawn, sys

    class Thing:
        def __init__(self, x): self.x = x

    def shift(rank, thing):
        return Thing(thing.x + rank)
    """,
    """
    made = mp_spawn.run(shift, (Thing(5),), 2, start_method=sys.argv[1])
    print([type(each) is Thing and each.x for each in made])
    print(mp_spawn.run(lambda rank: rank + made[1].x, nprocs=2, start_method=sys.argv[1]))
    """,
]
# As in a notebook: a main module without a file, and cells in files that do not exist.
NOTEBOOK = "import sys\ndel __file__\n" + "".join(
    f"exec(compile({textwrap.dedent(cell)!r}, '/tmp/ipykernel_4711/{number}.py', 'exec'))\n"
    for number, cell in enumerate(CELLS)
)


def test_functions_of_a_notebook_can_be_sent(tmp_path: Path, start_method: str) -> None:
    if start_method != "fork":
        pytest.importorskip("cloudpickle", reason=CLOUDPICKLE)
    from support.scripts import run_script, succeeded

    assert succeeded(run_script(tmp_path, NOTEBOOK, start_method)) == "[5, 6]\n[6, 7]\n"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_functions_of_an_interactive_session_can_be_sent_under_other_start_methods(method: str) -> None:
    pytest.importorskip("cloudpickle", reason=CLOUDPICKLE)
    if method not in mp.get_all_start_methods():
        pytest.skip(f"needs the start method {method}")
    text = INTERACTIVE.replace("mp_spawn.run(", "mp_spawn.start_it(")
    start = (
        f"import functools, mp_spawn; mp_spawn.start_it = functools.partial(mp_spawn.run, start_method={method!r})\n"
    )
    done = interactive(start + textwrap.dedent(text))
    assert done.stdout.splitlines() == ["[5, 6] True", "Trouble('too much') True"], done.stderr
