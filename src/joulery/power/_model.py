"""Step time and power as functions of a knob, with uncertainty, from a few noisy probes.

The prior is a few thousand random jobs: any mix of compute, memory and waiting for the host, any
static share of power, any voltage curve, any regulation of the limit; none of them is a board of
the catalog. The posterior weighs each of them by how well it explains the probes, and adds a smooth
and a rough deviation (a Gaussian process whose size is weighed along), because no formula fits
every board. Cost of a limit, its uncertainty and the value of another probe are all computed from
samples of the posterior.

Everything is relative to the reference: the value of the knob as it was found.

:class:`ObjectiveScorer` scores the samples by an objective and chooses a knob position.
:func:`plan_probe` asks of every position how much better than the choice it may turn out to be;
that gain over the remaining time stands against the cost of a slice there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from joulery.objectives import Totals, depends_on_reference
from joulery.power._step_profiler import OUTLIER_LEAST, Estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from joulery.objectives import Objective

    Array = NDArray[np.float64]
    Indices = NDArray[np.intp]

# OpenBLAS, which NumPy ships with, stays on one core up to so many multiplications.
_ONE_CORE_PRODUCT = 64**3
# The prior: jobs, speeds of each, seed.
_CURVES = 700
_SPEEDS = 48
_PRIOR_SEED = 7
# The posterior: samples, knob values of the draws, seed, probes at most.
SAMPLES = 160
_NODES = 60
_SEED = 11
_MOST_PROBES = 128
# Sizes of the deviation from the best job of the prior, relative: (smooth, rough, probability).
_DEVIATIONS = ((0.006, 0.004, 0.3), (0.02, 0.012, 0.4), (0.06, 0.05, 0.3))
# Probability of a size of deviation other than what the probes so far suggest.
_SURPRISE = 0.2
# How far the deviations reach, as a fraction of the knob's value at the reference.
_SMOOTH_REACH, _ROUGH_REACH = 0.3, 0.06
# Relative uncertainty of the reference before it is measured again.
_OFFSET = 0.1
# A bound is to be kept with a confidence of 95 %. Samples may break it half as often, because
# beliefs about real curves are somewhat too sure.
_RISK = 0.025
# Standard errors beyond which there is no doubt.
_BEYOND_DOUBT = 3.0
# Relative errors of energy and time per step below which no estimate goes.
_EXACT, _EXACT_SECONDS = 1.1e-3, 2.2e-4
# Weight of a margin to a bound, which stays for as long as the job runs, beyond the horizon.
_MARGIN_WEIGHT = 1.5
# Least expected gain of a slice in seconds of work: reading and planning it takes that long.
_LEAST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class Curves:
    """Logarithms of seconds per step and of watts: a row per sample, a column per knob position.

    The last column is the reference.
    """

    log_seconds: Array
    log_watts: Array

    def predicted(self, position: int) -> Estimate:
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


def limit_curves(limits_watts: Array, reference_watts: float) -> Curves:
    """Curves over power limits, relative to the reference, for each job of the prior.

    Args:
        limits_watts: Power limits, ascending; the last one is the limit found.
        reference_watts: Mean power that was measured under it.
    """
    jobs = _Jobs.drawn(lowest_speed=0.05)
    found = float(limits_watts[-1])
    # A board can be limited by what it draws while it works, not by the mean with its pauses.
    regulated = reference_watts * jobs.regulated / jobs.watts[:, -1:]
    regulated *= (found / regulated[:, -1:]).clip(max=1.0)
    return jobs.over(regulated, limits_watts)


def clock_curves(clocks_hertz: Array) -> Curves:
    """The same over locked clocks, ascending; the last one is the clock found."""
    jobs = _Jobs.drawn(lowest_speed=min(0.9, float(clocks_hertz[0] / clocks_hertz[-1])))
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
    def drawn(cls, lowest_speed: float) -> _Jobs:
        chance = np.random.default_rng(_PRIOR_SEED)

        def uniform(low: float, high: float) -> Array:
            return chance.uniform(low, high, (_CURVES, 1))

        slowest = np.maximum(lowest_speed, uniform(0.0, 0.45) ** 1.5)
        speeds = slowest + (1 - slowest) * np.linspace(0.0, 1.0, _SPEEDS)
        # Time: compute stretches with the clock, memory traffic and waiting for the host do not.
        host = np.where(uniform(0, 1) < 0.75, uniform(0, 0.2), uniform(0, 1.0))
        memory, sharpness = uniform(0, 1.3), uniform(1.5, 6.0)
        busy = (speeds**-sharpness + memory**sharpness) ** (1 / sharpness)
        busy *= (1 - host) / busy[:, -1:]
        seconds = busy + host
        # Power while busy: a static part, one that goes with the clock, one with the work done.
        knee, floor = uniform(0.3, 1.0), uniform(0.5, 1.0)
        bent = np.maximum(0.0, speeds - knee) / np.maximum(1e-3, 1 - knee)
        voltage_squared = (floor + (1 - floor) * bent) ** 2
        static, by_clock = uniform(0.08, 0.6), uniform(0.0, 0.6)
        work_rate = busy[:, -1:] / np.maximum(busy, 1e-9)
        moving = by_clock * speeds + (1 - by_clock) * work_rate
        power = static + (1 - static) * moving * voltage_squared
        waiting = np.minimum(power, static * uniform(0.6, 1.3))
        mean = (power * busy + waiting * host) / seconds
        # Where a slower board waits less, its mean may seem to rise; none was ever seen to.
        mean = np.maximum.accumulate(mean, axis=1)
        return cls(speeds, seconds, mean, power * uniform(0.97, 1.06))

    def over(self, knob: Array, wanted: Array) -> Curves:
        """Interpolate to the wanted knob values; beyond its ends a knob has no effect."""
        places = np.arange(_SPEEDS, dtype=np.float64)
        at = np.stack([np.interp(wanted, row, places) for row in knob])
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
        found: Logarithms of seconds and of watts, from the origins; two rows.
        errors: Errors of these.
        inverses: Inverse covariance of the probes, for each row and each size of deviation.
        jobs: Job of the prior that each sample follows.
        sizes: Size of deviation of each sample.
    """

    at: Indices
    found: Array
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
        self._origins = (float(np.log(seconds)), float(np.log(watts)))
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

    def posterior(self, measured: Mapping[int, Estimate]) -> Curves:
        """Samples of the curves given all estimates so far, by position."""
        fit = self._fitted(measured)
        at, parts = fit.at, []
        for which, curves in enumerate(self._curves):
            rows = curves[fit.jobs].copy()
            for size, kernel in enumerate(self._kernels):
                mine = np.flatnonzero(fit.sizes == size)
                if len(mine) == 0:
                    continue
                draws = self._draws[which][size][mine]
                noise = fit.errors[which] * self._noise[which, mine, : len(at)]
                missing = fit.found[which] - rows[mine[:, None], at] - draws[:, at] - noise
                pull = product(missing, fit.inverses[which, size])
                rows[mine] += draws + product(pull, kernel[at])
            parts.append(rows + self._origins[which])
        return Curves(parts[0], parts[1])

    def slower_than_predicted(self, measured: Mapping[int, Estimate]) -> dict[int, float]:
        """Sigmas by which each probe is slower than the others predict, by position.

        Only probes that are off by as much as a disturbance would be are listed.
        """
        fit = self._fitted(measured)
        off, sigma = np.empty((2, SAMPLES, len(fit.at)))
        for size, inverse in enumerate(fit.inverses[0]):
            mine = np.flatnonzero(fit.sizes == size)
            missing = fit.found[0] - self._curves[0][fit.jobs[mine][:, None], fit.at]
            off[mine] = product(missing, inverse) / np.diag(inverse)
            sigma[mine] = 1 / np.sqrt(np.diag(inverse))
        middle = np.median(off, axis=0)
        sigmas = middle / np.median(sigma, axis=0)
        return {
            int(position): float(how)
            for position, how, by in zip(fit.at, sigmas, middle, strict=True)
            if how > 0 and by > OUTLIER_LEAST
        }

    def _fitted(self, measured: Mapping[int, Estimate]) -> _Fit:
        """The fit to all estimates, remembered for the latest ones."""
        if self._latest is not None and self._latest[0] == measured:
            return self._latest[1]
        at = np.array(list(measured), dtype=np.intp)
        seen = measured.values()
        found = np.log([[one.seconds for one in seen], [one.watts for one in seen]])
        found -= np.array(self._origins)[:, None]
        errors = np.array([[one.seconds_error for one in seen], [one.watts_error for one in seen]])
        # For seconds and watts, and for every size of deviation: covariance of the probes.
        inner = self._kernels[:, at[:, None], at] + (errors**2)[:, None, :, None] * np.eye(len(at))
        inverses = cast("Array", np.linalg.inv(inner))
        jobs, sizes = self._chosen(at, found, inverses, np.linalg.slogdet(inner)[1].sum(axis=0))
        fit = _Fit(at, found, errors, inverses, jobs, sizes)
        self._latest = (dict(measured), fit)
        return fit

    def _chosen(
        self, at: Indices, found: Array, inverses: Array, log_determinants: Array
    ) -> tuple[Indices, Indices]:
        """A job of the prior and a size of deviation for each sample, by their likelihood."""
        likely = np.tile((self._log_odds - 0.5 * log_determinants)[:, None], _CURVES)
        for which, curves in enumerate(self._curves):
            missing = found[which] - curves[:, at]
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
        drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), steps)
        drawn = np.minimum(drawn, weights.size - 1)
        return drawn % _CURVES, drawn // _CURVES


@dataclass(frozen=True, slots=True)
class Score:
    """The best knob value, and how much better others might be.

    Attributes:
        position: Index of the best knob value.
        regret: Expected relative excess of its score over the best possible one.
        excess: Expected relative excess at every knob value, bounds aside: the cost of being there.
        gains: Expected relative gain over the best one, were each knob value known exactly.
        safe: Whether each knob value keeps the bounds with the confidence required.
    """

    position: int
    regret: float
    excess: Array
    gains: Array
    safe: NDArray[np.bool_]


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
        self.uses_reference = depends_on_reference(objective)

    def score(self, posterior: Curves) -> Score:
        """The best knob value under a posterior; the reference is the last one."""
        seconds, scores, allowed = self._evaluated(posterior)
        best = np.where(allowed, scores, np.inf).min(axis=1, keepdims=True)
        relative = scores / best - 1.0
        safe = allowed.mean(axis=0) >= 1.0 - _RISK
        mean = relative.mean(axis=0)
        if safe.any():
            position = int(np.argmin(np.where(safe, mean, np.inf)))
        else:
            position = int(np.argmax(allowed.mean(axis=0)))
        # A setting that breaks a bound seems cheap, but is of no use.
        late = np.maximum(0.0, seconds / np.where(allowed, seconds, 0.0).max(axis=1)[:, None] - 1)
        excess = np.maximum(relative, late).mean(axis=0)
        better = np.maximum(0.0, relative[:, [position]] - relative) * allowed
        regret = max(0.0, float(mean[position]))
        return Score(position, regret, np.maximum(0.0, excess), better.mean(axis=0), safe)

    def is_worse(self, one: Estimate, other: Estimate) -> bool:
        """Whether a measured setting is worse than the measured reference, beyond doubt."""
        run, found = (
            Totals(each.seconds * self._steps, each.seconds * each.watts * self._steps)
            for each in (one, other)
        )
        errors = (one.seconds_error, one.watts_error, other.seconds_error, other.watts_error)
        doubt = 1.0 + _BEYOND_DOUBT * math.hypot(*errors)
        cost, usual = (
            self._objective.value(each.seconds, each.joules, found) for each in (run, found)
        )
        overshoot, of_found = (
            self._objective.bounds.overshoot(each.seconds, each.joules, found)
            for each in (run, found)
        )
        return bool(cost > usual * doubt or overshoot > max(1.0, of_found) * doubt)

    def _evaluated(self, posterior: Curves) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Seconds, scores and whether bounds are kept."""
        seconds = np.exp(posterior.log_seconds) * self._steps
        joules = seconds * np.exp(posterior.log_watts)
        reference = Totals(seconds[:, -1:], joules[:, -1:])
        scores = self._objective.value(seconds, joules, reference)
        kept = self._objective.bounds.kept(seconds, joules, reference)
        allowed = np.broadcast_to(kept, seconds.shape)
        # Where nothing is allowed, the fastest comes closest.
        hopeless = ~allowed.any(axis=1, keepdims=True)
        if hopeless.any():
            scores = np.where(hopeless, seconds, scores)
            allowed = allowed | hopeless
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
    tolerance: float,
) -> ProbePlan:
    """The next probe: the one whose gain outweighs its cost the most.

    Args:
        scorer: Scorer of the objective.
        posterior: Samples of the curves.
        ahead: Forecast of a slice at every knob value.
        horizon_seconds: Expected time that the choice will be in force.
        tolerance: Expected relative regret that is good enough.
    """
    score, rows = scorer.score(posterior), posterior.log_seconds
    if score.regret <= tolerance:
        return ProbePlan(score, None)

    def worthwhile(gains: Array) -> int | None:
        """Position at which a slice gains most after its cost; None where that is too little."""
        gained = horizon_seconds * gains - ahead.seconds * score.excess
        probe = int(gained.argmax())
        return probe if gained[probe] >= _LEAST_GAIN else None

    probe = worthwhile(score.gains * _resolved(posterior, ahead))
    last = rows.shape[1] - 1
    if probe is None and scorer.uses_reference and score.position != last:
        gains = np.zeros_like(score.gains)
        for position in (score.position, last):
            narrowed = _narrowed(rows, score.position, position, ahead)
            gains[position] = _MARGIN_WEIGHT * score.regret * narrowed
        probe = worthwhile(gains)
    return ProbePlan(score, probe, 0 if probe is None else int(ahead.steps[probe]))


def _resolved(posterior: Curves, ahead: SliceForecast) -> Array:
    """Share of what is unknown about the energy of a step that a slice would tell."""
    known = (posterior.log_seconds + posterior.log_watts).var(axis=0)
    noise = ahead.seconds_error**2 + ahead.watts_error**2
    left = np.maximum(_EXACT**2, known * noise / (known + noise))
    resolved: Array = np.maximum(0.0, 1.0 - left / np.maximum(known, 1e-12))
    return resolved


def _narrowed(rows: Array, chosen: int, position: int, ahead: SliceForecast) -> float:
    """Share of the distance to a bound that another slice at ``position`` saves.

    The choice keeps a distance from a bound that grows with the spread of its time relative to the
    reference, and its regret grows with that distance.
    """
    variance = max(float((rows[:, chosen] - rows[:, -1]).var()), 1e-12)
    known, noise = float(rows[:, position].var()), float(ahead.seconds_error[position]) ** 2
    removed = known - max(_EXACT_SECONDS**2, known * noise / (known + noise))
    return 1.0 - math.sqrt(min(1.0, max(0.0, 1.0 - removed / variance)))


def product(left: Array, right: Array) -> Array:
    """``left @ right`` on one core, in pieces of rows.

    Libraries spread larger products over all cores. Inside a training job those are busy, and
    waiting for them costs many times what the product does.
    """
    rows = max(1, _ONE_CORE_PRODUCT // (right.shape[0] * right.shape[1]))
    result = np.empty((len(left), right.shape[1]))
    for start in range(0, len(left), rows):
        np.matmul(left[start : start + rows], right, out=result[start : start + rows])
    return result
