"""Decide where to measure next, or that nothing more is worth measuring.

:class:`ObjectiveScorer` scores posterior samples by an objective and chooses a knob position.
:class:`ProbePlanner` imagines, for every candidate position, what a slice there would show, weighs
the samples by it, and asks how much better the choice would become. That gain over the remaining
time stands against what the slice costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.objectives import Totals, depends_on_reference
from joulery.power._model import product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power._model import PosteriorCurves

    Array = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Indices = NDArray[np.intp]
    SlicePredictor = Callable[[int, float, float], "SliceForecast"]

# A bound may be broken with at most this probability.
_RISK = 0.05
_COLUMNS = 60
# Width of a comparison between samples, as a share of their spread.
_BLUR = 0.15
# Share of what is at stake that a slice must promise to gain.
_WORTHWHILE = 0.02
# Shares of the samples below whose best setting a candidate lies.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class Score:
    """The best knob value, and how much better another one might be.

    Attributes:
        position: Index of the best knob value.
        regret: Expected relative excess of its score over the best possible one.
        excess: Expected relative excess at every knob value, bounds aside: the cost of being there.
    """

    position: int
    regret: float
    excess: Array


@dataclass(frozen=True, slots=True)
class Regrets:
    """Relative excess over the best, and whether bounds are kept, by sample and knob value."""

    relative: Array
    allowed: Array


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
        self._latest: tuple[PosteriorCurves, tuple[Array, Array, Flags]] | None = None
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
        return Score(position, max(0.0, float(mean[position])), np.maximum(0.0, excess))

    def best_of_each(self, posterior: PosteriorCurves) -> Indices:
        """The best knob position in each sample on its own."""
        import numpy as np

        _, scores, allowed = self._evaluated(posterior)
        best: Indices = np.where(allowed, scores, np.inf).argmin(axis=1)
        return best

    def regrets(self, posterior: PosteriorCurves, columns: int) -> Regrets:
        """Regrets of each sample at about ``columns`` knob values, the last included."""
        import numpy as np

        _, scores, allowed = self._evaluated(posterior)
        best = np.where(allowed, scores, np.inf).min(axis=1, keepdims=True)
        width = scores.shape[1]
        chosen = np.arange(width - 1, -1, -max(1, width // columns))[::-1]
        relative = scores[:, chosen] / best - 1.0
        return Regrets(relative, allowed[:, chosen].astype(np.float64))

    def _evaluated(self, posterior: PosteriorCurves) -> tuple[Array, Array, Flags]:
        """Seconds, scores and whether bounds are kept; cached for one posterior."""
        if self._latest is None or self._latest[0] is not posterior:
            self._latest = (posterior, self._evaluate(posterior))
        return self._latest[1]

    def _evaluate(self, posterior: PosteriorCurves) -> tuple[Array, Array, Flags]:
        import numpy as np

        seconds = np.exp(posterior.log_seconds) * self._steps
        joules = np.exp(posterior.log_seconds + posterior.log_watts) * self._steps
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
    """Expected length and precision of a slice at some knob value.

    Attributes:
        steps: Number of steps.
        seconds: Time that it takes, settling included.
        seconds_error: Expected relative error of its step time.
        watts_error: Expected relative error of its power.
    """

    steps: int
    seconds: float
    seconds_error: float
    watts_error: float


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


@dataclass(frozen=True, slots=True)
class _State:
    """The posterior, its best choice, and a predictor of slices."""

    posterior: PosteriorCurves
    score: Score
    predict_slice: SlicePredictor

    @property
    def last(self) -> int:
        """Position of the reference."""
        return int(self.posterior.log_seconds.shape[1]) - 1

    def ahead(self, position: int) -> SliceForecast:
        """Forecast of a slice at a position."""
        import numpy as np

        rows = self.posterior.log_seconds[:, position]
        return self.predict_slice(position, float(np.exp(rows).mean()), float(rows.std()))

    def cost_seconds(self, position: int, ahead: SliceForecast) -> float:
        """Cost of a slice, in seconds of work at the best setting."""
        return ahead.seconds * float(self.score.excess[position])


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

    def plan(
        self,
        posterior: PosteriorCurves,
        tried: Sequence[int],
        here: int,
        predict_slice: SlicePredictor,
    ) -> ProbePlan:
        """The next probe.

        Args:
            posterior: Samples of the curves.
            tried: Knob positions that have been measured.
            here: Present knob position.
            predict_slice: Forecast of a slice by position, expected step time and its relative
                uncertainty.
        """
        state = _State(posterior, self._scorer.score(posterior), predict_slice)
        probe = None
        if state.score.regret > self._tolerance:
            probe = self._most_informative(state, here)
        if probe is None or probe in tried:
            lowest = self._lowest_untried(state, tried)
            probe = probe if lowest is None else lowest
        if probe is None and state.score.regret > self._tolerance:
            probe = self._repeated(state)
        if probe is None:
            return ProbePlan(state.score, None)
        return ProbePlan(state.score, probe, state.ahead(probe).steps)

    def _most_informative(self, state: _State, here: int) -> int | None:
        """Where a slice would improve the choice most, after its cost; None if nowhere."""
        regrets = self._scorer.regrets(state.posterior, _COLUMNS)
        regret = state.score.regret
        best_gain, probe = _WORTHWHILE * regret * self._horizon_seconds, None
        for position in self._candidates(state, here):
            ahead = state.ahead(position)
            after = self._regret_after(state.posterior, position, ahead, regrets)
            gain = (regret - after) * self._horizon_seconds
            gain -= state.cost_seconds(position, ahead)
            if gain > best_gain:
                best_gain, probe = gain, position
        return probe

    def _lowest_untried(self, state: _State, tried: Sequence[int]) -> int | None:
        """The lowest value, unless it was tried or costs more than the choice may cost.

        Below the last probe nothing bounds the posterior from the other side, and boards differ
        most there.
        """
        affordable = self._tolerance * self._horizon_seconds
        cost = state.cost_seconds(0, state.ahead(0))
        return 0 if 0 not in tried and cost <= affordable else None

    def _repeated(self, state: _State) -> int | None:
        """Where measuring again helps most: at the choice, or at the reference that bounds it.

        The choice keeps a distance from a bound that grows with the spread of its time (relative
        to the reference, where the bound is), and its regret grows with that distance.
        """
        chosen, rows = state.score.position, state.posterior.log_seconds
        positions = [chosen]
        compared = rows[:, chosen]
        if self._scorer.uses_reference:
            positions.append(state.last)
            compared = compared - rows[:, state.last]
        variance = max(float(compared.var()), 1e-12)
        at_stake = state.score.regret * self._horizon_seconds
        best_gain, probe = _WORTHWHILE * at_stake, None
        for position in positions:
            ahead = state.ahead(position)
            known = float(rows[:, position].var())
            removed = known**2 / (known + ahead.seconds_error**2)
            gain = at_stake * (1.0 - max(0.0, 1.0 - removed / variance) ** 0.5)
            gain -= state.cost_seconds(position, ahead)
            if gain > best_gain:
                best_gain, probe = gain, position
        return probe

    def _candidates(self, state: _State, here: int) -> Sequence[int]:
        """Both ends, the present position, the best choice, and positions that samples prefer."""
        import numpy as np

        best = self._scorer.best_of_each(state.posterior)
        spread = (int(place) for place in np.quantile(best, _QUANTILES))
        return sorted({0, state.last, here, state.score.position, *spread})

    def _regret_after(
        self, posterior: PosteriorCurves, position: int, ahead: SliceForecast, regrets: Regrets
    ) -> float:
        """Expected regret once a slice at ``position`` has been measured.

        Every second sample in turn is taken for the truth; all are then weighted by how well they
        agree with what the slice would show.
        """
        import numpy as np

        apart: NDArray[np.float64] = np.zeros(1)
        for rows, error in (
            (posterior.log_seconds, ahead.seconds_error),
            (posterior.log_watts, ahead.watts_error),
        ):
            seen = rows[:, position]
            # No sharper than the samples can tell apart.
            width = np.hypot(error, _BLUR * seen.std())
            apart = apart + ((seen[::2, None] - seen[None, :]) / width) ** 2
        weights = np.exp(-0.5 * apart)
        weights /= weights.sum(axis=1, keepdims=True)
        expected = product(weights, regrets.relative)
        safe = product(weights, regrets.allowed) >= 1.0 - _RISK
        return float(np.where(safe, expected, expected[:, -1:]).min(axis=1).mean())
