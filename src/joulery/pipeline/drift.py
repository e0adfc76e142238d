"""Notice that instructions take other times than their profile says, and put the problem right."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulery.pipeline.problem import Problem

    Work = tuple[int, str]

_WINDOW, _LEAST = 64, 12
# Beyond this share, and beyond chance by so many standard errors, a profile is out of date.
_SHARE, _SIGMAS = 0.03, 4.0
# From the median absolute deviation to a standard error of the median, for normal noise.
_SIGMA_OF_MAD, _MEDIAN_PENALTY = 1.4826, 1.2533


class DriftWatch:
    """Compares measured with planned times, by stage and kind of instruction."""

    def __init__(self) -> None:
        self._ratios: dict[Work, deque[float]] = {}

    def observe(self, stage: int, kind: str, ratios: Iterable[float]) -> None:
        """Add measured over planned seconds of some instructions; nonsense is left out."""
        kept = self._ratios.setdefault((stage, kind), deque(maxlen=_WINDOW))
        kept.extend(ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0)

    def factors(self) -> dict[Work, float]:
        """How many times as long what has drifted takes now; empty while all is well."""
        found = {}
        for work, ratios in self._ratios.items():
            if len(ratios) < _LEAST:
                continue
            middle = statistics.median(ratios)
            spread = statistics.median(abs(ratio - middle) for ratio in ratios)
            error = _MEDIAN_PENALTY * _SIGMA_OF_MAD * spread / math.sqrt(len(ratios))
            if abs(middle - 1) > max(_SHARE, _SIGMAS * error):
                found[work] = middle
        return found

    def forget(self) -> None:
        """Start anew, as after planning again."""
        self._ratios.clear()


def rescaled(problem: Problem, factors: Mapping[Work, float]) -> Problem:
    """The same pipeline with the time of some work changed, its power being the same."""
    works = {
        profile: (item.stage, item.kind)
        for item, profile in zip(problem.instructions, problem.profile_of.tolist(), strict=True)
    }
    profiles = []
    for position, profile in enumerate(problem.profiles):
        factor = factors.get(works.get(position, (-1, "")), 1.0)
        points = tuple(point.scaled(factor) for point in profile.points)
        profiles.append(profile if factor == 1.0 else replace(profile, points=points))
    return replace(problem, profiles=tuple(profiles))
