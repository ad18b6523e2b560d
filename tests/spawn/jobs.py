"""Jobs whose ranks log every signal, started by the command or by the API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOTING = """
    import os, signal, sys, time

    ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    OTHERS = ("SIGUSR1", "SIGUSR2", "SIGCONT")

    def note(log, *words):
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, (" ".join(map(str, words)) + "\\n").encode())
        os.close(file)

    def work(rank, log, seconds):
        ending = []

        def came(signum, frame):
            note(log, rank, signal.Signals(signum).name)
            if signal.Signals(signum).name in ENDING:
                time.sleep(seconds)  # a checkpoint takes its time
                note(log, rank, "saved")
                ending.append(signum)

        for name in ENDING + OTHERS:
            signal.signal(getattr(signal, name), came)
        note(log, rank, "ready", os.getpid())
        while not ending:
            time.sleep(0.05)

    if __name__ == "__main__":
        log, seconds, how = sys.argv[1], float(sys.argv[2]), sys.argv[3]
        if how == "command":
            work(int(os.environ["RANK"]), log, seconds)
        else:
            import mp_spawn

            for name in OTHERS:
                signal.signal(getattr(signal, name), lambda *_: None)
            args = work, (log, seconds), 2
            if sys.argv[4:] == ["leaves"]:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
                context = mp_spawn.start_processes(*args, join=False, start_method=os.environ["METHOD"])
                note(log, "program", "joins")  # the ranks may be ready before the program has started them all
                while not context.join():
                    pass
            if how == "run":
                mp_spawn.run(*args, start_method=os.environ["METHOD"])
            else:
                mp_spawn.start_processes(*args, start_method=os.environ["METHOD"])
"""


class Job:
    """A running job."""

    def __init__(self, process: subprocess.Popen[str], log: Path, group: int) -> None:
        self.process = process
        self.log = log
        self.group = group

    def notes(self) -> list[list[str]]:
        """Return the log of each rank since it was ready."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        words = [line.split() for line in lines]
        return [[w[1] for w in words if w[0] == str(rank) and w[1] != "ready"] for rank in range(2)]

    def pids(self) -> list[int]:
        """Return the pids of the ranks."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[2]) for line in lines if " ready " in line]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until *condition*, which reads the log, is true."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, (self.notes(), self.process.poll())
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and standard error."""
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


def take_defaults() -> None:
    """Restore the signal handling of a terminal: these tests may run under nohup or in the background of a shell."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextmanager
def running_command(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """
    Run ``python -m mp_spawn`` in a session of its own; kill it at the end of the block.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_defaults,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def running(
    folder: Path,
    how: str,
    start_method: str,
    *extra: str,
    before: tuple[str, ...] = (),
    seconds: float = 0.0,
    ignored: tuple[signal.Signals, ...] = (),
    text: str = NOTING,
) -> Iterator[Job]:
    """
    Run a job of two ranks, by *how*: the command, `start_processes` or `run`; yield it when the ranks are ready.
    """
    path = folder / "noting.py"
    path.write_text(textwrap.dedent(text))
    log = folder / "log"
    options = ["-m", "mp_spawn", "-n", "2", "--start-method", start_method] if how == "command" else []

    def prepare() -> None:
        take_defaults()
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)

    process = subprocess.Popen(
        [*before, sys.executable, *options, str(path), str(log), str(seconds), how, *extra],
        env=os.environ | {"METHOD": start_method},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,
    )
    try:
        job = Job(process, log, process.pid)
        job.wait_until(lambda: len(job.pids()) == 2 or process.poll() is not None)
        yield job
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.kill()
        process.communicate(timeout=30)
