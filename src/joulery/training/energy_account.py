"""Seconds and joules of one attempt, as a whole and epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from joulery.metering.measurement import Measurement
    from joulery.metering.meter import Meter
    from joulery.metering.window import Window
    from joulery.training.environment import Ranks

_HELD_ERROR = 0.005  # of time and power over a whole epoch, at best
_ONE_EPOCH_ERROR = 0.02


class Usage(NamedTuple):
    """Time and energy; the joules are NaN where they are unknown."""

    seconds: float
    joules: float

    @classmethod
    def of(cls, measured: Measurement) -> Usage:
        """As a window measured it."""
        return cls(measured.seconds, measured.joules)

    def since(self, before: Usage) -> Usage:
        """The difference."""
        return Usage(self.seconds - before.seconds, self.joules - before.joules)

    @property
    def known(self) -> bool:
        """Whether both are figures that can be reported."""
        return all(math.isfinite(part) and part >= 0 for part in self)


NOTHING = Usage(0.0, 0.0)


def together(mine: Usage, ranks: Ranks | None) -> Usage:
    """What all ranks spent: joules add up, the slowest sets the pace. Every rank has to ask."""
    if ranks is None:
        return mine
    each = ranks.gather(tuple(mine))
    return Usage(max(seconds for seconds, _ in each), sum(joules for _, joules in each))


@dataclass(frozen=True, slots=True)
class EpochUsage:
    """One epoch.

    Attributes:
        whole: With validation and all else.
        steps: Of training; 0 where they were not reported.
        training: What those took.
        limit_watts: Power limit that was held all through; None where it was changed or unknown.
    """

    whole: Usage
    steps: int
    training: Usage
    limit_watts: float | None

    @property
    def besides(self) -> Usage:
        """What is not training."""
        return self.whole.since(self.training) if self.steps else NOTHING


class EpochCost(NamedTuple):
    """What an epoch takes, with one sigma, relative."""

    seconds: float
    joules: float
    relative_error: float


class EnergyAccount:
    """Reads a meter at the edges of epochs.

    Args:
        meter: Of this job's devices.

    Attributes:
        epochs: Those that have ended.
    """

    def __init__(self, meter: Meter) -> None:
        self.epochs: list[EpochUsage] = []
        self._meter = meter
        self._window: Window | None = meter.begin("run")
        self._last = self._window.measurement
        self._epoch = NOTHING
        self._began_training: Usage | None = None
        self._training = NOTHING
        self._steps = 0

    def measurement(self) -> Measurement:
        """All so far, with the share of each device."""
        window = self._window
        if window is not None:
            self._last = window.measurement
        return self._last

    def now(self) -> Usage:
        """All so far."""
        return Usage.of(self.measurement())

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self._epoch = self.now()
        self._training, self._steps = NOTHING, 0

    def begin_training(self) -> None:
        """Steps of training follow."""
        self._began_training = self.now()

    def end_training(self, steps: int) -> None:
        """They have ended; how many they were."""
        if self._began_training is not None:
            took = self.now().since(self._began_training)
            self._training = Usage(
                self._training.seconds + took.seconds, self._training.joules + took.joules
            )
            self._steps += steps
            self._began_training = None

    def end_epoch(
        self, limit_watts: float | None, ranks: Ranks | None = None, until: Usage | None = None
    ) -> None:
        """The epoch has ended.

        Args:
            limit_watts: That was held all through it; None if none was.
            ranks: The other processes, all of which say so too.
            until: All that had been spent when it ended; now unless given.
        """
        whole = together((until or self.now()).since(self._epoch), ranks)
        training = together(self._training, ranks)
        self.epochs.append(EpochUsage(whole, self._steps, training, limit_watts))

    def end(self) -> Usage:
        """All of it; nothing is counted from here on."""
        if self._window is not None:
            self._last = self._meter.end(self._window).measurement
            self._window = None
        return Usage.of(self._last)

    def held(self, limit_watts: float | None) -> EpochCost | None:
        """What a whole epoch takes under a limit, by those that held it all through."""
        seen = [e.whole for e in self.epochs if e.limit_watts == limit_watts and e.whole.known]
        return figures_of(seen)

    def besides(self) -> Usage | None:
        """What an epoch takes besides training, on average; None before the first."""
        seen = [epoch.besides for epoch in self.epochs if epoch.besides.known]
        if not seen:
            return None
        return Usage(fmean(one.seconds for one in seen), fmean(one.joules for one in seen))


def figures_of(seen: list[Usage]) -> EpochCost | None:
    """The mean of some epochs, and how sure it is; None where there is none."""
    if not seen:
        return None
    seconds, joules = fmean(one.seconds for one in seen), fmean(one.joules for one in seen)
    if not (seconds > 0 and joules > 0):
        return None
    if len(seen) == 1:
        return EpochCost(seconds, joules, _ONE_EPOCH_ERROR)
    scatter = max(
        stdev(one.seconds for one in seen) / seconds,
        stdev(one.joules / one.seconds for one in seen if one.seconds > 0) / (joules / seconds)
        if all(one.seconds > 0 for one in seen)
        else 0.0,
    )
    return EpochCost(seconds, joules, max(_HELD_ERROR, scatter / math.sqrt(len(seen))))
