"""Return arrays from workers with the shared allocator without a copy: Pool and ProcessPoolExecutor."""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

import mp_all as mp


def spectrum(seed: int) -> tuple[np.ndarray, int]:
    noise = np.random.default_rng(seed).standard_normal(1_000_000)
    return np.abs(np.fft.rfft(noise)), mp.memory_stats()["copied_bytes"]


if __name__ == "__main__":
    spawn = mp.get_context("spawn")

    with spawn.Pool(2, initializer=mp.install_shared_allocator) as pool:
        results = pool.map_async(spectrum, range(6)).get(timeout=60)

    with ProcessPoolExecutor(2, mp_context=spawn, initializer=mp.install_shared_allocator) as executor:
        results += executor.map(spectrum, range(6), timeout=60)

    for seed, (array, copied) in enumerate(results):
        assert mp.is_shared(array)
        assert np.array_equal(array, spectrum(seed % 6)[0])
        assert copied == 0
    print(f"{len(results)} arrays of {array.nbytes / 1e6:.0f} MB came back, 0 bytes copied on the way")
