"""Measure joblib's backend mp_all beside loky: python -m benchmarks.joblib_backends [--rounds N]

Each row runs on both backends in turns, with two workers that are running already. It prints medians, and how many
times faster mp_all is. It needs scikit-learn: nox -s adoption.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import joblib
import numpy as np
from joblib import Parallel, delayed
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from tqdm import tqdm

import mp_all as mp

BACKENDS = ("loky", "mp_all")
X, y = make_classification(4000, 40, n_informative=20, random_state=0)
WIDE = np.random.default_rng(0).random((2000, 1500))
LARGE = np.ones((25, 1_000_000))  # 200 MB


def column(a: np.ndarray, i: int) -> float:
    return float(a[i % len(a), ::100].sum())


def tile(i: int) -> np.ndarray:
    return np.full(2_000_000, float(i))


def blur(a: np.ndarray) -> np.ndarray:
    return (a[:-2] + a[1:-1] + a[2:]) / 3


ROWS: dict[str, Callable[[], object]] = {
    "2000 calls of abs": lambda: Parallel()(delayed(abs)(-i) for i in range(2000)),
    "60 tasks read one array of 200 MB": lambda: Parallel(batch_size=1)(delayed(column)(LARGE, i) for i in range(60)),
    "40 results of 16 MB": lambda: Parallel()(delayed(tile)(i) for i in range(40)),
    "20 images of 8 MB, there and back": lambda: Parallel()(delayed(blur)(LARGE[i]) for i in range(20)),
    "GridSearchCV, LogisticRegression, 12 fits": lambda: GridSearchCV(
        LogisticRegression(max_iter=200), {"C": [0.01, 0.1, 1, 10]}, cv=3, n_jobs=2
    ).fit(X, y),
    "cross_val_predict, 1500 outputs": lambda: cross_val_predict(
        KNeighborsRegressor(1), X[:2000], WIDE, cv=4, n_jobs=2
    ),
    "RandomForest, 40 trees, fit": lambda: RandomForestClassifier(40, n_jobs=2, random_state=0).fit(X, y),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    rounds = options.rounds
    warnings.simplefilter("ignore")
    mp.joblib_install(make_default=False)
    print(f"{'':<45}{'loky':>10}{'mp_all':>10}{'times faster':>14}")
    rows = {name: run for name, run in ROWS.items() if options.only in name}
    for name, run in tqdm(rows.items(), disable=None, leave=False):
        seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        for turn in range(rounds + 1):
            for backend in BACKENDS:
                with joblib.parallel_config(backend, n_jobs=2):
                    begin = time.perf_counter()
                    run()
                    if turn:  # the first one starts the workers
                        seconds[backend].append(time.perf_counter() - begin)
        usual, ours = (statistics.median(seconds[backend]) for backend in BACKENDS)
        print(f"{name:<45}{1000 * usual:>7.0f} ms{1000 * ours:>7.0f} ms{usual / ours:>14.2f}", flush=True)


if __name__ == "__main__":
    main()
