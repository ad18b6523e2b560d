"""Compute blocks in dask's processes. Usual: `python dask_blocks.py`; ours: `python dask_blocks.py mp_all`."""

import sys
import time

import dask
import dask.array as da
import numpy as np

import mp_all

if __name__ == "__main__":
    ours = "mp_all" in sys.argv
    pool = mp_all.ProcessPoolExecutor(2)
    with dask.config.set(mp_all.dask_options(pool) if ours else {"scheduler": "processes", "num_workers": 2}):
        begin = time.perf_counter()
        blocks = da.arange(40_000_000, chunks=4_000_000, dtype=float)
        roots = np.sqrt(blocks).compute()
        print(f"{time.perf_counter() - begin:.3f} s")
    pool.shutdown()
    assert np.isclose(roots[-1] ** 2, 39_999_999)
