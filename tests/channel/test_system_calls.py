"""A message between two processes that both run takes no system call, as strace sees it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from support.scripts import run_script, succeeded

MESSAGES = 2000
PROGRAM = f"""
import os, sys
import mp_all as mp

def answer(requests, answers):
    while requests.get() is not None:
        answers.put(1)

if __name__ == "__main__":
    cpus = sorted(os.sched_getaffinity(0))
    ctx = mp.get_context("fork")
    requests, answers = getattr(ctx, sys.argv[1])(), getattr(ctx, sys.argv[1])()
    child = ctx.Process(target=answer, args=(requests, answers))
    child.start()
    os.sched_setaffinity(child.pid, cpus[:1])
    os.sched_setaffinity(0, cpus[1:2])
    for number in range({MESSAGES} + 100):
        if number == 100:
            os.getsid(0)  # in the trace, the first of two marks
        requests.put(number)
        answers.get()
    os.getsid(0)
    requests.put(None)
    child.join()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both processes need a processor")
@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue"])
@pytest.mark.timeout(120)
def test_messages_between_busy_processes_take_no_system_calls(tmp_path: Path, kind: str) -> None:
    trace = tmp_path / "trace"
    program = "import os, subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    (tmp_path / "traced.py").write_text(PROGRAM)
    command = ["strace", "-f", "-qq", "-o", str(trace), sys.executable, str(tmp_path / "traced.py"), kind]
    succeeded(run_script(tmp_path, program, *command, MP_CHANNEL="1", MP_SPIN_US="1000000"))
    calls = [match[1] for line in trace.read_text().splitlines() if (match := re.match(r"\d+ +(\w+)\(", line))]
    marks = [at for at, name in enumerate(calls) if name == "getsid"]
    between = calls[marks[0] + 1 : marks[1]]
    # Writers ask the kernel once a millisecond whether a reader is left.
    others = [name for name in between if name != "poll"]
    assert len(others) <= MESSAGES / 50, others
    assert len(between) <= MESSAGES / 4, len(between)
