"""Named arrays: programs that never met share one, and a crash at any step leaves a whole array or no name."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import pytest
from support import arrays, tasks
from support.carriers import Carrier
from support.scripts import run_script, succeeded

import mp_all as mp
from mp_all import shared

SHM = Path("/dev/shm")
TIMEOUT = 30


@pytest.fixture
def name() -> Iterator[str]:
    """
    Give a name that is free, and check that nothing bears it after the test.
    """
    name = f"test {uuid.uuid4().hex}"
    yield name
    assert names(name) == []


def names(name: str) -> list[str]:
    return [each for each in os.listdir(SHM) if name in each]


def test_two_programs_that_never_met_see_one_memory(tmp_path: Path, name: str) -> None:
    maker = """
        import sys
        import mp_all as mp

        array = mp.shared.named(sys.argv[1], (2, 3), "f4", create=True)
        array[1, 2] = 42
    """
    finder = """
        import sys
        import mp_all as mp

        array = mp.shared.named(sys.argv[1])
        print(array.shape, array.dtype, array[1, 2])
        array[0, 0] = 7
    """
    assert succeeded(run_script(tmp_path, maker, name)) == ""
    found = shared.named(name, (2, 3), np.float32)
    assert succeeded(run_script(tmp_path, finder, name)) == "(2, 3) float32 42.0\n"
    assert found.tolist() == [[7, 0, 0], [0, 0, 42]]
    shared.unlink(name)


def test_two_arrays_of_one_name_in_one_process_are_one_memory(name: str) -> None:
    first, second = shared.named(name, 3, create=True), shared.named(name)
    assert np.shares_memory(first, second)
    shared.unlink(name)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (4, 3, 2), 7])
def test_any_shape_is_found_again(name: str, shape: tuple[int, ...] | int) -> None:
    made = shared.named(name, shape, "i2", create=True)
    assert made.flags.writeable and not made.any()
    assert shared.named(name, shape, "i2").shape == np.zeros(shape).shape
    shared.unlink(name)


@pytest.mark.parametrize(
    "dtype",
    [
        *(">i4", "M8[ns]", "U7", "S3", "c16", bool, arrays.PADDED, np.dtype("f8", metadata={"unit": "m"})),
        [(f"field {i}", "f8", (2,)) for i in range(600)],
    ],
    ids=str,
)
def test_any_dtype_is_found_again(name: str, dtype: object) -> None:
    shared.named(name, 2, dtype, create=True)
    assert shared.named(name, 2, dtype).dtype == np.dtype(dtype)
    shared.unlink(name)


def test_a_dtype_with_dimensions_of_its_own_is_found_again(name: str) -> None:
    made = mp.shared.named(name, 2, "(2,3)i4", create=True)
    made[:] = np.arange(12).reshape(2, 2, 3)
    assert made.shape == mp.shared.zeros(2, "(2,3)i4").shape
    for found in (mp.shared.named(name), mp.shared.named(name, 2, "(2,3)i4"), mp.shared.named(name, (2, 2, 3), "i4")):
        assert (found.shape, found.dtype) == (made.shape, made.dtype)
        assert (found == made).all()
    mp.shared.unlink(name)


def test_a_name_that_exists_is_not_created_again(name: str) -> None:
    shared.named(name, 3, create=True)[:] = 5
    with pytest.raises(FileExistsError, match=name):
        shared.named(name, 3, create=True)
    assert shared.named(name).tolist() == [5, 5, 5]
    shared.unlink(name)


def test_a_name_that_does_not_exist_is_not_found(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        shared.named(name)
    with pytest.raises(FileNotFoundError, match=name):
        shared.unlink(name)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 2), None), (None, "i4"), ((2, 3), "f4"), (6, float)])
def test_another_shape_or_dtype_is_refused_with_both(name: str, shape: object, dtype: object) -> None:
    shared.named(name, (2, 3), create=True)
    asked = np.empty((2, 3) if shape is None else shape, dtype)
    with pytest.raises(ValueError) as refused:
        shared.named(name, shape, dtype)
    shared.unlink(name)
    for text in ("(2, 3)", "float64", str(asked.shape), str(asked.dtype if dtype is not None else "float64")):
        assert text in str(refused.value)


@pytest.mark.parametrize("bad", ["", "a/b", "/", "a\0b", "x" * 250, "é" * 130])
def test_a_name_that_is_no_name_is_refused(bad: str) -> None:
    for call in (shared.named, shared.unlink, lambda name: shared.named(name, 3, create=True)):
        with pytest.raises(ValueError, match="invalid array name"):
            call(bad)


def test_bad_arguments_are_refused(name: str) -> None:
    for error, arguments in {
        TypeError: [(name,), (name, 3, object), (3, 3), (name, "3")],
        ValueError: [(name, (2, -1))],
        MemoryError: [(name, 1 << 50), (name, 1 << 90)],
    }.items():
        for each in arguments:
            with pytest.raises(error):
                shared.named(*each, create=True)


def test_an_array_that_cannot_be_made_leaves_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="dimension"):
        shared.named(name, (1,) * 65, int, create=True)
    assert names(name) == []


def test_a_limit_of_the_size_of_files_is_named(name: str, tmp_path: Path) -> None:
    program = f"""
        import resource, sys
        import mp_all as mp

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            mp.shared.named({name!r}, 100_000, float, create=True)
        except MemoryError as error:
            print(error)
    """
    assert "raise the limit (ulimit -f)" in succeeded(run_script(tmp_path, program))
    assert names(name) == []


def test_the_array_outlives_its_creator_which_is_killed(name: str, ctx: BaseContext) -> None:
    child = ctx.Process(target=create_and_die, args=(name,))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == -signal.SIGKILL
    assert shared.named(name).tolist() == [1, 1, 1]
    shared.unlink(name)


def create_and_die(name: str) -> None:
    shared.named(name, 3, create=True)[:] = 1
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("step", ["fchmod", "posix_fallocate", "pwrite", "link"])
def test_a_creator_that_is_killed_at_a_step_leaves_no_name(name: str, step: str) -> None:
    child = mp.get_context("fork").Process(target=die_at, args=(step, name))
    child.start()
    child.join(TIMEOUT)
    assert child.exitcode == -signal.SIGKILL
    assert names(name) == []
    assert shared.named(name, 3, create=True).tolist() == [0, 0, 0]
    shared.unlink(name)


def die_at(step: str, name: str) -> None:
    setattr(os, step, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    shared.named(name, 3, create=True)


def test_of_many_creators_at_once_one_creates_and_the_others_find_a_whole_array(name: str) -> None:
    fork = mp.get_context("fork")
    start, results = fork.Barrier(4), fork.SimpleQueue()
    children = [fork.Process(target=create_or_open, args=(name, start, results)) for _ in range(4)]
    for child in children:
        child.start()
    found = [results.get() for _ in children]
    for child in children:
        child.join(TIMEOUT)
    assert sorted(found) == [(False, (100, 100))] * 3 + [(True, (100, 100))]
    assert shared.named(name).sum() == 4
    shared.unlink(name)


def create_or_open(name: str, start: object, results: object) -> None:
    start.wait(TIMEOUT)
    try:
        array, created = shared.named(name, (100, 100), create=True), True
    except FileExistsError:
        array, created = shared.named(name), False
    with mp.get_context("fork").Lock():
        array[os.getpid() % 100, os.getpid() // 100 % 100] = 1
    results.put((created, array.shape))


def test_the_memory_stays_until_the_last_array_is_gone_and_then_nothing_is_left(name: str) -> None:
    nbytes = 8 << 20
    free = os.statvfs(SHM).f_bfree * os.statvfs(SHM).f_bsize
    array = shared.named(name, nbytes, "u1", create=True)
    view = array[::2]
    shared.unlink(name)
    again = shared.named(name, 3, create=True)  # another array of the same name
    view[:] = 3
    assert array[2] == 3 and again.tolist() == [0, 0, 0]
    shared.unlink(name)
    del array, again
    assert view.sum() == 3 * nbytes // 2
    del view
    after = os.statvfs(SHM).f_bfree * os.statvfs(SHM).f_bsize
    assert after > free - nbytes // 2


def test_a_named_array_and_its_views_are_the_same_memory_at_a_receiver(name: str, carrier: Carrier) -> None:
    array = shared.named(name, (4, 6), create=True)
    assert mp.is_shared(array) and mp.share_memory(array) is array and mp.share_memory_(array) is array
    copied = mp.memory_stats()["copied_bytes"]
    for view in (array, array[1:3, ::2], array.T, array[::-1], array[2:2], array[3, 5]):
        view = np.asarray(view) if isinstance(view, np.ndarray) else array[3:, 5:]
        assert carrier.call(tasks.is_shared, view)
        assert carrier.call(tasks.describe_with_bytes, view) == tasks.describe_with_bytes(view)
        carrier.call(tasks.fill, view, view.size)
        assert (view == view.size).all()
    assert mp.memory_stats()["copied_bytes"] == copied
    shared.unlink(name)


def test_a_received_array_is_the_same_memory_in_the_process_that_sent_it(name: str) -> None:
    array = shared.named(name, 3, create=True)
    queue = mp.SimpleQueue()
    queue.put(array[1:])
    assert np.shares_memory(queue.get(), array)
    queue.close()
    shared.unlink(name)


def test_an_array_whose_name_was_unlinked_travels_as_a_copy(name: str, echo: Carrier) -> None:
    array = shared.named(name, 3, create=True)
    shared.unlink(name)
    other = shared.named(name, 3, create=True)
    array[:], other[:] = 1, 2
    assert not mp.is_shared(array)
    assert echo.call(tasks.echo, array).tolist() == [1, 1, 1]
    echo.call(tasks.fill, array, 3)
    assert (array.tolist(), other.tolist()) == ([1, 1, 1], [2, 2, 2])
    shared.unlink(name)


def test_a_name_that_is_unlinked_before_the_array_is_received_is_an_error_that_says_so(name: str) -> None:
    queue = mp.get_context("fork").Queue()
    answers = mp.get_context("fork").Queue()
    array = shared.named(name, 1000, create=True)
    queue.put(array)
    shared.unlink(name)
    other = shared.named(name, 1000, create=True)
    queue.put("next")
    del array
    child = mp.get_context("fork").Process(target=receive_twice, args=(queue, answers))
    child.start()
    assert name in answers.get(timeout=TIMEOUT)
    assert answers.get(timeout=TIMEOUT) == "next"
    child.join(TIMEOUT)
    del other
    shared.unlink(name)


def receive_twice(queue: object, answers: object) -> None:
    try:
        queue.get(timeout=TIMEOUT)
    except mp.ReceiveError as error:
        answers.put(str(error))
    answers.put(queue.get(timeout=TIMEOUT))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_neither_sees_the_array_nor_gets_its_name(name: str, tmp_path: Path) -> None:
    program = """
        import os, sys
        import mp_all as mp

        shared, name, path = mp.shared, sys.argv[1], "/dev/shm/mp_all.0." + sys.argv[1]
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        for action, argument in ((shared.named, name), (shared.unlink, name), (open, path), (os.unlink, path)):
            try:
                action(argument)
            except OSError as error:
                print(type(error).__name__)
    """
    shared.named(name, 3, create=True)
    said = succeeded(run_script(tmp_path, program, name))
    assert said.split() == ["FileNotFoundError", "FileNotFoundError", "PermissionError", "PermissionError"]
    shared.unlink(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_a_name_that_another_user_has_taken_is_refused(name: str) -> None:
    taken = SHM / f"mp_all.{os.geteuid()}.{name}"
    taken.write_bytes(bytes(8192))
    os.chown(taken, 65534, 65534)
    with pytest.raises(PermissionError, match=name):
        shared.named(name)
    with pytest.raises(FileExistsError, match=name):
        shared.named(name, 3, create=True)
    taken.unlink()


@pytest.mark.parametrize("content", [b"", b"short", bytes(8192), "cut", "text"])
def test_a_file_that_is_no_array_is_refused(name: str, content: bytes | str) -> None:
    path = SHM / f"mp_all.{os.geteuid()}.{name}"
    shared.named(name, 5000, create=True)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes({"cut": whole[:8192], "text": whole.replace(b"(5000,)", b"(5000 )")}.get(content, content))
    with pytest.raises(ValueError, match=name):
        shared.named(name)
    path.unlink()
