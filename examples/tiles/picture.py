"""Load the picture, the Hubble deep field from scikit-image, and save the results."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from grid import Grid
from PIL import Image, ImageDraw, ImageFont
from skimage import data

GAP = 8  # white pixels between "before" and "after"
LABEL = 32  # the height of their labels, above them


def padded_sky(grid: Grid) -> npt.NDArray[np.uint8]:
    """
    Return the photograph, enlarged until it fills the grid, with a border of *halo* pixels.

    The border is a mirror image, which is how `scipy.ndimage` continues a picture beyond its edge.
    """
    photo = Image.fromarray(data.hubble_deep_field())
    height, width, _ = grid.shape
    scale = max(width / photo.width, height / photo.height)
    large = photo.resize((ceil(photo.width * scale), ceil(photo.height * scale)), Image.Resampling.LANCZOS)
    border = (grid.halo, grid.halo)
    return np.pad(np.asarray(large)[:height, :width], (border, border, (0, 0)), mode="symmetric")


def save_pictures(mosaic: npt.NDArray[np.float32], grid: Grid, folder: Path) -> list[Path]:
    """
    Save the mosaic at a quarter of its size, and a detail before and after.

    The detail has a corner of four tiles in its middle: a seam would show as a cross.
    """
    top = grid.rows // 2 * grid.size - grid.size // 2
    left = grid.columns // 2 * grid.size - grid.size // 2
    middle = np.s_[top : top + grid.size, left : left + grid.size]
    before = padded_sky(grid)[grid.halo : -grid.halo, grid.halo : -grid.halo][middle]
    detail = folder / "before_after.png"
    side_by_side({"before": before, "sharpened": _to_bytes(mosaic[middle])}).save(detail)

    overview = folder / "sky.jpg"
    # `reduce` takes the mean of 4 × 4 pixels, so that faint stars are dimmed instead of dropped.
    Image.fromarray(_to_bytes(mosaic)).reduce(4).save(overview, quality=90)
    return [overview, detail]


def side_by_side(pictures: dict[str, npt.NDArray[np.uint8]]) -> Image.Image:
    """Return pictures of one size beside each other, each below its label."""
    height, width, _ = next(iter(pictures.values())).shape
    sheet = Image.new("RGB", (len(pictures) * (width + GAP) - GAP, height + LABEL), "white")
    draw = ImageDraw.Draw(sheet)
    for k, (label, pixels) in enumerate(pictures.items()):
        left = k * (width + GAP)
        sheet.paste(Image.fromarray(pixels), (left, LABEL))
        font = ImageFont.load_default(min(LABEL * 0.7, width / 6))  # a tile of the tests is narrow
        draw.text((left + width // 2, LABEL // 2), label, "black", font, anchor="mm")
    return sheet


def _to_bytes(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(pixels * 255).astype(np.uint8)
