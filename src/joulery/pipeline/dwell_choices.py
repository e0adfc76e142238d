"""What an instruction takes and needs at a clock that others of its run share."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.pipeline.problem import Problem

_LAST_DIGITS = 1e-12


@dataclass(frozen=True, slots=True)
class Choice:
    """An instruction at a clock.

    Attributes:
        point: Position in its profile.
        hertz: The clock; NaN where it needs none.
        seconds: How long it takes.
        joules: What it needs.
    """

    point: int
    hertz: float
    seconds: float
    joules: float

    def above(self, blocking_watts: float) -> float:
        """Joules above those of waiting as long."""
        return self.joules - blocking_watts * self.seconds


@dataclass(frozen=True, slots=True)
class ChoiceTable:
    """The choices of one instruction by clock, those that take too long left out.

    Attributes:
        measured: Ascending in clock; empty where its profile names no clocks.
        fixed: What it does whatever the clock, where it needs none.
        longest_seconds: Nothing slower is given.
    """

    measured: tuple[Choice, ...]
    fixed: Choice
    longest_seconds: float

    def clocks(self) -> list[float]:
        """The clocks at which it was measured and fast enough."""
        return [c.hertz for c in self.measured if c.seconds <= self.longest_seconds]

    def at(self, hertz: float) -> Choice | None:
        """The choice at any clock; None if too slow.

        Between two measured clocks it is as slow as at the lower and needs as much as at the
        thirstier one, so that nothing is promised that may not hold.
        """
        if not self.measured:
            return self.fixed
        above = bisect_right(self.measured, hertz, key=_hertz)
        if not above:
            return None
        lower = self.measured[above - 1]
        if lower.seconds > self.longest_seconds:
            return None
        if lower.hertz == hertz:
            return lower
        if above < len(self.measured):
            joules = max(lower.joules, self.measured[above].joules)
        else:
            # Nobody measured so high, because it gains nothing: power grows at least so.
            joules = lower.joules * (hertz / lower.hertz) ** 2
        return Choice(lower.point, hertz, lower.seconds, joules)


class ChoiceBook:
    """The choices of all instructions of a problem; equal work is looked up once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._measured: dict[int, tuple[Choice, ...]] = {}

    def of(
        self, instruction: int, planned: Choice, longest_seconds: float | None = None
    ) -> ChoiceTable:
        """The choices of an instruction that take no longer than planned, or than told."""
        if math.isnan(planned.hertz):
            return ChoiceTable((), planned, math.inf)
        profile = int(self._problem.profile_of[instruction])
        if profile not in self._measured:
            self._measured[profile] = self._sorted(profile)
        longest = planned.seconds * (1 + _LAST_DIGITS)
        return ChoiceTable(
            self._measured[profile],
            planned,
            longest if longest_seconds is None else longest_seconds,
        )

    def blocking_watts(self, instruction: int) -> float:
        """What the instruction's rank draws while it waits."""
        return float(self._problem.blocking_watts[self._problem.instructions[instruction].rank])

    def _sorted(self, profile: int) -> tuple[Choice, ...]:
        found = (
            Choice(position, point.setting.clock_hertz, point.seconds, point.joules)
            for position, point in enumerate(self._problem.profiles[profile].points)
            if point.setting.clock_hertz is not None
        )
        return tuple(sorted(found, key=_hertz))


def _hertz(choice: Choice) -> float:
    return choice.hertz
