"""Infer the steps of a job that reports nothing, from the period of its power.

Training repeats itself step by step, and power repeats with it. The autocorrelation of evenly
spaced samples shows the period; how far it stands out says how certain that is. Below a threshold
the right thing is to advise, not to act.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from joulery.background import PeriodicTask
from joulery.errors import JouleryError
from joulery.hardware import Capability, DeviceKind, PowerMeter, check_devices
from joulery.units import human, per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from joulery.hardware import Device

# Fewer samples show periods in noise.
_LEAST_SAMPLES = 32
# A period must be seen at least this often; by hand.
_LEAST_REPEATS = 4
# Peaks this close to the highest one compete; the shortest of them is the step, not a multiple;
# by hand.
_NEAR_HIGHEST = 0.9
# Confidence from which on a period is certain; by hand: of white noise it stays below 0.2.
_SURE = 0.6
# As often as power sensors refresh, and four of the longest usual steps.
_INTERVAL_SECONDS, _REMEMBERED_SECONDS = 0.05, 120.0


def find_step_period(
    samples: Sequence[float], interval_seconds: float
) -> tuple[float, float] | None:
    """The period of evenly spaced samples and its confidence; None where there is none.

    The confidence is the share of the signal's variation that repeats with the period, 0 to 1.
    """
    if len(samples) < _LEAST_SAMPLES:
        return None
    correlation = _autocorrelation(samples)
    longest = len(samples) // _LEAST_REPEATS
    # Right after 0 every smooth signal resembles itself: only what follows a dip is a return.
    dip = next((lag for lag in range(1, longest) if correlation[lag] < 0.2), longest)
    peaks = [
        lag
        for lag in range(max(2, dip + 1), longest)
        if correlation[lag] > correlation[lag - 1] and correlation[lag] >= correlation[lag + 1]
    ]
    highest = max((correlation[lag] for lag in peaks), default=0.0)
    if highest <= 0:
        return None
    lag = next(lag for lag in peaks if correlation[lag] >= _NEAR_HIGHEST * highest)
    height = correlation[lag]
    if height <= 2 / math.sqrt(len(samples)):
        return None  # what noise alone would show
    return (lag + _vertex(correlation, lag)) * interval_seconds, min(1.0, height)


def _autocorrelation(samples: Sequence[float]) -> list[float]:
    """Unbiased and normalised, by Fourier transform."""
    import numpy as np

    values = np.asarray(samples, dtype=np.float64)
    # A slow trend, such as a board warming up, is no period.
    indices = np.arange(len(values))
    values = values - np.polyval(np.polyfit(indices, values, 1), indices)
    padded = 2 ** math.ceil(math.log2(2 * len(values)))
    spectrum = np.abs(np.fft.rfft(values, padded)) ** 2
    raw = np.fft.irfft(spectrum)[: len(values)]
    if raw[0] <= 1e-12 * max(1.0, float(np.abs(samples).max()) ** 2):
        return [0.0] * len(values)
    unbiased = raw / np.arange(len(values), 0, -1)
    return [float(value) for value in unbiased / unbiased[0]]


def _vertex(correlation: Sequence[float], lag: int) -> float:
    """Place of the peak between samples, by a parabola through three points."""
    before, middle, after = correlation[lag - 1 : lag + 2]
    bend = before - 2 * middle + after
    return 0.0 if bend == 0 else max(-0.5, min(0.5, 0.5 * (before - after) / bend))


@dataclass(frozen=True, slots=True)
class ObservedSteps:
    """Steps of a job as the power of one device shows them.

    Attributes:
        device: Id of the device.
        step_seconds: Length of a step; None where power has no period.
        confidence: Share of the variation of power that repeats with it, 0 to 1.
    """

    device: str
    step_seconds: float | None = None
    confidence: float = 0.0

    @property
    def advice(self) -> str:
        """One sentence for the user: what is known, and what to do."""
        if self.step_seconds is None:
            finding = "its power shows no period, so its steps are unknown"
        else:
            certainty = "certain" if self.confidence >= _SURE else "uncertain"
            finding = (
                f"steps of about {human(self.step_seconds, 's')}, judging by its power "
                f"({certainty}: {per_cent(self.confidence)} of the variation repeats)"
            )
        return f"{self.device}: {finding}; report them through joulery.Run to have the power tuned"

    def to_dict(self) -> dict[str, Any]:
        """The finding as a JSON document."""
        return {**asdict(self), "advice": self.advice}


class PowerObserver:
    """Samples the power of accelerators in the background, the last two minutes of it.

    Args:
        devices: Devices to sample; those that are no accelerators or have no sensor are skipped.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        check_devices(devices)
        self._sensors: list[tuple[str, PowerMeter]] = [
            (device.info.id, device)
            for device in devices
            if device.info.kind is DeviceKind.GPU
            and Capability.POWER in device.capabilities
            and isinstance(device, PowerMeter)
        ]
        longest = round(_REMEMBERED_SECONDS / _INTERVAL_SECONDS)
        self._samples: dict[str, deque[float]] = {
            name: deque(maxlen=longest) for name, _ in self._sensors
        }
        self._task = PeriodicTask(self._watch, seconds=_INTERVAL_SECONDS, name="joulery-watch")

    def __enter__(self) -> Self:
        if self._sensors:
            self._task.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._task.stop(timeout_seconds=1.0)

    def steps(self) -> list[ObservedSteps]:
        """Steps of each device by the samples so far."""
        return [
            ObservedSteps(name, *(find_step_period(list(samples), _INTERVAL_SECONDS) or ()))
            for name, samples in self._samples.items()
        ]

    def _watch(self) -> None:
        for name, sensor in self._sensors:
            self._samples[name].append(self._sample(name, sensor))

    def _sample(self, name: str, sensor: PowerMeter) -> float:
        try:
            watts = sensor.read_power()
        except JouleryError:
            watts = math.nan
        if math.isfinite(watts):
            return watts
        # Even spacing matters more than one value: repeat the last one.
        samples = self._samples[name]
        return samples[-1] if samples else 0.0
