"""Infer the steps of a job that reports nothing, from the period of its power.

Training repeats itself step by step, and power repeats with it. The autocorrelation of evenly
spaced samples shows the period; how far it stands out says how certain that is. Below a threshold
the right thing is to advise, not to act.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.background import PeriodicTask
from joulery.errors import InvalidValueError, JouleryError
from joulery.hardware import Capability, DeviceKind, PowerMeter
from joulery.units import finite, human, per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from joulery.hardware import Device

_LEAST_SAMPLES = 32
# A period must be seen at least this often.
_LEAST_REPEATS = 4
# Peaks this close to the highest one compete; the shortest of them is the step, not a multiple.
_NEAR_HIGHEST = 0.9
_SURE = 0.6
_INTERVAL_SECONDS = 0.05
_REMEMBERED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StepPeriod:
    """The period of a signal.

    Attributes:
        seconds: Length of one period, presumably one step.
        confidence: Share of the signal's variation that repeats with it, 0 to 1.
    """

    seconds: float
    confidence: float

    @property
    def is_certain(self) -> bool:
        """Whether to act on it rather than to advise."""
        return self.confidence >= _SURE


def find_step_period(samples: Sequence[float], interval_seconds: float) -> StepPeriod | None:
    """The period of evenly spaced samples; None where there is none.

    Args:
        samples: Samples of power in watts, or of utilisation.
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
    # A slow trend, such as a board warming up, is no period.
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


@dataclass(frozen=True, slots=True)
class ObservedSteps:
    """Steps of a job as the power of one device shows them.

    Attributes:
        device: Id of the device.
        period: Period with its confidence; None where there is none.
    """

    device: str
    period: StepPeriod | None

    @property
    def advice(self) -> str:
        """One sentence for the user: what is known, and what to do."""
        if self.period is None:
            return (
                f"{self.device}: its power shows no period, so its steps are unknown; "
                "report them through joulery.Run to have the power tuned"
            )
        certainty = "certain" if self.period.is_certain else "uncertain"
        return (
            f"{self.device}: steps of about {human(self.period.seconds, 's')}, judging by its "
            f"power ({certainty}: {per_cent(self.period.confidence)} of the variation repeats); "
            "report them through joulery.Run to have the power tuned"
        )

    def to_dict(self) -> dict[str, Any]:
        """The finding as a JSON document."""
        found = self.period
        return {
            "device": self.device,
            "step_seconds": None if found is None else found.seconds,
            "confidence": 0.0 if found is None else found.confidence,
            "advice": self.advice,
        }


class PowerObserver:
    """Samples the power of accelerators in the background, the last two minutes of it.

    Args:
        devices: Devices to sample; those that are no accelerators or have no sensor are skipped.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
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
            ObservedSteps(name, find_step_period(list(samples), _INTERVAL_SECONDS))
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
