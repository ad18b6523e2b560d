"""Clean data frames in a pipeline; their columns travel through shared memory (needs pandas)."""

import numpy as np
import pandas as pd

import mp_all as mp

DAYS, ROWS = 6, 200_000


def one_day(day: int) -> pd.DataFrame:
    random = np.random.default_rng(day)
    amounts = random.normal(100, 30, ROWS)
    amounts[::50] = np.nan
    return pd.DataFrame({"shop": random.integers(0, 10, ROWS), "amount": amounts})


def clean(raw, cleaned) -> None:
    while (item := raw.get()) is not None:
        day, frame = item
        frame["amount"] = frame["amount"].fillna(0.0)  # the worker's own copy: the sender's does not change
        cleaned.put((day, frame, frame.groupby("shop")["amount"].sum()))


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    raw, cleaned = spawn.Queue(4), spawn.Queue(4)
    workers = [spawn.Process(target=clean, args=(raw, cleaned)) for _ in range(2)]
    for worker in workers:
        worker.start()

    total = 0.0
    for day in range(DAYS):
        raw.put((day, one_day(day)))
        if day >= 2:  # two are always under way
            total += cleaned.get(timeout=60)[2].sum()
    for _ in workers:
        raw.put(None)
    for _ in range(2):
        day, frame, totals = cleaned.get(timeout=60)
        assert mp.is_shared(frame["amount"].to_numpy())
        assert not frame["amount"].isna().any()
        total += totals.sum()
    for worker in workers:
        worker.join()

    expected = sum(np.nansum(one_day(day)["amount"]) for day in range(DAYS))
    assert abs(total - expected) < 1e-6 * expected
    moved = mp.memory_stats()["copied_bytes"]
    assert moved == DAYS * ROWS * 16
    print(f"{moved / 1e6:.0f} MB of columns were moved by one copy each, none through a pipe; the total is {total:.0f}")
