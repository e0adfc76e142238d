"""The just-in-time tuner as a state machine without I/O.

Warmup → Probing → Holding, and back over Drifted when the job changes. It takes the time, the
joules so far and the steps done, and answers with the position that the knob should have and the
number of steps after which it wants the next reading. So the same code runs on real boards, on
virtual clocks and by hand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from statistics import stdev
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulery.power._model import CurveModel, ObjectiveScorer, SliceForecast, plan_probe
from joulery.power._step_profiler import (
    LEAST_STEPS,
    SETTLE_SECONDS,
    Estimate,
    StepProfiler,
    TunerState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power._model import Curves, ProbePlan
    from joulery.power._step_profiler import (
        Command,
        Procedure,
        Reading,
        StepSample,
        TunerConfig,
    )

# Smallest lasting change of pace or power that matters, and in standard deviations of a sample; by
# hand.
_LEAST_DRIFT, _DRIFT_SPREADS = 0.04, 2.0
# Two-sided cumulative sum: slack per value and alarm level, and the most that one value counts, so
# that a stall is no change; by hand.
_DRIFT_ALLOWANCE, _DRIFT_ALARM, _DRIFT_MOST = 0.5, 3.5, 2.0
# Samples of a baseline and the least spread believed of so few; by hand.
_BASELINE_SAMPLES, _LEAST_SPREAD = 6, 0.002
# Refinements of the choice at most; by leaving out boards (benchmarks/power_constants.py), as
# _CLOSE and _CHECK_STEPS below.
_MOST_TRIMS = 6
# Least time and steps that a job is expected to run: what a probe costs must pay off within them;
# by hand.
_HORIZON_SECONDS, _HORIZON_STEPS = 40.0, 20_000
# Number of slices after which the best guess is taken, and length of a sample while holding; by
# hand.
_MOST_SLICES, _HOLD_SECONDS = 60, 4.0
# A slice this far off what the others predict is measured again, so often at most; by hand.
_DOUBTFUL_SIGMAS, _MOST_VISITS = 2.0, 3
# Distance of the choice from its measured neighbours, as a share of the reference.
_CLOSE = 0.015
# Steps of a slice that checks the choice.
_CHECK_STEPS = 12
SLICE_SECONDS = 5.0  # enough for stable figures (You et al., NSDI'23, section 5)
# Samples under a planned limit, and steps between readings after them: rare enough to cost nothing.
_HELD_SAMPLES, _LONG_STEPS = 6, 1_000_000


@dataclass(frozen=True, slots=True)
class KnobRange:
    """The values of a knob, ascending, and prior curves over them given the watts at the last one.

    The last value is the reference, as found.
    """

    values: NDArray[np.float64]
    curves: Callable[[float], Curves]


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """The setting that profiling chose.

    Attributes:
        position: Knob position.
        regret: Expected relative excess of its score over the best possible.
        chosen: Estimate there: measured, or predicted (then with 0 steps behind it).
        measured: Estimates by knob position.
        posterior: Samples of the curves; None when an earlier profile was trusted.
        profiling_steps: Steps that profiling took.
        profiling_seconds: Time that they took.
        profiling_joules: Energy that they used.
    """

    position: int
    regret: float
    chosen: Estimate
    measured: dict[int, Estimate]
    posterior: Curves | None = None
    profiling_steps: int = 0
    profiling_seconds: float = 0.0
    profiling_joules: float = 0.0


class Machine(Protocol):
    """A state machine that comes to a choice; ``choice`` is None before the first guess."""

    choice: TuningChoice | None

    def start(self, reading: Reading) -> Command:
        """The first command."""
        ...

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        ...


class DriftDetector:
    """Detects a lasting change of one logarithmic quantity, by a two-sided cumulative sum.

    Small lasting changes add up; a single disturbed value does not.

    Args:
        baseline: Value before any change.
        change: Smallest lasting change that matters, in logarithms (0.05 is about 5 %).
    """

    def __init__(self, baseline: float, change: float) -> None:
        self._baseline = baseline
        self._change = change
        self._up = self._down = 0.0

    def changed(self, value: float) -> bool:
        """Take in a value; whether the change is certain by now."""
        off = (value - self._baseline) / self._change
        off = max(-_DRIFT_MOST, min(_DRIFT_MOST, off))
        self._up = max(0.0, self._up + off - _DRIFT_ALLOWANCE)
        self._down = max(0.0, self._down - off - _DRIFT_ALLOWANCE)
        return self._up > _DRIFT_ALARM or self._down > _DRIFT_ALARM


class ProfilingMachine(ABC):
    """A machine around a :class:`StepProfiler`; :meth:`start` it, then :meth:`send` it readings."""

    def __init__(self, config: TunerConfig, reference: int) -> None:
        self.choice: TuningChoice | None = None
        self._config = config
        self._reference = reference
        self._profiler = StepProfiler(reference)
        self._procedure: Procedure = self._run()

    def start(self, reading: Reading) -> Command:
        """The first command."""
        self._profiler.reading = reading
        return next(self._procedure)

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        return self._procedure.send(reading)

    def estimates(self) -> dict[int, Estimate]:
        """Estimates by knob position."""
        return self._profiler.estimates()

    @abstractmethod
    def _run(self) -> Procedure:
        """All that the machine does."""


class TuningMachine(ProfilingMachine):
    """Finds the best value of one knob and holds it.

    Args:
        knob: Values to choose from.
        objective: Objective to minimise.
        config: Settings of the tuner.
        earlier: Choice of an earlier profile, to be held at once and checked.
    """

    def __init__(
        self,
        knob: KnobRange,
        objective: Objective,
        config: TunerConfig,
        earlier: TuningChoice | None = None,
    ) -> None:
        super().__init__(config, len(knob.values) - 1)
        self._knob = knob
        self._earlier = earlier
        self._scorer = ObjectiveScorer(objective, config.work_steps)
        self._model: CurveModel | None = None

    def _run(self) -> Procedure:
        yield from self._profiler.warm_up()
        if self._earlier is not None:
            yield from self._hold_earlier(self._earlier)
            yield from self._restart()
        while True:
            yield from self._probe()
            yield from self._hold()
            yield from self._restart()

    def _restart(self) -> Procedure:
        """Drop all samples and go back to the reference."""
        self._profiler.state = TunerState.DRIFTED
        self._profiler.measured = {}
        yield from self._profiler.move(self._reference)

    # Probing.

    def _probe(self) -> Procedure:
        profiler = self._profiler
        profiler.state = TunerState.PROBING
        began = profiler.reading
        # What is compared with the reference all along cannot be known better than that.
        yield from profiler.measure(_CHECK_STEPS if self._scorer.uses_reference else LEAST_STEPS)
        model = self._model = self._new_model()
        horizon = max(_HORIZON_SECONDS, _HORIZON_STEPS * profiler.pace_seconds)
        for _ in range(_MOST_SLICES):
            measured = self.estimates()
            plan = self._plan(horizon, model, measured, began)
            probe, steps = self._find_doubtful(model, measured), LEAST_STEPS
            if probe is None:
                probe, steps = self._choose_next(plan)
            if probe is None:
                break
            yield from profiler.move(probe)
            yield from profiler.measure(steps)

    def _choose_next(self, plan: ProbePlan) -> tuple[int | None, int]:
        """The position to measure and the steps there: as planned, or close to the choice."""
        choice, measured = plan.score.position, self._profiler.measured
        if plan.probe is None:
            return self._find_unchecked(choice), _CHECK_STEPS
        if plan.probe in measured and choice not in measured:
            return choice, _CHECK_STEPS
        return plan.probe, plan.steps

    def _find_unchecked(self, choice: int) -> int | None:
        """The choice, or a position close to it on either side, that was not measured yet.

        Curves have kinks where their optimum likes to be, and measuring there costs next to
        nothing.
        """
        values, measured = self._knob.values, self._profiler.measured.keys()
        if choice not in measured:
            return choice
        reach = _CLOSE * values[-1]
        lowest = min(choice - 1, int(values.searchsorted(values[choice] - reach)))
        highest = max(choice + 1, int(values.searchsorted(values[choice] + reach, "right")) - 1)
        for end, side in (
            (lowest, range(lowest, choice)),
            (highest, range(choice + 1, highest + 1)),
        ):
            if 0 <= end < len(values) and measured.isdisjoint(side):
                return end
        return None

    def _find_doubtful(self, model: CurveModel, measured: Mapping[int, Estimate]) -> int | None:
        """The position whose slice may have been disturbed as a whole; None if there is none."""
        doubts = {
            position: sigmas
            for position, sigmas in model.slower_than_predicted(measured).items()
            if sigmas > _DOUBTFUL_SIGMAS and self._profiler.measured[position].visits < _MOST_VISITS
        }
        return max(doubts, key=doubts.__getitem__) if doubts else None

    def _new_model(self) -> CurveModel:
        reference = self.estimates()[self._reference]
        curves = self._knob.curves(reference.watts)
        return CurveModel(self._knob.values, curves, reference.seconds, reference.watts)

    def _plan(
        self,
        horizon_seconds: float,
        model: CurveModel,
        measured: dict[int, Estimate],
        began: Reading,
    ) -> ProbePlan:
        """The next probe; notes the best choice so far."""
        posterior = model.posterior(measured)
        ahead, tolerance = self._forecast(posterior), self._config.tolerance
        plan = plan_probe(self._scorer, posterior, ahead, horizon_seconds, tolerance)
        position, end = plan.score.position, self._profiler.reading
        self.choice = TuningChoice(
            position,
            plan.score.regret,
            measured.get(position) or posterior.predict(position),
            measured,
            posterior,
            end.steps - began.steps,
            end.now_seconds - began.now_seconds,
            end.joules - began.joules,
        )
        return plan

    def _forecast(self, posterior: Curves) -> SliceForecast:
        """Forecast of a slice at every position."""
        profiler, rows = self._profiler, posterior.log_seconds
        noise, pace_seconds = profiler.noise(), np.exp(rows).mean(axis=0)
        steps = profiler.slice_steps(pace_seconds, noise, rows.std(axis=0))
        span = steps * pace_seconds
        away = np.arange(len(span)) != profiler.position
        return SliceForecast(
            steps,
            span + np.where(away, SETTLE_SECONDS + pace_seconds, 0.0),
            np.maximum(2e-4, noise / np.sqrt(steps)),
            np.maximum(1e-3, 2e-3 / span),
        )

    # Holding.

    def _hold(self) -> Procedure:
        """Stay at the choice until the job changes; measuring there costs nothing."""
        profiler, choice = self._profiler, self.choice
        assert choice is not None  # noqa: S101 - probing made it
        profiler.state = TunerState.HOLDING
        if self._config.dry_run:
            yield from profiler.move(self._reference)
        else:
            yield from profiler.move(choice.position)
            yield from self._trim(choice)
        yield from self._watch((yield from self._compare((yield from self._baseline()))))

    def _baseline(self) -> Generator[Command, Reading, Estimate]:
        """Measure the job at the present position, with all that disturbs it regularly."""
        samples: list[StepSample] = []
        while len(samples) < _BASELINE_SAMPLES:
            sample = yield from self._profiler.sample(_HOLD_SECONDS)
            if sample is not None:
                samples.append(sample)
        seconds, steps = (sum(s.seconds for s in samples), sum(s.steps for s in samples))
        pace_error, watts_error = (
            max(_LEAST_SPREAD, stdev(values)) / math.sqrt(len(samples))
            for values in (
                [sample.log_pace for sample in samples],
                [math.log(max(sample.joules / sample.seconds, 1e-3)) for sample in samples],
            )
        )
        watts = sum(sample.joules for sample in samples) / seconds
        return Estimate(seconds / steps, watts, pace_error, watts_error, steps, seconds)

    def _compare(self, baseline: Estimate) -> Generator[Command, Reading, Estimate]:
        """Give the choice up if it is worse than the reference beyond doubt.

        What was measured while probing leaves disturbances out, so where it raises the question
        the reference is measured again for as long as the choice was.
        """
        profiler, reference, choice = self._profiler, self._reference, self.choice
        assert choice is not None  # noqa: S101 - probing made it
        earlier = profiler.estimates()[reference]
        if profiler.position == reference or not self._scorer.is_worse(baseline, earlier):
            return baseline
        yield from profiler.move(reference)
        reference_now = yield from self._baseline()
        if self._scorer.is_worse(baseline, reference_now):
            self.choice = replace(choice, position=reference, chosen=reference_now)
            return reference_now
        yield from profiler.move(choice.position)
        return baseline

    def _trim(self, choice: TuningChoice) -> Procedure:
        """Refine the choice by a watt or two while measuring at it."""
        profiler, posterior = self._profiler, choice.posterior
        assert self._model is not None  # noqa: S101 - probing made it
        assert posterior is not None  # noqa: S101 - probing has one
        for _ in range(_MOST_TRIMS):
            spread = posterior.log_seconds[:, profiler.position].std()
            steps = profiler.slice_steps(profiler.pace_seconds, profiler.noise(), spread)
            yield from profiler.measure(int(steps))
            measured = self.estimates()
            posterior = self._model.posterior(measured)
            score = self._scorer.score(posterior)
            excess = float(score.excess[profiler.position]) - score.regret
            if excess > self._config.tolerance / 4 or not score.safe[profiler.position]:
                yield from profiler.move(score.position)
            self.choice = choice = replace(
                choice,
                position=profiler.position,
                regret=score.regret,
                chosen=measured.get(profiler.position) or posterior.predict(profiler.position),
                measured=measured,
                posterior=posterior,
            )

    def _watch(self, baseline: Estimate) -> Procedure:
        """Return once the job behaves differently."""
        profiler = self._profiler
        steps = max(1.0, _HOLD_SECONDS / baseline.seconds)
        spread = baseline.seconds_error * math.sqrt(_BASELINE_SAMPLES)
        spread = max(spread, 2 * profiler.noise() / math.sqrt(steps))
        change = max(_LEAST_DRIFT, _DRIFT_SPREADS * spread)
        pace = DriftDetector(math.log(baseline.seconds), change)
        power = DriftDetector(math.log(max(baseline.watts, 1e-3)), change)
        while True:
            sample = yield from profiler.sample(_HOLD_SECONDS)
            if sample is None:
                continue
            drifted = pace.changed(sample.log_pace)
            if sample.joules > 3 * sample.sigma_joules:
                drifted |= power.changed(math.log(sample.joules / sample.seconds))
            if drifted:
                return

    def _hold_earlier(self, earlier: TuningChoice) -> Procedure:
        """Use an earlier profile for as long as the job agrees with it."""
        profiler = self._profiler
        profiler.state = TunerState.HOLDING
        profiler.measured = {}
        self.choice = earlier
        yield from profiler.move(self._reference if self._config.dry_run else earlier.position)
        # A profile has both the choice and the reference.
        at_choice = profiler.position == earlier.position
        expected = earlier.chosen if at_choice else earlier.measured[profiler.position]
        yield from self._watch(replace(expected, seconds_error=0.0))


class PlannedMachine(ProfilingMachine):
    """Measures given positions for seconds each, calls back, then holds a given one."""

    def __init__(
        self,
        config: TunerConfig,
        reference: int,
        measured: Sequence[int],
        hold: int,
        measured_all: Callable[[], None] | None,
    ) -> None:
        super().__init__(config, reference)
        self._measured = measured
        self._hold = hold
        self._measured_all = measured_all

    def _run(self) -> Procedure:
        profiler = self._profiler
        yield from profiler.warm_up()
        profiler.state = TunerState.PROBING
        began = profiler.reading
        # A short slice at the reference, so that savings can be stated against it.
        yield from profiler.measure(LEAST_STEPS)
        for position in self._measured:
            yield from profiler.move(position)
            yield from profiler.measure(max(LEAST_STEPS, self._slice_steps()))
        if self._measured_all is not None:
            self._measured_all()
        profiler.state = TunerState.HOLDING
        yield from profiler.move(self._hold)
        for _ in range(_HELD_SAMPLES):
            sample = yield from profiler.sample(_HOLD_SECONDS)
            if sample is not None:
                profiler.here().samples.append(sample)
                self._choose(began)
        while True:
            yield from profiler.sample(_LONG_STEPS * profiler.pace_seconds)

    def _slice_steps(self) -> int:
        pace = self._profiler.pace_seconds
        return math.ceil(SLICE_SECONDS / pace) if pace > 0 else LEAST_STEPS

    def _choose(self, began: Reading) -> None:
        estimates, end = self.estimates(), self._profiler.reading
        self.choice = TuningChoice(
            position=self._hold,
            regret=0.0,  # the plan answers for it
            chosen=estimates[self._hold],
            measured=estimates,
            profiling_steps=end.steps - began.steps,
            profiling_seconds=end.now_seconds - began.now_seconds,
            profiling_joules=end.joules - began.joules,
        )
