"""Seconds and joules of one attempt: in total, by epoch and by device, and as documents."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from joulery.client import RunMeasurements
from joulery.frontier import ASSUMED, OperatingPoint, Provenance, Setting
from joulery.jobs import EnergyEntry, Measured
from joulery.training._tuning import UNKNOWN_LIMIT, LimitState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.hardware import Device
    from joulery.jobs import Decision, Definition, Job, Outcome
    from joulery.metering import Measurement, Meter, Window
    from joulery.power import Estimate, ProcessGroup

# Relative errors of time and power of epochs, by hand from simulated boards of the catalog: many
# whole epochs at best, a single one, and one estimated from steps, whose stalls were left out.
_LEAST_ERROR, _ONE_EPOCH_ERROR, _SLICE_ERROR = 0.005, 0.02, 0.01
_LARGEST_ERROR = 1.0  # by hand: what is known less well is worth nothing to a policy
_SAME_WATTS = 0.5  # by hand: drivers round limits to whole watts
_LONGEST_TEXT = 200  # longest id and source that a store takes


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


class Start(NamedTuple):
    """What came before an attempt.

    Attributes:
        epochs: Whole epochs trained, under a probe or before a checkpoint.
        usage: Time and energy that this process used before a checkpoint.
        outside_training: What an epoch took besides training.
    """

    epochs: int = 0
    usage: Usage = NOTHING
    outside_training: Usage = NOTHING


FRESH = Start()


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
        outside_training: The part that is not training; nothing where steps were not reported.
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
        start: What came before.

    Attributes:
        epochs: Whole epochs trained.
        steps_per_epoch: Steps of a whole epoch; None before that is known.
        in_epoch: Whether an epoch is under way.
        was_cut: Whether the last epoch was left before its end.
        latest_total: Latest result of ``total``.
    """

    def __init__(
        self,
        meter: Meter,
        group: ProcessGroup | None = None,
        start: Start = FRESH,
    ) -> None:
        self.epochs = start.epochs
        self.steps_per_epoch: int | None = None
        self.in_epoch = False
        self.was_cut = False
        self.latest_total = NOTHING
        self._meter = meter
        self._group = group
        self._start = start
        self._window: Window | None = meter.begin("run")
        self._latest = self._window.measurement
        self._counted = self._latest  # as of the last total()
        self._at_target: Measurement | None = None
        self._finished: list[EpochUsage] = []
        self._epoch_began, self._epoch_limit = start.usage, UNKNOWN_LIMIT
        self._training_began: Usage | None = None
        self._training = NOTHING
        self._steps = self._whole_steps = 0

    # Life cycle: begin_epoch, begin_training, end_training, end_epoch.

    def begin_epoch(self, limit: LimitState = UNKNOWN_LIMIT) -> None:
        """Count from here as an epoch, which begins under a power limit."""
        self.in_epoch = True
        self._epoch_began, self._training, self._steps = self.here(), NOTHING, 0
        self._epoch_limit = limit

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

    def end_epoch(self, limit: LimitState = UNKNOWN_LIMIT) -> None:
        """Close the epoch, which ends under a power limit.

        One that was cut counts in the total, but not as an epoch.
        """
        self.in_epoch = False
        if self.was_cut:
            return
        # What follows the target in its epoch, such as a last test, does not count.
        now = self._usage(self._at_target or self.measurement())
        usage = _over_ranks(now.since(self._epoch_began), self._group)
        training = _over_ranks(self._training, self._group)
        outside = usage.since(training) if self._steps else NOTHING
        watts = limit.watts if limit == self._epoch_limit else None
        self._finished.append(EpochUsage(usage, outside, watts))
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
        """Usage of this process until now; may be called from any thread."""
        return self._usage(self.measurement())

    def latest(self) -> Usage:
        """Usage until now that any thread may ask for; over all ranks as of the last total."""
        return self.here() if self._group is None else self.latest_total

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices of this process that are measured."""
        return tuple(self._meter.devices)

    def total(self) -> Usage:
        """Usage of all ranks until now, up to the target; every rank has to ask."""
        self._counted = self._at_target or self.measurement()
        self.latest_total = _over_ranks(self._usage(self._counted), self._group)
        return self.latest_total

    def by_device(self) -> tuple[DeviceEnergy, ...]:
        """The latest total by device, of this process's part; every rank has to ask."""
        measurement = self._counted
        devices = tuple(
            DeviceEnergy(
                device.info.id,
                device.info.name,
                measurement.seconds,
                device.joules,
                device.provenance,
            )
            for device in measurement.counted
            if math.isfinite(device.joules) and device.joules > 0
        )
        return devices_over_ranks(devices, self._group)

    def last_epoch(self) -> Usage:
        """The last whole epoch; nothing before the first."""
        return self._finished[-1].whole if self._finished else NOTHING

    def outside_training(self) -> Usage:
        """Mean of what an epoch takes besides training; that of earlier attempts before one."""
        parts = [epoch.outside_training for epoch in self._finished if epoch.outside_training.known]
        if not parts:
            return self._start.outside_training
        return Usage(fmean(part.seconds for part in parts), fmean(part.joules for part in parts))

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

    def measured(self, job: Job, steps: Mapping[float, Estimate]) -> tuple[Measured, ...]:
        """Cost of an epoch under each power limit that was held or measured.

        Args:
            job: Job that lists the limits.
            steps: Estimates of a step by power limit.
        """
        # Epochs of milliseconds are noisy: none used more than the boards can draw.
        most_watts = job.cost.max_watts or math.inf
        return tuple(
            structs.replace(
                cost, epoch_joules=min(cost.epoch_joules, most_watts * cost.epoch_seconds)
            )
            for cost in self._costs(job.limits_watts, steps)
        )

    def _costs(
        self, limits_watts: Sequence[float], steps: Mapping[float, Estimate]
    ) -> Iterator[Measured]:
        costs = self.epoch_costs()
        if not limits_watts:
            yield from (cost for cost in costs if cost.limit_watts is None)
            return
        costs += self._costs_by_steps(steps)
        for limit in limits_watts:
            # Whole epochs at a limit, or slices of steps where their error is smaller.
            at_limit = [cost for cost in costs if _is_same(cost.limit_watts, limit)]
            if at_limit:
                best = min(at_limit, key=lambda cost: cost.relative_error)
                yield structs.replace(best, limit_watts=limit)

    def _costs_by_steps(self, steps: Mapping[float, Estimate]) -> Iterator[Measured]:
        outside = self.outside_training()
        for watts, step in steps.items() if self.steps_per_epoch else ():
            error = max(step.seconds_error, step.watts_error, _SLICE_ERROR)
            seconds = (self.steps_per_epoch or 0) * step.seconds
            joules = seconds * step.watts
            if error <= _LARGEST_ERROR and joules > 0:
                yield Measured(watts, seconds + outside.seconds, joules + outside.joules, error)

    def _usage(self, measured: Measurement) -> Usage:
        # A rank without devices of its own uses nothing; joules of silent devices are NaN.
        joules = measured.joules if measured.devices else 0.0
        before = self._start.usage
        return Usage(before.seconds + measured.seconds, before.joules + joules)

    def measurement(self) -> Measurement:
        """The measurement of this process until now; may be called from any thread."""
        window = self._window
        if window is not None:
            self._latest = window.measurement
        return self._latest


def _is_same(watts: float | None, limit_watts: float) -> bool:
    return watts is not None and abs(watts - limit_watts) <= _SAME_WATTS


def _over_ranks(usage: Usage, group: ProcessGroup | None) -> Usage:
    """Usage of all ranks: joules add up, the slowest sets the pace."""
    if group is None:
        return usage
    usages = group.all_gather(tuple(usage))
    return Usage(max(seconds for seconds, _ in usages), sum(joules for _, joules in usages))


def devices_over_ranks(
    devices: Sequence[DeviceEnergy], group: ProcessGroup | None
) -> tuple[DeviceEnergy, ...]:
    """Devices of all ranks, each under an id of its own."""
    if group is None:
        return tuple(devices)
    ranks = group.all_gather(tuple(devices))
    often = Counter(device.id for devices in ranks for device in devices)
    # Other machines may number their devices alike.
    return tuple(
        device if often[device.id] == 1 else device._replace(id=f"{device.id} of rank {rank}")
        for rank, devices in enumerate(ranks)
        for device in devices
    )


def epoch_cost(limit_watts: float | None, epochs: Sequence[Usage]) -> Measured | None:
    """Mean cost of some epochs under a power limit, and how certain it is; None of none."""
    if not epochs:
        return None
    seconds, joules = (
        fmean(epoch.seconds for epoch in epochs),
        fmean(epoch.joules for epoch in epochs),
    )
    if not (seconds > 0 and joules > 0):
        return None
    if len(epochs) == 1:
        return Measured(limit_watts, seconds, joules, _ONE_EPOCH_ERROR)
    scatter = stdev(epoch.seconds for epoch in epochs) / seconds
    if all(epoch.seconds > 0 for epoch in epochs):
        watts = stdev(epoch.joules / epoch.seconds for epoch in epochs)
        scatter = max(scatter, watts / (joules / seconds))
    error = max(_LEAST_ERROR, scatter / math.sqrt(len(epochs)))
    return Measured(limit_watts, seconds, joules, error)


def run_measurements(
    decision: Decision, outcome: Outcome, devices: Sequence[DeviceEnergy], definition: Definition
) -> RunMeasurements:
    """Measurements of an attempt that are worth keeping besides its outcome."""
    origin = ASSUMED
    if devices:
        origin = Provenance.combined((device.provenance, device.joules) for device in devices)
    setting = Setting(
        batch_size=decision.batch_size,
        device=devices[0].name if devices else definition.device,
        devices=len(devices) if len(devices) > 1 else None,
    )
    return RunMeasurements(
        batch_size=decision.batch_size,
        device=definition.device,
        points=tuple(_point(cost, setting, origin) for cost in outcome.measured),
        energy=tuple(_entry(device, decision.id) for device in devices),
        work=f"an epoch of {definition.job.name} at batch size {decision.batch_size}",
    )


def _point(cost: Measured, setting: Setting, origin: Provenance) -> OperatingPoint:
    # Joules are seconds times watts, which err independently.
    error = math.sqrt(2.0) * cost.relative_error
    return OperatingPoint(
        cost.epoch_seconds,
        cost.epoch_joules,
        replace(setting, power_limit_watts=cost.limit_watts),
        Provenance(origin.origin, origin.source, error),
    )


def _entry(device: DeviceEnergy, decision_id: str) -> EnergyEntry:
    error = device.provenance.relative_error
    return EnergyEntry(
        decision_id,
        device.id[:_LONGEST_TEXT],
        device.seconds,
        device.joules,
        device.provenance.origin.value,
        device.provenance.source[:_LONGEST_TEXT],
        None if error is None else round(error, 6),
    )
