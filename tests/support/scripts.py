"""Run a program in a fresh interpreter, with a bound on its time and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

TIMEOUT = 60.0


#: A part of a program, after which it can open no descriptor until it closes those of `held`; it needs `resource`.
NO_DESCRIPTORS = """
    import os
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
"""


def run_script(
    folder: Path, text: str, *arguments: str, timeout: float = TIMEOUT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """
    Write *text* to a file in *folder*, so that spawn can import it again, and run it to its end.
    """
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return run_python(str(path), *arguments, timeout=timeout, cwd=folder, **environment)


def run_python(
    *arguments: str, timeout: float = TIMEOUT, cwd: Path | None = None, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """
    Run this interpreter with *arguments* in a session of its own; at the timeout, all of it is killed.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *arguments],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n--- stdout\n{out}\n--- stderr\n{err}") from None
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """
    Return the output of the program; a failure or a word on stderr is an AssertionError with all its output.
    """
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout
