"""Train the network: real steps, each of which also costs whoever asks to be told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulery.demo import _glyphs as glyphs
from joulery.demo._network import DemoNetwork, Momentum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from joulery.demo._glyphs import Pictures


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
        rule: How a step learns.
    """

    seed: int = 0
    epochs: int = 8
    pictures: int = 6000
    test_pictures: int = 2000
    # 48 × 144 × 36 is small enough for BLAS to stay on one thread: more threads bring nothing
    # here, and on a busy machine they wait for each other.
    batch_size: int = 48
    hidden: int = 36
    rule: Momentum = field(default_factory=Momentum)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in one pass."""
        return self.pictures // self.batch_size


@dataclass(frozen=True, slots=True)
class Learned:
    """What the network had learned by the end of an epoch; real, not simulated.

    Attributes:
        epoch: Counted from 1.
        loss: Mean training loss over the epoch.
        accuracy: Share of the test pictures read right, 0 to 1.
        fingerprint: Of the weights, equal only for equal ones.
    """

    epoch: int
    loss: float
    accuracy: float
    fingerprint: str


class Trainer:
    """The pictures of a recipe, and as many fresh networks trained on them as one likes."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        # Separate streams from one seed, so that no two of them share their random numbers.
        train, test, self._weights_seed, self._order_seed = (
            int(word) for word in np.random.SeedSequence(recipe.seed).generate_state(4)
        )
        self.train: Pictures = glyphs.draw(recipe.pictures, train)
        self.test: Pictures = glyphs.draw(recipe.test_pictures, test)

    def untrained_accuracy(self) -> float:
        """What a fresh network gets right by chance."""
        return self.fresh().accuracy(self.test)

    def epochs(self, on_step: Callable[[], object]) -> Iterator[Learned]:
        """Train a fresh network, epoch by epoch; the same numbers come out every time.

        Args:
            on_step: Called once after each step, for what the step costs.
        """
        network, random = self.fresh(), self.shuffling()
        for epoch in range(1, self.recipe.epochs + 1):
            losses = []
            for batch in self.batches(random):
                losses.append(self.step(network, batch))
                on_step()
            yield Learned(
                epoch,
                float(np.mean(losses)),
                network.accuracy(self.test),
                network.fingerprint(),
            )

    def fresh(self) -> DemoNetwork:
        """A network that has learned nothing yet."""
        sizes = (glyphs.FEATURES, self.recipe.hidden, glyphs.CLASSES)
        return DemoNetwork(sizes, self._weights_seed)

    def shuffling(self) -> np.random.Generator:
        """Decides the order of the pictures, epoch after epoch."""
        return np.random.default_rng(self._order_seed)

    def batches(self, random: np.random.Generator) -> list[NDArray[np.int64]]:
        """The pictures of one epoch by number, in batches."""
        size, order = self.recipe.batch_size, random.permutation(len(self.train))
        return [
            order[step * size : (step + 1) * size] for step in range(self.recipe.steps_per_epoch)
        ]

    def step(self, network: DemoNetwork, batch: NDArray[np.int64]) -> float:
        """Learn from a batch; its loss before."""
        return network.step(self.train.pixels[batch], self.train.labels[batch], self.recipe.rule)
