"""The just-in-time tuner as a state machine without I/O.

Warmup → Probing → Holding, and back over Drifted when the job changes. It takes the time, the
joules so far and the steps done, and answers with the position that the knob should have and the
number of steps after which it wants the next reading. So the same code runs on real boards, on
virtual clocks and by hand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import stdev
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulery.cusum import accumulate
from joulery.power._drift import LATEST_SECONDS
from joulery.power._model import (
    TOLERANCE,
    CurveModel,
    ObjectiveScorer,
    SliceForecast,
    plan_probe,
)
from joulery.power._step_profiler import (
    LEAST_STEPS,
    SETTLE_SECONDS,
    Estimate,
    Slice,
    Stalls,
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
        SettingUsage,
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
# Probing ends after so much time and so many steps, both; the rest is refined while holding; by
# hand: a quarter of what a user is willing to wait for.
PROBING_SECONDS, PROBING_STEPS = 30.0, 110
# A reference whose pace or power differs by more from one slice to the next is another job; so
# often at most while probing, since a board that is hot at times comes back; by hand.
_CHANGE, _POWER_CHANGE, _MOST_CHANGES = 0.15, 0.3, 2
# A reference this much slower than a while ago is a hot board if its power fell as it does under a
# lower limit, give or take this share of the fall; by hand.
_HEAT, _HEAT_TOLERANCE = 0.02, 0.35
# A choice this much slower than believed, beyond doubt, is profiled again; by hand.
_CONTRADICTION, _BEYOND_DOUBT = 0.05, 3.0
# A job that got this much faster since most settings were measured is profiled again; by hand.
_LEAD = 0.04
# Relative error from which on one setting's own slices are stated by the curve; that from which on
# results state it.
_VAGUE = 0.01
# Error of the pace that slices of a pair aim for; by hand.
_PAIR_ERROR = 0.001
# Time between pairs in slices of one, and how it grows from pair to pair up to the longest; by
# hand: in the end the reference takes 2 % of the time or less.
_PAIR_SPACING, _PAIR_GROWTH, _LONGEST_SPACING, _LONGEST_INTERVAL_SECONDS = 4.0, 1.6, 40.0, 300.0
# Expected gain from which on a better setting is looked for while holding, if its pace is known no
# better than this; by hand: noise hides such gains, and at the second it hides less than that.
_WORTHWHILE, _KNOWN = 0.003, 0.001
# Factors by which slices get longer meanwhile, each time and at most; by hand.
_STRETCH, _LONGEST_STRETCH = 1.5, 8.0
# Probes from one slice of the reference to the next under objectives without a reference; by hand.
_UNBOUND_EVERY = 3
# Refinements under such objectives before the first pair, and the time until then; by hand.
_MOST_TRIMS, _FIRST_PAIR_SECONDS = 4, 30.0
# Slices that are kept, and of these from the time of probing, and samples between pairs; by hand.
_MOST_KEPT, _PROBES_KEPT, _MOST_WATCHED = 64, 36, 1000
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
# Steps of a slice that checks the choice, or the reference between two others.
_CHECK_STEPS = 8
SLICE_SECONDS = 5.0  # enough for stable figures (You et al., NSDI'23, section 5)
# Samples under a planned limit, and steps between readings after them: rare enough to cost nothing.
_HELD_SAMPLES, _LONG_STEPS = 6, 1_000_000


@dataclass(frozen=True, slots=True)
class KnobRange:
    """The values of a knob, ascending, and prior curves over them given the watts at the last one.

    The last value is the reference: the original one.
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
        probed_steps: Steps that profiling took, by knob position.
        profiling_seconds: Time that they took.
        shares: Share of the value that each rank has; empty where all have the same.
        usage_at: Usage of the whole run by knob position, as it goes on; empty where it is not
            known or the job has changed meanwhile.
    """

    position: int
    regret: float
    chosen: Estimate
    measured: dict[int, Estimate]
    posterior: Curves | None = None
    probed_steps: dict[int, int] = field(default_factory=dict)
    profiling_seconds: float = 0.0
    shares: tuple[float, ...] = ()
    usage_at: Mapping[int, SettingUsage] = field(default_factory=dict)

    @property
    def profiling_steps(self) -> int:
        """Steps that profiling took."""
        return sum(self.probed_steps.values())


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
        self._sums = np.zeros(2)

    def changed(self, value: float) -> bool:
        """Take in a value; whether the change is certain by now."""
        deviation = (value - self._baseline) / self._change
        self._sums = accumulate(
            self._sums, deviation, allowance=_DRIFT_ALLOWANCE, largest=_DRIFT_MOST
        )
        return bool(self._sums.max() > _DRIFT_ALARM)


class ProfilingMachine(ABC):
    """A machine around a ``StepProfiler``; ``start`` it, then ``send`` it readings."""

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
        return self._profiler.absolute_estimates()

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
        self._scorer = ObjectiveScorer(objective, config.work_steps or 1.0)
        self._model: CurveModel | None = None
        self._stalls = Stalls()
        self._watched: deque[StepSample] = deque(maxlen=_MOST_WATCHED)
        self._watched_at = self._reference
        self._spendable = np.full(len(knob.values), np.inf)
        self._changed = False
        # Without a bound on the ratio to the reference it only tells how the job wanders.
        self._pair_every = 1 if self._scorer.uses_reference else _UNBOUND_EVERY

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
        self._profiler.slices = []
        self._forget_times()
        self._stalls = Stalls()
        self._watched.clear()
        yield from self._profiler.move(self._reference)

    def _forget_times(self) -> None:
        """Forget the time at each position, which was that of another job."""
        self._changed = True
        self._profiler.usage_at.clear()

    # Probing.

    def _probe(self) -> Procedure:
        """Measure a few positions, each between two slices of the reference."""
        profiler = self._profiler
        profiler.state = TunerState.PROBING
        began = profiler.reading
        profiler.steps_at.clear()
        # What is compared with the reference all along cannot be known better than that.
        yield from profiler.measure_singly()
        self._model, changes = self._new_model(), _MOST_CHANGES
        for number in range(_MOST_SLICES):
            measured = self._profiler.estimates()
            plan = self._plan(measured, began)
            probe, steps = self._find_doubtful(self._model, measured), LEAST_STEPS
            if probe is None:
                probe, steps = self._choose_next(plan)
            if probe is None or self._has_probed(began):
                return
            if not self._spendable[probe] >= self._least_steps():
                probe = self._reference  # until the run so far allows a trial
            yield from profiler.move(probe)
            yield from profiler.measure(int(min(steps, self._spendable[probe])))
            if (number + 1) % self._pair_every:
                continue
            yield from profiler.move(self._reference)
            yield from profiler.measure(_CHECK_STEPS if self._pair_every == 1 else LEAST_STEPS)
            if self._is_hot():
                # Nothing can be compared until it has cooled down: hold what is known to be safe.
                del profiler.slices[-2:]
                return
            if changes and self._has_changed():
                changes -= 1
                profiler.slices = profiler.slices[-1:]
                self._forget_times()
                self._model = self._new_model()

    def _has_probed(self, began: Reading) -> bool:
        """Whether enough time went into probes; what is still unsure is refined while holding."""
        now = self._profiler.reading
        elapsed, steps = now.now_seconds - began.now_seconds, now.steps - began.steps
        return elapsed >= PROBING_SECONDS and steps >= PROBING_STEPS

    def _has_changed(self) -> bool:
        """Whether the reference is another job than it was two slices of it ago."""
        latest = self._latest_references()
        if len(latest) < 2:
            return False
        before, now = latest
        error = math.hypot(before.seconds_error, now.seconds_error)
        return abs(math.log(now.seconds / before.seconds)) > max(_CHANGE, 5 * error) or abs(
            math.log(max(now.watts, 1e-3) / max(before.watts, 1e-3))
        ) > max(_POWER_CHANGE, 5 * math.hypot(before.watts_error, now.watts_error))

    def _latest_references(self) -> list[Estimate]:
        """The latest two slices of the reference, or what there is of them."""
        noise = self._profiler.noise()
        return [
            part.estimate(noise)
            for part in self._profiler.slices
            if part.position == self._reference and part.samples
        ][-2:]

    def _is_hot(self) -> bool:
        """Whether the latest slice of the reference is that of the same job on a hot board.

        A board that throttles runs as if under a lower limit: slower, and with less power by as
        much as the curves say. Another job, longer steps or waiting for data change pace and power
        in other proportions. What is slower for longer than a while is the job as it is.
        """
        profiler, choice = self._profiler, self.choice
        noise, recent = profiler.noise(), profiler.reading.now_seconds - LATEST_SECONDS
        references = [
            part.estimate(noise)
            for part in profiler.slices
            if part.position == self._reference and part.samples and part.at_seconds >= recent
        ]
        if len(references) < 2 or choice is None or choice.posterior is None:
            return False
        latest, best = references[-1], min(references[:-1], key=lambda part: part.seconds)
        slower = math.log(latest.seconds / best.seconds)
        if slower <= max(_HEAT, 5 * math.hypot(latest.seconds_error, best.seconds_error)):
            return False
        fall = math.log(max(latest.watts, 1e-3) / max(best.watts, 1e-3))
        expected = choice.posterior.power_at_pace(slower)
        return abs(fall - expected) <= _HEAT_TOLERANCE * abs(expected)

    def _choose_next(self, plan: ProbePlan) -> tuple[int | None, int]:
        """The position to measure and the steps there: as planned, or close to the choice."""
        choice, measured = plan.score.position, self._measured_positions()
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
        values, measured = self._knob.values, self._measured_positions()
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
            if sigmas > _DOUBTFUL_SIGMAS and self._profiler.visits(position) < _MOST_VISITS
        }
        return max(doubts, key=doubts.__getitem__) if doubts else None

    def _new_model(self) -> CurveModel:
        reference = self._profiler.estimates()[self._reference]
        curves = self._knob.curves(reference.watts)
        return CurveModel(self._knob.values, curves, reference.seconds, reference.watts)

    def _measured_positions(self) -> set[int]:
        return {part.position for part in self._profiler.slices}

    def _posterior(self, measured: Mapping[int, Estimate]) -> Curves:
        """The curves given all estimates, which are of the job as it is now."""
        assert self._model is not None  # noqa: S101 - probing made it
        reference = measured[self._reference]
        self._model.rebase(reference.seconds, reference.watts)
        posterior = self._model.posterior(measured)
        self._scorer.note_progress(self._profiler.reading, self._profiler.usage_at, posterior)
        return posterior

    def _plan(self, measured: dict[int, Estimate], began: Reading) -> ProbePlan:
        """The next probe; notes the best choice so far."""
        posterior = self._posterior(measured)
        self._note_spendable(posterior)
        ahead = self._forecast(posterior)
        horizon_seconds = max(_HORIZON_SECONDS, _HORIZON_STEPS * self._profiler.pace_seconds)
        plan = plan_probe(self._scorer, posterior, ahead, horizon_seconds)
        position, end = plan.score.position, self._profiler.reading
        self.choice = TuningChoice(
            position,
            plan.score.regret,
            measured.get(position) or posterior.predict(position),
            measured,
            posterior,
            dict(self._profiler.steps_at),
            end.now_seconds - began.now_seconds,
            usage_at={} if self._changed else self._profiler.usage_at,
        )
        return plan

    def _forecast(self, posterior: Curves) -> SliceForecast:
        """Forecast of a slice at every position."""
        profiler, rows = self._profiler, posterior.log_seconds
        noise, pace_seconds = profiler.noise(), np.exp(rows).mean(axis=0)
        steps = profiler.slice_steps(pace_seconds, noise, rows.std(axis=0))
        steps = np.maximum(LEAST_STEPS, np.minimum(steps, self._spendable))
        span = steps * pace_seconds
        away = np.arange(len(span)) != profiler.position
        return SliceForecast(
            steps,
            span + np.where(away, SETTLE_SECONDS + pace_seconds, 0.0),
            np.maximum(2e-4, noise / np.sqrt(steps)),
            np.maximum(1e-3, 2e-3 / span),
        )

    def _note_spendable(self, posterior: Curves) -> None:
        """Note the steps that a trial of each position may take."""
        # A run that ends before the first choice has nothing from tuning anyway.
        times = {at: usage.seconds for at, usage in self._profiler.usage_at.items()}
        self._spendable = self._scorer.spendable_steps(posterior, times, PROBING_STEPS)

    def _least_steps(self) -> float:
        """Steps of the shortest slice, with those that pass until the knob has settled."""
        profiler = self._profiler
        steps = float(profiler.slice_steps(profiler.pace_seconds, 0.0, 1.0))
        return max(steps, profiler.period) + math.ceil(SETTLE_SECONDS / profiler.pace_seconds)

    # Holding.

    def _hold(self) -> Procedure:
        """Stay at the choice until the job changes, and compare it with the reference at times."""
        profiler = self._profiler
        assert self.choice is not None  # noqa: S101 - probing made it
        profiler.state = TunerState.HOLDING
        if self._config.dry_run:
            yield from profiler.move(self._reference)
            while not (yield from self._watch(math.inf)):
                pass
            return
        yield from profiler.move(self.choice.position)
        interval_seconds, stretch = 0.0, 1.0
        if self._pair_every > 1:
            yield from self._trim()
        while True:
            subject, count = self._find_candidate(), len(profiler.slices)
            pair_seconds = yield from self._compare(subject, stretch)
            if self._is_hot():
                del profiler.slices[count:]
                yield from profiler.move(self.choice.position)
                yield from self._watch(_PAIR_SPACING * pair_seconds)
                continue
            self._drop_old()
            if self._has_changed() or self._is_contradicted():
                return
            self._note_stalls()
            yield from self._refine()
            if self._profiler.lead > _LEAD:
                return
            if self._find_candidate() != profiler.position:
                # Half of the time at the reference, a setting that may be too slow does no harm.
                stretch = min(_LONGEST_STRETCH, _STRETCH * stretch)
                continue
            stretch = 1.0
            spacing = _PAIR_SPACING * self._pair_every
            interval_seconds = max(spacing * pair_seconds, _PAIR_GROWTH * interval_seconds)
            longest = max(_LONGEST_INTERVAL_SECONDS, _LONGEST_SPACING * pair_seconds)
            if (yield from self._watch(min(interval_seconds, longest))):
                # Another pace alone is no other job: the next pair tells.
                interval_seconds = 0.0

    def _trim(self) -> Procedure:
        """Refine the choice by a watt or two while measuring at it, which costs nothing."""
        profiler = self._profiler
        for _ in range(_MOST_TRIMS):
            steps = profiler.slice_steps(profiler.pace_seconds, profiler.noise(), _PAIR_ERROR)
            yield from profiler.measure(int(steps))
            yield from self._refine()
        yield from self._watch(_FIRST_PAIR_SECONDS)

    def _compare(self, subject: int, stretch: float) -> Generator[Command, Reading, float]:
        """Measure a position, the reference and the position again; the seconds of one of them.

        Args:
            subject: Position to compare with the reference.
            stretch: Factor on the length of slices.
        """
        profiler = self._profiler
        yield from profiler.move(subject)
        began = profiler.reading.now_seconds
        noise, steps = profiler.noise(), self._pair_steps()
        # What a longer slice would not tell better is told by the next pair, of the job as it is.
        longest = min((noise / _PAIR_ERROR) ** 2, self._spendable[subject] / 2)
        steps = max(steps, math.ceil(min(stretch * steps, longest)))
        yield from profiler.measure(steps)
        if subject != self._reference:
            yield from profiler.move(self._reference)
            yield from profiler.measure(steps)
            yield from profiler.move(subject)
            yield from profiler.measure(steps)
        return (profiler.reading.now_seconds - began) / 3

    def _pair_steps(self) -> int:
        """Steps of a slice of a pair."""
        profiler = self._profiler
        return int(profiler.slice_steps(profiler.pace_seconds, profiler.noise(), _PAIR_ERROR))

    def _drop_old(self) -> None:
        """Forget slices between the probes, which the curve needs, and the latest ones."""
        slices = self._profiler.slices
        extra = len(slices) - _MOST_KEPT
        if extra > 0:
            self._profiler.slices = slices[:_PROBES_KEPT] + slices[_PROBES_KEPT + extra :]

    def _find_candidate(self) -> int:
        """The position that may turn out best; the choice where none would gain enough."""
        assert self.choice is not None  # noqa: S101 - probing made it
        posterior = self._posterior(self._profiler.estimates())
        score = self._scorer.score(posterior, self._stalls.per_step())
        unknown = posterior.log_seconds.std(axis=0) > _KNOWN
        self._note_spendable(posterior)
        affordable = self._spendable >= 2 * self._pair_steps()
        gains = np.where(score.promising & unknown & affordable, score.gains, 0.0)
        candidate = int(gains.argmax())
        return candidate if gains[candidate] > _WORTHWHILE else self.choice.position

    def _is_contradicted(self) -> bool:
        """Whether the latest pair is far slower than the choice was believed to be, both times.

        A board that gets hot, or another process, is slower only before or after the reference.
        """
        profiler, choice, noise = self._profiler, self.choice, self._profiler.noise()
        if choice is None or choice.posterior is None:
            return False
        if not self._reference != profiler.position == choice.position:
            return False
        first, reference, second = (part.estimate(noise) for part in profiler.slices[-3:])
        slowdown = min(first.seconds, second.seconds) / reference.seconds
        belief = choice.posterior.slowdown(choice.position)
        error = math.hypot(first.seconds_error, reference.seconds_error)
        return math.log(slowdown) - belief > max(_CONTRADICTION, _BEYOND_DOUBT * error)

    def _refine(self) -> Procedure:
        """Move the choice where fresh slices say that another position is better, or safe."""
        profiler, choice = self._profiler, self.choice
        assert choice is not None  # noqa: S101 - probing made it
        measured = self._profiler.estimates()
        posterior = self._posterior(measured)
        stalls = self._stalls.per_step()
        score = self._scorer.score(posterior, stalls)
        excess = float(score.excess[profiler.position]) - score.regret
        if excess > TOLERANCE / 4 or not score.safe[profiler.position]:
            yield from profiler.move(score.position)
        position = profiler.position
        self.choice = replace(
            choice,
            position=position,
            regret=score.regret,
            chosen=stalls.added_to(_best_known(position, measured, posterior)),
            measured={at: stalls.added_to(estimate) for at, estimate in measured.items()},
            posterior=posterior,
        )

    def _note_stalls(self) -> None:
        """Note how much longer the steps since the pair before took than those of both pairs."""
        profiler, samples = self._profiler, tuple(self._watched)
        self._watched.clear()
        measured, references = profiler.estimates(), self._latest_references()
        if not samples or self._watched_at not in measured:
            return
        held, reference = measured[self._watched_at], measured[self._reference]
        # The slower pair, so that steps that became faster or slower meanwhile are no stalls.
        pace = max(estimate.seconds for estimate in references) / reference.seconds
        power = min(estimate.watts for estimate in references)
        if power > 0 and reference.watts > 0:
            watts = held.watts * power / reference.watts
            error = max(estimate.watts_error for estimate in references)
            calm = replace(held, seconds=held.seconds * pace, watts=watts, watts_error=error)
            self._stalls.add(samples, calm)

    def _watch(
        self, seconds: float, expected: Estimate | None = None
    ) -> Generator[Command, Reading, bool]:
        """Whether the job behaves differently within some time, by samples at one position."""
        profiler = self._profiler
        ends = profiler.reading.now_seconds + seconds
        self._watched_at = profiler.position
        samples: list[StepSample] = []
        while expected is None and len(samples) < _BASELINE_SAMPLES:
            sample = yield from profiler.sample(_HOLD_SECONDS)
            if sample is not None:
                samples.append(sample)
                self._watched.append(sample)
            if profiler.reading.now_seconds >= ends:
                return False
        pace, power = self._detectors(expected or _summarize(samples))
        while profiler.reading.now_seconds < ends:
            sample = yield from profiler.sample(_HOLD_SECONDS)
            if sample is None:
                continue
            self._watched.append(sample)
            drifted = pace.changed(sample.log_pace)
            if sample.joules > 3 * sample.sigma_joules:
                drifted |= power.changed(math.log(sample.joules / sample.seconds))
            if drifted:
                return True
        return False

    def _detectors(self, baseline: Estimate) -> tuple[DriftDetector, DriftDetector]:
        steps = max(1.0, _HOLD_SECONDS / baseline.seconds)
        spread = baseline.seconds_error * math.sqrt(_BASELINE_SAMPLES)
        spread = max(spread, 2 * self._profiler.noise() / math.sqrt(steps))
        change = max(_LEAST_DRIFT, _DRIFT_SPREADS * spread)
        return (
            DriftDetector(math.log(baseline.seconds), change),
            DriftDetector(math.log(max(baseline.watts, 1e-3)), change),
        )

    def _hold_earlier(self, earlier: TuningChoice) -> Procedure:
        """Use an earlier profile for as long as the job agrees with it."""
        profiler = self._profiler
        profiler.state = TunerState.HOLDING
        self.choice = earlier
        yield from profiler.move(self._reference if self._config.dry_run else earlier.position)
        # A profile has both the choice and the reference.
        at_choice = profiler.position == earlier.position
        expected = earlier.chosen if at_choice else earlier.measured[profiler.position]
        while not (yield from self._watch(math.inf, replace(expected, seconds_error=0.0))):
            pass


def _best_known(position: int, measured: Mapping[int, Estimate], posterior: Curves) -> Estimate:
    """What was measured at a position, or where that scatters, the curve through all positions."""
    curve, own = posterior.predict(position), measured.get(position)
    if own is None:
        return curve
    if math.hypot(own.seconds_error, own.watts_error) <= _VAGUE:
        return own
    return replace(curve, steps=own.steps, span_seconds=own.span_seconds)


def _summarize(samples: Sequence[StepSample]) -> Estimate:
    """The job at one position, with all that disturbs it regularly."""
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
        profiler.steps_at.clear()
        # A short slice at the reference, so that savings can be stated against it.
        yield from profiler.measure(LEAST_STEPS)
        for position in self._measured:
            yield from profiler.move(position)
            yield from profiler.measure(max(LEAST_STEPS, self._slice_steps()))
        if self._measured_all is not None:
            self._measured_all()
        profiler.state = TunerState.HOLDING
        yield from profiler.move(self._hold)
        part = Slice(self._hold)
        profiler.slices.append(part)
        for _ in range(_HELD_SAMPLES):
            sample = yield from profiler.sample(_HOLD_SECONDS)
            if sample is not None:
                part.samples.append(sample)
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
            probed_steps=dict(self._profiler.steps_at),
            profiling_seconds=end.now_seconds - began.now_seconds,
        )
