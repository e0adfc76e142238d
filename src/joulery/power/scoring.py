"""Judge many imagined operating points at once by an objective, and choose where to be.

Every objective of :mod:`joulery.objectives` works; those with a closed form are fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.objectives import Totals, depends_on_reference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power.model import Belief

    Array = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Indices = NDArray[np.intp]

# A bound may be broken with at most this probability.
RISK = 0.05


@dataclass(frozen=True, slots=True)
class Score:
    """Where to be, and how much better it could be.

    Attributes:
        position: Index of the best knob value.
        regret: Expected relative excess of its score over the best possible one.
        excess: Expected relative excess at every knob value, bounds aside; what being there costs.
    """

    position: int
    regret: float
    excess: Array


@dataclass(frozen=True, slots=True)
class Stakes:
    """Relative excess over the best, and what bounds allow, by sample and some knob values."""

    relative: Array
    allowed: Array


class ObjectiveScorer:
    """An objective over arrays.

    Args:
        objective: What to minimise.
        steps: Steps of the work that deadlines and budgets refer to.

    Attributes:
        refers: Whether scores depend on the reference.
    """

    def __init__(self, objective: Objective, steps: float = 1.0) -> None:
        self._objective = objective
        self._steps = steps
        self._latest: tuple[Belief, tuple[Array, Array, Flags]] | None = None
        self.refers = depends_on_reference(objective)

    def judge(self, belief: Belief) -> Score:
        """The best knob value under a belief; the reference is the last one."""
        import numpy as np

        seconds, scores, allowed = self._judged(belief)
        best = np.where(allowed, scores, np.inf).min(axis=1, keepdims=True)
        relative = scores / best - 1.0
        safe = allowed.mean(axis=0) >= 1.0 - RISK
        mean = relative.mean(axis=0)
        if safe.any():
            position = int(np.argmin(np.where(safe, mean, np.inf)))
        else:
            position = int(np.argmax(allowed.mean(axis=0)))
        # What breaks a bound seems cheap, but helps nobody.
        late = np.maximum(0.0, seconds / np.where(allowed, seconds, 0.0).max(axis=1)[:, None] - 1)
        excess = np.maximum(relative, late).mean(axis=0)
        return Score(position, max(0.0, float(mean[position])), np.maximum(0.0, excess))

    def best_of_each(self, belief: Belief) -> Indices:
        """The best knob position in each sample on its own."""
        import numpy as np

        _, scores, allowed = self._judged(belief)
        best: Indices = np.where(allowed, scores, np.inf).argmin(axis=1)
        return best

    def stakes(self, belief: Belief, columns: int) -> Stakes:
        """What is at stake in each sample, at about ``columns`` knob values, the last included."""
        import numpy as np

        _, scores, allowed = self._judged(belief)
        best = np.where(allowed, scores, np.inf).min(axis=1, keepdims=True)
        width = scores.shape[1]
        chosen = np.arange(width - 1, -1, -max(1, width // columns))[::-1]
        relative = scores[:, chosen] / best - 1.0
        return Stakes(relative, allowed[:, chosen].astype(np.float64))

    def _judged(self, belief: Belief) -> tuple[Array, Array, Flags]:
        """Seconds, scores and what is allowed; kept, because questions follow each other."""
        if self._latest is None or self._latest[0] is not belief:
            self._latest = (belief, self._judged_anew(belief))
        return self._latest[1]

    def _judged_anew(self, belief: Belief) -> tuple[Array, Array, Flags]:
        import numpy as np

        seconds = np.exp(belief.log_seconds) * self._steps
        joules = np.exp(belief.log_seconds + belief.log_watts) * self._steps
        scores, allowed = self._scores(seconds, joules)
        # Where nothing is allowed, the fastest comes closest.
        hopeless = ~allowed.any(axis=1, keepdims=True)
        if hopeless.any():
            scores = np.where(hopeless, seconds, scores)
            allowed = allowed | hopeless
        return seconds, scores, allowed

    def _scores(self, seconds: Array, joules: Array) -> tuple[Array, Flags]:
        """Scores without bounds, and which points the bounds allow."""
        import numpy as np

        reference = Totals(seconds[:, -1:], joules[:, -1:])
        scores = self._objective.value(seconds, joules, reference)
        kept = self._objective.bounds.kept(seconds, joules, reference)
        return scores, np.broadcast_to(kept, seconds.shape)
