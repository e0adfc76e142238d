"""Tell whether a pipeline is late, and the pace at which the others need not hurry.

Data-parallel pipelines wait for each other after every iteration. How late one is shows in the time
its own instructions end, compared with its plan. Only lateness relative to the most punctual
pipeline counts: a model that is short for everybody makes nobody late.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from joulery.errors import InvalidValueError
from joulery.units import finite


@dataclass(frozen=True, slots=True)
class LatenessRules:
    """When a pipeline counts as late.

    Attributes:
        window: Iterations whose median decides.
        least: Iterations needed before anything is said.
        late: From this share behind the others on it is late.
        punctual: Below this share it no longer is; less than ``late``, or it would flicker.
        step: The pace is changed only by more than this share.
    """

    window: int = 5
    least: int = 3
    late: float = 0.03
    punctual: float = 0.015
    step: float = 0.01

    def __post_init__(self) -> None:
        if not (1 <= self.least <= self.window and 0 <= self.punctual <= self.late):
            raise InvalidValueError(
                "rules of lateness that contradict each other",
                remedy="keep 1 ≤ least ≤ window and 0 ≤ punctual ≤ late",
            )


_RULES = LatenessRules()


class PaceWatch:
    """Follows how late each pipeline is.

    Args:
        pipelines: How many there are.
        rules: When one counts as late.
    """

    def __init__(self, pipelines: int, rules: LatenessRules = _RULES) -> None:
        if pipelines < 1:
            raise InvalidValueError(f"{pipelines} pipelines have no pace", remedy="give 1 or more")
        self._rules = rules
        self._ratios: list[deque[float]] = [deque(maxlen=rules.window) for _ in range(pipelines)]
        self._late = [False] * pipelines
        self._factors = [1.0] * pipelines

    @property
    def factors(self) -> tuple[float, ...]:
        """How many times as slow as planned each late pipeline is; 1 for the punctual."""
        return tuple(self._factors)

    @property
    def pace(self) -> float:
        """How many times as slow as planned the slowest pipeline is; 1 when all are punctual."""
        return max(self._factors)

    def observe(self, pipeline: int, seconds: float, planned_seconds: float) -> None:
        """Say how long a pipeline's instructions took, and should have taken."""
        self._check(pipeline)
        finite(seconds, "seconds of an iteration", minimum=0.0)
        if finite(planned_seconds, "planned seconds of an iteration", minimum=0.0) == 0:
            raise InvalidValueError("an iteration planned to take no time", remedy="plan it first")
        self._ratios[pipeline].append(seconds / planned_seconds)
        self._judge()

    def notice(self, pipeline: int, factor: float) -> None:
        """Be told that a pipeline is now ``factor`` times as slow; measurements take over later."""
        self._check(pipeline)
        if finite(factor, "factor of a straggler", minimum=0.0) < 1:
            raise InvalidValueError(
                f"a straggler {factor:g} times as slow is none", remedy="give a factor from 1 on"
            )
        usual = self._usual(pipeline) or 1.0
        self._ratios[pipeline].extend([usual * factor] * self._rules.window)
        self._late[pipeline] = factor > 1
        self._judge()

    def recovered(self, pipeline: int) -> None:
        """Be told that a pipeline is as fast as planned again."""
        self.notice(pipeline, 1.0)
        self._ratios[pipeline].clear()

    def _judge(self) -> None:
        for pipeline in range(len(self._ratios)):
            factor = self._factor(pipeline)
            bound = self._rules.punctual if self._late[pipeline] else self._rules.late
            self._late[pipeline] = factor > 1 + bound
            # A pace that follows every breath would have all ranks change plans all the time.
            now = self._factors[pipeline]
            if not self._late[pipeline]:
                self._factors[pipeline] = 1.0
            elif abs(factor / now - 1) > self._rules.step:
                self._factors[pipeline] = factor

    def _factor(self, pipeline: int) -> float:
        """How late a pipeline is against the others."""
        ratios, usual = self._ratios[pipeline], self._usual(pipeline)
        if len(ratios) < self._rules.least:
            return 1.0
        if usual is None:
            # Nobody to be late against: only what it was told counts.
            return statistics.median(ratios) if self._late[pipeline] else 1.0
        return statistics.median(ratios) / usual

    def _usual(self, pipeline: int) -> float | None:
        """How much longer than planned the most punctual of the others takes."""
        others = (
            statistics.median(ratios)
            for other, ratios in enumerate(self._ratios)
            if other != pipeline and len(ratios) >= self._rules.least
        )
        return min(others, default=None)

    def _check(self, pipeline: int) -> None:
        if not 0 <= pipeline < len(self._ratios):
            raise InvalidValueError(
                f"there is no pipeline {pipeline}",
                remedy=f"they are numbered 0 to {len(self._ratios) - 1}",
            )
