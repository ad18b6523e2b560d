"""What a job can do is the same for ranks of this machine, ranks on nodes, and the ranks that serve a pool on nodes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_nodes
import mp_spawn
from mp_nodes.driver.node_service import NodeService
from mp_spawn.errors import ProcessExitedException

WITHIN = 60
Make = Callable[..., mp_spawn.RunningJob]


def on_this_machine(fn: Callable[..., Any], *args: Any) -> mp_spawn.RunningJob:
    return mp_spawn.start_processes(fn, args, 2, join=False, output="capture")


def on_nodes(fn: Callable[..., Any], *args: Any) -> mp_spawn.RunningJob:
    nodes = mp_nodes.Local(nodes=2)
    return mp_spawn.start_processes(fn, args, 2, join=False, output="capture", engine=nodes)


def serving(fn: Callable[..., Any], *args: Any) -> mp_spawn.RunningJob:
    return NodeService(mp_nodes.Local(nodes=2), without_connection, (fn, *args), 2, lambda event: None)


@pytest.fixture(params=[on_this_machine, on_nodes, serving])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def without_connection(rank: int, connection: Connection, fn: Callable[..., Any], *args: Any) -> Any:
    return fn(rank, *args)


def do_nothing(rank: int) -> None: ...


def say(rank: int) -> None:
    print("rank", rank, "says hello")


def wait_for_ever(rank: int) -> None:
    time.sleep(10 * WITHIN)


def wait_if_second(rank: int) -> None:
    if rank == 1:
        wait_for_ever(rank)


def be_here(folder: str) -> None:
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)


def be_there(folder: str) -> None:
    while not os.path.exists(f"{folder}/end"):
        time.sleep(0.01)


def be_here_then_there(rank: int, folder: str) -> None:
    be_here(folder)
    be_there(folder)


def end_by_signal(rank: int, folder: str) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    open(os.path.join(folder, str(rank)), "w").close()
    time.sleep(10 * WITHIN)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_job_is_a_running_job(make: Make) -> None:
    job = make(do_nothing)
    names = {name for name in vars(mp_spawn.RunningJob) if not name.startswith("_")}
    assert names == {"ajoin", "captured", "join", "pids", "send_signal", "stacks", "terminate"}
    assert names <= set(dir(job))
    assert isinstance(job, mp_spawn.RunningJob)
    assert job.join(WITHIN)


def test_arguments_may_be_a_list_on_nodes_too() -> None:
    assert mp_spawn.run(divmod, [2], 2, engine="local") == [(0, 0), (0, 1)]


def test_join_returns_false_at_the_timeout_and_terminate_ends_the_ranks(make: Make) -> None:
    job = make(wait_for_ever)
    assert not job.join(0.05)
    until(lambda: all(job.pids()), WITHIN)
    job.terminate()
    assert all(map(is_gone, job.pids()))


def test_ajoin_waits_while_the_loop_goes_on(make: Make) -> None:
    job = make(do_nothing)

    async def main() -> list[Any]:
        return await asyncio.gather(job.ajoin(WITHIN), asyncio.sleep(0.01, "went on"), job.ajoin())

    assert asyncio.run(asyncio.wait_for(main(), WITHIN)) == [True, "went on", True]
    assert asyncio.run(job.ajoin())  # again, after the end


def test_ajoin_returns_false_at_the_timeout_and_a_cancelled_one_leaves_the_ranks_running(make: Make) -> None:
    job = make(wait_for_ever)

    async def main() -> bool:
        task = asyncio.create_task(job.ajoin())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await job.ajoin(0.05)

    assert asyncio.run(asyncio.wait_for(main(), WITHIN)) is False
    until(lambda: all(job.pids()), WITHIN)
    assert not any(map(is_gone, job.pids()))
    job.terminate()


def test_the_end_of_the_block_waits_and_an_exception_in_it_ends_the_ranks(make: Make) -> None:
    with make(do_nothing) as job:
        pass
    assert job.join(0)
    with pytest.raises(ZeroDivisionError), make(wait_for_ever) as job:
        until(lambda: all(job.pids()), WITHIN)
        raise ZeroDivisionError
    assert all(map(is_gone, job.pids()))


def test_a_signal_is_sent_to_each_rank(make: Make, tmp_path: Any) -> None:
    job = make(end_by_signal, str(tmp_path))
    until(lambda: len(os.listdir(tmp_path)) == 2, WITHIN)
    job.send_signal(signal.SIGUSR1)
    assert job.join(WITHIN)


def test_the_stacks_are_those_of_the_ranks_that_still_run(make: Make) -> None:
    job = make(wait_if_second)
    # A rank has none before it runs Python, and the other may need a moment to end.
    stacks = until(lambda: len(found := job.stacks()) == 1 and "in wait_for_ever" in found.get(1, "") and found, WITHIN)
    assert (pid := job.pids()[1])
    assert re.match(rf"rank 1 \(pid {pid}(, node local-1)?\):\n", stacks[1]), stacks
    job.terminate()
    assert job.stacks() == {}


@pytest.mark.parametrize("attempt", range(5))
def test_a_look_at_ranks_that_begin_and_end_harms_none(make: Make, attempt: int) -> None:
    job = make(do_nothing)
    while job.stacks():
        pass
    assert job.join(WITHIN)


def test_stacks_are_those_of_now_also_while_another_thread_waits(make: Make, tmp_path: Any) -> None:
    job = make(be_here_then_there, str(tmp_path))
    joined: list[bool] = []
    thread = threading.Thread(target=lambda: joined.append(job.join(WITHIN)))
    thread.start()
    assert until(lambda: [text.count("in be_here\n") for text in job.stacks().values()] == [1, 1], WITHIN)
    (tmp_path / "go").touch()
    assert until(lambda: [text.count("in be_there\n") for text in job.stacks().values()] == [1, 1], WITHIN)
    assert "in be_here\n" not in "".join(job.stacks().values())
    (tmp_path / "end").touch()
    while job.stacks():
        pass
    thread.join()
    assert joined == [True]


@pytest.mark.parametrize("free", [0, 1, 2, 3, 2000])
def test_a_job_on_nodes_is_waited_for_with_no_descriptor_and_with_many(free: int) -> None:
    program = """
        import os, resource, sys
        import mp_all as mp

        def nothing(rank):
            pass

        if __name__ == "__main__":
            free = int(sys.argv[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
            job = mp.start_processes(nothing, nprocs=2, join=False, engine=mp.engines.Local(nodes=2))
            held = []
            try:
                while len(held) < 2000 or free < 2000:
                    held.append(os.dup(0))
            except OSError:
                for _ in range(free):
                    os.close(held.pop())
            print(job.join(60), job.join(60))
    """
    with tempfile.TemporaryDirectory() as folder:
        assert succeeded(run_script(Path(folder), program, str(free))) == "True True\n"


def test_the_error_of_a_run_that_is_too_slow_has_the_stacks_of_ranks_on_nodes() -> None:
    with pytest.raises(TimeoutError, match="1 of 2 ranks still ran after 5 s, and have been") as caught:
        mp_spawn.run(wait_if_second, nprocs=2, timeout=5, engine=mp_nodes.Local(nodes=2))
    assert ["in wait_for_ever" in note and "node local-1" in note for note in caught.value.__notes__] == [True]


def test_a_real_time_signal_ends_the_ranks(make: Make) -> None:
    job = make(wait_for_ever)
    until(lambda: all(job.pids()), WITHIN)
    pids = job.pids()
    job.send_signal(signal.SIGRTMIN + 1)
    until(lambda: all(map(is_gone, pids)), WITHIN)
    with suppress(ProcessExitedException):
        job.join(WITHIN)


def test_the_output_is_captured_by_rank(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    job = make(say)
    job.join(WITHIN)
    if make is serving:  # its output is that of the program
        assert [each.stdout for each in job.captured] == ["", ""]
        assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0 says hello", "rank 1 says hello"]
    else:
        assert [each.stdout for each in job.captured] == ["rank 0 says hello\n", "rank 1 says hello\n"]


@pytest.mark.parametrize("name", ["timeout", "grace_period"])
def test_no_number_is_no_time_limit(make: Make, name: str) -> None:
    with make(do_nothing) as job:
        with pytest.raises(ValueError, match=f"{name}=nan is no number of seconds"):
            job.join(**{name: float("nan")})
        with pytest.raises(TypeError, match=f"{name}='1' is a str; give a number of seconds"):
            job.join(**{name: "1"})
        assert job.join(**{name: float("inf")})
