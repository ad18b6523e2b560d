"""A program that PyInstaller freezes: arrays, pools and ranks under each start method."""

from __future__ import annotations

from typing import Any

import numpy as np

import mp_all as mp


def double(array: Any) -> Any:
    return array * 2, mp.is_shared(array)


def rank(index: int, number: int) -> int:
    return index * number


def answer(tasks: Any, results: Any) -> None:
    results.put(double(tasks.get()))


if __name__ == "__main__":
    mp.freeze_support()
    for method in mp.get_all_start_methods():
        ctx: Any = mp.get_context(method)
        tasks, results = ctx.SimpleQueue(), ctx.SimpleQueue()
        child = ctx.Process(target=answer, args=(tasks, results))
        child.start()
        tasks.put(np.ones(100_000))
        array, was_shared = results.get()
        child.join()
        with mp.Pool(2, context=ctx) as pool:
            sums = [int(found.sum()) for found, _ in pool.map(double, [np.ones(100_000)] * 2)]
        ranks = mp.run(rank, (7,), nprocs=2, start_method=method)
        print(method, array.sum(), was_shared, mp.is_shared(array), sums, ranks)
