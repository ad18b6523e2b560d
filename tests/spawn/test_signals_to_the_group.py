"""Ranks get each signal to their process group once, as from timeout, a scheduler or a shell, and can handle it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from jobs import Job, running

HOW = ["command", "start_processes", "run"]
ENDING = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


def ended_once(job: Job, name: str) -> None:
    assert job.notes() == [[name, "saved"]] * 2


def code_of(how: str, signum: int) -> int:
    """Return the exit code: 0 of the command, whose ranks end well; a program dies of the signal, as without ranks."""
    return 0 if how == "command" else -signum


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("signum", ENDING)
def test_a_signal_to_the_group_reaches_each_rank_once_and_is_handled(
    tmp_path: Path, how: str, signum: signal.Signals, start_method: str
) -> None:
    with running(tmp_path, how, start_method, seconds=1.0) as job:
        os.killpg(job.group, signum)
        code, err = job.end()
        ended_once(job, signum.name)
        assert code == code_of(how, signum), err
        assert err == ""


@pytest.mark.parametrize("how", HOW)
def test_a_signal_to_the_starter_alone_reaches_each_rank_once(tmp_path: Path, how: str, start_method: str) -> None:
    if how != "command" and start_method == "fork":
        pytest.skip("needs a helper process that can tell whether the group was signalled; fork has none")
    with running(tmp_path, how, start_method, seconds=1.0) as job:
        job.process.send_signal(signal.SIGTERM)
        code, err = job.end()
        ended_once(job, "SIGTERM")
        assert code == code_of(how, signal.SIGTERM), err


def test_under_fork_a_signal_to_the_starter_is_sent_to_ranks_without_a_handler(tmp_path: Path) -> None:
    text = """
        import os, sys, time
        import mp_spawn

        def work(rank, log, *_):
            with open(log, "a") as file:
                print(rank, "ready", os.getpid(), file=file)
            time.sleep(300)

        if __name__ == "__main__":
            mp_spawn.start_processes(work, tuple(sys.argv[1:]), 2, start_method="fork")
    """
    with running(tmp_path, "start_processes", "fork", text=text) as job:
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == (-signal.SIGTERM, "")


@pytest.mark.parametrize("how", HOW)
def test_the_two_signals_of_timeout_reach_each_rank_once(tmp_path: Path, how: str, start_method: str) -> None:
    timeout = shutil.which("timeout")
    if timeout is None:
        pytest.skip("needs the program timeout")
    with running(tmp_path, how, start_method, before=(timeout, "300"), seconds=1.0) as job:
        # At SIGTERM, timeout does the same as at the end of the time.
        job.process.send_signal(signal.SIGTERM)
        code, err = job.end()
        ended_once_but_for_sigcont(job)
        assert err == ""
        assert code in (0, 124, 128 + signal.SIGTERM, -signal.SIGTERM)


def ended_once_but_for_sigcont(job: Job) -> None:
    """Check the signals except SIGCONT, which `timeout` sends, too."""
    assert [[word for word in words if word != "SIGCONT"] for words in job.notes()] == [["SIGTERM", "saved"]] * 2


@pytest.mark.parametrize("how", ["command", "start_processes"])
def test_signals_reach_ranks_in_the_order_in_which_they_were_sent(tmp_path: Path, how: str, start_method: str) -> None:
    order = ["SIGUSR2", "SIGUSR1", "SIGCONT", "SIGUSR1", "SIGTERM"]
    with running(tmp_path, how, start_method) as job:
        for count, name in enumerate(order, 1):
            os.killpg(job.group, getattr(signal, name))
            job.wait_until(lambda count=count: all(len(words) >= count for words in job.notes()))  # type: ignore[misc]
        job.end()
        assert job.notes() == [[*order, "saved"]] * 2


@pytest.mark.parametrize("how", ["command", "start_processes"])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_program_at_once(
    tmp_path: Path, how: str, start_method: str, second: signal.Signals
) -> None:
    if how == "command":
        pytest.skip("needs a program that dies of the signal; the command goes on for its ranks")
    with running(tmp_path, how, start_method, seconds=300) as job:
        os.killpg(job.group, signal.SIGTERM)
        job.wait_until(lambda: job.notes() == [["SIGTERM"]] * 2)
        with pytest.raises(subprocess.TimeoutExpired):
            job.process.wait(1.5)
        job.process.send_signal(second)
        assert job.process.wait(20) == -signal.SIGTERM
        assert job.notes() == [["SIGTERM"]] * 2


@pytest.mark.parametrize("how", ["command", "start_processes"])
def test_ranks_ignore_the_signals_that_the_program_ignores(tmp_path: Path, how: str, start_method: str) -> None:
    """The background of a shell and nohup have signals ignored."""
    text = """
        import os, signal, sys, time

        def work(rank, log, *_):
            ignored = [s for s in ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM")
                       if signal.getsignal(getattr(signal, s)) is signal.SIG_IGN]
            blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            with open(log, "a") as file:
                print(rank, "ready", os.getpid(), *ignored, blocked, file=file)
            signal.sigtimedwait({signal.SIGUSR1}, 60)
            time.sleep(300)

        if __name__ == "__main__":
            if sys.argv[3] == "command":
                work(int(os.environ["RANK"]), sys.argv[1])
            import mp_spawn
            mp_spawn.start_processes(work, tuple(sys.argv[1:]), 2, start_method=os.environ["METHOD"])
    """
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    with running(tmp_path, how, start_method, ignored=ignored, text=text) as job:
        lines = [line.split(maxsplit=3)[3] for line in job.log.read_text().splitlines()]
        assert lines == ["SIGINT SIGQUIT SIGHUP []"] * 2
        for signum in ignored:
            os.killpg(job.group, signum)
        os.killpg(job.group, signal.SIGTERM)
        code, err = job.end()
        assert code == (128 + signal.SIGTERM if how == "command" else -signal.SIGTERM)
        assert "SIGINT" not in err


@pytest.mark.parametrize("how", ["command", "start_processes"])
def test_ranks_start_with_the_signal_mask_of_the_program(tmp_path: Path, how: str, start_method: str) -> None:
    text = """
        import os, signal, sys, time

        def work(rank, log, *_):
            blocked = [s.name for s in sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))]
            with open(log, "a") as file:
                print(rank, "ready", os.getpid(), *blocked, file=file)

        if __name__ == "__main__":
            if sys.argv[3] == "command":
                work(int(os.environ["RANK"]), sys.argv[1])
            else:
                import mp_spawn
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM})
                mp_spawn.start_processes(work, tuple(sys.argv[1:]), 2, start_method=os.environ["METHOD"])
    """
    with running(tmp_path, how, start_method, text=text) as job:
        assert job.end() == (0, "")
        lines = [line.split(maxsplit=3)[3:] for line in job.log.read_text().splitlines()]
        assert lines == [[] if how == "command" else ["SIGHUP SIGUSR1 SIGTERM"]] * 2


def test_a_program_keeps_its_own_handler(tmp_path: Path, start_method: str) -> None:
    with running(tmp_path, "start_processes", start_method, "leaves", seconds=0.2) as job:
        job.wait_until(lambda: "program joins" in job.log.read_text())
        os.killpg(job.group, signal.SIGTERM)
        code, _ = job.end()
        assert code == 3
        ended_once(job, "SIGTERM")


def test_other_processes_of_the_fork_server_can_still_be_terminated(tmp_path: Path) -> None:
    from support.scripts import run_script, succeeded

    program = """
        import multiprocessing, os, signal, time
        import mp_spawn

        def nothing(*_): pass

        def blocked(queue): queue.put(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

        def forks_itself(queue):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            if os.fork() == 0:
                queue.put(signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR1})
                os._exit(0)
            os.wait()

        if __name__ == "__main__":
            mp_spawn.start_processes(nothing, start_method="forkserver")
            context = multiprocessing.get_context("forkserver")
            queue = context.SimpleQueue()
            for target in blocked, forks_itself:
                process = context.Process(target=target, args=(queue,))
                process.start()
                print(queue.get())
                process.join()
            process = context.Process(target=time.sleep, args=(300,))
            process.start()
            process.terminate()
            process.join(60)
            print(process.exitcode)
    """
    assert succeeded(run_script(tmp_path, program)).split() == ["0", "True", "-15"]


KILLED_SERVER = """
    import os, signal, sys, time
    import multiprocessing.forkserver
    import mp_spawn

    def work(rank, folder, leaves):
        open(f"{folder}/{rank}", "w").close()
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.01)
        time.sleep(0.2)
        if rank == leaves:
            os._exit(0)
        open(f"{folder}/{rank}.done", "w").close()

    if __name__ == "__main__":
        folder = sys.argv[1]
        context = mp_spawn.start_processes(work, (folder, int(sys.argv[2])), 2, False, start_method="forkserver")
        while len(os.listdir(folder)) < 2:
            time.sleep(0.01)
        os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        open(f"{folder}/go", "w").close()
        try:
            print(context.join())
        except mp_spawn.ProcessExitedException as error:
            print(error.failures[0].describe())
        print(*sorted(name for name in os.listdir(folder) if name.endswith("done")))
"""


@pytest.mark.parametrize("leaves", ["-1", "1"])
def test_ranks_survive_a_killed_fork_server_and_their_exit_code_is_unknown(tmp_path: Path, leaves: str) -> None:
    from support.scripts import run_script, succeeded

    folder = tmp_path / "seen"
    folder.mkdir()
    said = succeeded(run_script(tmp_path, KILLED_SERVER, str(folder), leaves)).splitlines()
    if leaves == "-1":
        assert said == ["True", "0.done 1.done"]
    else:
        assert said[0].startswith("rank 1 ")
        assert said[0].endswith("exit code unknown, since the fork server was killed")
        assert said[1] == "0.done"
