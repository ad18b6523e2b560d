"""Each rank gets the signals of a terminal once, at a key and at its end; a stopped job can be continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import NOTING, Job, take_defaults

# A shell with job control and one job. It prints when the job stops or ends, and continues it at each line of input.
SHELL = """
    import os, signal, sys

    terminal = os.open(sys.argv[1], os.O_RDWR)  # a session leader's first terminal becomes its controlling one
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        for descriptor in 0, 1, 2:
            os.dup2(terminal, descriptor)
        if os.environ["STDERR"]:  # what is written to a closed terminal is lost
            os.dup2(os.open(os.environ["STDERR"], os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.execv(sys.argv[2], sys.argv[2:])
    signal.signal(signal.SIGHUP, lambda *_: os.killpg(job, signal.SIGHUP))
    while True:
        try:
            _, status = os.waitpid(job, os.WUNTRACED)
        except InterruptedError:
            continue
        if not os.WIFSTOPPED(status):
            print(os.waitstatus_to_exitcode(status), flush=True)
            break
        os.tcsetpgrp(terminal, os.getpgrp())
        print("stopped", flush=True)
        sys.stdin.readline()
        os.tcsetpgrp(terminal, job)
        os.killpg(job, signal.SIGCONT)
"""


class Terminal:
    """A terminal with a shell and a job."""

    def __init__(self, keys: int, shell: subprocess.Popen[str], job: Job) -> None:
        self.keys = keys
        self.shell = shell
        self.job = job

    def press(self, key: bytes) -> None:
        os.write(self.keys, key)

    def next_line(self) -> str:
        """Return the next line of the shell."""
        assert self.shell.stdout is not None
        return self.shell.stdout.readline().strip()

    def foreground(self) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write("\n")
        self.shell.stdin.flush()


@contextmanager
def on_a_terminal(
    folder: Path, how: str, start_method: str, seconds: float = 0.0, stderr: str = ""
) -> Iterator[Terminal]:
    path = folder / "noting.py"
    path.write_text(textwrap.dedent(NOTING))
    log = folder / "log"
    how, *more = how.split()
    options = ["-m", "mp_spawn", "-n", "2", "--start-method", start_method, *more] if how == "command" else []
    ours, theirs = os.openpty()
    job = [sys.executable, *options, str(path), str(log), str(seconds), how]
    shell = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SHELL), os.ttyname(theirs), *job],
        env=os.environ | {"METHOD": start_method, "TERM": "dumb", "STDERR": stderr},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_defaults,
    )
    found = Job(shell, log, 0)
    try:
        found.wait_until(lambda: len(found.pids()) == 2)
        os.close(theirs)
        yield Terminal(ours, shell, found)
    finally:
        for pid in found.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shell.kill()
        shell.communicate(timeout=30)
        try:
            os.close(ours)
        except OSError:
            pass  # the test has closed it


def states(job: Job) -> str:
    """Return the state of each rank, as ps prints it."""
    return "".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in job.pids())


@pytest.mark.parametrize("how", ["command", "command --stdin 0", "start_processes"])
def test_a_job_can_be_stopped_and_continued(tmp_path: Path, how: str, start_method: str) -> None:
    with on_a_terminal(tmp_path, how, start_method) as terminal:
        for times in (1, 2):
            terminal.press(b"\x1a")
            assert terminal.next_line() == "stopped"
            terminal.job.wait_until(lambda: states(terminal.job) == "TT")
            terminal.foreground()
            terminal.job.wait_until(
                lambda times=times: terminal.job.notes() == [["SIGCONT"] * times] * 2  # type: ignore[misc]
            )
        terminal.press(b"\x1c")
        assert terminal.next_line() == ("0" if how != "start_processes" else str(-signal.SIGQUIT))
        assert terminal.job.notes() == [["SIGCONT", "SIGCONT", "SIGQUIT", "saved"]] * 2


@pytest.mark.parametrize(
    ("how", "key", "name"),
    [
        ("command", b"\x03", "SIGINT"),
        ("command", b"\x1c", "SIGQUIT"),
        ("command --stdin 0", b"\x03", "SIGINT"),
        ("command --stdin 0", b"\x1c", "SIGQUIT"),
        ("start_processes", b"\x03", "SIGINT"),
        ("start_processes", b"\x1c", "SIGQUIT"),
    ],
)
def test_a_key_reaches_each_rank_once(tmp_path: Path, how: str, key: bytes, name: str, start_method: str) -> None:
    with on_a_terminal(tmp_path, how, start_method, seconds=0.3) as terminal:
        terminal.press(key)
        ended = {"SIGINT": -signal.SIGINT, "SIGQUIT": -signal.SIGQUIT}[name]
        assert terminal.next_line() == ("0" if how != "start_processes" else str(ended))
        assert terminal.job.notes() == [[name, "saved"]] * 2


@pytest.mark.parametrize("how", ["command", "command --stdin 0", "start_processes"])
def test_sighup_of_a_closed_terminal_reaches_each_rank(tmp_path: Path, how: str, start_method: str) -> None:
    errors = tmp_path / "errors"
    stderr = "" if how == "command" else str(errors)  # the command draws its progress on a terminal
    with on_a_terminal(tmp_path, how, start_method, seconds=1.0, stderr=stderr) as terminal:
        os.close(terminal.keys)
        ended = terminal.next_line()
        assert ended == ("0" if how != "start_processes" else str(-signal.SIGHUP)), (
            terminal.job.notes(),
            errors.exists() and errors.read_text(),
        )
        for words in terminal.job.notes():
            # The kernel sends SIGHUP to the group when the terminal closes, and the shell may have sent it just before.
            assert [word for word in words if word == "saved"], words
            if how != "start_processes":
                assert [word for word in words if word != "SIGCONT"] == ["SIGHUP", "saved"]


def test_a_stop_signal_to_an_orphaned_group_leaves_no_rank_stopped(tmp_path: Path, start_method: str) -> None:
    from jobs import running

    with running(tmp_path, "command", start_method) as job:
        job.process.send_signal(signal.SIGTSTP)
        job.wait_until(lambda: job.notes() == [["SIGCONT"]] * 2)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == (0, "")
        assert job.notes() == [["SIGCONT", "SIGTERM", "saved"]] * 2


LATE = """
    import os, signal
    from mp_spawn.ranks.signals import Forwarding

    with Forwarding() as signals:
        sent = []
        for times in 1, 2:
            # A session leader is not stopped: the ranks are sent SIGCONT before it comes.
            for signum in signal.SIGTSTP, signal.SIGCONT:
                os.kill(os.getpid(), signum)
                signals.handle(lambda signum: sent.append(signal.Signals(signum).name))
    print(*sent)
"""


def test_a_sigcont_that_another_thread_notes_late_is_forwarded_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LATE)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_defaults,
        timeout=60,
    )
    assert done.stdout.split() == ["SIGTSTP", "SIGCONT"] * 2
