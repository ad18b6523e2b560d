"""A user's program that is checked by mypy and pyright and never run: each public name has the type that it should."""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.managers
import multiprocessing.pool
import multiprocessing.queues
import multiprocessing.shared_memory
import multiprocessing.synchronize
from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import mp_all
import mp_all as mp
import mp_all.connection
import mp_all.pool
import mp_cuda
import mp_spawn
from mp_all import Pool, Process, Queue, get_context, managers, shared_memory
from mp_all.connection import Connection, Listener, wait
from mp_all.managers import BaseManager, SyncManager, ValueProxy
from mp_all.pool import AsyncResult, ThreadPool
from mp_all.shared import zeros
from mp_all.shared_memory import SharedMemory
from mp_all.synchronize import Lock as LockType

Array = np.ndarray[Any, Any]


def work(inbox: multiprocessing.queues.Queue[Array], outbox: mp_all.queues.SimpleQueue[Array]) -> None:
    outbox.put(inbox.get(timeout=1.0))


def square(n: int) -> Array:
    return np.arange(n) ** 2


class Worker(mp.Process):
    def __init__(self, array: Array) -> None:
        super().__init__(daemon=True)
        self.array = array

    def run(self) -> None:
        self.array += 1


def everything_of_multiprocessing() -> None:
    spawn: multiprocessing.context.SpawnContext = mp.get_context("spawn")
    spawned: multiprocessing.context.SpawnProcess = spawn.Process()
    spawned.start()
    assert_type(mp.get_context("spawn").Pool(2, timeout=3.0, retries=2), Pool)
    assert_type(mp.get_context().Pool(2, progress=True), Pool)
    assert_type(mp.get_context("fork").Queue().get(), Any)
    context = get_context("fork")
    inbox: multiprocessing.queues.Queue[Array] = context.Queue(8)
    outbox: multiprocessing.queues.SimpleQueue[Array] = context.SimpleQueue()
    process = Process(target=work, args=(inbox, outbox))
    process.start()
    assert_type(process.exitcode, int | None)
    base: multiprocessing.context.Process = process  # a subclass, to a type checker
    base.join()
    queue: Queue[Array] = mp.Queue(8)
    assert_type(queue.get(), Array)
    assert_type(mp.Lock(), multiprocessing.synchronize.Lock)
    assert_type(mp.Event(), multiprocessing.synchronize.Event)
    assert_type(mp.cpu_count(), int)
    assert_type(mp.Manager(), multiprocessing.managers.SyncManager)
    ours: multiprocessing.pool.Pool = Pool(2)  # a subclass
    ours.close()
    with mp.Pool(2, initializer=mp.install_shared_allocator) as pool:
        assert_type(pool.map(square, [1, 2]), list[Array])
        result: AsyncResult[Array] = pool.apply_async(square, (3,))
        assert_type(result.get(), Array)
    with concurrent.futures.ProcessPoolExecutor(mp_context=mp.get_context("forkserver")) as executor:
        assert_type(executor.submit(square, 3).result(), Array)
    try:
        Worker(zeros(3)).join(1)
    except (mp.ProcessError, mp.TimeoutError, mp_all.AuthenticationError):
        pass


async def coroutines(executor: mp.ProcessPoolExecutor) -> None:
    queue: Queue[Array] = mp.Queue(8)
    assert_type(await queue.aget(), Array)
    assert_type(await queue.aget(timeout=1.5), Array)
    assert_type(await queue.aput(np.ones(3)), None)
    await queue.aput("text")  # type: ignore[arg-type]
    simple: mp.SimpleQueue[int] = mp.SimpleQueue()
    assert_type(await simple.aget(), int)
    tasks: mp.JoinableQueue[str] = mp.JoinableQueue()
    assert_type(await tasks.aget(), str)
    here, there = mp.Pipe()
    assert_type(await here.arecv(), Any)
    await there.asend(1)
    assert_type(await mp.get_context("spawn").Queue().aget(), Any)
    assert_type(await Process().ajoin(timeout=1.0), None)
    await mp.get_context("spawn").Process().ajoin()
    assert_type(await mp.start_processes(divmod, (2,), join=False).ajoin(1.0), bool)
    assert_type(mp.start_processes(divmod, (2,), join=False, engine="local"), mp.RunningJob)
    assert_type(await asyncio.wrap_future(executor.submit(square, 3)), Array)


def label(n: int, text: str = "") -> str:
    return text * n


def pools_and_executors(pool: Pool, executor: mp.ProcessPoolExecutor) -> None:
    future: concurrent.futures.Future[str] = executor.submit(label, 1, "a")
    assert_type(future.cancel(), bool)
    assert_type(executor.submit(label, 1).cancel(running=True), bool)
    assert_type(executor.options(timeout=1.5, retries=2, retry_on=(OSError, KeyError)), mp.ProcessPoolExecutor)
    executor.options(timeuot=1.5)  # type: ignore[call-arg]
    executor.shutdown(cancel_futures=True, cancel_running=True)
    assert_type(executor.submit(label, 1, text="a").result(), str)
    executor.submit(label, "1")  # type: ignore[arg-type]
    assert_type(executor.map(label, [1, 2], timeout=1.0), Iterator[str])
    assert_type(pool.apply(label, (1,)), str)
    assert_type(pool.apply_async(label, (1,)).get(), str)
    assert_type(pool.starmap(label, [(1, "a")]), list[str])
    assert_type(next(pool.imap(label, [1])), str)
    assert_type(pool.imap_unordered(label, [1]).next(timeout=1.0), str)
    assert_type(pool.options(memory_limit=1 << 30, stop_on_error=True, cancel_running=True), Pool)
    assert_type(pool.options(retries=1).map(label, [1], kwds={"text": "a"}), list[str])
    assert_type(pool.map_async(label, [1]).cancel(running=True), bool)
    assert_type(pool.apply_async(label, (1,)).cancel(), bool)
    assert_type(pool.imap(label, [1]).cancel(running=True), bool)
    assert_type(mp.rng().random(), float)
    assert_type(mp.run(square, nprocs=2, seed=(1, 2)), list[Array])
    get_context("spawn").Pool(2, cpu_affinity="spread", daemon=False, seed=7, memory_limit=1 << 30, retry_on=OSError)


def its_submodules() -> None:
    here, there = mp_all.Pipe()
    wait([here, there], timeout=0.0)
    with ThreadPool(2) as threads:
        assert_type(threads, multiprocessing.pool.ThreadPool)
    assert_type(SharedMemory(create=True, size=8), multiprocessing.shared_memory.SharedMemory)
    assert_type(shared_memory.SharedMemory("name").name, str)
    mp_all.connection.wait([here, there])
    assert_type(mp_all.pool.ThreadPool(), multiprocessing.pool.ThreadPool)
    Listener(("localhost", 0)).close()
    LockType(ctx=get_context("spawn")).acquire(timeout=1.0)


def proxies(manager: SyncManager, value: ValueProxy[int], connection: Connection) -> managers.BaseManager:
    assert_type(value.get(), int)
    connection.send(manager.dict())
    return BaseManager()


def arrays() -> None:
    a = mp_all.shared.zeros((2, 3), np.float32)
    assert_type(a, NDArray[np.float32])
    assert_type(zeros(3), NDArray[np.float64])
    assert_type(zeros(3, int), NDArray[np.int_])
    assert_type(mp_all.shared.ones(3, dtype=np.uint8), NDArray[np.uint8])
    assert_type(mp_all.shared.ones(3, bool), NDArray[np.bool_])
    assert_type(mp_all.shared.empty(3, np.dtype(np.complex128)), NDArray[np.complex128])
    assert_type(mp_all.shared.empty(3, "f4"), Array)
    assert_type(mp_all.shared.full(3, 1.0, dtype=np.float32), NDArray[np.float32])
    assert_type(mp_all.shared.full(3, np.int8(1)), NDArray[np.int8])
    assert_type(mp_all.shared.zeros_like(a), NDArray[np.float32])
    assert_type(mp_all.shared.full_like(a, 1, np.int16), NDArray[np.int16])
    assert_type(mp_all.shared.array([1, 2]), Array)
    assert_type(mp_all.shared.array(a), NDArray[np.float32])
    assert_type(mp_all.shared.array([1.0], dtype=np.float32), NDArray[np.float32])
    assert_type(mp_all.shared.frombuffer(b"12345678"), NDArray[np.float64])
    assert_type(mp_all.shared.named("name", 3, np.float32, create=True), NDArray[np.float32])
    assert_type(mp_all.shared.named("name", dtype=np.uint8), NDArray[np.uint8])
    assert_type(mp_all.shared.named("name"), Array)
    assert_type(mp_all.shared.unlink("name"), None)
    assert_type(mp_all.is_shared(a), bool)
    assert_type(mp_all.share_memory(a), NDArray[np.float32])
    assert_type(mp_all.share_memory_(a), NDArray[np.float32])
    assert_type(mp_all.get_inline_limit(), int)
    mp_all.set_inline_limit(0)
    with mp_all.shared_allocator() as scope:
        assert_type(scope, mp_all.shared_allocator)

    @mp_all.shared_allocator()
    def shared_allocated(n: int) -> Array:
        return np.ones(n)

    assert_type(shared_allocated(3), Array)


def memory() -> None:
    block = mp_all.Block(8)
    assert_type(block.nbytes, int)
    assert_type(mp_all.get_sharing_strategy(), str)
    assert_type(mp_all.get_all_sharing_strategies(), set[str])
    assert_type(mp_all.memory_stats(), dict[str, int])
    for segment in mp_all.list_segments():
        assert_type(segment, mp_all.Segment)
        assert_type(segment.holders, tuple[int, ...])
    assert_type(mp_all.memory_report(), dict[str, Any])
    lease = mp_all.Lease(lambda: None)
    assert_type(mp_all.receive_lease(lease.offer()), mp_all.LeaseReference)
    assert_type(mp_all.get_thread_name(), str)
    ours, _ = mp_all.Pipe()
    mp_all.set_sharing(False, ours)
    assert_type(mp_all.get_sharing(), bool)
    assert_type(mp_all.ReceiveError("why", 24).errno, int | None)
    warnings: list[type[Warning]] = [mp_all.SharedMemoryWarning, mp_all.RepeatedCopyWarning]
    del warnings
    mp_all.set_parent_death_signal(0)


def named_rank(rank: int, name: str, *, verbose: bool = False) -> dict[str, int]:
    return {name: rank + verbose}


def ranks() -> None:
    assert_type(mp_all.run(str, nprocs=4, output="capture"), list[str])
    assert_type(mp_all.run(named_rank, ("x",), nprocs=4), list[dict[str, int]])
    assert_type(mp_spawn.run(named_rank, ("x",)), list[dict[str, int]])
    with mp_all.logging_to_parent(level=20) as receiver:
        assert_type(receiver, mp_all.LoggingToParent)
    context = mp_spawn.start_processes(divmod, (2,), 4, join=False)
    assert_type(context, mp_spawn.ProcessContext)
    assert_type(context.pids(), list[int])
    assert_type(context.join(timeout=1.0), bool)
    assert_type(mp_all.spawn(divmod, (2,), 4), None)
    try:
        mp_all.spawn(divmod, args=(0,), nprocs=2)
        mp_all.spawn(divmod, args=[0], nprocs=2)
    except mp_all.ProcessRaisedException as error:
        assert_type(error.failures, tuple[mp_all.Failure, ...])
    except mp_all.ProcessExitedException as error:
        assert_type(error.exit_code, int)


def devices() -> None:
    a = mp_cuda.empty((2, 3), "float32")
    assert_type(a, mp_cuda.DeviceArray)
    assert_type(a.dtype, mp_cuda.DType)
    assert_type(mp_cuda.share(a, stream=mp_cuda.Stream()), mp_cuda.Shared)
    assert_type(mp_cuda.Event(interprocess=True).query(), bool)
    assert_type(mp_cuda.wait_released(timeout=1.0), bool)


def what_is_not_there_is_an_error() -> None:
    print(mp_all.Proces)  # type: ignore[attr-defined]
    print(mp_all.shared.zeroes)  # type: ignore[attr-defined]
    print(mp_cuda.emty)  # type: ignore[attr-defined]
    mp_all.set_inline_limit(1.5)  # type: ignore[arg-type]


def derives() -> None:
    class Mine(mp.Queue[int]):  # type: ignore[misc]  # at run time it is a function
        pass
