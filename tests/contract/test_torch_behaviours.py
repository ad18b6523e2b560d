"""Promises of torch's multiprocessing for CPU tensors hold for arrays; docs/coming-from-torch.md has the whole table.

Only what no other test shows already is here; the table names the others.
"""

from __future__ import annotations

import re
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.carriers import TIMEOUT
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp

ROUNDS = 30
DTYPES = [np.float64, np.float32, np.int64, np.uint8, np.bool_, np.complex128, "datetime64[ns]", "U3"]


def ended(process: BaseProcess) -> int | None:
    process.join(TIMEOUT)
    code = process.exitcode
    process.close()
    return code


def shut(*queues: Any) -> None:
    for queue in queues:
        queue.close()


def fill_what_comes(queue: Any) -> None:
    queue.get()[...] = 4


def make_and_wait(queue: Any, connection: Any) -> None:
    arrays = [mp.shared.zeros((5, 5)), mp.shared.zeros((5, 5))]
    queue.put(arrays)
    connection.recv()
    for array in arrays:
        array[...] = 7
    connection.send("filled")


def fill_five(buffer: np.ndarray) -> None:
    buffer[...] = 5


def send_several(queue: Any) -> None:
    queue.put([mp.shared.full((3, 4), k) for k in range(3)])
    queue.put(np.arange(100_000))
    queue.put({"empty": np.zeros(0), "one": mp.shared.ones(1)})


def raise_in_the_second(rank: int, first_is_done: Any) -> None:
    if rank == 1:
        first_is_done.recv()
        raise ValueError("the second one")


def nothing(rank: int) -> None:
    pass


# Inherited by the process that is started from it, by whatever start method.
def process_class(ctx: Any) -> type[BaseProcess]:
    return {"fork": Forked, "spawn": Spawned, "forkserver": Served}[ctx.get_start_method()]


class Filling:
    def keep(self, array: np.ndarray) -> Any:
        self.array = array
        return self

    def run(self) -> None:
        self.array += 3


class Forked(Filling, mp.get_context("fork").Process):
    pass


class Spawned(Filling, mp.get_context("spawn").Process):
    pass


class Served(Filling, mp.get_context("forkserver").Process):
    pass


def test_sharing_by_fill_thirty_times(strategy: str) -> None:
    ctx = mp.get_context("fork")
    for _ in range(ROUNDS):
        queue = ctx.SimpleQueue()
        array = mp.shared.zeros((5, 5))
        queue.put(array)
        process = ctx.Process(target=fill_what_comes, args=(queue,))
        process.start()
        assert ended(process) == 0
        assert (array == 4).all()
        shut(queue)


def test_sharing_by_receive_thirty_times(strategy: str) -> None:
    ctx = mp.get_context("fork")
    for _ in range(ROUNDS):
        queue = ctx.SimpleQueue()
        ours, theirs = ctx.Pipe()
        process = ctx.Process(target=make_and_wait, args=(queue, theirs))
        process.start()
        arrays = queue.get()
        assert all((array == 0).all() for array in arrays)
        ours.send("go")
        assert ours.poll(TIMEOUT)
        assert ours.recv() == "filled"
        assert all((array == 7).all() for array in arrays)
        assert ended(process) == 0
        shut(queue, ours, theirs)


def test_a_pool_of_two_fills_four_buffers(ctx, strategy: str) -> None:
    buffers = [mp.shared.zeros((2, 2)) for _ in range(4)]
    with ctx.Pool(2) as pool:
        pool.map(fill_five, buffers, chunksize=1)
        pool.close()
        pool.join()
    assert [buffer.tolist() for buffer in buffers] == [[[5, 5], [5, 5]]] * 4


def test_a_subclass_of_process_inherits_an_array(ctx, strategy: str) -> None:
    array = mp.shared.ones((5, 5))
    process = process_class(ctx)().keep(array)
    process.start()
    assert ended(process) == 0
    assert (array == 4).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_empty_array_is_put_and_got(strategy: str, dtype: Any) -> None:
    queue = mp.get_context("fork").SimpleQueue()
    for empty in (np.zeros(0, dtype), np.zeros((3, 0, 2), dtype), mp.shared.zeros((0, 4), dtype)):
        queue.put(empty)
        back = queue.get()
        assert (back.shape, back.dtype) == (empty.shape, empty.dtype)
    shut(queue)


def test_several_arrays_outlive_the_child_that_queued_them(ctx, strategy: str) -> None:
    queue = ctx.Queue()
    process = ctx.Process(target=send_several, args=(queue,))
    process.start()
    assert ended(process) == 0, "the child ends before anything is received"
    several, large, named = [queue.get(timeout=TIMEOUT) for _ in range(3)]
    assert [array.tolist() for array in several] == [np.full((3, 4), k).tolist() for k in range(3)]
    assert np.array_equal(large, np.arange(100_000))
    assert (named["empty"].size, named["one"].tolist()) == (0, [1])
    shut(queue)
    queue.join_thread()


def test_is_shared_before_and_after_share_memory(strategy: str) -> None:
    array = np.arange(24.0)
    assert not mp.is_shared(array)
    mp.share_memory_(array)
    assert mp.is_shared(array)
    assert mp.is_shared(array[3:7])
    assert array.tolist() == np.arange(24.0).tolist()


def test_names_are_there_while_in_use_and_gone_after(tmp_path: Path) -> None:
    program = """
        import os, re
        import mp_all as mp

        def peer(queue, connection):
            array = queue.get()
            array += 1
            connection.send("there")

        if __name__ == "__main__":
            queue, (ours, theirs) = mp.SimpleQueue(), mp.Pipe()
            array = mp.shared.zeros(1 << 20)
            process = mp.Process(target=peer, args=(queue, theirs))
            process.start()
            queue.put(array)
            ours.recv()
            process.join()
            assert (array == 1).all()
            with open("/proc/self/maps") as maps:
                names = sorted({m[0] for m in re.finditer("/dev/shm/mpshm-[0-9a-f]+", maps.read())})
            assert all(os.path.exists(name) for name in names)
            print(*names)
    """
    said = succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY="file_system"))
    names = said.split()
    assert names
    assert all(re.fullmatch(r"/dev/shm/mpshm-[0-9a-f]{32}", name) for name in names)
    assert until(lambda: not any(Path(name).exists() for name in names), 10)


def test_an_exception_after_a_first_success_is_raised(start_method: str) -> None:
    read, write = mp.Pipe(duplex=False)
    context = mp.start_processes(raise_in_the_second, (read,), 2, join=False, start_method=start_method)
    context.processes[0].join(TIMEOUT)
    assert context.processes[0].exitcode == 0
    write.send("the first one has ended")
    with pytest.raises(mp.ProcessRaisedException, match="the second one") as caught:
        while not context.join(timeout=TIMEOUT):
            pass
    assert caught.value.error_index == 1
    shut(read, write)


def test_join_says_that_all_is_well_three_times(start_method: str) -> None:
    context = mp.start_processes(nothing, nprocs=1, join=False, start_method=start_method)
    for process in context.processes:
        process.join(TIMEOUT)
    assert [context.join(timeout=None) for _ in range(3)] == [True, True, True]
