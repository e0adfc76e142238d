"""A small learning problem with real gradients, in NumPy: noisy digits and a perceptron.

Each picture is one of ten bitmap glyphs, turned, stretched, sheared and shifted at random, then
buried in noise. A seed decides every pixel, weight and step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

CLASSES = 10  # digits
SIDE_PIXELS = 12  # by hand: small enough to train on a CPU in seconds
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
# How far pictures stray from the clean glyph, by hand: an accuracy of some 98 % is hard to reach.
# One sigma each, uniform for the shift.
_TURN_RADIANS = 0.14
_STRETCH = 0.10  # relative change of width and height
_SHEAR = 0.12
_SHIFT_PIXELS = 1.2
_NOISE = 0.20  # of every pixel, where ink is 1 and paper 0


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures as rows of pixels, and the digit that each shows."""

    pixels: Floats
    labels: Indices

    def __len__(self) -> int:
        return len(self.labels)


def draw(count: int, seed: int) -> Pictures:
    """Draw ``count`` pictures."""
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    bitmaps = [[[float(dot) for dot in row] for row in glyph.split()] for glyph in _BITMAPS]
    # One pixel of paper all around, so that edges fade out.
    glyphs = np.pad(np.array(bitmaps), ((0, 0), (1, 1), (1, 1)))
    rows, columns = _places_in_glyph(count, random)
    rows, columns = np.clip(rows, 0, 8 - 0.001), np.clip(columns, 0, 6 - 0.001)
    top, first_column = rows.astype(np.int64), columns.astype(np.int64)
    down, across = rows - top, columns - first_column

    def line(row: Indices) -> Floats:
        values: Floats = glyphs[labels[:, None], row, first_column] * (1 - across)
        return values + glyphs[labels[:, None], row, first_column + 1] * across

    pixels = line(top) * (1 - down) + line(top + 1) * down
    pixels += _NOISE * random.standard_normal(pixels.shape)
    # Centred, because a network learns faster around zero.
    return Pictures(pixels - 0.2, labels)


def _places_in_glyph(count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Row and column of the padded glyph that each pixel of each picture shows."""
    centre = (SIDE_PIXELS - 1) / 2
    down, across = np.indices((SIDE_PIXELS, SIDE_PIXELS)).reshape(2, 1, FEATURES) - centre
    shift = random.uniform(-_SHIFT_PIXELS, _SHIFT_PIXELS, size=(2, count, 1))
    turn = _TURN_RADIANS * random.standard_normal((count, 1))
    stretch = np.exp(_STRETCH * random.standard_normal((2, count, 1)))
    shear = _SHEAR * random.standard_normal((count, 1))
    across, down = across - shift[0], down - shift[1]
    turned_across = np.cos(turn) * across + np.sin(turn) * down
    turned_down = np.cos(turn) * down - np.sin(turn) * across
    # A glyph dot covers about 1.4 pixels of the picture; 4 and 3 are the padded glyph's centre.
    columns = (turned_across + shear * turned_down) * stretch[0] / 1.4 + 3
    return turned_down * stretch[1] / 1.4 + 4, columns


class DemoNetwork:
    """One hidden layer of rectifiers, a softmax on top, cross-entropy as the loss.

    Args:
        sizes: Numbers of inputs, hidden units and classes.
        seed: Decides the first weights.
    """

    def __init__(self, sizes: tuple[int, int, int], seed: int) -> None:
        random = np.random.default_rng(seed)
        self.parameters: list[Floats] = []
        for inputs, outputs in itertools.pairwise(sizes):
            # The variance that keeps the signal's size through rectifiers (He et al., 2015).
            weights = random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
            self.parameters += [weights, np.zeros(outputs)]
        self._velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def _forward(self, pixels: Floats) -> tuple[Floats, Floats]:
        """The hidden layer and the scores of the classes."""
        first, first_bias, second, second_bias = self.parameters
        hidden = np.maximum(pixels @ first + first_bias, 0.0)
        return hidden, hidden @ second + second_bias

    def gradients(self, pixels: Floats, labels: Indices) -> tuple[float, list[Floats]]:
        """Mean loss of a batch, and its slope in every parameter."""
        hidden, scores = self._forward(pixels)
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope = shifted / shifted.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -float(np.mean(np.log(slope[rows, labels] + 1e-300)))
        slope[rows, labels] -= 1.0
        slope /= len(labels)
        below = (slope @ self.parameters[2].T) * (hidden > 0)
        return loss, [pixels.T @ below, below.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]

    def step(self, pixels: Floats, labels: Indices, rate: float, momentum: float = 0.9) -> float:
        """Learn from one batch by gradient descent with momentum; its loss before the step."""
        loss, slopes = self.gradients(pixels, labels)
        for index, slope in enumerate(slopes):
            self._velocities[index] *= momentum
            self._velocities[index] -= rate * slope
            self.parameters[index] += self._velocities[index]
        return loss

    def accuracy(self, pictures: Pictures) -> float:
        """Share of the pictures that it reads right."""
        scores = self._forward(pictures.pixels)[1]
        return float(np.mean(scores.argmax(axis=1) == pictures.labels))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what the network learns, and nothing else.

    Attributes:
        seed: Decides pictures, first weights and their order.
        epochs: Passes over the training pictures.
        pictures: Number of training pictures.
        test_pictures: Number of pictures held back for the accuracy.
        batch_size: Pictures per step.
        hidden: Width of the hidden layer.
        rate: Learning rate.
    """

    seed: int = 0
    epochs: int = 8
    pictures: int = 6000
    test_pictures: int = 2000
    # 48 × 144 × 36 is small enough for BLAS to stay on one thread: more threads bring nothing
    # here, and on a busy machine they wait for each other.
    batch_size: int = 48
    hidden: int = 36
    rate: float = 0.03

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass."""
        return self.pictures // self.batch_size


@dataclass(frozen=True, slots=True)
class Learned:
    """Loss and accuracy at the end of an epoch; real, not simulated.

    Attributes:
        epoch: Number of the epoch, counted from 1.
        loss: Mean training loss over the epoch.
        accuracy: Share of the test pictures read right, 0 to 1.
    """

    epoch: int
    loss: float
    accuracy: float


class Trainer:
    """The pictures of a recipe, and any number of fresh networks trained on them."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        # Separate streams from one seed, so that no two of them share their random numbers.
        train, test, self._weights_seed, self._order_seed = (
            int(word) for word in np.random.SeedSequence(recipe.seed).generate_state(4)
        )
        self.train, self.test = draw(recipe.pictures, train), draw(recipe.test_pictures, test)

    def fresh(self) -> DemoNetwork:
        """A network that has learned nothing yet."""
        return DemoNetwork((FEATURES, self.recipe.hidden, CLASSES), self._weights_seed)

    def shuffling(self) -> np.random.Generator:
        """Generator that decides the order of the pictures, epoch after epoch."""
        return np.random.default_rng(self._order_seed)

    def batches(self, random: np.random.Generator) -> list[Indices]:
        """The pictures of one epoch by number, in full batches."""
        size, order = self.recipe.batch_size, random.permutation(len(self.train))
        return [order[step * size :][:size] for step in range(self.recipe.steps_per_epoch)]

    def step(self, network: DemoNetwork, batch: Indices) -> float:
        """Learn from a batch; its loss before."""
        return network.step(self.train.pixels[batch], self.train.labels[batch], self.recipe.rate)

    def epochs(self, on_step: Callable[[], object]) -> Iterator[Learned]:
        """Train a fresh network, epoch by epoch; ``on_step`` is called after each step."""
        network, random = self.fresh(), self.shuffling()
        for epoch in range(1, self.recipe.epochs + 1):
            losses = []
            for batch in self.batches(random):
                losses.append(self.step(network, batch))
                on_step()
            yield Learned(epoch, float(np.mean(losses)), network.accuracy(self.test))
