"""Each worker has a number, which is its successor's as well."""

from __future__ import annotations

import os
import signal
from multiprocessing.context import BaseContext

import pool_tasks as tasks
import pytest
from support.waiting import until

import mp_all as mp


def own_index(path: str = "") -> int | None:
    if path:
        tasks.touch_and_wait(f"{path}{mp.worker_index()}", f"{path}go")
    return mp.worker_index()


def index_of_a_child() -> int | None:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, repr(mp.worker_index()).encode())
        os._exit(0)
    os.wait()
    return eval(os.read(reader, 10))


def end(how: str) -> None:
    os.kill(os.getpid(), getattr(signal, how))


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_workers_have_the_numbers_from_0_on(kind: str, ctx: BaseContext, tmp_path: object) -> None:
    with tasks.either(kind, ctx, 3) as pool:
        running = [pool.submit(own_index, f"{tmp_path}/") for _ in range(3)]
        assert until(lambda: sum(name.isdigit() for name in os.listdir(str(tmp_path))) == 3, tasks.PATIENCE)
        tasks.touch(f"{tmp_path}/go")
        assert sorted(wait() for wait in running) == [0, 1, 2]
        assert pool.submit(index_of_a_child)() is None
    assert mp.worker_index() is None


@pytest.mark.parametrize("end_of_workers", ["killed", "after each task"])
def test_a_worker_in_the_place_of_another_has_its_number(ctx: BaseContext, end_of_workers: str) -> None:
    limit = 1 if end_of_workers == "after each task" else None
    with mp.get_context(ctx.get_start_method()).Pool(2, maxtasksperchild=limit) as pool:
        for _ in range(8):
            assert pool.apply(own_index) in (0, 1)
            if end_of_workers == "killed":
                with pytest.raises(mp.WorkerLostError):
                    pool.apply(end, ("SIGKILL",))
        assert until(lambda: len(pool._pool) == 2, tasks.PATIENCE)
        assert {pool.apply(own_index) for _ in range(100)} <= {0, 1}
