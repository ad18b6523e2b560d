"""A program that selects is told of messages and of nothing else, wherever a writer is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.preemption import built, needs_preemption
from support.scripts import run_python, succeeded

PROGRAM = """
import ctypes, os, signal, sys
from multiprocessing.connection import wait
import mp_all as mp

reader, writer = mp.Pipe(sys.argv[1] == "duplex")
assert wait([reader], 0) == []
pid = os.fork()
if pid == 0:
    ctypes.c_int.in_dll(ctypes.CDLL(None), "stop_in_unlock").value = 1
    writer.send("whole")
    os._exit(0)
_, status = os.waitpid(pid, os.WUNTRACED)
assert os.WIFSTOPPED(status), status
assert wait([reader], 0) == [reader]
assert reader.recv() == "whole"
print(len(wait([reader], 0)), flush=True)
os.kill(pid, signal.SIGCONT)
os.waitpid(pid, 0)
print(len(wait([reader], 0)))
"""


@needs_preemption
@pytest.mark.parametrize("form", ["duplex", "one way"])
@pytest.mark.timeout(60)
def test_a_writer_that_is_stopped_before_it_unlocks_leaves_no_descriptor_readable(tmp_path: Path, form: str) -> None:
    assert succeeded(run_python("-c", PROGRAM, form, **built(tmp_path))).split() == ["0", "0"]
