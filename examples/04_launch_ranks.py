"""Launch four ranks that fill one shared array; the first to fail would end them all."""

import numpy as np

import mp_all as mp


def fill(rank: int, squares: np.ndarray, nprocs: int) -> None:
    mine = np.array_split(np.arange(len(squares)), nprocs)[rank]
    squares[mine] = mine**2


def fail(rank: int) -> None:
    raise ValueError(f"rank {rank} is out of luck")


if __name__ == "__main__":
    squares = mp.shared.zeros(1_000_000, dtype=np.int64)
    mp.spawn(fill, args=(squares, 4), nprocs=4)
    assert np.array_equal(squares, np.arange(1_000_000) ** 2)
    print(f"four ranks filled one array: {squares[:5]} … {squares[-1]}")

    try:
        mp.spawn(fail, nprocs=1)
    except mp.ProcessRaisedException as error:
        assert "is out of luck" in str(error)
        print(f"rank {error.error_index} failed, and its traceback came along")
    else:
        raise AssertionError("a failure went unnoticed")
