"""Launch lines of torchrun for several nodes, all of which are this machine: numbers, counts, restarts, output."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ports import free_port
from support.waiting import until
from test_command_on_nodes import KEY, environment, finish

SHOW = """
    import os, pathlib, sys, time

    def attempt():
        return int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    def say(*words):
        print(*words, flush=True)

    rank, node = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])
    for text in sys.argv[1:]:
        exec(text)
"""
PLACE = (
    "say(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_WORLD_SIZE')))"
)


@pytest.fixture
def show(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text(textwrap.dedent(SHOW))
    return str(path)


@contextmanager
def nodes(*lines: list[str], key: str = KEY) -> Iterator[list[subprocess.Popen[str]]]:
    """
    Start an mp-spawn with each of *lines*, in the order.
    """
    started: list[subprocess.Popen[str]] = []
    try:
        for line in lines:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "mp_spawn", *line],
                    env=environment(MP_SPAWN_KEY=key),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def c10d(nnodes: str, *more: str) -> list[str]:
    place = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=7"]
    return ["--nnodes", nnodes, *place, *more]


def printed(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines of the job, which node 0 prints; other nodes print nothing."""
    code, out, err = finish(process)
    assert code == 0, err
    return [line.split("] ", 1)[1] for line in out.splitlines()]


def all_printed(started: list[subprocess.Popen[str]]) -> list[str]:
    return sorted(line for process in started for line in printed(process))


def test_nodes_are_numbered_as_they_come_and_one_of_them_is_node_0(show: str) -> None:
    line = c10d("3", "--nproc-per-node", "2", show, PLACE)
    with nodes(line, line, line) as started:
        assert all_printed(started) == [f"{rank} 6 {rank % 2} 2 3" for rank in range(6)]


def test_each_node_counts_its_own_ranks(show: str) -> None:
    line = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    first, second = (
        [*line, f"--node-rank={rank}", f"--nproc-per-node={count}", show, PLACE] for rank, count in ((0, 1), (1, 2))
    )
    with nodes(first, second) as started:
        assert printed(started[0]) and printed(started[1]) == []
    with nodes(second, first) as started:
        assert printed(started[0]) == []
        assert sorted(printed(started[1])) == ["0 3 0 1 2", "1 3 0 2 2", "2 3 1 2 2"]


def test_nodes_that_count_differently_are_refused(show: str) -> None:
    line = c10d("2")
    zero, one = (["--rdzv-conf", f"is_host={host}"] for host in ("true", "false"))
    with nodes([*line, *zero, "--nproc-per-node", "1", show], [*line, *one, "-n", "2", show]) as (first, other):
        code, _, err = finish(first)
        assert code == 1
        assert "has -n, which counts the ranks of all nodes" in err
        assert finish(other)[0] == 1


def test_a_job_begins_without_the_nodes_between_min_and_max_that_do_not_come(show: str) -> None:
    line = c10d("2:4", "--rdzv-conf", "last_call_timeout=1", "--nproc-per-node", "1", show, PLACE)
    with nodes(line, line) as started:
        assert all_printed(started) == ["0 2 0 1 2", "1 2 0 1 2"]


def test_a_job_begins_at_once_when_as_many_nodes_have_come_as_may(show: str) -> None:
    line = c10d("1:2", "--rdzv-conf", "last_call_timeout=500", "--nproc-per-node", "1", show, PLACE)
    with nodes(line, line) as started:
        assert all_printed(started) == ["0 2 0 1 2", "1 2 0 1 2"]


def test_a_job_does_not_begin_with_fewer_nodes_than_it_needs(show: str) -> None:
    line = c10d("2:3", "--rdzv-conf", "join_timeout=2,last_call_timeout=1", "--nproc-per-node", "1", show, PLACE)
    with nodes(line) as (first,):
        code, out, err = finish(first)
    assert (code, out) == (1, "")
    assert "nodes [1, 2] of 3 have not come" in err


def test_a_node_of_another_job_is_none_of_this_one(show: str) -> None:
    line = c10d("2")
    zero, one = (["--rdzv-conf", f"is_host={host}"] for host in ("true", "false"))
    other_job = [word.replace("=7", "=8") for word in line]
    with nodes([*line, *zero, show], [*other_job, *one, show]) as (first, other):
        code, _, err = finish(other)
        assert code == 1
        assert "another key" in err and "--rdzv-id" in err
        assert first.poll() is None


def test_several_nodes_need_a_key(show: str) -> None:
    with nodes(c10d("2", show), key="") as (process,):
        code, _, err = finish(process)
    assert code == 2
    assert "export MP_SPAWN_KEY=$(openssl rand -hex 32)" in err


FAIL_ONCE = "say('attempt', attempt())\nif attempt() == 0: rank == 3 and os._exit(3); time.sleep(300)"


@pytest.mark.timeout(200)
def test_a_failure_starts_the_ranks_of_all_nodes_again(show: str) -> None:
    line = c10d("2", "--nproc-per-node", "2", "--max-restarts", "2", show, FAIL_ONCE, PLACE)
    with nodes(line, line) as started:
        done = [finish(process) for process in started]
    assert [code for code, _, _ in done] == [0, 0], done
    out, err = ("".join(texts) for texts in zip(*(each[1:] for each in done), strict=True))
    shown = sorted(text.split("] ", 1)[1] for text in out.splitlines())
    places = [f"{rank} 4 {rank % 2} 2 2" for rank in range(4)]
    # The first attempt of a rank may have ended before it has said anything.
    assert shown[:4] == places
    assert shown.count("attempt 1") == 4
    assert "exit code 3" in err and "all ranks are started again (1 of 2)" in err


@pytest.mark.timeout(200)
def test_a_lost_node_starts_the_ranks_of_all_nodes_again(show: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    wait = f"pathlib.Path({str(here)!r}, str(rank)).touch()\nif attempt() == 0: time.sleep(300)"
    line = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--max-restarts=1"]
    both = [[*line, f"--node-rank={rank}", "--nproc-per-node=2", show, wait, PLACE] for rank in range(2)]
    with nodes(*both) as (first, other):
        assert until(lambda: len(list(here.iterdir())) == 4, 60)
        other.kill()
        assert sorted(printed(first)) == [f"{rank} 4 {rank % 2} 2 2" for rank in range(4)]


def test_the_last_failure_is_the_exit_code_of_all_nodes(show: str) -> None:
    line = c10d("2", "--nproc-per-node", "1", "--max-restarts", "1", show, "rank == 1 and os._exit(3 + attempt())")
    with nodes(line, line) as started:
        assert [finish(process)[0] for process in started] == [4, 4]


def test_ranks_that_a_signal_ends_are_not_started_again(show: str) -> None:
    line = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--max-restarts=3"]
    text = "say('here'); time.sleep(300)"
    both = [[*line, f"--node-rank={rank}", "--nproc-per-node=1", show, text] for rank in range(2)]
    with nodes(*both) as (first, other):
        assert first.stdout is not None
        for _ in range(2):
            assert "here" in first.stdout.readline()
        first.send_signal(signal.SIGTERM)
        code, out, err = finish(first)
        assert (code, out) == (128 + signal.SIGTERM, "")
        assert "started again" not in err
        assert finish(other)[0] == code


def test_the_output_of_nodes_is_selected_by_the_number_on_the_node(show: str, tmp_path: Path) -> None:
    text = "print('out', rank); print('err', rank, file=sys.stderr)"
    folder = tmp_path / "logs"
    line = c10d("2", "--nproc-per-node", "2", "--log-dir", str(folder), "-r", "0:3", "-t", "1:1", show, text)
    with nodes(line, line) as started:
        done = [finish(process) for process in started]
    assert [code for code, _, _ in done] == [0, 0], done
    assert sorted(text.split("] ")[1] for text in (done[0][1] + done[1][1]).splitlines()) == ["out 1", "out 3"]
    errors = [text.split("] ")[1] for text in (done[0][2] + done[1][2]).splitlines() if "] err" in text]
    assert sorted(errors) == ["err 1", "err 3"]
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert files == {
        "rank-0.out": "out 0\n",
        "rank-0.err": "err 0\n",
        "rank-1.out": "out 1\n",
        "rank-2.out": "out 2\n",
        "rank-2.err": "err 2\n",
        "rank-3.out": "out 3\n",
    }
