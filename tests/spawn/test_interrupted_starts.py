"""A Ctrl-C while ranks are started: those that run already handle it, as they do while the launcher waits for them."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from jobs import NOTING, Job, take_defaults
from support.processes import ended
from support.scripts import run_script
from support.waiting import until

# The terminal's Ctrl-C comes when rank 0 runs, before rank 1 is known to.
MAIN = """
    import multiprocessing
    import mp_spawn
    from mp_spawn.jobs import zygote

    def press(log):
        while not (os.path.exists(log) and "0 ready" in open(log).read()):
            time.sleep(0.01)
        os.killpg(0, signal.SIGINT)

    if __name__ == "__main__":
        log, method = sys.argv[1:]
        of_method = multiprocessing.get_context(method)
        times = []

        class Context(type(of_method)):
            def Process(self, *args, name, **kwargs):
                if name == "rank 1":
                    press(log)
                return of_method.Process(*args, name=name, **kwargs)

        def readable(fd, timeout, readable=zygote.readable):
            if timeout == 0:
                times.append(fd)
                if len(times) == 2:
                    press(log)
            return readable(fd, timeout)

        if method == "spawn":
            zygote.readable = readable
            context = None
        else:
            context = Context()
        mp_spawn.start_processes(work, (log, 0.3), 2, start_method=method, context=context)
"""


def start(path: Path, log: Path, method: str) -> subprocess.Popen[str]:
    """Start a program in a group of its own."""
    return subprocess.Popen(
        [sys.executable, str(path), str(log), method],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_defaults,
    )


def test_ranks_that_run_handle_a_ctrl_c_that_stops_the_start_of_others(tmp_path: Path, start_method: str) -> None:
    path = tmp_path / "starting.py"
    path.write_text(textwrap.dedent(NOTING).partition("if __name__")[0] + textwrap.dedent(MAIN))
    log = tmp_path / "log"
    process = start(path, log, start_method)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, err
    first, second = Job(process, log, 0).notes()
    assert first == ["SIGINT", "saved"], err
    # Started before the key, after it or not at all; a SIGTERM may come before it has its handler, and a SIGCONT after.
    assert [word for word in second if word != "SIGCONT"] in ([], ["SIGINT", "saved"], ["SIGTERM", "saved"]), err


RANK = """
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: (open(f"saved-{os.environ['RANK']}", "w"), os._exit(0)))
    open(f"ready-{os.environ['RANK']}", "w")
    while True:
        time.sleep(1)
"""
COMMAND = """
    import os, signal, sys, time
    from mp_spawn.command import main as command
    from mp_spawn.jobs import job, zygote

    calls = []

    def press():
        calls.append(0)
        if len(calls) == 2:
            while not all(os.path.exists(f"ready-{rank}") for rank in range(4 if sys.argv[1] == "late" else 1)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

    def readable(fd, timeout, readable=zygote.readable):
        if timeout == 0:
            press()
        return (timeout is None or sys.argv[1] == "late") and readable(fd, timeout)

    if sys.argv[1] == "few":  # descriptors: each rank is an interpreter of its own
        job.Job.spec = lambda self, *args, spec=job.Job.spec: press() or spec(self, *args)
        import mp_spawn.jobs.launch
        mp_spawn.jobs.launch.are_descriptors_few = lambda *args: True
    else:
        zygote.readable = readable
    if __name__ == "__main__":
        sys.exit(command.main(["-n", "4", "--grace-period", "20", "rank.py"]))
"""


@pytest.mark.parametrize("descriptors", ["many", "few"])
def test_sigterm_between_two_starts_ends_the_command_and_ranks_that_run_may_save(
    tmp_path: Path, descriptors: str
) -> None:
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    done = run_script(tmp_path, COMMAND, descriptors)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stderr.splitlines()[-1] == "mp-spawn: SIGTERM came before all ranks had been started"
    assert (tmp_path / "saved-0").exists()
    assert not (tmp_path / "ready-3").exists() or (tmp_path / "saved-3").exists() or descriptors == "many"


LEAVING = """
    import os, subprocess, time
    child = subprocess.Popen(["sleep", "300"])
    with open(f"child-{os.environ['RANK']}", "w") as file:
        file.write(str(child.pid))
    open(f"ready-{os.environ['RANK']}", "w")
    time.sleep(300)
"""


@pytest.mark.parametrize("descriptors", ["many", "few"])
def test_what_ranks_have_started_ends_with_a_start_that_a_signal_stops(tmp_path: Path, descriptors: str) -> None:
    (tmp_path / "rank.py").write_text(textwrap.dedent(LEAVING))
    done = run_script(tmp_path, COMMAND, descriptors)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    children = [int(path.read_text() or 0) for path in tmp_path.glob("child-*")]
    assert children
    assert until(lambda: all(map(ended, children)))


MANY = """
    import os, signal, time
    def note(*_):
        with open(f"told-{os.environ['RANK']}", "w") as file:
            file.write(str(time.monotonic()))
        os._exit(0)
    signal.signal(signal.SIGTERM, note)
    open(f"ready-{os.environ['RANK']}", "w")
    while True:  # Python does not see a signal just before a long sleep until that ends
        time.sleep(0.05)
"""


def test_ranks_that_run_are_told_at_once_while_others_are_being_started(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(textwrap.dedent(MANY))
    command = [sys.executable, "-m", "mp_spawn", "-n", "40", "--grace-period", "60", "rank.py"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=tmp_path) as process:
        assert until(lambda: any(tmp_path.glob("ready-*")), 60)
        sent = time.monotonic()
        process.terminate()
        process.communicate(timeout=60)
    told = [float(path.read_text()) for path in tmp_path.glob("told-*")]
    assert told
    # They are told within milliseconds; a loaded machine adds some. The zygote was once waited for, for ten seconds.
    assert max(told) - sent < 8.0


# The signal comes before the ranks, or the last one, are forked; the launcher gets to know of it when all are started.
MISSED = """
    import multiprocessing, os, signal, sys, time
    import mp_spawn
    from mp_spawn.jobs import zygote

    def work(rank, log):
        with open(log, "a") as file:
            print("rank", rank, "runs", file=file)
        time.sleep(300)

    if __name__ == "__main__":
        log, method = sys.argv[1:]
        of_method = multiprocessing.get_context(method)

        class Context(type(of_method)):
            def Process(self, *args, name, **kwargs):
                if name == "rank 1":
                    os.killpg(0, signal.SIGTERM)
                return of_method.Process(*args, name=name, **kwargs)

        def readable(fd, timeout, readable=zygote.readable, sent=[]):
            if not sent:
                sent.append(os.killpg(0, signal.SIGTERM))
            return timeout == 0 or readable(fd, timeout)

        if method == "spawn":
            zygote.readable = readable
        mp_spawn.run(work, (log,), 2, start_method=method, context=Context() if method == "forkserver" else None)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_rank_that_is_forked_after_a_signal_to_its_group_ends_by_it(method: str, tmp_path: Path) -> None:
    path, log = tmp_path / "starting.py", tmp_path / "log"
    path.write_text(textwrap.dedent(MISSED))
    log.touch()
    process = start(path, log, method)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err
    assert "rank 1 runs" not in log.read_text()


def test_sigterm_after_all_have_begun_is_theirs_though_the_launcher_does_not_know_them_yet(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    done = run_script(tmp_path, COMMAND, "late")
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.glob("saved-*")} == {f"saved-{rank}" for rank in range(4)}
