"""A learning problem from a seed: handwritten-looking digits, drawn rather than downloaded.

Each picture is one of ten bitmap glyphs, turned, stretched, sheared and shifted at random, then
buried in noise. Telling them apart takes learning; a seed replays every pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Labels = NDArray[np.int64]

CLASSES = 10
SIDE_PIXELS = 12
FEATURES = SIDE_PIXELS * SIDE_PIXELS

# Five columns by seven rows for each digit, rows from the top.
_BITMAPS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "01110 10001 00001 00110 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


# How far pictures stray from the clean glyph: one sigma each, uniform for the shift.
_TURN_RADIANS = 0.14
_STRETCH = 0.10  # relative change of width and height
_SHEAR = 0.12
_SHIFT_PIXELS = 1.2
_NOISE = 0.20  # of every pixel, where ink is 1 and paper 0


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures as rows of pixels, and the digit that each shows."""

    pixels: Floats
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


def draw(count: int, seed: int) -> Pictures:
    """Draw ``count`` pictures; the same seed draws the same ones."""
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    columns, rows = _where_in_glyph(count, random)
    pixels = _interpolated(_padded_glyphs(), labels, rows, columns)
    pixels += _NOISE * random.standard_normal(pixels.shape)
    # Centred, because a network learns faster around zero.
    return Pictures(pixels - 0.2, labels)


def _padded_glyphs() -> Floats:
    """The ten bitmaps with one pixel of paper all around, so that edges fade out."""
    bitmaps = [[[float(dot) for dot in row] for row in glyph.split()] for glyph in _BITMAPS]
    return np.pad(np.array(bitmaps), ((0, 0), (1, 1), (1, 1)))


def _where_in_glyph(count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """For each pixel of each picture, the column and row of the padded glyph that it shows."""
    centre = (SIDE_PIXELS - 1) / 2
    down, across = np.indices((SIDE_PIXELS, SIDE_PIXELS)).reshape(2, 1, FEATURES) - centre
    shift = random.uniform(-_SHIFT_PIXELS, _SHIFT_PIXELS, size=(2, count, 1))
    turn = _TURN_RADIANS * random.standard_normal((count, 1))
    stretch = np.exp(_STRETCH * random.standard_normal((2, count, 1)))
    shear = _SHEAR * random.standard_normal((count, 1))
    across, down = across - shift[0], down - shift[1]
    turned_across = np.cos(turn) * across + np.sin(turn) * down
    turned_down = np.cos(turn) * down - np.sin(turn) * across
    # A glyph dot covers about 1.4 pixels of the picture; 3 and 4 are the padded glyph's centre.
    columns = (turned_across + shear * turned_down) * stretch[0] / 1.4 + 3
    rows = turned_down * stretch[1] / 1.4 + 4
    return columns, rows


def _interpolated(glyphs: Floats, labels: Labels, rows: Floats, columns: Floats) -> Floats:
    """Bilinear interpolation of each picture's glyph; paper outside."""
    _, height, width = glyphs.shape
    rows = np.clip(rows, 0, height - 1.001)
    columns = np.clip(columns, 0, width - 1.001)
    top, left = rows.astype(np.int64), columns.astype(np.int64)
    down, right = rows - top, columns - left
    which = labels[:, None]
    upper = glyphs[which, top, left] * (1 - right) + glyphs[which, top, left + 1] * right
    lower = glyphs[which, top + 1, left] * (1 - right) + glyphs[which, top + 1, left + 1] * right
    drawn: Floats = upper * (1 - down) + lower * down
    return drawn
