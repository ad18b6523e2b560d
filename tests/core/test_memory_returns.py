"""Memory is freed when its last user drops it, whether a message is read, unread, refused or unsendable."""

from __future__ import annotations

import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from support import tasks
from support.carriers import TIMEOUT, Carrier
from support.leaks import names, names_in_use
from support.scripts import run_script, succeeded
from support.waiting import until

import mp_all as mp
from mp_core.sharing import backend

LARGE = 1 << 18


def live() -> int:
    gc.collect()
    return mp.memory_stats()["live_bytes"]


def read_and_drop(connection) -> None:
    connection.recv()
    connection.send("dropped")
    connection.recv()


def make_large(_: int) -> np.ndarray:
    return np.zeros(LARGE)


class Unsendable:
    def __reduce__(self) -> tuple:
        raise RuntimeError("this cannot be pickled")


def unreceivable(*_: object) -> None:
    raise RuntimeError("this cannot be unpickled")


class Unreceivable:
    def __reduce__(self) -> tuple:
        return unreceivable, ()


@pytest.mark.parametrize("make", [np.zeros, mp.shared.zeros], ids=["private", "shared"])
def test_a_received_array_is_freed_when_it_is_dropped(carrier: Carrier, make) -> None:
    before = live()
    result = carrier.call(tasks.echo, make(LARGE))
    assert live() >= before + 8 * LARGE * mp.is_shared(result)
    del result
    assert until(lambda: live() == before)


@pytest.mark.parametrize("make", [np.zeros, mp.shared.zeros], ids=["private", "shared"])
def test_arguments_are_freed_while_their_process_still_runs(ctx, strategy: str, make) -> None:
    before = live()
    ours, theirs = ctx.Pipe()
    process = ctx.Process(target=read_and_drop, args=(theirs,))
    process.start()
    theirs.close()
    ours.send(make(LARGE))
    assert ours.poll(TIMEOUT)
    assert ours.recv() == "dropped"
    assert until(lambda: live() == before)
    ours.send(None)
    process.join(TIMEOUT)
    process.close()
    ours.close()


@pytest.mark.parametrize("make", [np.zeros, mp.shared.zeros], ids=["private", "shared"])
def test_arguments_of_a_process_are_freed_though_its_object_is_kept(ctx, strategy: str, make) -> None:
    before = live()
    process = ctx.Process(target=tasks.echo, args=(make(LARGE),))
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == 0
    # A Process drops its arguments when it has started: what it sent must not be held in their place.
    assert until(lambda: live() == before)
    process.close()


def test_results_of_an_executor_are_freed(ctx, strategy: str) -> None:
    before = live()
    with ProcessPoolExecutor(1, mp_context=ctx) as executor:
        for result in executor.map(make_large, range(3)):
            assert result[0] == 0
        del result
        assert until(lambda: live() == before)


def test_results_of_a_pool_are_freed(ctx, strategy: str) -> None:
    before = live()
    with ctx.Pool(1) as pool:
        for result in pool.imap_unordered(make_large, range(3)):
            assert result[0] == 0
        del result
        assert until(lambda: live() == before)
        pool.close()
        pool.join()


@pytest.mark.parametrize("make", [np.zeros, mp.shared.zeros], ids=["private", "shared"])
def test_a_message_that_fails_to_pickle_leaves_no_memory(strategy: str, make) -> None:
    before = live()
    with pytest.raises(RuntimeError, match="cannot be pickled"):
        ForkingPickler.dumps([make(LARGE), Unsendable()])
    assert live() == before


@pytest.mark.parametrize("make", [np.zeros, mp.shared.zeros], ids=["private", "shared"])
def test_a_message_that_fails_to_unpickle_leaves_no_memory(strategy: str, make) -> None:
    before = live()
    message = ForkingPickler.dumps([make(LARGE), Unreceivable()])
    with pytest.raises(RuntimeError, match="cannot be unpickled"):
        ForkingPickler.loads(message)
    assert live() == before


def test_a_message_to_a_closed_pipe_leaves_no_memory(tmp_path: Path, strategy: str) -> None:
    program = """
        import numpy as np
        import mp_all as mp

        reader, writer = mp.Pipe(duplex=False)
        reader.close()
        try:
            writer.send(np.zeros(1 << 18))
        except OSError:
            mp.empty_cache()
            print(mp.memory_stats()["in_flight_bytes"])
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "0\n"


UNREAD = """
    import numpy as np
    import mp_all as mp

    def work(queue):
        queue.put(np.zeros(1 << 18))
        queue.put(mp.shared.zeros(1 << 18))

    if __name__ == "__main__":
        queue = mp.get_context("{method}").Queue()
        process = mp.get_context("{method}").Process(target=work, args=(queue,))
        process.start()
        process.join()
        queue.put(np.zeros(1 << 18))
        print(queue.get(timeout=30).nbytes)
"""
HELD = """
    import numpy as np
    import mp_all as mp

    mp.keep = mp.shared.zeros(1 << 18)
    cycle = [mp.shared.zeros(1 << 18)]
    cycle.append(cycle)
    reader, writer = mp.Pipe()
    print(mp.keep.nbytes)
"""
INTERRUPTED = """
    import sys
    import mp_all as mp

    array = mp.shared.zeros(1 << 18)
    print(array.nbytes)
    {end}
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_program_that_leaves_messages_unread_leaves_no_memory(tmp_path: Path, strategy: str, method: str) -> None:
    before = names()
    done = run_script(tmp_path, UNREAD.format(method=method), MP_SHARING_STRATEGY=strategy)
    # Without libshm the resource tracker finds the memory of those messages, and says so.
    assert (succeeded(done) if backend.LIBSHM else done.stdout) == f"{8 << 18}\n"
    assert until(lambda: not names() - before - names_in_use())


def test_a_program_that_references_memory_until_it_ends_leaves_none(tmp_path: Path, strategy: str) -> None:
    before = names()
    assert succeeded(run_script(tmp_path, HELD, MP_SHARING_STRATEGY=strategy)) == f"{8 << 18}\n"
    assert until(lambda: not names() - before - names_in_use())


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise RuntimeError", "import os; os._exit(3)"])
def test_a_program_that_ends_early_leaves_no_memory(tmp_path: Path, strategy: str, end: str) -> None:
    before = names()
    done = run_script(tmp_path, INTERRUPTED.format(end=end), MP_SHARING_STRATEGY=strategy)
    assert done.returncode != 0
    assert until(lambda: not names() - before - names_in_use())


@pytest.mark.skipif(not backend.LIBSHM, reason="the order is that of libshm's remote-free list")
def test_the_block_that_another_process_freed_last_is_given_out_first(echo: Carrier) -> None:
    arrays = [mp.shared.empty(100_000, "u1") for _ in range(4)]
    addresses = [array.ctypes.data for array in arrays]
    echo.call(tasks.keep, *arrays)
    arrays.clear()
    gc.collect()
    echo.call(tasks.drop_in_order)
    again = [mp.shared.empty(100_000, "u1") for _ in range(4)]
    assert [array.ctypes.data for array in again] == addresses[::-1]


def test_zeroed_arrays_one_after_another_take_the_memory_of_one(tmp_path: Path, strategy: str) -> None:
    program = """
        import mp_all as mp

        for _ in range(20):
            array = mp.shared.zeros(1 << 18)
            assert not array.any()
            array[:] = 1
            del array
        print(mp.memory_stats()["cached_bytes"] < 3 << 21)
    """
    assert succeeded(run_script(tmp_path, program, MP_SHARING_STRATEGY=strategy)) == "True\n"
