"""Enlarge a picture in joblib's workers. Usual: `python joblib_tiles.py`; ours: `python joblib_tiles.py mp_all`."""

import sys
import time

import numpy as np
from joblib import Parallel, delayed

if "mp_all" in sys.argv:
    import mp_all

    mp_all.joblib_install()


def enlarged(picture, row):
    return picture[row : row + 25].repeat(4, axis=0).repeat(4, axis=1)


picture = np.random.default_rng(0).random((1000, 4000))
with Parallel(n_jobs=2) as parallel:
    parallel(delayed(abs)(i) for i in range(2))  # start the workers
    begin = time.perf_counter()
    tiles = parallel(delayed(enlarged)(picture, row) for row in range(0, 1000, 25))
    print(f"{time.perf_counter() - begin:.3f} s")
assert np.array_equal(np.concatenate(tiles)[::4, ::4], picture)
