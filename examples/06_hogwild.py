"""Train one array of parameters in two processes, without a lock (Hogwild); the data are sent without a copy."""

import numpy as np

import mp_all as mp

SAMPLES, FEATURES, BATCH, WORKERS = 20_000, 64, 100, 2


def learn(x: np.ndarray, y: np.ndarray, weights: np.ndarray, rounds: int) -> None:
    for _ in range(rounds):
        for at in range(0, len(x), BATCH):
            rows, wanted = x[at : at + BATCH], y[at : at + BATCH]
            # Other workers write to it at the same time: a step may be lost, and the next one compensates.
            weights -= 0.05 * (rows.T @ (rows @ weights - wanted)) / BATCH


def error(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    return float(np.abs(x @ weights - y).mean())


if __name__ == "__main__":
    random = np.random.default_rng(0)
    with mp.shared_allocator():  # NumPy allocates in shared memory here
        x = random.standard_normal((SAMPLES, FEATURES))
        y = x @ random.standard_normal(FEATURES)
    weights = mp.shared.zeros(FEATURES)  # too small for the shared allocator
    assert mp.is_shared(x) and mp.is_shared(y) and mp.is_shared(weights)
    before = error(x, y, weights)

    spawn = mp.get_context("spawn")
    workers = [
        spawn.Process(target=learn, args=(x[k::WORKERS], y[k::WORKERS], weights, 10))  # views: no copy either
        for k in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0

    after = error(x, y, weights)
    assert mp.memory_stats()["copied_bytes"] == 0
    assert after < before / 100
    print(f"{WORKERS} workers on {x.nbytes / 1e6:.0f} MB of data, 0 bytes copied; error {before:.2f} -> {after:.4f}")
