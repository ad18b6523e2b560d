"""Workers are killed while a pool sharpens a picture, and the picture is equal to the last bit."""

import os
import signal

import numpy as np

import mp_all as mp

TILE, BORDER = 256, 4


def sharpen(tile: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the worker's process id and the tile, without its border, minus its blurred self."""
    blurred = np.zeros_like(tile)
    for rows in range(-BORDER, BORDER + 1):
        for columns in range(-BORDER, BORDER + 1):
            blurred += np.roll(tile, (rows, columns), axis=(0, 1))
    inside = slice(BORDER, -BORDER)
    return os.getpid(), (2 * tile - blurred / (2 * BORDER + 1) ** 2)[inside, inside]


def tiles(picture: np.ndarray):
    """Yield every tile of the picture with its border, row by row."""
    padded = np.pad(picture, BORDER, mode="reflect")
    for row in range(0, picture.shape[0], TILE):
        for column in range(0, picture.shape[1], TILE):
            yield padded[row : row + TILE + 2 * BORDER, column : column + TILE + 2 * BORDER].copy()


def joined(parts: list[np.ndarray], columns: int) -> np.ndarray:
    return np.block([parts[at : at + columns] for at in range(0, len(parts), columns)])


if __name__ == "__main__":
    picture = np.random.default_rng(8).random((8 * TILE, 8 * TILE))
    expected = joined([sharpen(tile)[1] for tile in tiles(picture)], 8)

    parts, killed = [], []
    # The same tile can be sharpened twice without harm, so its task may be repeated.
    with mp.get_context("spawn").Pool(2, retries=3) as pool:
        for worker, part in pool.imap(sharpen, tiles(picture), buffersize=8):
            parts.append(part)
            if len(parts) in (16, 40) and worker not in killed:
                os.kill(worker, signal.SIGKILL)  # as the out-of-memory killer does
                killed.append(worker)

    assert killed
    assert np.array_equal(joined(parts, 8), expected)
    print(f"{len(killed)} workers were killed, and all {len(parts)} tiles are equal to the last bit")
