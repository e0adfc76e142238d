"""How much longer an instruction may take before the iteration ends late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from joulery.pipeline.planner import Plan
    from joulery.pipeline.problem import Problem


class SlackKeeper:
    """Earliest starts and latest ends of a plan's instructions while their times change.

    Args:
        problem: What waits for what.
        plan: Its starts give the order, its end the deadline that is kept.

    Attributes:
        starts: (instructions,), earliest, after :meth:`refresh`.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        # Every instruction takes time, so what starts later cannot be waited for.
        self._order: list[int] = np.argsort(plan.starts, kind="stable").tolist()
        self._deadline = max(plan.deadline_seconds, plan.seconds)
        count = len(problem)
        self._before: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        self._after: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for first, then, lag in zip(
            problem.edge_from.tolist(),
            problem.edge_to.tolist(),
            problem.edge_seconds.tolist(),
            strict=True,
        ):
            self._before[then].append((first, lag))
            self._after[first].append((then, lag))
        self._slack: list[float] = [0.0] * count
        self.starts: NDArray[np.float64] = plan.starts

    def refresh(self, durations: list[float]) -> None:
        """Work everything out anew."""
        ends = [0.0] * len(durations)
        starts = [0.0] * len(durations)
        for i in self._order:
            starts[i] = max((ends[j] + lag for j, lag in self._before[i]), default=0.0)
            ends[i] = starts[i] + durations[i]
        latest = [self._deadline] * len(durations)
        for i in reversed(self._order):
            for j, lag in self._after[i]:
                latest[i] = min(latest[i], latest[j] - durations[j] - lag)
        self._slack = [late - end for late, end in zip(latest, ends, strict=True)]
        self.starts = np.array(starts)

    def least_slack(self, instructions: Iterable[int]) -> float:
        """What all of them together may take longer, as some path may hold them all."""
        return min(self._slack[i] for i in instructions)
