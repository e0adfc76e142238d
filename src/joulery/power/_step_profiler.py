"""Measure step time and power at knob positions, without I/O.

The profiler is a family of generators: each yields a ``Command`` (where the knob should be,
and after how many steps to report) and takes a ``Reading`` (time, joules and steps so far).
Samples that a stall, a pause or another process disturbed stand out and are left out. The noise of
a step is pooled over all settings, because three samples of one setting cannot estimate it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.errors import InvalidValueError
from joulery.power._drift import (
    LATEST_SECONDS,
    LONGEST_PERIOD,
    PERIODS,
    TimedSlices,
    find_period,
    separate,
)
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from joulery.objectives import Objective

    Procedure = Generator["Command", "Reading", None]

# Relative noise of one step before any was seen, and how many samples that guess is worth; by
# hand.
_GUESSED_NOISE, _GUESS_WEIGHT = 0.01, 2.0
# Least noise of a step: timers and counters are no better.
_LEAST_NOISE = 2e-4
# A sample this many sigmas off, and by at least this much, was disturbed; by hand.
_OUTLIER_SIGMAS, OUTLIER_LEAST = 5.0, 0.02
# Least errors of a slice; by hand.
_LEAST_SECONDS_ERROR, _LEAST_WATTS_ERROR = 2e-4, 1e-3
# Median absolute deviation of a normal distribution, inverse.
_MAD_TO_SIGMA = 1.4826
# From so many samples on, their scatter is the error of the power; as they are few, with a factor
# on top (Student's t), and never below this much for one sample.
_TELLING_SAMPLES, _FEW_FACTOR, _FEW_ERROR = 3, 1.5, 0.003
# Least and most power of a board that waits, relative to its power at work; by hand, wide.
_LEAST_WAITING, MOST_WAITING = 0.1, 0.5
# Sigmas by which stalls are taken for less than they are, and intervals between pairs that tell;
# by hand.
_STALL_SIGMAS, _LATEST_STALLS = 2.0, 8
# Two samples that differ by less end the warm-up, as do so many samples; by hand.
_WARM_DIFFERENCE, _WARMUP_SAMPLES = 0.05, 20
# Least samples and steps of a slice: a median needs three, a step after a stall is left out.
LEAST_SAMPLES, LEAST_STEPS = 3, 4
# Steps up to which a slice may take longer than _LONGEST_SLICE_SECONDS; by hand.
_FEW_STEPS = 12.0
# Disturbances of a tenth of a second stand out in samples of this length.
_LONGEST_SAMPLE_SECONDS = 1.0
# Spread of steps from which on a period is looked for; by hand.
_UNEVEN = 0.03
# Steps of several periods up to which a slice has three samples; by hand.
_LONGEST_PERIODS = 24
# Time after a change of the knob that is not measured: boards need 20 to 100 ms.
SETTLE_SECONDS = 0.1
# Shortest sample worth an energy reading; several counter refreshes. Steps so short that the
# longest period fits into it are not measured one by one.
_SAMPLE_SECONDS = 0.1
_SHORT_STEP_SECONDS = _SAMPLE_SECONDS / LONGEST_PERIOD
# Longest slice, unless it would have few steps; by hand.
_LONGEST_SLICE_SECONDS = 4.0


class TunerState(StrEnum):
    """State of a tuner."""

    WARMUP = "warmup"
    PROBING = "probing"
    HOLDING = "holding"
    DRIFTED = "drifted"
    STOPPED = "stopped"


class TuningEvent(StrEnum):
    """Reason why a reading was taken."""

    STEP = "step"
    PAUSED = "paused"
    RESUMED = "resumed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TunerConfig:
    """Settings of the tuner.

    Attributes:
        dry_run: Whether to go back to the reference once the choice is made.
        work_steps: Steps of the whole work, which deadlines and budgets of joules refer to; they
            count from the first step.

    Raises:
        InvalidValueError: A number is out of range.
    """

    dry_run: bool = False
    work_steps: float | None = None

    def __post_init__(self) -> None:
        if self.work_steps is not None and finite(self.work_steps, "work_steps", minimum=0.0) == 0:
            raise InvalidValueError("there is no work: work_steps=0", remedy="give 1 or more")

    def check_length(self, objective: Objective) -> None:
        """Refuse an objective with a deadline or a budget of a work of unknown length.

        Raises:
            InvalidValueError: It has one, and ``work_steps`` is None.
        """
        if objective.bounds.of_whole_work and self.work_steps is None:
            raise InvalidValueError(
                "a deadline or a budget of joules is one of the whole work, whose length is not "
                "known",
                remedy="give its number of steps: Run(max_steps=10_000), `joulery run --steps "
                "10000`, TunerConfig(work_steps=10_000); or slowdown=5% instead",
            )


@dataclass(frozen=True, slots=True)
class Reading:
    """Input of a tuning machine.

    Attributes:
        now_seconds: Time since the first step.
        joules: Energy used so far by all devices of the job.
        sigma_joules: One sigma of where exactly the counters stand now.
        steps: Steps done so far.
        event: Reason why the reading was taken.
        hot: Whether heat or the hardware slowed a device since the reading before.
    """

    now_seconds: float
    joules: float
    sigma_joules: float
    steps: int
    event: TuningEvent = TuningEvent.STEP
    hot: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """Output of a tuning machine: where the knob should be, and the steps to the next reading.

    ``shares`` of the value are by rank; empty where all have the same.
    """

    position: int
    steps: int
    state: TunerState
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepSample:
    """Some consecutive steps at one setting; ``sigma_joules`` is that of both edges together."""

    steps: int
    seconds: float
    joules: float
    sigma_joules: float
    end_seconds: float = 0.0

    @property
    def log_pace(self) -> float:
        """Logarithm of the seconds per step."""
        return math.log(self.seconds / self.steps)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds per step and mean watts of all devices at one setting; relative errors (one sigma).

    ``steps`` were measured in ``span_seconds``; both are 0 for a prediction.
    """

    seconds: float
    watts: float
    seconds_error: float
    watts_error: float
    steps: int
    span_seconds: float


@dataclass(slots=True)
class Slice:
    """Samples of one setting in the order of time, with none of another setting in between."""

    position: int
    samples: list[StepSample] = field(default_factory=list)

    @property
    def at_seconds(self) -> float:
        """Time of its middle."""
        first, last = self.samples[0], self.samples[-1]
        return 0.5 * (first.end_seconds - first.seconds + last.end_seconds)

    def estimate(self, step_noise: float) -> Estimate:
        """Step time and power without disturbed samples, given the relative noise of one step."""
        calm = drop_disturbed(self.samples, step_noise)
        steps = sum(sample.steps for sample in calm)
        seconds = sum(sample.seconds for sample in calm)
        joules = sum(sample.joules for sample in calm)
        # Neighbouring samples share their edges, so only the outer ones and those around a gap
        # count.
        edges = 1 + len(self.samples) - len(calm)
        edge = math.sqrt(edges * sum(s.sigma_joules**2 for s in calm) / len(calm))
        return Estimate(
            seconds / steps,
            joules / seconds,
            max(_LEAST_SECONDS_ERROR, step_noise / math.sqrt(steps)),
            max(_LEAST_WATTS_ERROR, min(edge / joules if joules > 0 else 1.0, _scatter(calm))),
            steps,
            seconds,
        )


def _scatter(samples: Sequence[StepSample]) -> float:
    """Relative error of the mean power as the samples themselves show it.

    A meter must allow for loads that change at any moment. These are steps of one job at one
    setting; where their power agrees, it did not change.
    """
    if len(samples) < _TELLING_SAMPLES:
        return math.inf
    watts = [sample.joules / sample.seconds for sample in samples]
    mean = sum(watts) / len(watts)
    if mean <= 0:
        return math.inf
    variance = sum((value - mean) ** 2 for value in watts) / (len(watts) - 1)
    return max(_FEW_FACTOR * math.sqrt(variance) / mean, _FEW_ERROR) / math.sqrt(len(watts))


def drop_disturbed(samples: Sequence[StepSample], step_noise: float) -> list[StepSample]:
    """The samples whose pace agrees with that of the fastest quarter.

    Stalls and other processes make steps slower, never faster, and may be there most of the time.
    """
    if len(samples) < 3:
        return list(samples)
    quartile = sorted(sample.log_pace for sample in samples)[(len(samples) - 1) // 4]

    def agrees(sample: StepSample) -> bool:
        expected = _OUTLIER_SIGMAS * step_noise / math.sqrt(sample.steps)
        return abs(sample.log_pace - quartile) <= max(OUTLIER_LEAST, expected)

    return [sample for sample in samples if agrees(sample)] or list(samples)


class SettingUsage(NamedTuple):
    """Time, energy and steps of a run at one setting."""

    seconds: float
    joules: float
    steps: float


NOT_USED = SettingUsage(0.0, 0.0, 0.0)


class Waiting(NamedTuple):
    """Time and energy of a step in which boards wait, whatever their setting; means over steps."""

    seconds: float
    joules: float

    def added_to(self, estimate: Estimate) -> Estimate:
        """The estimate of steps that wait like this in addition."""
        seconds = estimate.seconds + self.seconds
        joules = estimate.seconds * estimate.watts + self.joules
        error = estimate.seconds_error * estimate.seconds / seconds
        return replace(estimate, seconds=seconds, watts=joules / seconds, seconds_error=error)


NO_STALLS = Waiting(0.0, 0.0)


class Stalls:
    """Waiting that slices leave out, such as for a data loader now and then.

    A bound is one on the time of the job, and a lower limit does not make it wait longer.
    """

    def __init__(self) -> None:
        self._totals: deque[tuple[float, ...]] = deque(maxlen=_LATEST_STALLS)

    def add(self, samples: Sequence[StepSample], calm: Estimate) -> None:
        """Note samples of steps, given what these are where nothing disturbs them."""
        extra = [sample.seconds - sample.steps * calm.seconds for sample in samples]
        steps = sum(sample.steps for sample in samples)
        watts = calm.watts * (1 - _STALL_SIGMAS * calm.watts_error)
        joules = sum(sample.joules for sample in samples) - steps * calm.seconds * watts
        squares = sum(value * value for value in extra)
        self._totals.append((steps, len(extra), sum(extra), squares, joules, joules / watts))

    def per_step(self) -> Waiting:
        """What is sure of it."""
        if not self._totals:
            return NO_STALLS
        steps, count, extra, squares, joules, at_work = map(sum, zip(*self._totals, strict=True))
        if count < LEAST_SAMPLES or extra <= 0:
            return NO_STALLS
        sure = extra - _STALL_SIGMAS * math.sqrt(max(0.0, squares - extra**2 / count))
        # Longer steps and those shared with another process draw the power of others, and a hot
        # board needs no more energy for a step than a cool one: neither waits.
        waiting = min(sure, (extra - at_work) / (1 - MOST_WAITING), at_work / _LEAST_WAITING)
        if waiting <= 0:
            return NO_STALLS
        return Waiting(waiting / steps, joules * waiting / extra / steps)


def drop_spikes(slices: Sequence[Slice], step_noise: float) -> list[Slice]:
    """The slices without those far slower than the same position both before and after.

    A job that drifts or changes does not come back at once; a burst of another process does.
    """
    spikes = set()
    for position in {part.position for part in slices}:
        visits = [index for index, part in enumerate(slices) if part.position == position]
        estimates = [slices[index].estimate(step_noise) for index in visits]
        triples = zip(estimates, estimates[1:], estimates[2:], strict=False)
        for index, (before, here, after) in zip(visits[1:], triples, strict=False):
            slower = math.log(here.seconds / max(before.seconds, after.seconds))
            if slower > max(OUTLIER_LEAST, _OUTLIER_SIGMAS * here.seconds_error):
                spikes.add(index)
    return [part for index, part in enumerate(slices) if index not in spikes]


def step_noise(slices: Iterable[Slice]) -> float:
    """Relative standard deviation of one step, pooled over slices; robust to stalls.

    By neighbouring samples, so that a job that gets faster or slower is not a noisy one.
    """
    deviations = [
        abs(second.log_pace - first.log_pace) / math.sqrt(1 / first.steps + 1 / second.steps)
        for part in slices
        for first, second in pairwise(part.samples)
    ]
    if not deviations:
        return _GUESSED_NOISE
    rough = max(_LEAST_NOISE, _MAD_TO_SIGMA * median(deviations))
    calm = [deviation for deviation in deviations if deviation <= _OUTLIER_SIGMAS * rough]
    squares = sum(d * d for d in calm) + _GUESS_WEIGHT * _GUESSED_NOISE**2
    return max(_LEAST_NOISE, math.sqrt(squares / (len(calm) + _GUESS_WEIGHT)))


def _varies(samples: Sequence[StepSample]) -> bool:
    """Whether lengths of steps differ by more than noise would, so that they may repeat."""
    return stdev(sample.log_pace for sample in samples) > _UNEVEN


def _join(samples: Sequence[StepSample], count: int) -> list[StepSample]:
    """Each ``count`` samples as one; what remains is left out."""
    groups = [samples[at : at + count] for at in range(0, len(samples) - count + 1, count)]
    return [
        StepSample(
            sum(sample.steps for sample in group),
            sum(sample.seconds for sample in group),
            sum(sample.joules for sample in group),
            math.hypot(group[0].sigma_joules, group[-1].sigma_joules) / math.sqrt(2),
            group[-1].end_seconds,
        )
        for group in groups
    ]


class StepProfiler:
    """Moves a knob and measures steps.

    Attributes:
        state: State to report in commands.
        position: Position of the knob.
        pace_seconds: Recent seconds per step; NaN before the first.
        period: Number of steps after which their lengths repeat.
        lead: Logarithm by which the job was slower, on the median, when settings were measured.
        slices: Slices in the order of time.
        steps_at: Steps by position.
        usage_at: Time, energy and steps by position, pauses aside.
        reading: Latest reading; set by the machine when it starts.
    """

    def __init__(self, position: int) -> None:
        self.state = TunerState.WARMUP
        self.position = position
        self.pace_seconds = math.nan
        self.period = 1
        self.lead = 0.0
        self.slices: list[Slice] = []
        self.steps_at: Counter[int] = Counter()
        self.usage_at: dict[int, SettingUsage] = {}
        self.reading = Reading(0.0, 0.0, 0.0, 0)
        self._reference = position
        self._cool_seconds = math.nan

    def noise(self) -> float:
        """Relative standard deviation of one step."""
        return step_noise(self.slices)

    def estimates(self) -> dict[int, Estimate]:
        """Estimates by knob position, of the job as it is now; see ``separate``.

        Errors are those of ratios to the reference.
        """
        slices = [part for part in tuple(self.slices) if part.samples]
        if not slices:
            return {}
        noise = step_noise(slices)
        slices = drop_spikes(slices, noise)
        parts = [part.estimate(noise) for part in slices]
        times = np.array([part.at_seconds for part in slices])
        at = np.array([part.position for part in slices], dtype=np.intp)
        pace = np.log([part.seconds for part in parts])
        power = np.log([max(part.watts, 1e-3) for part in parts])
        pace_errors = np.array([part.seconds_error for part in parts])
        power_errors = np.array([part.watts_error for part in parts])
        seconds = separate(TimedSlices(times, at, pace, pace_errors), self._reference)
        watts = separate(
            TimedSlices(times, at, power, power_errors), self._reference, seconds.anchor
        )
        gaps = seconds.levels[at != self._reference] - seconds.level
        self.lead = float(np.median(gaps)) if len(gaps) else 0.0
        estimates = {}
        for position in dict.fromkeys(at.tolist()):
            own = [
                part for part, where in zip(parts, at.tolist(), strict=True) if where == position
            ]
            estimates[position] = Estimate(
                math.exp(seconds.level + seconds.means[position]),
                # What no meter saw is not claimed.
                math.exp(watts.level + watts.means[position])
                if any(part.watts > 0 for part in own)
                else 0.0,
                max(_LEAST_SECONDS_ERROR, seconds.errors[position]),
                max(_LEAST_WATTS_ERROR, watts.errors[position]),
                sum(part.steps for part in own),
                sum(part.span_seconds for part in own),
            )
        return estimates

    def absolute_estimates(self) -> dict[int, Estimate]:
        """The same with the errors of the reference itself."""
        noise = step_noise(self.slices)
        slices = [part for part in tuple(self.slices) if part.samples]
        parts = [p.estimate(noise) for p in slices if p.position == self._reference]
        parts = parts or [part.estimate(noise) for part in slices]
        seconds, watts = (
            sum(error**-2 for error in errors) ** -0.5 if errors else 0.0
            for errors in ([p.seconds_error for p in parts], [p.watts_error for p in parts])
        )
        return {
            position: replace(
                estimate,
                seconds_error=math.hypot(estimate.seconds_error, seconds),
                watts_error=math.hypot(estimate.watts_error, watts),
            )
            for position, estimate in self.estimates().items()
        }

    def visits(self, position: int) -> int:
        """Number of slices at a position."""
        return sum(part.position == position for part in self.slices)

    def slice_steps(self, pace_seconds: Any, noise: float, spread: Any) -> Any:
        """Steps of a slice whose standard error equals the present uncertainty, within limits.

        Args:
            pace_seconds: Seconds per step; a float or an array.
            noise: Relative standard deviation of one step.
            spread: Relative uncertainty of the step time as it is known, alike.
        """
        least = LEAST_SAMPLES * _SAMPLE_SECONDS / pace_seconds
        longest = np.maximum(_FEW_STEPS, _LONGEST_SLICE_SECONDS / pace_seconds)
        telling = np.minimum((noise / np.maximum(spread, 1e-9)) ** 2, longest)
        return np.maximum(LEAST_STEPS, np.ceil(np.maximum(least, telling)))

    def sample(self, seconds: float) -> Generator[Command, Reading, StepSample | None]:
        """Measure about ``seconds`` of steps; None when nothing was measured, or of a hot board."""
        begin = self.reading
        if begin.event is TuningEvent.PAUSED:
            yield from self._wait(1)  # until resumed
            # The first step after a pause waits for loaders and caches.
            begin = yield from self._wait(1)
        pace = self.pace_seconds
        count = 1 if math.isnan(pace) else math.ceil(seconds / pace)
        end = yield from self._wait(self.period * math.ceil(count / self.period))
        progress, elapsed = end.steps - begin.steps, end.now_seconds - begin.now_seconds
        if progress <= 0 or elapsed <= 0:
            return None
        self.pace_seconds = elapsed / progress
        if self._is_hot(end):
            return None
        sigma = math.hypot(begin.sigma_joules, end.sigma_joules)
        joules = max(0.0, end.joules - begin.joules)
        return StepSample(progress, elapsed, joules, sigma, end.now_seconds)

    def _is_hot(self, reading: Reading) -> bool:
        """Whether a board was slowed just now, but not for so long that the job is like that."""
        now = reading.now_seconds
        if math.isnan(self._cool_seconds) or (self.position == self._reference and not reading.hot):
            self._cool_seconds = now
        return reading.hot and now - self._cool_seconds < LATEST_SECONDS

    def move(self, position: int) -> Procedure:
        """Change the knob, and let a step and some time pass."""
        if position == self.position:
            return
        self.position = position
        pace = self.pace_seconds
        settle = SETTLE_SECONDS / pace if pace > 0 else 1.0
        yield from self._wait(math.ceil(settle))

    def measure(self, steps: int) -> Procedure:
        """Measure a slice of at least ``steps`` steps at the present position."""
        part, progress = Slice(self.position), 0
        self.slices.append(part)
        least = max(1, min(LEAST_SAMPLES, _LONGEST_PERIODS // self.period))
        while progress < steps or len(part.samples) < least:
            # Few long samples are as exact as many short ones and need fewer energy readings; but
            # in one that is too long a short disturbance does not stand out.
            length = min(_LONGEST_SAMPLE_SECONDS, (steps - progress) * self.pace_seconds / 4)
            sample = yield from self.sample(max(_SAMPLE_SECONDS, length))
            if sample is not None:
                part.samples.append(sample)
                progress += sample.steps

    def measure_singly(self) -> Procedure:
        """Measure a slice step by step, and note after how many steps their lengths repeat."""
        steps = LONGEST_PERIOD
        if not self.pace_seconds >= _SHORT_STEP_SECONDS:
            yield from self.measure(steps)
            return
        part = Slice(self.position)
        self.slices.append(part)
        while len(part.samples) < steps:
            sample = yield from self.sample(0.0)
            if sample is not None:
                part.samples.append(sample)
            if len(part.samples) == LONGEST_PERIOD and _varies(part.samples):
                steps = PERIODS * LONGEST_PERIOD
        if steps > LONGEST_PERIOD and all(sample.steps == 1 for sample in part.samples):
            self.period = find_period([sample.log_pace for sample in part.samples])
            part.samples = _join(part.samples, self.period)

    def warm_up(self) -> Procedure:
        """Wait until the step time is steady; the first steps compile, cache and load."""
        before: StepSample | None = None
        for _ in range(_WARMUP_SAMPLES):
            sample = yield from self.sample(_SAMPLE_SECONDS)
            if sample is None:
                continue
            if before is not None and abs(sample.log_pace - before.log_pace) < _WARM_DIFFERENCE:
                return
            before = sample

    def _wait(self, steps: int) -> Generator[Command, Reading, Reading]:
        reading = yield Command(self.position, max(1, steps), self.state)
        self.steps_at[self.position] += reading.steps - self.reading.steps
        if reading.event is not TuningEvent.RESUMED:
            before, since = self.usage_at.get(self.position, NOT_USED), self.reading
            self.usage_at[self.position] = SettingUsage(
                before.seconds + reading.now_seconds - since.now_seconds,
                before.joules + reading.joules - since.joules,
                before.steps + reading.steps - since.steps,
            )
        self.reading = reading
        return reading
