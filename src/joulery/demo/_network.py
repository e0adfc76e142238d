"""A small multilayer perceptron with real gradients, in NumPy."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.demo._glyphs import Floats, Labels, Pictures


@dataclass(frozen=True, slots=True)
class Momentum:
    """Stochastic gradient descent with momentum."""

    rate: float = 0.03
    momentum: float = 0.9


class DemoNetwork:
    """Rectified layers, a softmax on top, cross-entropy as the loss.

    Args:
        sizes: Width of every layer, from the inputs to the classes.
        seed: Decides the first weights.
    """

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        random = np.random.default_rng(seed)
        self.parameters: list[Floats] = []
        for inputs, outputs in itertools.pairwise(sizes):
            # The variance that keeps the signal's size through rectifiers (He et al., 2015).
            weights = random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
            self.parameters += [weights, np.zeros(outputs)]
        self._velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def gradients(self, pixels: Floats, labels: Labels) -> tuple[float, list[Floats]]:
        """Mean loss of a batch, and its slope in every parameter."""
        activations = self._activations(pixels)
        probabilities = _softmax(activations[-1])
        rows = np.arange(len(labels))
        loss = -float(np.mean(np.log(probabilities[rows, labels] + 1e-300)))
        slope = probabilities
        slope[rows, labels] -= 1.0
        slope /= len(labels)
        found: list[Floats] = []
        for layer in reversed(range(len(self.parameters) // 2)):
            found += [slope.sum(axis=0), activations[layer].T @ slope]
            if layer:
                slope = (slope @ self.parameters[2 * layer].T) * (activations[layer] > 0)
        return loss, found[::-1]

    def step(self, pixels: Floats, labels: Labels, rule: Momentum) -> float:
        """Learn from one batch; its loss before the step."""
        loss, slopes = self.gradients(pixels, labels)
        for index, slope in enumerate(slopes):
            self._velocities[index] *= rule.momentum
            self._velocities[index] -= rule.rate * slope
            self.parameters[index] += self._velocities[index]
        return loss

    def accuracy(self, pictures: Pictures) -> float:
        """Share of the pictures that it reads right."""
        scores = self._activations(pictures.pixels)[-1]
        return float(np.mean(scores.argmax(axis=1) == pictures.labels))

    def fingerprint(self) -> str:
        """Equal for equal weights, to the last bit."""
        digest = hashlib.sha256()
        for parameter in self.parameters:
            digest.update(parameter.tobytes())
        return digest.hexdigest()[:16]

    def _activations(self, pixels: Floats) -> list[Floats]:
        """Inputs, every hidden layer, and the scores of the classes."""
        found = [pixels]
        for layer in range(len(self.parameters) // 2):
            sums = found[-1] @ self.parameters[2 * layer] + self.parameters[2 * layer + 1]
            last = 2 * layer + 2 == len(self.parameters)
            found.append(sums if last else np.maximum(sums, 0.0))
        return found


def _softmax(scores: Floats) -> Floats:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalised: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return normalised
