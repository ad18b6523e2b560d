"""Programs that exit normally print nothing and leave nothing, again and again."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest
from scene import LONG, python, runtime_folder

EXITS = 500 if LONG else 4

BODY = {
    "queue": """
        queue = ctx.Queue()
        process = ctx.Process(target=put, args=(queue, given))
        process.start()
        assert queue.get().sum() == 100_000
        process.join()
    """,
    "pool": """
        with ctx.Pool(2) as pool:
            assert sum(a.sum() for a in pool.map(make, [50_000] * 6)) == 300_000
    """,
    "unread": """
        queue = ctx.SimpleQueue()
        process = ctx.Process(target=put, args=(queue, given))
        process.start()
        process.join()
    """,
    "nothing shared": """
        process = ctx.Process(target=len, args=("",))
        process.start()
        process.join()
    """,
}

PROGRAM = """
import sys
import numpy as np
import mp_all as mp

def put(queue, given):
    queue.put(given * 1)

def make(n):
    return np.ones(n)

if __name__ == "__main__":
    ctx = mp.get_context("fork")
    given = mp.shared.ones(100_000) if "nothing" not in sys.argv[1] else None
    exec(sys.stdin.read())
"""


@pytest.mark.parametrize("what", BODY)
def test_a_program_that_exits_leaves_nothing_and_prints_nothing(what: str, strategy: str) -> None:
    with runtime_folder() as folder:
        environment = os.environ | {"MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}
        for _ in range(EXITS):
            done = subprocess.run(
                python("-W", "error", "-c", PROGRAM, what),
                env=environment,
                input=textwrap.dedent(BODY[what]),
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
