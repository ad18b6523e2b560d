"""An array over a `SharedMemory` of the standard library is the same memory at a receiver."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
from support import tasks
from support.carriers import Carrier
from support.scripts import run_script, succeeded

import mp_all as mp

COUNT = 2000


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=8 * COUNT)
    yield memory
    memory.close()
    if Path("/dev/shm", memory.name).exists():
        memory.unlink()


def over(memory: SharedMemory) -> np.ndarray:
    array: np.ndarray = np.ndarray((COUNT,), float, memory.buf)
    array[:] = range(COUNT)
    return array


def test_an_array_and_its_views_are_the_same_memory_at_a_receiver(memory: SharedMemory, carrier: Carrier) -> None:
    array = over(memory)
    assert mp.is_shared(array) and mp.share_memory(array) is array
    copied = mp.memory_stats()["copied_bytes"]
    for view in (array, array[3:-2:7], array[::-1], array.reshape(2, -1).T, np.frombuffer(memory.buf, "u1")[5:]):
        assert carrier.call(tasks.is_shared, view)
        assert carrier.call(tasks.describe_with_bytes, view) == tasks.describe_with_bytes(view)
        carrier.call(tasks.fill, view, 3)
        assert (view == 3).all()
        array[:] = range(COUNT)
        del view
    assert mp.memory_stats()["copied_bytes"] == copied
    assert Path("/dev/shm", memory.name).exists()
    del array


def test_the_receiver_keeps_the_memory_after_its_owner_has_unlinked_it(memory: SharedMemory, echo: Carrier) -> None:
    array = over(memory)
    echo.call(tasks.keep, array)
    memory.unlink()
    array[7] = 42
    assert echo.call(tasks.recall)[0][7] == 42  # comes back as a copy, since the name has gone
    echo.call(tasks.forget)
    del array


def test_the_end_of_a_receiver_does_not_unlink_the_memory(tmp_path: Path) -> None:
    program = """
        import os
        from multiprocessing.shared_memory import SharedMemory
        import numpy as np
        import mp_all as mp

        def receive(queue):
            queue.get(timeout=30)[0] += 1

        if __name__ == "__main__":
            spawn = mp.get_context("spawn")
            memory = SharedMemory(create=True, size=80_000)
            array = np.ndarray((10_000,), float, memory.buf)
            queue = spawn.Queue()
            for _ in range(3):
                child = spawn.Process(target=receive, args=(queue,))
                child.start()
                queue.put(array)
                child.join()
            print(array[0], os.path.exists("/dev/shm/" + memory.name))
            del array
            memory.close()
            memory.unlink()
    """
    assert succeeded(run_script(tmp_path, program)) == "3.0 True\n"


def test_a_memory_that_was_unlinked_or_replaced_travels_as_a_copy(memory: SharedMemory, echo: Carrier) -> None:
    array = over(memory)
    memory.unlink()
    assert not mp.is_shared(array)
    assert echo.call(tasks.echo, array).tolist() == array.tolist()
    other = SharedMemory(memory.name, create=True, size=8 * COUNT)
    assert echo.call(tasks.echo, array).tolist() == array.tolist()
    echo.call(tasks.fill, array, 3)
    assert array[3] == 3 == other.buf[3] + 3
    other.close()
    other.unlink()
    del array


def test_a_memory_that_is_replaced_before_it_is_received_is_an_error_and_no_other_bytes(memory: SharedMemory) -> None:
    queue = mp.SimpleQueue()
    array = over(memory)
    queue.put(array)
    memory.unlink()
    other = SharedMemory(memory.name, create=True, size=8 * COUNT)
    with pytest.raises(mp.ReceiveError, match=memory.name):
        queue.get()
    queue.close()
    other.close()
    other.unlink()
    del array


def test_an_array_sent_by_value_is_a_copy(memory: SharedMemory, echo: Carrier) -> None:
    array = over(memory)
    mp.set_sharing(False)
    try:
        echo.call(tasks.fill, array, 3)
    finally:
        mp.set_sharing(True)
    assert array[5] == 5
    del array


@pytest.mark.parametrize("where", ["/dev/shm", "elsewhere"])
@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_a_private_mapping_and_a_file_elsewhere_travel_as_copies(
    tmp_path: Path, echo: Carrier, where: str, flags: int
) -> None:
    path = Path("/dev/shm" if where == "/dev/shm" else tmp_path, f"test.{os.getpid()}")
    path.write_bytes(bytes(8 * COUNT))
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0, flags)
    array = np.frombuffer(mapping)
    shared = where == "/dev/shm" and flags == mmap.MAP_SHARED
    assert mp.is_shared(array) == shared
    echo.call(tasks.fill, array, 3)
    assert array[9] == (3 if shared else 0)
    path.unlink()
    del array
    mapping.close()
