"""No worker outlives the process of its pool, however busy it is and whatever thread or process has made the pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pool_tasks as tasks
import pytest
from support.processes import ended
from support.waiting import until

PROGRAM = """
    import ctypes
    import os
    import sys
    import threading
    import time
    import mp_all as mp
    import numpy as np

    METHOD, KIND, PLACE = sys.argv[1:] if len(sys.argv) > 1 else ("fork", "pool", "program")


    def hang(how):
        # One line for each process in one write: several write to this pipe.
        os.write(1, b"%d\\n" % os.getpid())
        if how == "in C":
            ctypes.PyDLL(None).sleep(1000)  # with the GIL, so no thread of Python runs any more
        while how == "busy":
            pass
        time.sleep(1000 if how == "asleep" else 0)
        return np.zeros(100_000)  # by a block, so the session has a manager, which removes its folder


    def serve():
        context = mp.get_context(METHOD)
        if KIND == "pool":
            pool = context.Pool(4)
            submit = lambda how: pool.apply_async(hang, (how,))
        else:
            pool = mp.ProcessPoolExecutor(4, mp_context=context)
            submit = lambda how: pool.submit(hang, how)
        kept.append(pool)
        getattr(submit("idle"), "get" if KIND == "pool" else "result")()
        for how in ("in C", "busy", "asleep"):
            submit(how)
        if PLACE == "child beside":
            child = mp.get_context("fork").Process(target=time.sleep, args=(1000,))
            child.start()
            os.write(1, b"beside %d\\n" % child.pid)
        processes = pool._pool if KIND == "pool" else pool._processes.values()
        os.write(1, " ".join(["parent", str(os.getpid()), *[str(each.pid) for each in processes]]).encode() + b"\\n")


    def serve_and_sleep():
        serve()
        time.sleep(1000)


    kept = []
    if __name__ == "__main__":
        if PLACE == "thread":
            thread = threading.Thread(target=serve)
            thread.start()
            thread.join()
        elif PLACE == "grandchild":
            process = mp.get_context(METHOD).Process(target=serve_and_sleep)
            process.start()
        else:
            serve()
        time.sleep(1000)
"""


@pytest.mark.parametrize("kind", tasks.KINDS)
@pytest.mark.parametrize("place", ["program", "thread", "grandchild", "child beside"])
def test_no_worker_is_there_after_the_process_of_its_pool_was_killed(
    tmp_path: Path, start_method: str, kind: str, place: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen(
        [sys.executable, str(program), start_method, kind, place], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        workers: set[int] = set()
        others: set[int] = set()
        parent = beside = 0
        try:
            while len(workers) < 3 or not parent or (place == "child beside" and not beside):
                match process.stdout.readline().split():
                    case ["parent", pid, *pids]:
                        parent, others = int(pid), {*map(int, pids)}
                    case ["beside", pid]:
                        beside = int(pid)
                    case [pid]:
                        workers.add(int(pid))
                    case _:
                        raise AssertionError("the program has ended")
            assert not any(map(ended, workers))
            os.kill(parent, signal.SIGKILL)
            assert until(lambda: all(map(ended, workers | others)), 2), (workers, others)
        finally:
            for each in {process.pid, beside} - {0}:
                os.kill(each, signal.SIGKILL)


LATE = """
    import os
    import sys
    import time
    from multiprocessing import get_context
    import mp_pool
    from mp_core.memory.block import allocate

    if __name__ == "__mp_main__":
        os.write(1, b"%d\\n" % os.getpid())
        open("go").close()

    if __name__ == "__main__":
        kept = allocate(1, zeroed=False)  # the session has a manager, which removes its folder
        pool = mp_pool.Pool(1, context=get_context(sys.argv[1]))
        time.sleep(1000)
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_worker_that_begins_after_its_pools_process_was_killed_leaves_no_folder(
    tmp_path: Path, start_method: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(LATE))
    os.mkfifo(tmp_path / "go")
    environment = os.environ | {"MPSHM_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(program), start_method], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        sessions = list(tmp_path.glob("mpshm-*/*"))
        assert len(sessions) == 1
        process.kill()
        assert until(lambda: not sessions[0].exists(), 10)
        (tmp_path / "go").write_text("")
        assert until(lambda: ended(worker), 10)
    assert list(tmp_path.glob("mpshm-*")) == []
