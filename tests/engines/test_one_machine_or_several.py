"""What a job on several nodes does as a job on one: exit codes, output, and signals of a scheduler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ports import free_port
from support.waiting import until

from mp_nodes.driver.engine_context import EngineContext

WHERE = {"one machine": [], "two nodes": ["--engine", "local", "--nnodes", "2"]}
# The end of a program of two ranks, with a folder and an exit code as its arguments: a rank that fails ends the other,
# which may not have come that far yet.
EXIT_TOGETHER = """
import os, sys, time
open(f"{sys.argv[1]}/{os.environ['RANK']}", "x").close()
while not all(os.path.exists(f"{sys.argv[1]}/{rank}") for rank in range(2)):
    time.sleep(0.01)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(params=WHERE)
def where(request: pytest.FixtureRequest) -> list[str]:
    """
    The options for one machine, and for two nodes.
    """
    return WHERE[request.param]


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command; kill it at the end of the block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "MP_SPAWN_"))}
    with subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", *arguments],
        env=kept | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(*arguments: str, **variables: str) -> tuple[int, bytes, bytes]:
    with started(*arguments, **variables) as process:
        out, err = process.communicate(timeout=100)
        return process.returncode, out, err


def test_captured_output_is_written_as_it_came(where: list[str], tmp_path: Path) -> None:
    code = f"import os; os.write(1, b'\\xff\\xc3\\xa4\\n')\n{EXIT_TOGETHER}"
    options = ["-n", "2", "--output", "capture", "-c", code, str(tmp_path), "7"]
    found = outcome(*where, *options, PYTHONIOENCODING="ascii")
    assert found[:2] == (7, b"\xff\xc3\xa4\n" * 2), found


def test_the_exit_code_that_a_programs_hook_has_chosen_is_that_of_the_command(where: list[str]) -> None:
    code = "import sys; sys.excepthook = lambda *_: sys.exit(3); raise ValueError"
    assert outcome(*where, "-n", "2", "-c", code)[0] == 3


@pytest.mark.parametrize("option", ["--log-dir", "--tee"])
@pytest.mark.parametrize("code", [0, 7])
def test_a_full_disk_ends_a_file_with_a_word_and_the_exit_code_is_that_of_the_ranks(
    where: list[str], tmp_path: Path, option: str, code: int
) -> None:
    for name in ("rank-0.out", "rank-0.err"):
        os.symlink("/dev/full", tmp_path / name)
    options = ["--log-dir", str(tmp_path), *(["--tee", "3"] if option == "--tee" else [])]
    if option == "--log-dir" and not where:
        pytest.skip("the rank itself has the file")
    text = f"print('x' * 1000, flush=True)\n{EXIT_TOGETHER}"
    found, _, err = outcome(*where, "-n", "2", *options, "-c", text, str(tmp_path), str(code))
    assert found == code, err
    assert err.count(b"the file of the stdout of rank 0 ends here") == 1, err
    assert b"Traceback" not in err
    assert len((tmp_path / "rank-1.out").read_text()) == 1001


def test_a_folder_for_output_that_cannot_be_made_is_refused_in_a_line(where: list[str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    found, _, err = outcome(*where, "-n", "2", "--log-dir", str(path), "-c", "")
    assert found == 2 and b"Traceback" not in err, err
    assert b"it is a file" in err


@pytest.mark.parametrize("attempt", range(3))
def test_a_rank_that_a_signal_to_the_job_has_ended_is_not_started_again(
    where: list[str], tmp_path: Path, attempt: int
) -> None:
    code = "import os, sys, time; open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'x').close(); time.sleep(300)"
    options = ["--max-restarts", "2", "--restart", "rank", "--grace-period", "60"]
    with started(*where, "-n", "2", *options, "-c", code, str(tmp_path)) as process:
        assert until(lambda: len(os.listdir(tmp_path)) == 2, 60)
        process.terminate()
        _, err = process.communicate(timeout=50)
        assert process.returncode == 128 + signal.SIGTERM, err
        assert b"again" not in err


def test_a_job_whose_output_nobody_reads_ends_after_a_signal(where: list[str], tmp_path: Path) -> None:
    code = (
        "import os, sys, time; open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'x').close()\n"
        "while True: print('x' * 1000)"
    )
    with started(*where, "-n", "2", "-c", code, str(tmp_path)) as process:
        assert until(lambda: len(os.listdir(tmp_path)) == 2, 60)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


def test_ranks_that_would_end_well_after_a_signal_do_so_although_nobody_reads(where: list[str], tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'x').close()\n"
        # Without an end: what two nodes take before anybody reads would be all of less, and a rank that has written
        # all is in the end of its Python, where a signal has its default effect.
        "while True: print('x' * 100)"
    )
    with started(*where, "-n", "2", "--grace-period", "2", "-c", code, str(tmp_path)) as process:
        assert until(lambda: len(os.listdir(tmp_path)) == 2, 60)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM  # their output is lost
        assert process.stderr is not None
        assert process.stderr.read() == b"the rest of the output of the ranks is lost: nobody reads it\n"


@pytest.mark.parametrize("mode", ["prefix", "capture"])
def test_a_job_whose_output_nobody_reads_ends_after_its_time(where: list[str], mode: str) -> None:
    code = "import time; print('x' * 200_000, flush=True); time.sleep(300)"
    options = ["-n", "2", "--output", mode, "--timeout", "3", "--grace-period", "1"]
    with started(*where, *options, "-c", code) as process:
        assert process.wait(60) == 124
        assert process.stderr is not None
        assert b"nobody reads it" in process.stderr.read()


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGXCPU, signal.SIGRTMIN + 2])
def test_a_signal_that_a_scheduler_sends_to_each_node_reaches_each_rank_once(tmp_path: Path, signum: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "path = f'{sys.argv[1]}/{os.environ[\"RANK\"]}'\n"
        "signal.signal(int(sys.argv[2]), lambda *_: print('came', file=open(path + '.signals', 'a')))\n"
        "open(path + '.ready', 'x').close()\n"
        "while not os.path.exists(f'{sys.argv[1]}/end'): time.sleep(0.05)\n"
    )
    common = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-n", "2"]
    key = {"MP_SPAWN_KEY": "a secret for the tests"}
    with (
        started(*common, "--node-rank", "1", str(script), str(tmp_path), str(int(signum)), **key) as second,
        started(*common, "--node-rank", "0", str(script), str(tmp_path), str(int(signum)), **key) as first,
    ):
        assert until(lambda: all((tmp_path / f"{rank}.ready").exists() for rank in range(2)), 60)
        for process in (second, first):
            process.send_signal(signum)
        paths = [tmp_path / f"{rank}.signals" for rank in range(2)]
        assert until(lambda: all(path.exists() and path.read_text() for path in paths), 60)
        (tmp_path / "end").touch()
        assert [process.wait(60) for process in (first, second)] == [0, 0]
    assert [path.read_text() for path in paths] == ["came\n"] * 2


@pytest.mark.parametrize(
    ("heard", "sent"),
    [([0, 1], 1), ([0, 0, 1, 1], 2), ([0, 1, 1, 0], 2), ([1, 0], 1), ([0, 0], 2), ([0, 1, 2, 2, 1, 0], 2)],
)
def test_what_each_node_hears_is_sent_once(monkeypatch: pytest.MonkeyPatch, heard: list[int], sent: int) -> None:
    context = EngineContext.__new__(EngineContext)
    context._heard = {}
    came: list[int] = []
    monkeypatch.setattr(EngineContext, "send_signal", lambda _, signum: came.append(signum))
    for node in heard:
        context.hear_signal(signal.SIGUSR1, node)
    assert came == [signal.SIGUSR1] * sent


def test_output_that_nobody_reads_yet_is_not_given_up_for_a_signal_that_ends_nothing(
    where: list[str], tmp_path: Path
) -> None:
    code = "import os, sys; print('x' * 50_000); open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'x').close()"
    with started(*where, "-n", "2", "-c", code, str(tmp_path)) as process:
        assert until(lambda: len(os.listdir(tmp_path)) == 2, 60)
        for _ in range(3):
            process.send_signal(signal.SIGCONT)
            time.sleep(0.2)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.count(b"x"), err) == (0, 100_000, b"")


def test_ranks_that_are_too_slow_are_ended_with_their_stacks(where: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "def sleep_here():\n"
        "    open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}.ready', 'x').close()\n"
        "    time.sleep(300)\n"
        "if os.environ['RANK'] != '0': sleep_here()\n"
    )
    for seconds in (2, 8, 32):  # a busy machine may need longer until both ranks sleep
        folder = tmp_path / str(seconds)
        folder.mkdir()
        options = ["-n", "3", "--timeout", str(seconds), "--log-dir", str(folder)]
        code, out, err = outcome(*where, *options, str(script), str(folder))
        if len(list(folder.glob("*.ready"))) == 2:
            break
    assert (code, out) == (124, b""), err
    assert err.startswith(f"mp-spawn: 2 of 3 ranks still ran after {seconds} s, and have been ended\n".encode()), err
    assert [line.split()[1] for line in err.splitlines() if line.startswith(b"rank ")] == [b"1", b"2"], err
    assert err.count(b"in sleep_here") == 2, err
    assert ["in sleep_here" in (folder / f"rank-{rank}.err").read_text() for rank in range(3)] == [False, True, True]


def test_ranks_have_all_the_time_they_want_after_a_signal_while_none_fails(where: list[str], tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\n"
        "path = f'{sys.argv[1]}/{os.environ[\"RANK\"]}.'\n"
        "signal.signal(signal.SIGTERM, lambda *_: open(path + 'came', 'x').close())\n"
        "open(path + 'ready', 'x').close()\n"
        "while not os.path.exists(f'{sys.argv[1]}/end'): time.sleep(0.05)\n"
        "print('saved')"
    )
    options = ["-n", "2", "--grace-period", "0.5", "--output", "inherit"]
    with started(*where, *options, "-c", code, str(tmp_path)) as process:
        assert until(lambda: len(list(tmp_path.glob("*.ready"))) == 2, 60)
        process.terminate()
        assert until(lambda: len(list(tmp_path.glob("*.came"))) == 2, 60)
        time.sleep(1.5)  # if it counted from the signal, their time would be over
        (tmp_path / "end").touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.split(), err) == (0, [b"saved"] * 2, b"")


@contextmanager
def waiting_program(folder: Path, engine: str, handler: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """
    Start a program whose two ranks have the *handler*, `note`, for SIGTERM, once both are ready; kill it at the end.
    """
    script = folder / "script.py"
    script.write_text(
        "import signal, sys, time\n"
        "import mp_all as mp\n"
        "def save(rank, folder):\n"
        f"{handler}"
        "    open(f'{folder}/{rank}.ready', 'x').close()\n"
        "    for _ in range(300):\n"
        "        time.sleep(1)\n"
        "if __name__ == '__main__':\n"
        f"    mp.run(save, (sys.argv[1],), nprocs=2, engine={engine})\n"
    )
    command = [sys.executable, str(script), str(folder), *arguments]
    # A folder of its own: the session of a program that is killed goes with the next one.
    environment = os.environ | {"MPSHM_RUNTIME_DIR": str(folder)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as program:
        try:
            assert until(lambda: len(list(folder.glob("*.ready"))) == 2, 60)
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("engine", ["None", "mp.engines.Local(nodes=2)"])
def test_a_signal_to_a_program_that_waits_for_its_ranks_is_for_them_first(
    tmp_path: Path, engine: str, signals: int
) -> None:
    handler = (
        "    def note(*_):\n"
        "        open(f'{folder}/{rank}.came', 'x').close()\n"
        "        if sys.argv[2] == '1':\n"
        "            sys.exit(0)\n"
        "    signal.signal(signal.SIGTERM, note)\n"
    )
    with waiting_program(tmp_path, engine, handler, str(signals)) as program:
        program.terminate()
        assert until(lambda: len(list(tmp_path.glob("*.came"))) == 2, 60)
        if signals == 2:
            time.sleep(1)  # two at once count as one, as `timeout` sends them
            program.terminate()
        assert program.wait(20) == -signal.SIGTERM


def test_output_that_is_read_late_is_not_taken_for_ranks_that_are_too_slow(tmp_path: Path) -> None:
    code = "import os, sys; print('x' * 200_000); open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'x').close()"
    with started(*WHERE["two nodes"], "-n", "2", "--timeout", "5", "-c", code, str(tmp_path)) as process:
        assert until(lambda: len(os.listdir(tmp_path)) == 2, 60)
        time.sleep(6)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.count(b"x"), err) == (0, 400_000, b"")


@pytest.mark.parametrize("engine", ["None", "mp.engines.Local(nodes=2)"])
def test_a_rank_may_save_while_the_program_ends_although_another_has_ended_by_the_signal(
    tmp_path: Path, engine: str
) -> None:
    handler = (
        "    def note(*_):\n"
        "        time.sleep(7)  # longer than ranks have after terminate()\n"
        "        open(f'{folder}/saved', 'x').close()\n"
        "        sys.exit(0)\n"
        "    if rank == 0:\n"
        "        signal.signal(signal.SIGTERM, note)\n"
    )
    with waiting_program(tmp_path, engine, handler) as program:
        program.terminate()
        assert program.wait(60) == -signal.SIGTERM
    assert (tmp_path / "saved").exists()
