"""Wherever a writer is stopped: who selects is told of messages and of nothing else, and who puts is not held up."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.preemption import built, needs_preemption
from support.scripts import run_python, succeeded

import mp_all as mp

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


def put_for_ever(queue: Any) -> None:
    number = 0
    while True:
        queue.put(np.full(20_000, number))
        number += 1


def test_a_put_with_a_timeout_ends_whenever_another_producer_is_stopped() -> None:
    context = mp.get_context("fork")
    q = context.Queue(2)
    producer = context.Process(target=put_for_ever, args=(q,), daemon=True)
    producer.start()
    try:
        for _ in range(60):
            q.get(timeout=30)
            os.kill(producer.pid, signal.SIGSTOP)
            with contextlib.suppress(queue.Empty):
                while True:
                    q.get(timeout=0.01)
            began = time.monotonic()
            with contextlib.suppress(queue.Full):
                q.put("own", timeout=0.05)
            with contextlib.suppress(queue.Full):
                q.put_nowait("own")
            assert time.monotonic() - began < 5
            os.kill(producer.pid, signal.SIGCONT)
    finally:
        os.kill(producer.pid, signal.SIGCONT)
        producer.kill()
        producer.join()
        producer.close()
        q.close()
        q.join_thread()
