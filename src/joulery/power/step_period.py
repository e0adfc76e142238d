"""Infer the progress of a job that reports nothing, from the rhythm of its power or utilisation.

Training repeats itself step by step, and power repeats with it. The autocorrelation of evenly
spaced samples shows the period; how far it stands out says how sure that is. Below a threshold
the right thing is to advise, not to act.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_SAMPLES = 32
# A period must be seen at least this often.
_LEAST_REPEATS = 4
# Peaks this close to the highest one compete; the shortest of them is the step, not a multiple.
_NEAR_HIGHEST = 0.9
SURE = 0.6


@dataclass(frozen=True, slots=True)
class StepPeriod:
    """The period of a signal.

    Attributes:
        seconds: One period, presumably one step.
        confidence: 0 to 1: how much of the signal's variation repeats with it.
    """

    seconds: float
    confidence: float

    @property
    def sure(self) -> bool:
        """Whether to act on it rather than to advise."""
        return self.confidence >= SURE


def rhythm(samples: Sequence[float], interval_seconds: float) -> StepPeriod | None:
    """The period of evenly spaced samples; None when there is none to speak of.

    Args:
        samples: Watts or utilisation.
        interval_seconds: Time between two samples.
    """
    finite(interval_seconds, "interval in seconds", minimum=0.0)
    if interval_seconds == 0:
        raise InvalidValueError("samples need time between them", remedy="give the interval")
    if len(samples) < _LEAST_SAMPLES:
        return None
    correlation = _autocorrelation(samples)
    longest = len(samples) // _LEAST_REPEATS
    peaks = [
        lag
        for lag in range(2, longest)
        if correlation[lag] > correlation[lag - 1] and correlation[lag] >= correlation[lag + 1]
    ]
    # Right after 0 every smooth signal resembles itself: only what follows a dip is a return.
    dip = next((lag for lag in range(1, longest) if correlation[lag] < 0.2), longest)
    peaks = [lag for lag in peaks if lag > dip]
    if not peaks:
        return None
    highest = max(correlation[lag] for lag in peaks)
    if highest <= 0:
        return None
    lag = next(lag for lag in peaks if correlation[lag] >= _NEAR_HIGHEST * highest)
    height = correlation[lag]
    if height <= 2 / math.sqrt(len(samples)):
        return None  # what noise alone would show
    return StepPeriod((lag + _vertex(correlation, lag)) * interval_seconds, min(1.0, height))


def _autocorrelation(samples: Sequence[float]) -> list[float]:
    """Unbiased and normalised, by Fourier transform."""
    import numpy as np

    values = np.asarray(samples, dtype=np.float64)
    # A slow trend, such as a board warming up, is no rhythm.
    places = np.arange(len(values))
    values = values - np.polyval(np.polyfit(places, values, 1), places)
    padded = 2 ** math.ceil(math.log2(2 * len(values)))
    spectrum = np.abs(np.fft.rfft(values, padded)) ** 2
    raw = np.fft.irfft(spectrum)[: len(values)]
    if raw[0] <= 1e-12 * max(1.0, float(np.abs(samples).max()) ** 2):
        return [0.0] * len(values)
    unbiased = raw / np.arange(len(values), 0, -1)
    return [float(value) for value in unbiased / unbiased[0]]


def _vertex(correlation: Sequence[float], lag: int) -> float:
    """Where between samples the peak lies, by a parabola through three points."""
    left, middle, right = correlation[lag - 1 : lag + 2]
    bend = left - 2 * middle + right
    return 0.0 if bend == 0 else max(-0.5, min(0.5, 0.5 * (left - right) / bend))


def advice(found: StepPeriod | None) -> str:
    """One line for people."""
    if found is None:
        return "no steps can be told from its power: report them with joulery.Run, or set a limit"
    step = f"a step seems to take {found.seconds:.3g} s (confidence {found.confidence:.0%})"
    if found.sure:
        return step
    return f"{step}: too unsure to act on; report steps with joulery.Run"
