"""Decide where to measure next, or that nothing more is worth measuring.

For every candidate it imagines what a slice there would show, weighs the belief by it, and asks
how much better the choice would become. That gain over the remaining time
stands against what the slice costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.power.products import product
from joulery.power.scoring import RISK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from joulery.power.model import Belief
    from joulery.power.scoring import ObjectiveScorer, Score, Stakes

    Forecast = Callable[[int, float, float], "SliceForecast"]

_COLUMNS = 60
# Width of a comparison between samples, as a share of their spread.
_BLUR = 0.15
# Share of what is at stake that a slice must promise to gain.
_WORTHWHILE = 0.02
# Shares of the samples below whose best setting a candidate lies.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class SliceForecast:
    """What a slice at some knob value would take and tell.

    Attributes:
        steps: How many steps it has.
        seconds: How long it takes, settling included.
        seconds_error: Expected relative error of its step time.
        watts_error: The same for the power.
    """

    steps: int
    seconds: float
    seconds_error: float
    watts_error: float


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to do next.

    Attributes:
        verdict: The best choice as things stand.
        probe: Knob position to measure next; None when nothing is worth it.
        steps: How many steps to measure there.
    """

    verdict: Score
    probe: int | None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class _Forecast:
    """What is known, and what slices would add to it.

    Attributes:
        belief: Samples of the curves.
        verdict: The best choice as things stand.
        forecast: What a slice would take and tell.
    """

    belief: Belief
    verdict: Score
    forecast: Forecast

    @property
    def last(self) -> int:
        """The reference's position."""
        return int(self.belief.log_seconds.shape[1]) - 1

    def ahead(self, position: int) -> SliceForecast:
        """What a slice at a position would take and tell."""
        import numpy as np

        rows = self.belief.log_seconds[:, position]
        return self.forecast(position, float(np.exp(rows).mean()), float(rows.std()))

    def cost_seconds(self, position: int, ahead: SliceForecast) -> float:
        """What a slice costs, in seconds of work at the best setting."""
        return ahead.seconds * float(self.verdict.excess[position])


class Planner:
    """Weighs the gain of another slice against its cost.

    Args:
        judge: The objective.
        horizon_seconds: How long the choice will be in force, as far as one can guess.
        tolerance: Expected relative regret that is good enough.
    """

    def __init__(self, judge: ObjectiveScorer, horizon_seconds: float, tolerance: float) -> None:
        self._judge = judge
        self._horizon_seconds = horizon_seconds
        self._tolerance = tolerance

    def plan(
        self, belief: Belief, tried: Sequence[int], here: int, forecast: Forecast
    ) -> ProbePlan:
        """The next probe.

        Args:
            belief: What is known.
            tried: Knob positions that have been measured.
            here: Present knob position.
            forecast: What a slice would take and tell, by position, expected step time and what
                that is known to.
        """
        outlook = _Forecast(belief, self._judge.judge(belief), forecast)
        probe = None
        if outlook.verdict.regret > self._tolerance:
            probe = self._telling(outlook, here)
        if probe is None or probe in tried:
            beyond = self._beyond(outlook, tried)
            probe = probe if beyond is None else beyond
        if probe is None and outlook.verdict.regret > self._tolerance:
            probe = self._sharpened(outlook)
        if probe is None:
            return ProbePlan(outlook.verdict, None)
        return ProbePlan(outlook.verdict, probe, outlook.ahead(probe).steps)

    def _telling(self, outlook: _Forecast, here: int) -> int | None:
        """Where a slice would improve the choice most, after its cost; None if nowhere."""
        stakes = self._judge.stakes(outlook.belief, _COLUMNS)
        regret = outlook.verdict.regret
        best_gain, probe = _WORTHWHILE * regret * self._horizon_seconds, None
        for position in self._candidates(outlook, here):
            ahead = outlook.ahead(position)
            after = self._regret_after(outlook.belief, position, ahead, stakes)
            gain = (regret - after) * self._horizon_seconds
            gain -= outlook.cost_seconds(position, ahead)
            if gain > best_gain:
                best_gain, probe = gain, position
        return probe

    def _beyond(self, outlook: _Forecast, tried: Sequence[int]) -> int | None:
        """The lowest value, unless it was tried or costs more than the choice may cost.

        Below the last probe nothing bounds the belief from the other side, and boards differ most
        down there.
        """
        affordable = self._tolerance * self._horizon_seconds
        cost = outlook.cost_seconds(0, outlook.ahead(0))
        return 0 if 0 not in tried and cost <= affordable else None

    def _sharpened(self, outlook: _Forecast) -> int | None:
        """Where more of the same helps most: the choice itself, or what it is held against.

        The choice keeps a distance from a bound that goes with the spread of its time, against
        the reference's where the bound refers to it; and so does its regret.
        """
        chosen, rows = outlook.verdict.position, outlook.belief.log_seconds
        places = [chosen]
        compared = rows[:, chosen]
        if self._judge.refers:
            places.append(outlook.last)
            compared = compared - rows[:, outlook.last]
        variance = max(float(compared.var()), 1e-12)
        at_stake = outlook.verdict.regret * self._horizon_seconds
        best_gain, probe = _WORTHWHILE * at_stake, None
        for position in places:
            ahead = outlook.ahead(position)
            known = float(rows[:, position].var())
            removed = known**2 / (known + ahead.seconds_error**2)
            gain = at_stake * (1.0 - max(0.0, 1.0 - removed / variance) ** 0.5)
            gain -= outlook.cost_seconds(position, ahead)
            if gain > best_gain:
                best_gain, probe = gain, position
        return probe

    def _candidates(self, outlook: _Forecast, here: int) -> Sequence[int]:
        """Both ends, where we are, the best choice, and where samples see the best."""
        import numpy as np

        best = self._judge.best_of_each(outlook.belief)
        spread = (int(place) for place in np.quantile(best, _QUANTILES))
        return sorted({0, outlook.last, here, outlook.verdict.position, *spread})

    def _regret_after(
        self, belief: Belief, position: int, ahead: SliceForecast, stakes: Stakes
    ) -> float:
        """Expected regret once a slice at ``position`` has been measured.

        Every other sample in turn plays the truth; all then count by how well they agree with
        what the slice would show.
        """
        import numpy as np

        apart: NDArray[np.float64] = np.zeros(1)
        for rows, error in (
            (belief.log_seconds, ahead.seconds_error),
            (belief.log_watts, ahead.watts_error),
        ):
            seen = rows[:, position]
            # No sharper than the samples can tell apart.
            width = np.hypot(error, _BLUR * seen.std())
            apart = apart + ((seen[::2, None] - seen[None, :]) / width) ** 2
        weights = np.exp(-0.5 * apart)
        weights /= weights.sum(axis=1, keepdims=True)
        expected = product(weights, stakes.relative)
        safe = product(weights, stakes.allowed) >= 1.0 - RISK
        return float(np.where(safe, expected, expected[:, -1:]).min(axis=1).mean())
