"""Cut a picture into square tiles that overlap by a halo, and put them together again without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Tile(NamedTuple):
    """Some pixels of the picture and where their upper left corner belongs."""

    top: int
    left: int
    pixels: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """
    *rows* × *columns* tiles of *size* × *size* pixels.

    A filter needs the neighbours of every pixel. So each tile is cut with a border of *halo* pixels,
    as wide as the filter reaches, and loses it afterwards: the tiles then join without a seam.
    """

    rows: int
    columns: int
    size: int
    halo: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and colours of the whole picture."""
        return self.rows * self.size, self.columns * self.size, 3

    @property
    def count(self) -> int:
        return self.rows * self.columns

    def cut(self, padded: npt.NDArray[np.uint8]) -> Iterator[Tile]:
        """Yield the tiles of a picture that is itself padded by the halo, as floats from 0 to 1."""
        side = self.size + 2 * self.halo
        for top in range(0, self.rows * self.size, self.size):
            for left in range(0, self.columns * self.size, self.size):
                window = padded[top : top + side, left : left + side]
                yield Tile(top, left, np.divide(window, 255, dtype=np.float32))

    def trim(self, tile: Tile) -> Tile:
        """Return the tile without its halo: a view, not a copy."""
        inside = slice(self.halo, self.halo + self.size)
        return tile._replace(pixels=tile.pixels[inside, inside])

    def paste(self, tile: Tile, mosaic: npt.NDArray[np.float32]) -> None:
        """Write a trimmed tile to its place."""
        mosaic[tile.top : tile.top + self.size, tile.left : tile.left + self.size] = tile.pixels
