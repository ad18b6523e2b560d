"""
Filter a tile: sharpen it, which is real work, or do almost nothing, which leaves the transport.

Filters work in place and return their argument: a tile belongs to the worker that received it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

Pixels = npt.NDArray[np.float32]

SIGMA = 3
RADIUS = 3 * SIGMA  # how far the blur reaches
AMOUNT = 2


def sharpen(pixels: Pixels) -> Pixels:
    """Apply an unsharp mask: a Gaussian blur removes detail, so add that detail again."""
    detail = gaussian_filter(pixels, sigma=(SIGMA, SIGMA, 0), radius=(RADIUS, RADIUS, 0))
    np.subtract(pixels, detail, out=detail)
    detail *= AMOUNT
    pixels += detail
    return np.clip(pixels, 0, 1, out=pixels)


def touch(pixels: Pixels) -> Pixels:
    """Read and write every pixel once: make a negative."""
    return np.subtract(1, pixels, out=pixels)


FILTERS: dict[str, Callable[[Pixels], Pixels]] = {"sharpen": sharpen, "touch": touch}
