"""Exhaustion of memory or descriptors: a private array is still delivered, an allocation fails with the reason."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripts import NO_DESCRIPTORS, run_python, run_script, succeeded

PRELUDE = """
    import resource, sys, warnings
    from multiprocessing.reduction import ForkingPickler
    import numpy as np
    import mp_all as mp

    def delivered():
        array = np.arange(1 << 19)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            back = ForkingPickler.loads(ForkingPickler.dumps(array))
            again = ForkingPickler.loads(ForkingPickler.dumps(array))
        assert np.array_equal(back, array) and np.array_equal(again, array)
        assert back.flags.writeable
        return {w.category.__name__ for w in caught}

    def refused(make):
        try:
            make()
        except MemoryError as error:
            return str(error)
        return "not refused"
"""
# Nothing can be made any more: no file may be longer than this, or (NO_DESCRIPTORS) no descriptor is left.
SHORT_FILES = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
"""
FIRST_USE = """
    print(delivered())
    print(refused(lambda: mp.Block(123456789)))
    print(refused(lambda: mp.shared.zeros(123456789, "u1")))
"""
CACHED = """
    print(delivered())
    print(mp.Block(10_000).nbytes)
"""
MANY = """
    class Holder:
        def __init__(self, thing):
            self.thing = thing

    sent = [np.full(128, k) for k in range(200)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        back = ForkingPickler.loads(ForkingPickler.dumps(sent))
        held_back = ForkingPickler.loads(ForkingPickler.dumps(Holder(sent))).thing
        larger = ForkingPickler.loads(ForkingPickler.dumps([np.full(5000, k) for k in range(200)]))
    assert [a[-1] for a in back] == [a[0] for a in held_back] == [a[-1] for a in larger] == list(range(200))
    print({w.category.__name__ for w in caught}, any(map(mp.is_shared, back)), any(map(mp.is_shared, held_back)))
"""
RECOVERED = """
    for fd in held:
        os.close(fd)
    assert mp.Block(1000).nbytes == 1000
"""
SMALL_MOUNT = """
    mp.set_sharing_strategy("file_system")
    text = refused(lambda: mp.Block(123456789))
    assert "/dev/shm" in text and "123456789" in text, text
    # Nothing may fault later: what was handed out can be written, to its last byte.
    held = []
    try:
        while True:
            held.append(mp.shared.zeros(1 << 20, "u1"))
    except MemoryError:
        pass
    for array in held:
        array[...] = 255
    print(len(held) > 3, delivered())
    mp.set_sharing_strategy("file_descriptor")
    large = mp.shared.zeros(1 << 26, "u1")
    large[...] = 1
    print(int(large.sum()))
"""


LIMITS = pytest.mark.parametrize("limit", [SHORT_FILES, NO_DESCRIPTORS], ids=["file size", "descriptors"])


@LIMITS
def test_a_process_that_cannot_start_to_share_delivers_and_says_why_it_cannot_allocate(
    tmp_path: Path, strategy: str, limit: str
) -> None:
    recovered = RECOVERED if limit is NO_DESCRIPTORS else ""
    # A folder of its own: a process that cannot start a manager leaves its session's folder to the next program.
    environment = {"MP_SHARING_STRATEGY": strategy, "MPSHM_RUNTIME_DIR": str(tmp_path)}
    done = run_script(tmp_path, PRELUDE + limit + FIRST_USE + recovered, **environment)
    warned, first, second = succeeded(done).splitlines()
    assert warned == "{'SharedMemoryWarning'}"
    assert "123456789" in first
    assert "123456789" in second


@LIMITS
def test_many_small_arrays_are_delivered_without_memory_for_their_pack(tmp_path: Path, limit: str) -> None:
    done = run_script(tmp_path, PRELUDE + limit + MANY, MPSHM_RUNTIME_DIR=str(tmp_path))
    assert succeeded(done).splitlines() == ["{'SharedMemoryWarning'} False False"]


@LIMITS
def test_a_process_with_cached_memory_is_not_affected(tmp_path: Path, strategy: str, limit: str) -> None:
    done = run_script(tmp_path, PRELUDE + "    delivered()\n" + limit + CACHED, MP_SHARING_STRATEGY=strategy)
    assert succeeded(done).split("\n") == ["set()", "10000", ""]


def test_a_full_mount_is_an_error_and_never_a_fault(tmp_path: Path) -> None:
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    unshare = shutil.which("unshare")
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no permission to mount a small /dev/shm in a namespace of its own")
    path = tmp_path / "inside.py"
    path.write_text("import textwrap\nexec(textwrap.dedent('''" + PRELUDE + SMALL_MOUNT + "'''))\n")
    inside = f"{mount} && exec {sys.executable} {path}"
    done = run_python("-c", f"import os; os.execvp('unshare', ['unshare', '-m', 'sh', '-c', {inside!r}])")
    assert succeeded(done).splitlines() == ["True {'SharedMemoryWarning'}", str(1 << 26)]
