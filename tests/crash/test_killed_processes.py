"""Producers, consumers and managers are killed: sent messages arrive, memory of the dead is freed, nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scene import LONG
from support.scripts import run_script, succeeded
from support.waiting import until

HERE = Path(__file__).parent
TO_IMPORT = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}

PRELUDE = """
    import fcntl, os, signal, sys, time
    import numpy as np
    import mp_all as mp
    from scene import managers
    from support.processes import ended

    FOLDER = os.environ["MPSHM_RUNTIME_DIR"]

    def until(condition, timeout=20):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, condition
            time.sleep(0.002)

    def numbered(k):
        return np.full(20_000, k, np.int64)
"""

PRODUCER = """
    def several(k):
        return [numbered(5 * k + i) for i in range(5)]

    def produce(connection, count, kill):
        for k in range(count):
            connection.send(several(k))
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        count, kill, wait = int(sys.argv[1]), sys.argv[2] == "killed", float(sys.argv[3])
        ctx = mp.get_context("spawn")
        reader, writer = ctx.Pipe(False)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)  # room for all handles: no process reads them yet
        process = ctx.Process(target=produce, args=(writer, count, kill))
        process.start()
        writer.close()
        process.join(50)
        assert process.exitcode == (-signal.SIGKILL if kill else 0), process.exitcode
        if len(sys.argv) > 4:
            [os.kill(pid, signal.SIGKILL) for pid in managers(FOLDER)]
        time.sleep(wait)  # what is to be shown is that nothing happens
        assert all(np.array_equal(reader.recv(), several(k)) for k in range(count))
        print("intact")
"""

MANAGER = """
    def answer(inbox, outbox):
        while (a := inbox.get()) is not None:
            outbox.put(a + 1)

    if __name__ == "__main__":
        ctx = mp.get_context("spawn")
        there, back = ctx.SimpleQueue(), ctx.SimpleQueue()
        keep = mp.shared.full(1000, 7)
        process = ctx.Process(target=answer, args=(there, back))
        process.start()
        for round in range(int(sys.argv[1])):
            there.put(numbered(round))
            assert (back.get() == round + 1).all()
            killed = managers(FOLDER)
            [os.kill(pid, signal.SIGKILL) for pid in killed]
            until(lambda: all(ended(pid) for pid in killed))
            if (child := os.fork()) == 0:  # the next client that needs one
                os._exit(0 if keep[0] == 7 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        there.put(None)
        process.join(20)
        assert (keep == 7).all() and len(managers(FOLDER)) == 1
        print("replaced")
"""

CONSUMER = """
    def hold(inbox, ready):
        mine = [inbox.get() for _ in range(4)]
        ready.put(len(mine))
        time.sleep(100)

    if __name__ == "__main__":
        ctx = mp.get_context("spawn")
        inbox, ready = ctx.SimpleQueue(), ctx.SimpleQueue()
        process = ctx.Process(target=hold, args=(inbox, ready))
        process.start()
        for k in range(4):
            inbox.put(np.full(1_000_000, k))
        assert ready.get() == 4
        before = mp.memory_stats()["cached_bytes"]
        os.kill(process.pid, signal.SIGKILL)
        since = time.monotonic()
        until(lambda: mp.memory_stats()["cached_bytes"] >= before + 32_000_000)
        process.join(20)
        print("given back")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    return runtime


def run(tmp_path: Path, folder: Path, strategy: str, program: str, *arguments: str) -> str:
    environment = {**TO_IMPORT, "MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}
    timeout = 300 if LONG else 60
    said = succeeded(run_script(tmp_path, PRELUDE + program, *arguments, timeout=timeout, **environment))
    # The manager leaves after the last user, and takes the folder along.
    assert until(lambda: not list(folder.iterdir())), list(folder.iterdir())
    return said


@pytest.mark.parametrize("end", ["exits", "killed"])
def test_messages_outlive_the_producer_that_sent_them(tmp_path: Path, folder: Path, strategy: str, end: str) -> None:
    # 1000 arrays after a minute, or 100 at once.
    count, wait = ("200", "60") if LONG else ("20", "0")
    assert run(tmp_path, folder, strategy, PRODUCER, count, end, wait) == "intact\n"


def test_a_producer_and_the_manager_may_both_be_killed(tmp_path: Path, folder: Path) -> None:
    # Named objects are attached by name, without the descriptors of the manager.
    assert run(tmp_path, folder, "file_system", PRODUCER, "10", "killed", "0", "manager") == "intact\n"


def test_a_manager_killed_again_and_again_is_replaced(tmp_path: Path, folder: Path, strategy: str) -> None:
    assert run(tmp_path, folder, strategy, MANAGER, "100" if LONG else "10") == "replaced\n"


def test_memory_of_a_killed_consumer_is_freed(tmp_path: Path, folder: Path, strategy: str) -> None:
    assert run(tmp_path, folder, strategy, CONSUMER) == "given back\n"


def test_the_next_program_removes_the_leftovers_when_all_are_killed(
    tmp_path: Path, folder: Path, strategy: str
) -> None:
    program = """
    if __name__ == "__main__":
        a = mp.shared.ones(100_000)
        everybody = [*managers(FOLDER), os.getpid()]
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
    """
    environment = {**TO_IMPORT, "MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": strategy}
    done = run_script(tmp_path, PRELUDE + program, **environment)
    assert done.returncode < 0
    assert len(list(folder.rglob("control"))) == 1  # no process was left to remove it
    assert run(tmp_path, folder, strategy, "    mp.shared.ones(10)\n    print('next')\n") == "next\n"


def test_four_gigabytes_are_shared_with_eight_megabytes_of_dev_shm(tmp_path: Path, folder: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here (unshare -m)")
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 6 << 30:
        pytest.skip("less than 6 GiB of memory are free")
    script = tmp_path / "large.py"
    script.write_text(
        "import mp_all as mp\n"
        "a = mp.shared.empty(4 << 30, 'u1')\n"
        "a[:: 4096] = 1\n"
        "mp.set_sharing_strategy('file_system')\n"
        "try:\n"
        "    mp.shared.zeros(64 << 20, 'u1')\n"
        "except MemoryError as error:\n"
        "    print(int(a[:: 4096].sum(dtype='i8')), str(64 << 20) in str(error))\n"
    )
    command = f"mount -t tmpfs -o size=8m shm /dev/shm && exec {sys.executable} {script}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        env=os.environ | {"MPSHM_RUNTIME_DIR": str(folder), "MP_SHARING_STRATEGY": "file_descriptor"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{1 << 20} True\n", "")
    assert until(lambda: not list(folder.iterdir()))
