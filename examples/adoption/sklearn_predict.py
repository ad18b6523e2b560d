"""Cross-validate with scikit-learn. Usual: `python sklearn_predict.py`; ours: `python sklearn_predict.py mp_all`."""

import sys
import time

import numpy as np
from joblib import Parallel, delayed
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsRegressor

if "mp_all" in sys.argv:
    import mp_all

    mp_all.joblib_install()

random = np.random.default_rng(0)
images, wide = random.random((2000, 40)), random.random((2000, 2000))
Parallel(n_jobs=2)(delayed(abs)(i) for i in range(2))  # start the workers
begin = time.perf_counter()
predicted = cross_val_predict(KNeighborsRegressor(1), images, wide, cv=4, n_jobs=2)
print(f"{time.perf_counter() - begin:.3f} s")
assert predicted.shape == wide.shape
