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
    from joulery.power.scoring import Judge, Stakes, Verdict

    Array = NDArray[np.float64]

_COLUMNS = 60
# Width of a comparison between samples, as a share of their spread.
_BLUR = 0.15
# Share of what is at stake that a slice may cost whose gain cannot be foreseen.
_AFFORDABLE = 0.25
# What lies this far from all probes, as a share of the range, is tried where it is expected to cost
# no more than this, relative; the lowest value up to the third.
_FAR, _CHEAP, _CHEAP_END = 0.035, 0.02, 0.12
# Share of what is at stake that a slice must promise to gain.
_WORTHWHILE = 0.02
# Shares of the samples below whose best setting a candidate lies.
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class SliceForecast:
    """What a slice at some knob value would take and tell.

    Attributes:
        seconds: How long it takes, settling included.
        seconds_error: Expected relative error of the step time, together with what is known.
        watts_error: The same for the power.
    """

    seconds: float
    seconds_error: float
    watts_error: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next.

    Attributes:
        verdict: The best choice as things stand.
        probe: Knob position to measure next; None when nothing is worth it.
    """

    verdict: Verdict
    probe: int | None


class Planner:
    """Weighs the gain of another slice against its cost.

    Args:
        judge: The objective.
        tolerance: Expected relative regret that is good enough.

    Attributes:
        horizon_seconds: How long the choice will be in force, as far as one can guess.
    """

    def __init__(self, judge: Judge, horizon_seconds: float, tolerance: float) -> None:
        self.horizon_seconds = horizon_seconds
        self._judge = judge
        self._tolerance = tolerance

    def plan(
        self,
        belief: Belief,
        tried: Sequence[int],
        here: int,
        forecast: Callable[[int, float], SliceForecast],
    ) -> Plan:
        """The next probe.

        Args:
            belief: What is known.
            tried: Knob positions that have been measured.
            here: Present knob position.
            forecast: What a slice would take and tell, by position and expected step time.
        """
        verdict = self._judge.judge(belief)
        if verdict.regret <= self._tolerance:
            return Plan(verdict, _untried(verdict, tried))
        stakes = self._judge.stakes(belief, _COLUMNS)
        at_stake = verdict.regret * self.horizon_seconds
        best_gain, probe = _WORTHWHILE * at_stake, None
        for position in self._candidates(belief, verdict, here):
            ahead = forecast(position, float(_mean_exp(belief.log_seconds[:, position])))
            regret = self._regret_after(belief, position, ahead, stakes)
            cost = ahead.seconds * float(verdict.excess[position])
            gain = (verdict.regret - regret) * self.horizon_seconds - cost
            if gain > best_gain:
                best_gain, probe = gain, position
        if probe is None or probe in tried:
            untried = _untried(verdict, tried)
            probe = probe if untried is None else untried
        if probe is None:
            probe = self._sharpened(belief, verdict, forecast)
        return Plan(verdict, probe)

    def _sharpened(
        self, belief: Belief, verdict: Verdict, forecast: Callable[[int, float], SliceForecast]
    ) -> int | None:
        """Where more of the same helps most: the choice itself, or what it is held against."""
        chosen, last = verdict.position, belief.log_seconds.shape[1] - 1
        spreads = {chosen: float(belief.log_seconds[:, chosen].std())}
        if self._judge.refers:
            spreads[last] = float(belief.log_seconds[:, last].std())
        # What is known far better than the rest, or than it needs to be, is known well enough.
        enough = max(0.7 * max(spreads.values()), 0.5 * self._tolerance)
        affordable = _AFFORDABLE * verdict.regret * self.horizon_seconds
        worth = []
        for position, spread in spreads.items():
            ahead = forecast(position, _mean_exp(belief.log_seconds[:, position]))
            if spread >= enough and ahead.seconds * float(verdict.excess[position]) < affordable:
                worth.append((spread, position))
        return max(worth)[1] if worth else None

    def _candidates(self, belief: Belief, verdict: Verdict, here: int) -> Sequence[int]:
        """Both ends, where we are, the best choice, and where samples see the best."""
        import numpy as np

        best = self._judge.best_of_each(belief)
        spread = np.quantile(best, _QUANTILES)
        last = belief.log_seconds.shape[1] - 1
        return sorted({0, last, here, verdict.position, *(int(place) for place in spread)})

    def _regret_after(
        self, belief: Belief, position: int, ahead: SliceForecast, stakes: Stakes
    ) -> float:
        """Expected regret once a slice at ``position`` has been measured.

        Each sample in turn plays the truth; the others then count by how well they agree with
        what the slice would show.
        """
        import numpy as np

        apart = np.zeros((len(belief.log_seconds),) * 2)
        for rows, error in (
            (belief.log_seconds, ahead.seconds_error),
            (belief.log_watts, ahead.watts_error),
        ):
            seen = rows[:, position]
            # No sharper than the samples can tell apart.
            width = np.hypot(error, _BLUR * seen.std())
            apart += ((seen[:, None] - seen[None, :]) / width) ** 2
        weights = np.exp(-0.5 * apart)
        weights /= weights.sum(axis=1, keepdims=True)
        expected = product(weights, stakes.relative)
        safe = product(weights, stakes.allowed) >= 1.0 - RISK
        return float(np.where(safe, expected, expected[:, -1:]).min(axis=1).mean())


def _untried(verdict: Verdict, tried: Sequence[int]) -> int | None:
    """The best-looking place far from everything tried, where trying costs next to nothing.

    A belief can be wrong about what nobody looked at, and real boards have kinks.
    """
    import numpy as np

    places = np.arange(len(verdict.excess))
    far = np.abs(places[:, None] - np.array(tried)[None, :]).min(axis=1) > _FAR * len(places)
    open_to = np.where(far, verdict.excess, np.inf)
    best = int(np.argmin(open_to))
    if open_to[best] <= _CHEAP:
        return best
    # Beyond the last probe nothing bounds the belief from the other side.
    return 0 if open_to[0] <= _CHEAP_END else None


def _mean_exp(values: Array) -> float:
    import numpy as np

    return float(np.exp(values).mean())
