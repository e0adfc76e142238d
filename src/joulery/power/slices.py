"""Turn short stretches of steps at one setting into a step time and a power with error bars.

Stretches that a stall, a pause or a neighbour disturbed stand out from the others and are left
out. Noise of the steps is pooled over all settings, because three stretches alone cannot tell it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Relative noise of one step before any was seen, and how many stretches that guess is worth.
_GUESSED_NOISE, _GUESS_WEIGHT = 0.01, 2.0
_LEAST_NOISE = 2e-4
# A stretch this many sigmas off, and by at least this much, was disturbed.
_OUTLIER_SIGMAS, OUTLIER_LEAST = 5.0, 0.02
_LEAST_SECONDS_ERROR, _LEAST_WATTS_ERROR = 2e-4, 1e-3
_MAD_TO_SIGMA = 1.4826
# From so many stretches on, their own scatter tells the error of the power; as they are few, with a
# factor on top, and never below this much for one stretch.
_TELLING_STRETCHES, _FEW_FACTOR, _FEW_ERROR = 3, 1.5, 0.003


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some consecutive steps at one setting.

    Attributes:
        steps: How many.
        seconds: How long they took.
        joules: Energy they used.
        sigma_joules: One sigma of the energy at its two edges.
    """

    steps: int
    seconds: float
    joules: float
    sigma_joules: float

    @property
    def log_pace(self) -> float:
        """Logarithm of the seconds per step."""
        return math.log(self.seconds / self.steps)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds per step and watts at one setting, with relative errors (one sigma).

    Attributes:
        seconds: Per step.
        watts: Mean power of all devices.
        seconds_error: Relative.
        watts_error: Relative.
        steps: Steps behind it.
        span_seconds: Time behind it.
    """

    seconds: float
    watts: float
    seconds_error: float
    watts_error: float
    steps: int
    span_seconds: float


@dataclass(slots=True)
class Tally:
    """Everything measured at one setting.

    Attributes:
        stretches: In the order of time.
        visits: On how many occasions.
    """

    stretches: list[Stretch] = field(default_factory=list)
    visits: int = 0

    def add(self, stretch: Stretch) -> None:
        """Note another stretch; they may lie apart in time."""
        self.stretches.append(stretch)

    @property
    def steps(self) -> int:
        """Steps measured here."""
        return sum(stretch.steps for stretch in self.stretches)

    @property
    def seconds(self) -> float:
        """Time measured here."""
        return sum(stretch.seconds for stretch in self.stretches)

    def estimate(self, step_noise: float) -> Estimate:
        """Step time and power without disturbed stretches.

        Args:
            step_noise: Relative standard deviation of one step.
        """
        kept = undisturbed(self.stretches, step_noise)
        steps = sum(stretch.steps for stretch in kept)
        seconds = sum(stretch.seconds for stretch in kept)
        joules = sum(stretch.joules for stretch in kept)
        # Neighbouring stretches share their edges, so only the outer ones and those around a
        # gap count.
        edges = 1 + len(self.stretches) - len(kept)
        edge = math.sqrt(edges * sum(s.sigma_joules**2 for s in kept) / len(kept))
        return Estimate(
            seconds / steps,
            joules / seconds,
            max(_LEAST_SECONDS_ERROR, step_noise / math.sqrt(steps)),
            max(_LEAST_WATTS_ERROR, min(edge / joules if joules > 0 else 1.0, _scatter(kept))),
            steps,
            seconds,
        )


def _scatter(stretches: Sequence[Stretch]) -> float:
    """Relative error of the mean power as the stretches themselves show it.

    A meter must allow for loads that change at any moment. These are steps of one job at one
    setting; where their power agrees, it did not change.
    """
    if len(stretches) < _TELLING_STRETCHES:
        return math.inf
    watts = [stretch.joules / stretch.seconds for stretch in stretches]
    mean = sum(watts) / len(watts)
    if mean <= 0:
        return math.inf
    variance = sum((each - mean) ** 2 for each in watts) / (len(watts) - 1)
    return max(_FEW_FACTOR * math.sqrt(variance) / mean, _FEW_ERROR) / math.sqrt(len(watts))


def undisturbed(stretches: Sequence[Stretch], step_noise: float) -> list[Stretch]:
    """The stretches whose pace agrees with that of the fastest quarter.

    Stalls and neighbours make steps slower, never faster, and may be around most of the time.
    """
    if len(stretches) < 3:
        return list(stretches)
    middle = sorted(stretch.log_pace for stretch in stretches)[(len(stretches) - 1) // 4]

    def agrees(stretch: Stretch) -> bool:
        expected = _OUTLIER_SIGMAS * step_noise / math.sqrt(stretch.steps)
        return abs(stretch.log_pace - middle) <= max(OUTLIER_LEAST, expected)

    return [stretch for stretch in stretches if agrees(stretch)] or list(stretches)


def step_noise(tallies: Iterable[Tally]) -> float:
    """Relative standard deviation of one step, pooled over settings; robust to stalls."""
    deviations = []
    for tally in tallies:
        if len(tally.stretches) < 2:
            continue
        middle = median(stretch.log_pace for stretch in tally.stretches)
        shrink = math.sqrt(len(tally.stretches) / (len(tally.stretches) - 1))
        deviations += [
            shrink * math.sqrt(stretch.steps) * abs(stretch.log_pace - middle)
            for stretch in tally.stretches
        ]
    if not deviations:
        return _GUESSED_NOISE
    rough = max(_LEAST_NOISE, _MAD_TO_SIGMA * median(deviations))
    calm = [deviation for deviation in deviations if deviation <= _OUTLIER_SIGMAS * rough]
    count = len(calm)
    variance = (sum(d * d for d in calm) + _GUESS_WEIGHT * _GUESSED_NOISE**2) / (
        count + _GUESS_WEIGHT
    )
    return max(_LEAST_NOISE, math.sqrt(variance))
