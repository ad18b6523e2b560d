"""Return arrays from both kinds of pool, Pool and ProcessPoolExecutor, through shared memory."""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

import mp_all as mp


def wave(frequency: int) -> np.ndarray:
    return np.sin(np.linspace(0, frequency * np.pi, 1_000_000))


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    frequencies = range(1, 9)

    with spawn.Pool(2) as pool:
        from_pool = pool.map_async(wave, frequencies).get(timeout=60)

    with ProcessPoolExecutor(2, mp_context=spawn) as executor:
        from_executor = list(executor.map(wave, frequencies, timeout=60))

    for frequency, one, other in zip(frequencies, from_pool, from_executor, strict=True):
        assert mp.is_shared(one)
        assert mp.is_shared(other)
        assert np.array_equal(one, other)
        assert np.array_equal(one, wave(frequency))
    print(f"{2 * len(from_pool)} arrays of {one.nbytes / 1e6:.0f} MB came back in shared memory")
