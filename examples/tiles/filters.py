"""What is done to a tile: sharpening, which is real work, or next to nothing, which leaves the transport."""

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
    """Unsharp mask: what a Gaussian blur takes away is detail, and detail is added to the picture."""
    blurred = gaussian_filter(pixels, sigma=(SIGMA, SIGMA, 0), radius=(RADIUS, RADIUS, 0))
    detail: Pixels = np.subtract(pixels, blurred, out=blurred)
    detail *= AMOUNT
    detail += pixels
    return np.clip(detail, 0, 1, out=detail)


def touch(pixels: Pixels) -> Pixels:
    """Read and write every pixel once, and no more: a negative, made in place."""
    return np.subtract(1, pixels, out=pixels)


FILTERS: dict[str, Callable[[Pixels], Pixels]] = {"sharpen": sharpen, "touch": touch}
