"""After a fork both sides keep their blocks: memory that one side drops stays valid in the other."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support import tasks
from support.carriers import KINDS
from support.leaks import names, names_in_use
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp

FORK = mp.get_context("fork")

# Blocks and arrays that exist at the fork; a forked child finds them here.
inherited: dict[str, object] = {}


@pytest.fixture
def child(strategy: str):
    """A forked child that has inherited the objects that the test put into `inherited`."""
    carriers = []

    def fork():
        carriers.append(KINDS["pipe"](FORK))
        return carriers[-1]

    yield fork
    for carrier in carriers:
        if carrier.process is not None:
            carrier.close()
    inherited.clear()


def drop(name: str) -> None:
    del inherited[name]


def values(name: str) -> list:
    return np.asarray(inherited[name]).tolist()


def write(name: str, value: object) -> None:
    inherited[name][...] = value


def allocate_and_write(count: int) -> int:
    """Reuse freed memory: it must not be memory that another process still references."""
    for _ in range(count):
        tasks.keep(mp.shared.full(1000, 255.0))
    return count


def allocate_many(count: int) -> list[np.ndarray]:
    return [mp.shared.full(100, float(i)) for i in range(count)]


def send_back(name: str) -> object:
    return inherited[name]


def test_a_forked_child_shares_the_shared_arrays(child) -> None:
    inherited["a"] = array = mp.shared.zeros(4)
    forked = child()
    forked.call(write, "a", 5)
    assert array.tolist() == [5] * 4
    array[0] = 6
    assert forked.call(values, "a") == [6, 5, 5, 5]


def test_a_forked_child_keeps_private_arrays_private(child) -> None:
    inherited["a"] = array = np.zeros(4)
    forked = child()
    forked.call(write, "a", 5)
    assert array.tolist() == [0] * 4
    array[...] = 7
    assert forked.call(values, "a") == [5] * 4


def test_memory_that_the_parent_drops_stays_with_the_child(child) -> None:
    inherited["a"] = mp.shared.full(1000, 3.0)
    forked = child()
    drop("a")
    allocate_and_write(5)
    assert forked.call(values, "a") == [3] * 1000
    tasks.forget()


def test_memory_that_the_child_drops_stays_with_the_parent(child) -> None:
    inherited["a"] = array = mp.shared.full(1000, 3.0)
    forked = child()
    forked.call(drop, "a")
    forked.call(allocate_and_write, 5)
    assert (array == 3).all()
    array[...] = 4
    again = child()
    assert again.call(values, "a") == [4] * 1000


def test_memory_that_the_child_referenced_survives_its_end(child) -> None:
    inherited["a"] = array = mp.shared.full(1000, 3.0)
    forked = child()
    forked.call(write, "a", 5)
    forked.close()
    mp.empty_cache()
    assert (array == 5).all()


def test_parent_and_child_allocate_different_memory_after_the_fork(child) -> None:
    inherited["a"] = mp.shared.zeros(10)
    forked = child()
    mine = [mp.shared.full(100, -float(i)) for i in range(50)]
    theirs = forked.call(allocate_many, 50)
    assert [float(a[0]) for a in mine] == [-float(i) for i in range(50)]
    assert [float(a[0]) for a in theirs] == [float(i) for i in range(50)]


def test_an_inherited_array_sent_back_is_the_same_memory(child) -> None:
    inherited["a"] = array = mp.shared.zeros(10)
    forked = child()
    result = forked.call(send_back, "a")
    assert np.shares_memory(result, array)


def test_siblings_share_inherited_memory(child) -> None:
    inherited["a"] = mp.shared.zeros(10)
    first, second = child(), child()
    drop("a")
    first.call(write, "a", 1)
    assert second.call(values, "a") == [1] * 10
    first.call(drop, "a")
    second.call(write, "a", 2)
    assert second.call(values, "a") == [2] * 10


def test_a_child_of_a_child_keeps_inherited_memory(tmp_path: Path, strategy: str) -> None:
    program = """
        import os
        import mp_all as mp

        a = mp.shared.full(1000, 1.0)
        if (pid := os.fork()) == 0:
            code = 1
            try:
                a[0] = 2
                if (grandchild := os.fork()) == 0:
                    del a  # its own name for it
                    os._exit(0)
                os.waitpid(grandchild, 0)
                a[1] = 3
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert a[:3].tolist() == [2, 3, 1], a
        b = mp.shared.zeros(1000)
        assert a[:3].tolist() == [2, 3, 1], a
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == ""


def test_a_forked_process_that_exits_leaves_no_name(tmp_path: Path, strategy: str) -> None:
    before = names()
    program = """
        import os
        import mp_all as mp

        a = mp.shared.zeros(1 << 20)
        for _ in range(3):
            if (pid := os.fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        print(mp.get_sharing_strategy())
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == f"{strategy}\n"
    # The leak check around this test would find it too; this test shows it.
    assert until(lambda: not names() - before - names_in_use())


def test_a_program_that_is_started_between_leaves_no_name(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, subprocess, sys
        import mp_all as mp

        a = mp.shared.zeros(1 << 20)
        subprocess.run([sys.executable, "-c", ""], check=True)
        subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=os.setsid)
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == ""


def test_a_fork_while_threads_allocate_never_locks_the_child(tmp_path: Path, strategy: str) -> None:
    program = """
        import os, sys, threading, warnings
        import mp_all as mp

        warnings.simplefilter("ignore", DeprecationWarning)
        stop = threading.Event()

        def allocate():
            while not stop.is_set():
                mp.Block(5000)

        threads = [threading.Thread(target=allocate) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(int(sys.argv[1])):
            if (pid := os.fork()) == 0:
                mp.shared.zeros(5000)[0] = 1
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        print("done")
    """
    forks = "500" if os.environ.get("MP_SOAK") == "1" else "15"
    assert succeeded(run_script(tmp_path, program, forks, MP_SHARING_STRATEGY=strategy)) == "done\n"


def test_a_child_closes_what_it_must_although_the_program_has_closed_a_part_of_it(tmp_path: Path) -> None:
    program = """
        import os
        from mp_core.children.death_pipe import DeathPipe
        from mp_core.system.descriptor import Descriptor
        first, last = Descriptor(closed_in_children=True), Descriptor(closed_in_children=True)
        pipe = DeathPipe()
        first.fd, last.fd = os.pipe()
        os.close(first.fd)
        if (pid := os.fork()) == 0:
            os._exit(last.fd != -1 or pipe._write.fd != -1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        first.give_up()
    """
    assert succeeded(run_script(tmp_path, program)) == "0\n"
