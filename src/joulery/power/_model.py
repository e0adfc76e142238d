"""Step time and power as functions of a knob, with uncertainty, from a few noisy probes.

The prior is a few thousand random jobs: any mix of compute, memory and waiting for the host, any
static share of power, any voltage curve, any regulation of the limit; none of them is a board of
the catalog. The posterior weighs each of them by how well it explains the probes, and adds a smooth
and a rough deviation (a Gaussian process whose size is weighed along), because no formula fits
every board. Cost of a limit, its uncertainty and the value of another probe are all computed from
samples of the posterior.

Everything is relative to the reference: the original value of the knob.

``ObjectiveScorer`` scores the samples by an objective and chooses a knob position.
``plan_probe`` asks of every position how much better than the choice it may turn out to be;
that gain over the remaining time stands against the cost of a slice there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from joulery.hardware import execute, relative_voltage
from joulery.objectives import Bounds, Totals, depends_on_reference
from joulery.power._step_profiler import (
    MOST_WAITING,
    NO_STALLS,
    OUTLIER_LEAST,
    Estimate,
    SettingUsage,
    Waiting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power._step_profiler import Reading

    Array = NDArray[np.float64]
    Indices = NDArray[np.intp]

# OpenBLAS, which NumPy ships with, stays on one core up to so many multiplications.
_ONE_CORE_PRODUCT = 64**3
# Jobs of the prior and speeds of each; by hand: more of them cost time beside training.
_CURVES, _SPEEDS = 700, 48
# Samples of the posterior and knob values of its draws; by hand, for the same reason.
SAMPLES, _NODES = 160, 60
# Fixed seeds, so that tuning replays.
_PRIOR_SEED, _SEED = 7, 11
# Twice the slices that a machine measures at most.
_MOST_PROBES = 128
# Sizes of the deviation from the best job of the prior, relative: (smooth, rough, probability);
# by hand.
_DEVIATIONS = ((0.006, 0.004, 0.3), (0.02, 0.012, 0.4), (0.06, 0.05, 0.3))
# Probability of a size of deviation other than what the probes suggest; by leaving out boards
# of the measured sweeps.
_SURPRISE = 0.2
# How far the deviations reach, as a fraction of the knob's value at the reference; by
# hand.
_SMOOTH_REACH, _ROUGH_REACH = 0.3, 0.06
# Relative uncertainty of the reference before it is measured again; by hand, wide.
_OFFSET = 0.1
# Share of the samples that may break a bound, one of them: the choice is made anew after each pair,
# always on the edge of what is allowed, so it errs more often than this. On 72 jittering and
# scattering loads (benchmarks/power_bounds.py, seeds 2000 to 2011) 3 ended late with 0.025, 0 so.
RISK = 0.0065
# Chance to keep the bounds from which on a value may be tried while another is held: 0.5 leaves the
# edge unexplored, 0 spends time on hopeless values; on the same loads.
_CHANCE = 0.2
# Relative error of the energy per step below which no estimate goes: the profiler's, 10 % wider.
_EXACT = 1.1e-3
# Share of a deadline or a budget that is spent, since the last steps are not refined: chosen on 120
# drawn trainings, of which 0.998 left 4 % late or over by up to 0.25 %.
_SPENT = 0.996
# Least expected gain of a slice in seconds of work: reading and planning it takes that long.
_LEAST_GAIN = 0.01
# Expected relative regret that is good enough; by hand: a tenth of a good choice's.
TOLERANCE = 0.0005


@dataclass(frozen=True, slots=True)
class Curves:
    """Logarithms of seconds per step and of watts: a row per sample, a column per knob position.

    The last column is the reference.
    """

    log_seconds: Array
    log_watts: Array

    def predict(self, position: int) -> Estimate:
        """The median at a knob position, with no steps behind it."""
        log_seconds, log_watts = self.log_seconds[:, position], self.log_watts[:, position]
        return Estimate(
            float(np.exp(np.median(log_seconds))),
            float(np.exp(np.median(log_watts))),
            float(log_seconds.std()),
            float(log_watts.std()),
            0,
            0.0,
        )

    def slowdown(self, position: int) -> float:
        """Logarithm of the step time at a position, relative to the reference; the median."""
        return float(np.median(self.log_seconds[:, position] - self.log_seconds[:, -1]))

    def run_gains(self, usage_at: Mapping[int, SettingUsage]) -> tuple[Array, Array]:
        """Share of the energy that a run saved against the reference, and its slowdown; samples.

        What steps took longer than known, at less power, is waiting: the same at any setting.

        Args:
            usage_at: Usage of the run, by position.
        """
        times, joules, steps = np.array(list(usage_at.values())).T
        paces, powers = np.exp(self.log_seconds), np.exp(self.log_watts)
        pace, watts = (rows[:, list(usage_at)] for rows in (paces, powers))
        energy = pace * watts / (paces[:, -1:] * powers[:, -1:])
        missing = (times - joules / watts) / (1 - MOST_WAITING)
        waiting = np.minimum(times - steps * pace, missing).clip(0.0, times)
        at_work = np.minimum(joules, (times - waiting) * watts)
        seconds = (waiting + (times - waiting) * paces[:, -1:] / pace).sum(axis=1)
        original = (joules + at_work * (1 / energy - 1)).sum(axis=1)
        return 1 - joules.sum() / original, times.sum() / seconds - 1

    def power_at_pace(self, slower: float) -> float:
        """Logarithm of the power at the value that is so much slower, relative to the reference.

        Args:
            slower: Logarithm of the step time there, relative to the reference.
        """
        seconds, watts = (
            np.median(rows - rows[:, -1:], axis=0)[::-1]
            for rows in (self.log_seconds, self.log_watts)
        )
        return float(np.interp(slower, np.maximum.accumulate(seconds), watts))


def limit_curves(limits_watts: Array, reference_watts: float) -> Curves:
    """Curves over power limits, relative to the reference, for each job of the prior.

    Args:
        limits_watts: Power limits, ascending; the last one is the original limit.
        reference_watts: Mean power that was measured under it.
    """
    jobs = _Jobs.draw(lowest_speed=0.05)
    highest_watts = float(limits_watts[-1])
    # A board can be limited by what it draws while it works, not by the mean with its pauses.
    regulated = reference_watts * jobs.regulated / jobs.watts[:, -1:]
    regulated *= (highest_watts / regulated[:, -1:]).clip(max=1.0)
    return jobs.over(regulated, limits_watts)


def clock_curves(clocks_hertz: Array) -> Curves:
    """The same over locked clocks, ascending; the last one is the clock found."""
    jobs = _Jobs.draw(lowest_speed=min(0.9, float(clocks_hertz[0] / clocks_hertz[-1])))
    speeds = jobs.speeds * float(clocks_hertz[-1])
    return jobs.over(speeds, clocks_hertz)


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Jobs of the prior at ``_SPEEDS`` speeds of their boards, ascending; 1 is the reference's."""

    speeds: Array
    seconds: Array
    watts: Array
    regulated: Array

    @classmethod
    def draw(cls, lowest_speed: float) -> _Jobs:
        chance = np.random.default_rng(_PRIOR_SEED)

        def uniform(low: float, high: float) -> Array:
            return chance.uniform(low, high, (_CURVES, 1))

        slowest = np.maximum(lowest_speed, uniform(0.0, 0.45) ** 1.5)
        speeds = slowest + (1 - slowest) * np.linspace(0.0, 1.0, _SPEEDS)
        # Time: compute stretches with the clock, memory traffic and waiting for the host do not.
        host = np.where(uniform(0, 1) < 0.75, uniform(0, 0.2), uniform(0, 1.0))
        memory, sharpness = uniform(0, 1.3), uniform(1.5, 6.0)
        # Power while busy: a static part, one that goes with the clock, one with the work done.
        knee, floor = np.minimum(uniform(0.3, 1.0), 0.999), uniform(0.5, 1.0)
        static, by_clock = uniform(0.08, 0.6), uniform(0.0, 0.6)
        at_full = (1 + memory**sharpness) ** (1 / sharpness)
        busy, awake, joules = execute(
            speeds,
            relative_voltage(speeds, floor, knee),
            seconds=(1.0, memory),
            watts=(static, (1 - static) * by_clock),
            joules=((1 - static) * (1 - by_clock) * at_full, 0.0),
            sharpness=sharpness,
        )
        power = awake + joules / busy
        busy *= (1 - host) / busy[:, -1:]
        seconds = busy + host
        waiting = np.minimum(power, static * uniform(0.6, 1.3))
        mean = (power * busy + waiting * host) / seconds
        # Where a slower board waits less, its mean may seem to rise; none was ever seen to.
        mean = np.maximum.accumulate(mean, axis=1)
        return cls(speeds, seconds, mean, power * uniform(0.97, 1.06))

    def over(self, knob: Array, values: Array) -> Curves:
        """Interpolate to the wanted knob values; beyond its ends a knob has no effect."""
        columns = np.arange(_SPEEDS, dtype=np.float64)
        at = np.stack([np.interp(values, row, columns) for row in knob])
        below = np.minimum(at.astype(np.intp), _SPEEDS - 2)

        def between(values: Array) -> Array:
            logarithms = np.log(values / values[:, -1:])
            low, high = (
                np.take_along_axis(logarithms, near, axis=1) for near in (below, below + 1)
            )
            result: Array = low + (at - below) * (high - low)
            return result

        return Curves(between(self.seconds), between(self.watts))


class _Fit(NamedTuple):
    """Probes, and what explains them.

    Attributes:
        at: Positions of the probes.
        logs: Logarithms of seconds and of watts, from the origins; two rows.
        errors: Errors of these.
        inverses: Inverse covariance of the probes, for each row and each size of deviation.
        jobs: Job of the prior that each sample follows.
        sizes: Size of deviation of each sample.
    """

    at: Indices
    logs: Array
    errors: Array
    inverses: Array
    jobs: Indices
    sizes: Indices


class CurveModel:
    """Posterior of the curves; cheap to ask again after each probe.

    Args:
        values: Values of the knob, ascending; the last one is the reference.
        curves: Prior curves over these values.
        seconds: Approximate step time at the reference.
        watts: Approximate power at the reference.
    """

    def __init__(self, values: Array, curves: Curves, seconds: float, watts: float) -> None:
        self._curves = (curves.log_seconds, curves.log_watts)
        self._origins = (float(np.log(seconds)), float(np.log(max(watts, 1e-3))))
        chance = np.random.default_rng(_SEED)
        distance = np.abs(values[:, None] - values[None, :]) / values[-1]
        smooth = np.exp(-0.5 * (distance / _SMOOTH_REACH) ** 2)
        # Kinks are seldom, so neighbours are strongly correlated: rough in curvature only.
        scaled = np.sqrt(3.0) * distance / _ROUGH_REACH
        rough = (1.0 + scaled) * np.exp(-scaled)
        offset = _OFFSET**2
        self._kernels = np.stack([s**2 * smooth + r**2 * rough + offset for s, r, _ in _DEVIATIONS])
        self._log_odds: Array = np.log([odds for _, _, odds in _DEVIATIONS])
        # Draws from each deviation, made once and bent to the probes each time. They are made at
        # some of the values and linear between: a root of the whole kernel takes far longer.
        nodes = np.unique(np.linspace(0, len(values) - 1, _NODES).round().astype(np.intp))
        between = np.stack([np.interp(values, values[nodes], row) for row in np.eye(len(nodes))])
        normal = chance.standard_normal
        self._draws: list[list[Array]] = []
        for _ in self._curves:
            draws = []
            for kernel in self._kernels:
                root = np.linalg.cholesky(kernel[np.ix_(nodes, nodes)] + 1e-9 * np.eye(len(nodes)))
                rough_draws = product(normal((SAMPLES, len(nodes))), root.T)
                draws.append(product(rough_draws, between))
            self._draws.append(draws)
        self._noise = normal((2, SAMPLES, _MOST_PROBES))
        self._start = float(chance.uniform())
        self._latest: tuple[Mapping[int, Estimate], _Fit] | None = None

    def rebase(self, seconds: float, watts: float) -> None:
        """Note the step time and power at the reference as they are now."""
        self._origins = (math.log(seconds), math.log(max(watts, 1e-3)))
        self._latest = None

    def posterior(self, measured: Mapping[int, Estimate]) -> Curves:
        """Samples of the curves given all estimates so far, by position."""
        fit = self._fit(measured)
        at, parts = fit.at, []
        for which, curves in enumerate(self._curves):
            rows = curves[fit.jobs].copy()
            for size, kernel in enumerate(self._kernels):
                members = np.flatnonzero(fit.sizes == size)
                if len(members) == 0:
                    continue
                draws = self._draws[which][size][members]
                noise = fit.errors[which] * self._noise[which, members, : len(at)]
                missing = fit.logs[which] - rows[members[:, None], at] - draws[:, at] - noise
                pull = product(missing, fit.inverses[which, size])
                rows[members] += draws + product(pull, kernel[at])
            parts.append(rows + self._origins[which])
        return Curves(parts[0], parts[1])

    def slower_than_predicted(self, measured: Mapping[int, Estimate]) -> dict[int, float]:
        """Sigmas by which each probe is slower than the others predict, by position.

        Only probes that are off by as much as a disturbance would be are listed.
        """
        fit = self._fit(measured)
        off, sigma = np.empty((2, SAMPLES, len(fit.at)))
        for size, inverse in enumerate(fit.inverses[0]):
            members = np.flatnonzero(fit.sizes == size)
            missing = fit.logs[0] - self._curves[0][fit.jobs[members][:, None], fit.at]
            off[members] = product(missing, inverse) / np.diag(inverse)
            sigma[members] = 1 / np.sqrt(np.diag(inverse))
        middle = np.median(off, axis=0)
        sigmas = middle / np.median(sigma, axis=0)
        return {
            int(position): float(sigma)
            for position, sigma, by in zip(fit.at, sigmas, middle, strict=True)
            if sigma > 0 and by > OUTLIER_LEAST
        }

    def _fit(self, measured: Mapping[int, Estimate]) -> _Fit:
        """The fit to all estimates, remembered for the latest ones."""
        if self._latest is not None and self._latest[0] == measured:
            return self._latest[1]
        at = np.array(list(measured), dtype=np.intp)
        estimates = measured.values()
        logs = np.log(
            [
                [estimate.seconds for estimate in estimates],
                [max(estimate.watts, 1e-3) for estimate in estimates],
            ]
        )
        logs -= np.array(self._origins)[:, None]
        errors = np.array(
            [
                [estimate.seconds_error for estimate in estimates],
                [estimate.watts_error for estimate in estimates],
            ]
        )
        # For seconds and watts, and for every size of deviation: covariance of the probes.
        inner = self._kernels[:, at[:, None], at] + (errors**2)[:, None, :, None] * np.eye(len(at))
        inverses = cast("Array", np.linalg.inv(inner))
        jobs, sizes = self._draw(at, logs, inverses, np.linalg.slogdet(inner)[1].sum(axis=0))
        fit = _Fit(at, logs, errors, inverses, jobs, sizes)
        self._latest = (dict(measured), fit)
        return fit

    def _draw(
        self, at: Indices, logs: Array, inverses: Array, log_determinants: Array
    ) -> tuple[Indices, Indices]:
        """A job of the prior and a size of deviation for each sample, by their likelihood."""
        likely = np.tile((self._log_odds - 0.5 * log_determinants)[:, None], _CURVES)
        for which, curves in enumerate(self._curves):
            missing = logs[which] - curves[:, at]
            for size, inverse in enumerate(inverses[which]):
                pulled = product(missing, inverse)
                likely[size] -= 0.5 * np.einsum("ij,ij->i", missing, pulled)
        weights = np.exp(likely - likely.max())
        believed = weights.sum(axis=1)
        # Measurements elsewhere do not rule out a kink or a dip where nothing was measured.
        shares = (1 - _SURPRISE) * believed / believed.sum() + _SURPRISE * np.exp(self._log_odds)
        within = np.exp(likely - likely.max(axis=1, keepdims=True))
        weights = shares[:, None] * within / within.sum(axis=1, keepdims=True)
        steps = (np.arange(SAMPLES) + self._start) / SAMPLES
        picks = np.searchsorted(np.cumsum(weights) / weights.sum(), steps)
        picks = np.minimum(picks, weights.size - 1)
        return picks % _CURVES, picks // _CURVES


@dataclass(frozen=True, slots=True)
class Score:
    """The best knob value, and how much better others might be.

    Attributes:
        position: Index of the best knob value.
        regret: Expected relative excess of its score over the best possible one.
        excess: Expected relative excess at every knob value, bounds aside: the cost of being there.
        gains: Expected relative gain over the best one, were each knob value known exactly.
        safe: Whether each knob value keeps the bounds with the confidence required.
        promising: Whether each knob value has a fair chance to keep the bounds.
    """

    position: int
    regret: float
    excess: Array
    gains: Array
    safe: NDArray[np.bool_]
    promising: NDArray[np.bool_]


class ObjectiveScorer:
    """Scores posterior samples by an objective.

    Args:
        objective: Objective to minimise.
        steps: Steps of the work that deadlines and budgets refer to.

    Attributes:
        uses_reference: Whether scores depend on the reference.
    """

    def __init__(self, objective: Objective, steps: float = 1.0) -> None:
        self._objective = objective
        self._steps = steps
        self._progress: tuple[Reading, Waiting] | None = None
        self.uses_reference = depends_on_reference(objective)

    def score(self, posterior: Curves, waiting: Waiting = NO_STALLS) -> Score:
        """The best knob value under a posterior; the reference is the last one.

        Args:
            posterior: Samples of the curves.
            waiting: Time and energy of a step that no knob value changes.
        """
        seconds, scores, allowed = self._evaluate(posterior, waiting)
        best = np.where(allowed, scores, np.inf).min(axis=1, keepdims=True)
        relative = scores / best - 1.0
        odds = allowed.mean(axis=0)
        safe = odds >= 1.0 - RISK
        mean = relative.mean(axis=0)
        if safe.any():
            position = int(np.argmin(np.where(safe, mean, np.inf)))
        else:
            position = int(np.argmax(odds))
        # A setting that breaks a bound seems cheap, but is of no use.
        late = np.maximum(0.0, seconds / np.where(allowed, seconds, 0.0).max(axis=1)[:, None] - 1)
        excess = np.maximum(relative, late).mean(axis=0)
        better = np.maximum(0.0, relative[:, [position]] - relative) * allowed
        regret = max(0.0, float(mean[position]))
        gains = better.mean(axis=0)
        return Score(position, regret, np.maximum(0.0, excess), gains, safe, odds >= _CHANCE)

    def note_progress(
        self, reading: Reading, usage_at: Mapping[int, SettingUsage], posterior: Curves
    ) -> None:
        """Note how much of a deadline or a budget is used, and what steps need beside their work.

        Args:
            reading: Time, energy and steps of the work so far.
            usage_at: Usage by position.
            posterior: Samples of the curves.
        """
        steps = np.array([usage.steps for usage in usage_at.values()])
        if steps.sum() <= 0 or not self._objective.bounds.of_whole_work:
            return
        seconds = np.exp(posterior.log_seconds[:, list(usage_at)]).mean(axis=0)
        joules = seconds * np.exp(posterior.log_watts[:, list(usage_at)]).mean(axis=0)
        beside = [
            max(0.0, used / reading.steps - float(steps @ of_work / steps.sum()))
            for used, of_work in ((reading.now_seconds, seconds), (reading.joules, joules))
        ]
        self._progress = reading, Waiting(beside[0], beside[1])

    def _find_bounds(self, waiting: Waiting) -> Bounds:
        """The bounds on the whole work at a pace that keeps them in the steps that are left."""
        bounds = self._objective.bounds
        if self._progress is None:
            return bounds
        reading, beside = self._progress
        # The time of the first step was not seen.
        left = max(1.0, self._steps - reading.steps + 1)

        def spread(budget: float | None, used: float, more: float) -> float | None:
            if budget is None:
                return None
            rest = (_SPENT * budget - used) / left - max(0.0, more)
            return max(1e-9, self._steps * rest)

        return Bounds(
            spread(bounds.deadline_seconds, reading.now_seconds, beside.seconds - waiting.seconds),
            bounds.max_slowdown,
            spread(bounds.max_joules, reading.joules, beside.joules - waiting.joules),
        )

    def spendable_steps(
        self, posterior: Curves, seconds_at: Mapping[int, float], least_steps: float
    ) -> Array:
        """Steps at every knob value after which the whole run so far still keeps its slowdown.

        What is not known of a knob value counts as its worst case, as in what is held.

        Args:
            posterior: Samples of the curves.
            seconds_at: Time of the run so far, by position.
            least_steps: Least steps that the run will have.
        """
        slowdown = self._objective.bounds.max_slowdown
        seconds = np.exp(posterior.log_seconds)
        if slowdown is None:
            return np.full(seconds.shape[1], np.inf)
        allowed = (1 + slowdown) * seconds[:, -1:]
        times = np.array(list(seconds_at.values()))
        steps = (times / seconds[:, list(seconds_at)]).sum(axis=1, keepdims=True)
        # As if it would stay at the reference until it is as long as every run is taken to be.
        early = slowdown * np.maximum(0.0, least_steps - steps) * seconds[:, -1:]
        spare = np.maximum(0.0, steps * allowed + early - times.sum())
        late = seconds - allowed
        counts = np.where(late > 0, spare / np.maximum(late, 1e-12), np.inf)
        worst: Array = np.sort(counts, axis=0)[int(RISK * len(counts))]
        return worst

    def _evaluate(
        self, posterior: Curves, waiting: Waiting
    ) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Seconds, scores and whether bounds are kept."""
        seconds = np.exp(posterior.log_seconds)
        joules = self._steps * (seconds * np.exp(posterior.log_watts) + waiting.joules)
        seconds = self._steps * (seconds + waiting.seconds)
        reference = Totals(seconds[:, -1:], joules[:, -1:])
        scores = self._objective.value(seconds, joules, reference)
        within = self._find_bounds(waiting).kept(seconds, joules, reference)
        allowed = np.broadcast_to(within, seconds.shape)
        # Where nothing is allowed, the fastest comes closest, or of a budget the thriftiest.
        hopeless = ~allowed.any(axis=1, keepdims=True)
        if hopeless.any():
            closest = seconds if self._objective.bounds.max_joules is None else joules
            scores = np.where(hopeless, closest, scores)
            allowed = allowed | hopeless
        # Energy that costs nothing, or is paid for, is not worth a second.
        scores = np.where(scores.min(axis=1, keepdims=True) > 0, scores, seconds)
        return seconds, scores, allowed


@dataclass(frozen=True, slots=True)
class SliceForecast:
    """Expected length, settling included, and relative errors of a slice at every knob value."""

    steps: Array
    seconds: Array
    seconds_error: Array
    watts_error: Array


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The best choice as things stand, and the steps to measure at the knob position ``probe``.

    ``probe`` is None when nothing is worth measuring.
    """

    score: Score
    probe: int | None
    steps: int = 0


def plan_probe(
    scorer: ObjectiveScorer,
    posterior: Curves,
    ahead: SliceForecast,
    horizon_seconds: float,
) -> ProbePlan:
    """The next probe: the one whose gain outweighs its cost the most.

    Args:
        scorer: Scorer of the objective.
        posterior: Samples of the curves.
        ahead: Forecast of a slice at every knob value.
        horizon_seconds: Expected time that the choice will be in force.
    """
    score = scorer.score(posterior)
    if score.regret <= TOLERANCE:
        return ProbePlan(score, None)

    def worthwhile(gains: Array) -> int | None:
        """Position at which a slice gains most after its cost; None where that is too little."""
        values = horizon_seconds * gains - ahead.seconds * score.excess
        probe = int(values.argmax())
        return probe if values[probe] >= _LEAST_GAIN else None

    probe = worthwhile(score.gains * _share_resolved(posterior, ahead))
    return ProbePlan(score, probe, 0 if probe is None else int(ahead.steps[probe]))


def _share_resolved(posterior: Curves, ahead: SliceForecast) -> Array:
    """Share of what is unknown about the energy of a step that a slice would tell."""
    prior_variance = (posterior.log_seconds + posterior.log_watts).var(axis=0)
    noise = ahead.seconds_error**2 + ahead.watts_error**2
    posterior_variance = np.maximum(_EXACT**2, prior_variance * noise / (prior_variance + noise))
    resolved: Array = np.maximum(0.0, 1.0 - posterior_variance / np.maximum(prior_variance, 1e-12))
    return resolved


def product(first: Array, second: Array) -> Array:
    """``left @ right`` on one core, in pieces of rows.

    Libraries spread larger products over all cores. Inside a training job those are busy, and
    waiting for them costs many times what the product does.
    """
    rows = max(1, _ONE_CORE_PRODUCT // (second.shape[0] * second.shape[1]))
    result = np.empty((len(first), second.shape[1]))
    for start in range(0, len(first), rows):
        np.matmul(first[start : start + rows], second, out=result[start : start + rows])
    return result
