"""Decide where to measure next, or that nothing more is worth measuring.

:class:`ObjectiveScorer` scores posterior samples by an objective and chooses a knob position.
:class:`ProbePlanner` asks of every position how much better than the choice it may turn out to be.
That gain over the remaining time stands against the cost of a slice there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.objectives import Totals, depends_on_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power._model import PosteriorCurves
    from joulery.power._step_profiler import Estimate

    Array = NDArray[np.float64]
    SlicePredictor = Callable[[Array, Array], "SliceForecast"]

# A bound may be broken with at most this probability.
_RISK = 0.05
# Standard errors beyond which there is no doubt.
_BEYOND_DOUBT = 3.0
# Relative errors of energy and time per step below which no estimate goes.
_EXACT, _EXACT_SECONDS = 1.1e-3, 2.2e-4
# Weight of a margin to a bound, which stays for as long as the job runs, beyond the horizon.
_MARGIN_WEIGHT = 3.0
# Share of what is at stake that a slice must promise to gain, and the seconds of work it must.
_WORTHWHILE, _LEAST_GAIN = 0.02, 0.02


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

    def score(self, posterior: PosteriorCurves) -> Score:
        """The best knob value under a posterior; the reference is the last one."""
        import numpy as np

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

    def _evaluated(self, posterior: PosteriorCurves) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Seconds, scores and whether bounds are kept."""
        import numpy as np

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
    """Expected length and precision of a slice at every knob value.

    Attributes:
        steps: Number of steps.
        seconds: Time that it takes, settling included.
        seconds_error: Expected relative error of its step time.
        watts_error: Expected relative error of its power.
    """

    steps: Array
    seconds: Array
    seconds_error: Array
    watts_error: Array


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The next probe.

    Attributes:
        score: Best choice as things stand.
        probe: Knob position to measure next; None when nothing is worth it.
        steps: Number of steps to measure there.
    """

    score: Score
    probe: int | None
    steps: int = 0


class ProbePlanner:
    """Weighs the gain of another slice against its cost.

    Args:
        scorer: Scorer of the objective.
        horizon_seconds: Expected time that the choice will be in force.
        tolerance: Expected relative regret that is good enough.
    """

    def __init__(self, scorer: ObjectiveScorer, horizon_seconds: float, tolerance: float) -> None:
        self._scorer = scorer
        self._horizon_seconds = horizon_seconds
        self._tolerance = tolerance

    def plan(self, posterior: PosteriorCurves, predict_slice: SlicePredictor) -> ProbePlan:
        """The next probe.

        Args:
            posterior: Samples of the curves.
            predict_slice: Forecast of a slice by expected step time and its relative uncertainty.
        """
        import numpy as np

        score, rows = self._scorer.score(posterior), posterior.log_seconds
        if score.regret <= self._tolerance:
            return ProbePlan(score, None)
        ahead = predict_slice(np.exp(rows).mean(axis=0), rows.std(axis=0))
        gains = score.gains * _resolved(posterior, ahead)
        probe = self._worthwhile(score, gains, ahead)
        last = rows.shape[1] - 1
        if probe is None and self._scorer.uses_reference and score.position != last:
            gains = np.zeros_like(gains)
            for position in (score.position, last):
                narrowed = _narrowed(rows, score.position, position, ahead)
                gains[position] = _MARGIN_WEIGHT * score.regret * narrowed
            probe = self._worthwhile(score, gains, ahead)
        return ProbePlan(score, probe, 0 if probe is None else int(ahead.steps[probe]))

    def _worthwhile(self, score: Score, gains: Array, ahead: SliceForecast) -> int | None:
        """Where a slice gains most after its cost; None where that is too little."""
        gained = self._horizon_seconds * gains - ahead.seconds * score.excess
        probe = int(gained.argmax())
        least = _WORTHWHILE * score.regret * self._horizon_seconds + _LEAST_GAIN
        return probe if gained[probe] >= least else None


def _resolved(posterior: PosteriorCurves, ahead: SliceForecast) -> Array:
    """Share of what is unknown about the energy of a step that a slice would tell."""
    import numpy as np

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
    return 1.0 - min(1.0, max(0.0, 1.0 - removed / variance)) ** 0.5
