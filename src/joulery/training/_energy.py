"""Seconds and joules of one attempt: in total, epoch by epoch, and by device."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from joulery.jobs import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.frontier import Provenance
    from joulery.metering import Measurement, Meter, Window
    from joulery.power import ProcessGroup

_LEAST_ERROR = 0.005  # of time and power over whole epochs, at best
_ONE_EPOCH_ERROR = 0.02


class Usage(NamedTuple):
    """Time and energy; the joules are NaN where they are unknown."""

    seconds: float
    joules: float

    def since(self, before: Usage) -> Usage:
        """The difference to an earlier reading."""
        return Usage(self.seconds - before.seconds, self.joules - before.joules)

    @property
    def known(self) -> bool:
        """Whether both are figures that can be reported."""
        return all(math.isfinite(part) and part >= 0 for part in self)


NOTHING = Usage(0.0, 0.0)


class DeviceEnergy(NamedTuple):
    """Energy of one device.

    Attributes:
        id: Id of the device.
        name: Kind of the device.
        seconds: Time of the measurement.
        joules: Energy used.
        provenance: Origin of the figure.
    """

    id: str
    name: str
    seconds: float
    joules: float
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class EpochUsage:
    """Time and energy of one epoch.

    Attributes:
        whole: All of it, with validation.
        outside_training: The part that is no training; nothing where steps were not reported.
        limit_watts: Power limit that was held all through; None where it changed or is unknown.
    """

    whole: Usage
    outside_training: Usage
    limit_watts: float | None


class EnergyAccount:
    """Reads a meter at the edges of epochs and of training.

    Args:
        meter: Meter of the job's devices in this process.
        group: All processes of the job; all of them call the same methods in the same order.
        limit: Function that gives the power limit in force, and how often it was set so far.
        epochs: Whole epochs trained before, under a probe or before a checkpoint.
        before: Time and energy that this process used before a checkpoint.

    Attributes:
        epochs: Whole epochs trained.
        steps_per_epoch: Steps of a whole epoch; None before that is known.
        in_epoch: Whether an epoch is under way.
        was_cut: Whether the last epoch was left before its end.
        latest_total: Latest result of :meth:`total`.
    """

    def __init__(
        self,
        meter: Meter,
        group: ProcessGroup | None = None,
        limit: Callable[[], tuple[float | None, int]] = lambda: (None, 0),
        epochs: int = 0,
        before: Usage = NOTHING,
    ) -> None:
        self.epochs = epochs
        self.steps_per_epoch: int | None = None
        self.in_epoch = False
        self.was_cut = False
        self.latest_total = NOTHING
        self._meter = meter
        self._group = group
        self._limit = limit
        self._before = before
        self._window: Window | None = meter.begin("run")
        self._latest = self._window.measurement
        self._counted = self._latest  # as of the last total()
        self._at_target: Measurement | None = None
        self._finished: list[EpochUsage] = []
        self._epoch_began, self._epoch_limit = before, limit()
        self._training_began: Usage | None = None
        self._training = NOTHING
        self._steps = self._whole_steps = 0

    # Life cycle: begin_epoch, begin_training, end_training, end_epoch.

    def begin_epoch(self) -> None:
        """Count from here as an epoch."""
        self.in_epoch = True
        self._epoch_began, self._training, self._steps = self.here(), NOTHING, 0
        self._epoch_limit = self._limit()

    def begin_training(self, length: int | None) -> None:
        """Count from here as training; ``length`` is its number of steps, if that is known."""
        self._training_began = self.here()
        if length:
            self.steps_per_epoch = length

    def end_training(self, steps: int) -> None:
        """Count no longer as training, after ``steps`` steps."""
        if self._training_began is not None:
            took = self.here().since(self._training_began)
            self._training = Usage(
                self._training.seconds + took.seconds, self._training.joules + took.joules
            )
            self._training_began = None
        self._steps += steps

    def end_epoch(self) -> None:
        """Close the epoch. One that was cut counts in the total, but not as an epoch."""
        self.in_epoch = False
        if self.was_cut:
            return
        # What follows the target in its epoch, such as a last test, does not count.
        now = self._usage(self._at_target or self.measurement())
        whole = _over_ranks(now.since(self._epoch_began), self._group)
        training = _over_ranks(self._training, self._group)
        outside = whole.since(training) if self._steps else NOTHING
        limit = self._epoch_limit[0] if self._limit() == self._epoch_limit else None
        self._finished.append(EpochUsage(whole, outside, limit))
        if self._at_target is None:
            self.epochs += 1
        if self._steps:
            self.steps_per_epoch = self._whole_steps = self._steps
            self._steps = 0

    def cut_epoch(self) -> None:
        """Mark the epoch under way as left before its end."""
        self.was_cut = True
        self.steps_per_epoch = self._whole_steps or self.steps_per_epoch

    def mark_target(self) -> None:
        """Mark the moment of the target: what comes after does not count."""
        self._at_target = self.measurement()
        if self.in_epoch:
            self.epochs += 1  # the loop may be left without coming to its end

    def close(self) -> None:
        """Count nothing from here on."""
        if self._window is not None:
            self._latest = self._meter.end(self._window).measurement
            self._window = None

    # Figures.

    @property
    def is_validating(self) -> bool:
        """Whether the steps of the epoch under way are over."""
        return self.in_epoch and self._training_began is None and self._steps > 0

    def here(self) -> Usage:
        """All so far in this process; may be called from any thread."""
        return self._usage(self.measurement())

    def total(self) -> Usage:
        """All so far over all ranks, up to the target; every rank has to ask."""
        self._counted = self._at_target or self.measurement()
        self.latest_total = _over_ranks(self._usage(self._counted), self._group)
        return self.latest_total

    def by_device(self) -> tuple[DeviceEnergy, ...]:
        """The latest total by device, of this process's part; every rank has to ask."""
        counted = self._counted
        mine = tuple(
            DeviceEnergy(one.info.id, one.info.name, counted.seconds, one.joules, one.provenance)
            for one in counted.counted
            if math.isfinite(one.joules) and one.joules > 0
        )
        return devices_over_ranks(mine, self._group)

    def last_epoch(self) -> Usage:
        """The last whole epoch; nothing before the first."""
        return self._finished[-1].whole if self._finished else NOTHING

    def outside_training(self) -> Usage | None:
        """Mean of what an epoch takes besides training; None before the first."""
        seen = [epoch.outside_training for epoch in self._finished if epoch.outside_training.known]
        if not seen:
            return None
        return Usage(fmean(one.seconds for one in seen), fmean(one.joules for one in seen))

    def epoch_costs(self) -> list[Measured]:
        """Mean cost of a whole epoch under each power limit that was held all through it."""
        costs = [
            epoch_cost(
                limit,
                [e.whole for e in self._finished if e.limit_watts == limit and e.whole.known],
            )
            for limit in dict.fromkeys(epoch.limit_watts for epoch in self._finished)
        ]
        return [cost for cost in costs if cost is not None]

    def _usage(self, measured: Measurement) -> Usage:
        # A rank without devices of its own uses nothing; joules of silent devices are NaN.
        joules = measured.joules if measured.devices else 0.0
        return Usage(self._before.seconds + measured.seconds, self._before.joules + joules)

    def measurement(self) -> Measurement:
        """The measurement of this process so far; may be called from any thread."""
        window = self._window
        if window is not None:
            self._latest = window.measurement
        return self._latest


def _over_ranks(mine: Usage, group: ProcessGroup | None) -> Usage:
    """Usage of all ranks: joules add up, the slowest sets the pace."""
    if group is None:
        return mine
    each = group.all_gather(tuple(mine))
    return Usage(max(seconds for seconds, _ in each), sum(joules for _, joules in each))


def devices_over_ranks(
    mine: Sequence[DeviceEnergy], group: ProcessGroup | None
) -> tuple[DeviceEnergy, ...]:
    """Devices of all ranks, each under an id of its own."""
    if group is None:
        return tuple(mine)
    each = group.all_gather(tuple(mine))
    often = Counter(one.id for devices in each for one in devices)
    # Other machines may number their devices alike.
    return tuple(
        one if often[one.id] == 1 else one._replace(id=f"{one.id} of rank {rank}")
        for rank, devices in enumerate(each)
        for one in devices
    )


def epoch_cost(limit_watts: float | None, epochs: Sequence[Usage]) -> Measured | None:
    """Mean cost of some epochs under a power limit, and how certain it is; None of none."""
    if not epochs:
        return None
    seconds, joules = fmean(one.seconds for one in epochs), fmean(one.joules for one in epochs)
    if not (seconds > 0 and joules > 0):
        return None
    if len(epochs) == 1:
        return Measured(limit_watts, seconds, joules, _ONE_EPOCH_ERROR)
    scatter = stdev(one.seconds for one in epochs) / seconds
    if all(one.seconds > 0 for one in epochs):
        watts = stdev(one.joules / one.seconds for one in epochs)
        scatter = max(scatter, watts / (joules / seconds))
    error = max(_LEAST_ERROR, scatter / math.sqrt(len(epochs)))
    return Measured(limit_watts, seconds, joules, error)
