"""A stopped manager delays no fork, and knows all processes after it continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.capabilities import is_emulated
from test_daemons import run

# A request that is not answered: the program has no connection to the manager from then on.
UNANSWERED = """
    def stop_the_manager():
        (manager,) = managers(FOLDER)
        os.kill(manager, signal.SIGSTOP)
        return manager

    def ask_in_vain():
        try:
            mp.shared.full(300 << 20, 1, "u1")
        except OSError as error:
            assert "does not answer" in str(error), error
        else:
            raise AssertionError("memory from a manager that is stopped")
"""

FORKS = (
    UNANSWERED
    + """
    if __name__ == "__main__":
        keep = mp.shared.full(10_000, 5.0)
        manager = stop_the_manager()
        ask_in_vain()
        longest = 0
        end = time.monotonic() + 12  # longer than the manager is left alone for
        while time.monotonic() < end:
            since = time.monotonic()
            child = os.fork()
            if child == 0:
                os._exit(0 if (keep == 5).all() else 1)
            longest = max(longest, time.monotonic() - since)
            assert reaped(child) == 0
            time.sleep(0.2)
        assert longest < 5, longest
        os.kill(manager, signal.SIGCONT)
        print("not delayed")
"""
)

PRIVATE = (
    UNANSWERED
    + """
    def answer(inbox, outbox):
        while (array := inbox.get()) is not None:
            outbox.put(array + 1)

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        inbox, outbox = ctx.SimpleQueue(), ctx.SimpleQueue()
        child = ctx.Process(target=answer, args=(inbox, outbox))
        child.start()

        def ask(value):
            inbox.put(np.full(50_000, value))
            assert (outbox.get() == value + 1).all()

        ask(1.0)
        manager = stop_the_manager()
        since = time.monotonic()
        for round in range(20):
            ask(float(round))
        new = ctx.Process(target=answer, args=(inbox, outbox))
        new.start()
        inbox.put(None)  # one of the two ends
        child.join(0.1)
        ask(7.0)
        assert time.monotonic() - since < 40, time.monotonic() - since
        os.kill(manager, signal.SIGCONT)
        ask(8.0)
        inbox.put(None)
        for process in (child, new):
            process.join(50)
            assert process.exitcode == 0, process
        print("went on")
"""
)

# Only the child knows of the child; its death must be noticed all the same.
MISSED = (
    UNANSWERED
    + """
    NBYTES = 100 << 20

    if __name__ == "__main__":
        much = mp.shared.full(NBYTES, 1, "u1")
        ready, said = os.pipe()
        manager = stop_the_manager()
        ask_in_vain()
        os.kill(manager, signal.SIGCONT)
        # It has seen that connection go when it answers another process.
        other = os.fork()
        if other == 0:
            os._exit(0)
        assert reaped(other) == 0
        time.sleep(0.5)
        child = os.fork()
        if child == 0:
            signal.pause()
        del much
        assert memory_of(manager) >= NBYTES
        os.kill(child, signal.SIGKILL)
        assert reaped(child) == -signal.SIGKILL

        def is_back():
            mp.empty_cache()
            return memory_of(manager) < NBYTES // 16

        assert until(is_back, 10), memory_of(manager)
        print("missed")
"""
)

# A second one would have an empty control file, and know no process.
ONE_MANAGER = (
    UNANSWERED
    + """
    if __name__ == "__main__":
        keep = mp.shared.full(1000, 5.0)
        gate, opener = os.pipe()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(gate, 0)
            os.dup2(writer, 1)
            os.closerange(3, 4096)
            os.write(1, b"r")
            os.read(0, 1)
            array = mp.shared.full(3 << 20, 4.0)  # more than there is: asks the manager
            os.write(1, b"a" if (array == 4).all() else b"w")
            os.read(0, 1)
            os._exit(0)
        assert os.read(reader, 1) == b"r"
        manager = stop_the_manager()
        shutil.rmtree(FOLDER + "/mpshm-%d" % os.geteuid())
        os.write(opener, b"g")
        time.sleep(1)  # the time for somebody to start one too many
        assert managers(FOLDER) == [manager], managers(FOLDER)
        os.kill(manager, signal.SIGCONT)
        assert os.read(reader, 1) == b"a"
        assert managers(FOLDER) == [manager], managers(FOLDER)
        os.write(opener, b"e")
        assert reaped(child) == 0 and (keep == 5).all()
        print("one")
"""
)


REPORT = """
    import subprocess
    import threading

    OTHER = "import sys; import mp_all as mp; a = mp.shared.zeros(5000); print(1, flush=True); sys.stdin.read()"

    if __name__ == "__main__":
        other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout.readline()
        (theirs,) = managers(FOLDER)
        keep, queue = mp.shared.full(10_000, 5.0), mp.SimpleQueue()
        os.kill(theirs, signal.SIGSTOP)
        report = threading.Thread(target=lambda: (mp.memory_report(), mp.list_segments()))
        since = time.monotonic()
        report.start()
        while report.is_alive():
            queue.put(keep)
            assert (queue.get() == 5).all()
        took = time.monotonic() - since
        os.kill(theirs, signal.SIGCONT)
        other.communicate()
        assert took < 8, took  # it was ten seconds
        print("went on")
"""


def test_a_report_does_not_wait_long_for_the_stopped_manager_of_another_program(tmp_path: Path) -> None:
    assert run(tmp_path, REPORT) == "went on\n"


def test_forks_are_not_delayed(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, FORKS, MP_SHARING_STRATEGY=strategy) == "not delayed\n"


def test_private_arrays_go_on_and_reach_new_children(tmp_path: Path, strategy: str, start_method: str) -> None:
    environment = {"MP_SHARING_STRATEGY": strategy, "PYTHONWARNINGS": "ignore"}
    assert run(tmp_path, PRIVATE, start_method, **environment) == "went on\n"


@pytest.mark.skipif(is_emulated(), reason="needs madvise(MADV_REMOVE), which does nothing in an emulator")
def test_the_death_of_a_child_of_a_parent_without_a_connection_is_noticed(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, MISSED, MP_SHARING_STRATEGY=strategy) == "missed\n"


@pytest.mark.timeout(150)
def test_a_daemon_starts_no_second_manager_when_the_folder_is_gone(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, ONE_MANAGER, MP_SHARING_STRATEGY=strategy) == "one\n"
