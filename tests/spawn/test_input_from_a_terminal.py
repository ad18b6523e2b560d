"""Rank 0 asks for a password on the terminal if it is the only rank or --stdin 0 is given; other ranks get an error."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ASKS = """
    import getpass, os, subprocess, sys

    if os.environ["RANK"] in sys.argv[2:]:
        if sys.argv[1] == "getpass":
            print("got", getpass.getpass("password: "))
            print("and", input("more: "))
        elif sys.argv[1] == "child":  # as ssh does
            ask = "import getpass; print('got', getpass.getpass('password: '))"
            subprocess.run([sys.executable, "-c", ask], check=True)
        else:
            with open("/dev/tty") as terminal:
                print("got", terminal.readline().strip())
"""


class Terminal:
    """A terminal, whose session leader in the foreground is the command."""

    def __init__(self, pid: int, keys: int) -> None:
        self.pid = pid
        self.keys = keys
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Read until *text* is shown."""
        while text not in self.shown:
            data = self._read()
            assert data, self.shown
            self.shown += data

    def type(self, text: str) -> None:
        os.write(self.keys, text.encode())

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while data := self._read():
            self.shown += data
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> str:
        try:
            return os.read(self.keys, 4096).decode()
        except OSError:
            return ""  # nobody has the terminal open any more


@contextmanager
def on_a_terminal(folder: Path, options: list[str], *arguments: str) -> Iterator[Terminal]:
    path = folder / "asks.py"
    path.write_text(textwrap.dedent(ASKS))
    command = [sys.executable, "-m", "mp_spawn", *options, str(path), *arguments]
    pid, keys = pty.fork()
    if pid == 0:
        try:
            for signum in (signal.SIGINT, signal.SIGTTIN, signal.SIGTTOU):
                signal.signal(signum, signal.SIG_DFL)
            os.execve(command[0], command, os.environ | {"TERM": "dumb", "NO_COLOR": "1"})
        finally:
            os._exit(127)
    try:
        yield Terminal(pid, keys)
    finally:
        try:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(keys)


@pytest.mark.parametrize("options", [["-n", "1"], ["-n", "2", "--stdin", "0"]])
def test_rank_0_asks_for_a_password_and_for_input(tmp_path: Path, options: list[str]) -> None:
    with on_a_terminal(tmp_path, options, "getpass", "0") as terminal:
        terminal.wait_for("password: ")
        terminal.type("secret\n")
        terminal.wait_for("more: ")  # shown before its line ends
        terminal.type("text\n")
        assert terminal.end() == 0, terminal.shown
        assert "[rank 0] got secret" in terminal.shown
        assert "and text" in terminal.shown


def test_a_child_of_the_rank_asks_as_well(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, ["-n", "1"], "child", "0") as terminal:
        terminal.wait_for("password: ")
        terminal.type("secret\n")
        assert terminal.end() == 0, terminal.shown
        assert "[rank 0] got secret" in terminal.shown


def test_control_c_at_the_prompt_ends_the_job(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, ["-n", "2", "--stdin", "0"], "getpass", "0") as terminal:
        terminal.wait_for("password: ")
        terminal.type("\x03")
        assert terminal.end() == 128 + signal.SIGINT, terminal.shown
        assert "signal SIGINT" in terminal.shown


@pytest.mark.parametrize(
    ("options", "rank", "name"), [(["-n", "2"], "0", "SIGTTOU"), (["-n", "2", "--stdin", "0"], "1", "SIGTTOU")]
)
@pytest.mark.parametrize("how", ["getpass", "child"])
def test_a_rank_that_cannot_ask_fails_and_is_told_why(
    tmp_path: Path, options: list[str], rank: str, name: str, how: str
) -> None:
    with on_a_terminal(tmp_path, options, how, rank) as terminal:
        assert terminal.end() == 128 + getattr(signal, name), terminal.shown
        assert f"signal {name}, it asked for input from the terminal, which only rank 0 can read" in terminal.shown


def test_a_rank_that_only_reads_is_told_the_same(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, ["-n", "2"], "read", "1") as terminal:
        assert terminal.end() == 128 + signal.SIGTTIN, terminal.shown
        assert "signal SIGTTIN, it asked for input from the terminal" in terminal.shown


def test_without_a_terminal_rank_0_reads_the_standard_input(tmp_path: Path) -> None:
    # Rank 1 fails at its end of file, which ends rank 0: not before that has read.
    code = f"import os, time\nwhile os.environ['RANK'] == '1' and not os.path.exists({str(tmp_path / 'read')!r}): "
    code += f"time.sleep(0.01)\nprint(input(), flush=True); open({str(tmp_path / 'read')!r}, 'w').close()"
    done = subprocess.run(
        [sys.executable, "-m", "mp_spawn", "-n", "2", "--stdin", "0", "-c", code],
        input="a line\n",
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
    )
    assert "[rank 0] a line\n" in done.stdout
    assert "EOFError" in done.stderr
