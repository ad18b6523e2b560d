"""Processes that close their descriptors, or are killed, while others of their session live: no process loses data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scene import runtime_folder
from support.scripts import run_script, succeeded

TESTS = Path(__file__).parents[1]

PRELUDE = """
    import os, shutil, signal, socket, sys, time, traceback, warnings
    import numpy as np
    import mp_all as mp
    from scene import managers, memory_of
    from support.waiting import until

    FOLDER = os.environ["MPSHM_RUNTIME_DIR"]  # as it is spelt

    def kill_the_manager():
        for pid in managers(FOLDER):
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: not managers(FOLDER))

    def reaped(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

# The way of daemon(7): two forks, a session, and no descriptor that was open before.
DAEMON = """
    PAIRS = 40

    def total(array):
        return float(array.sum())

    def plus_one(array):
        return array + 1

    def share(value):
        return mp.shared.full(50_000, value)

    def fill(array, queue):
        array[...] = 9
        queue.put(np.full(50_000, 8.0))

    def serve(ctx, inherited, own):
        assert (inherited == 7).all()
        array = mp.shared.full(100_000, 3.0)
        queue = ctx.Queue()
        child = ctx.Process(target=fill, args=(array, queue))
        child.start()
        assert (queue.get(timeout=50) == 8).all()
        child.join(50)
        assert child.exitcode == 0, child
        assert (array == 9).all()
        with ctx.Pool(2) as pool:
            workers = {process.pid for process in pool._pool}
            inputs = [np.full(50_000, float(i)) for i in range(8)]
            assert pool.map_async(total, inputs).get(50) == [50_000.0 * i for i in range(8)]
            assert all((a == i + 1).all() for i, a in enumerate(pool.map_async(plus_one, inputs).get(50)))
            assert all((a == i).all() for i, a in enumerate(pool.map_async(share, range(8)).get(50)))
            assert {process.pid for process in pool._pool} == workers  # none had to be replaced
            pool.close()
            pool.join()
        queue.close()
        queue.join_thread()
        for one in [end for pair in own for end in pair]:
            one.setblocking(False)
            try:
                raise AssertionError(one.recv(100))
            except BlockingIOError:
                pass
        for a, b in own:
            a.send(b"x")
            b.send(b"y")
            assert (a.recv(100), b.recv(100)) == (b"y", b"x")
        assert (inherited == 7).all()

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        inherited = mp.shared.full(50_000, 7.0)
        keep = mp.shared.full(50_000, 6.0)
        there, back = socket.socketpair()
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            os.dup2(back.fileno(), 0)
            os.closerange(3, 4096)
            own = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(PAIRS)]
            assert min(a.fileno() for a, _ in own) == 3
            try:
                serve(ctx, inherited, own)
                os.write(0, b"served")
            except BaseException:
                os.write(0, traceback.format_exc().encode())
            finally:
                os._exit(0)  # without what the parent registered to be done at exit
        back.close()
        os.wait()
        there.settimeout(150)
        print(there.recv(10_000).decode(), (keep == 6).all())
"""

# Memory of the child must not be reused, whichever manager serves the session then.
CLOSED_AND_KILLED = """
    N = 500_000

    if __name__ == "__main__":
        array = mp.shared.full(N, 7.0)
        reader, writer = os.pipe()
        gate, opener = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(gate, 0)
            os.dup2(writer, 1)
            os.closerange(3, 4096)
            os.write(1, b"c")
            os.read(0, 1)
            os._exit(0 if (array == 7).all() else 5)
        assert os.read(reader, 1) == b"c"
        kill_the_manager()
        other = os.fork()
        if other == 0:
            mine = mp.shared.full(N, 5.0)
            os._exit(0)
        assert reaped(other) == 0
        del array
        many = [mp.shared.full(N, 6.0) for _ in range(12)]
        assert len(managers(FOLDER)) == 1
        os.write(opener, b"g")
        print(reaped(child))
"""

# Memory that a forked child has never seen, and whose owner is gone.
KILLED_OWNER = """
    NBYTES = 256 << 20

    if __name__ == "__main__":
        mp.shared.ones(10)
        reader, writer = os.pipe()
        gate, opener = os.pipe()
        parent = os.fork()
        if parent == 0:
            small = mp.shared.full(1000, 5.0)
            ready, said = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(said, b"r")
                os.read(gate, 1)  # until the test has seen it all
                os.write(writer, b"intact" if (small == 5).all() else b"changed")
                os._exit(0)
            os.read(ready, 1)
            much = mp.shared.empty(NBYTES, "u1")
            much[:] = 1
            os.write(writer, b"%d" % child)
            signal.pause()
        child = int(os.read(reader, 20))
        (manager,) = managers(FOLDER)
        before = memory_of(manager)
        assert before >= NBYTES
        os.kill(parent, signal.SIGKILL)
        since = time.monotonic()
        assert reaped(parent) == -signal.SIGKILL
        assert until(lambda: memory_of(manager) < NBYTES // 16, 30), memory_of(manager)
        took = time.monotonic() - since
        assert os.path.exists(f"/proc/{child}")
        assert took < 2, took
        os.write(opener, b"g")
        assert os.read(reader, 20) == b"intact"
        print("returned")
"""


# Closed descriptors, no manager and no folder: nothing leads to the session, and the error says so.
CUT_OFF = """
    if __name__ == "__main__":
        array = mp.shared.full(50_000, 7.0)
        warnings.simplefilter("ignore", mp.SharedMemoryWarning)
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.dup2(writer, 1)
            os.closerange(3, 4096)
            kill_the_manager()
            shutil.rmtree(FOLDER + "/mpshm-%d" % os.geteuid())
            for _ in range(2):
                since = time.monotonic()
                try:
                    mp.shared.ones(1 << 24)
                except OSError as error:
                    assert "nothing leads to the session" in str(error), error
                    took = time.monotonic() - since
            assert took < 1, took  # the second error comes at once
            queue = mp.get_context("fork").SimpleQueue()
            child = mp.get_context("fork").Process(target=queue.put, args=(np.full(50_000, 3.0),))
            child.start()
            assert (queue.get() == 3).all() and (array == 7).all()
            child.join()
            os.write(1, b"private arrays arrive")
            os._exit(0)
        os.close(writer)
        print(os.read(reader, 1000).decode())
        os.wait()
        # This process still has the control file, so it can start a manager, which cleans up in the end.
        assert mp.shared.ones(1 << 24).all()
"""


def run(tmp_path: Path, program: str, *arguments: str, timeout: float = 170, **environment: str) -> str:
    with runtime_folder() as folder:
        environment = {
            "MPSHM_RUNTIME_DIR": str(folder),
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS / 'crash'}",
        } | environment
        return succeeded(run_script(tmp_path, PRELUDE + program, *arguments, timeout=timeout, **environment))


@pytest.mark.timeout(180)
def test_a_daemon_shares_as_before_and_its_own_sockets_are_left_alone(
    tmp_path: Path, strategy: str, start_method: str
) -> None:
    assert run(tmp_path, DAEMON, start_method, MP_SHARING_STRATEGY=strategy) == "served True\n"


@pytest.mark.parametrize("spelt", ["as it is", "with a slash", "with two slashes", "as a link"])
def test_memory_of_a_daemon_is_kept_when_the_manager_is_killed(tmp_path: Path, strategy: str, spelt: str) -> None:
    with runtime_folder() as folder:
        path = {
            "as it is": f"{folder}",
            "with a slash": f"{folder}/",
            "with two slashes": f"{folder.parent}//{folder.name}",
        }
        if spelt == "as a link":
            (tmp_path / "link").symlink_to(folder)
        name = path.get(spelt, str(tmp_path / "link"))
        assert run(tmp_path, CLOSED_AND_KILLED, MPSHM_RUNTIME_DIR=name, MP_SHARING_STRATEGY=strategy) == "0\n"


def test_a_daemon_that_has_lost_every_way_to_its_session_gets_a_clear_error(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, CUT_OFF, MP_SHARING_STRATEGY=strategy) == "private arrays arrive\n"


def test_a_killed_owners_memory_returns_while_its_forked_child_lives(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, KILLED_OWNER, MP_SHARING_STRATEGY=strategy) == "returned\n"
