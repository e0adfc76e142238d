"""Plan the clock of every instruction: all plans from the fastest to the slowest iteration.

>>> frontier = plan(problem)                   # doctest: +SKIP
>>> frontier.at(12.5).clocks_hertz             # doctest: +SKIP
>>> frontier.for_straggler(1.2).joules         # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Provenance, Setting
from joulery.pipeline.network import network
from joulery.pipeline.relaxation import relax
from joulery.pipeline.rounding import THOROUGH, points_of, rounder, trials_for, tries_for
from joulery.units import finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.pipeline.network import Network
    from joulery.pipeline.problem import Problem
    from joulery.pipeline.relaxation import Relaxation
    from joulery.pipeline.rounding import Points, Round

_LAST_DIGITS = 1e-12
# Bisections towards a power budget: the deadline is then known to 1e-9 of the frontier.
_BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """A clock for every instruction of an iteration.

    Attributes:
        deadline_seconds: What the plan was made for: the pace of everybody.
        seconds: When its last instruction ends, by the deadline.
        joules: Of all instructions, and of waiting until ``seconds``.
        lower_bound_joules: No clocks meet the deadline with less, even clocks in between, counted
            until ``seconds`` too.
        points: (instructions,), position in the instruction's profile.
        clocks_hertz: (instructions,), NaN where the profile names no clock.
        starts: (instructions,), seconds from the start of the iteration.
        durations: (instructions,), seconds.
        joules_each: (instructions,), without waiting.
        blocking_watts: Of all ranks together while they wait.
    """

    deadline_seconds: float
    seconds: float
    joules: float
    lower_bound_joules: float
    points: NDArray[np.int64]
    clocks_hertz: NDArray[np.float64]
    starts: NDArray[np.float64]
    durations: NDArray[np.float64]
    joules_each: NDArray[np.float64]
    blocking_watts: float

    @property
    def gap(self) -> float:
        """Share of energy above the lower bound."""
        return self.joules / self.lower_bound_joules - 1.0

    @property
    def watts(self) -> float:
        """Mean power of all devices."""
        return self.joules / self.seconds

    def joules_until(self, seconds: float) -> float:
        """Energy if the next iteration starts only then, such as at a straggler's pace."""
        return self.joules + self.blocking_watts * max(0.0, seconds - self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        clocks = [None if np.isnan(clock) else clock for clock in self.clocks_hertz.tolist()]
        return {
            "deadline_seconds": self.deadline_seconds,
            "seconds": self.seconds,
            "joules": self.joules,
            "lower_bound_joules": self.lower_bound_joules,
            "clocks_hertz": clocks,
            "starts_seconds": self.starts.tolist(),
            "durations_seconds": self.durations.tolist(),
        }


class PlannedFrontier:
    """All plans of one pipeline, from its fastest to its slowest iteration.

    Attributes:
        relaxation: The continuous frontier beneath.
        fastest_seconds: With every instruction at its fastest.
        slowest_seconds: With every instruction as slow as it pays while others wait.
        least_energy_seconds: Beyond this, waiting costs more than lower clocks save: nobody slows
            down further unless there is a straggler to wait for.
    """

    def __init__(self, problem: Problem, arrays: Network, relaxation: Relaxation) -> None:
        self._problem = problem
        self._network = arrays
        self._points = points_of(arrays)
        self._round: Round = rounder(arrays, self._points)
        self._joules, self._clocks = _joules_and_clocks(problem, arrays, self._points)
        self.relaxation = relaxation
        self.fastest_seconds = arrays.end_seconds(arrays.extreme(0))
        self.slowest_seconds = arrays.end_seconds(arrays.extreme(-1))
        bounds = relaxation.cost + arrays.blocking_watts * relaxation.seconds
        # The core's whole units may have rounded it down.
        best = float(relaxation.seconds[int(np.argmin(bounds))]) * (1.0 + _LAST_DIGITS)
        self.least_energy_seconds = min(max(best, self.fastest_seconds), self.slowest_seconds)

    def at(self, deadline_seconds: float, *, thorough: bool = False) -> Plan:
        """The plan of least energy if everybody waits for the deadline anyway.

        Args:
            deadline_seconds: When the next iteration starts.
            thorough: Try more ways of rounding than fit a millisecond.

        Raises:
            InfeasibleError: The fastest clocks take longer.
        """
        deadline = finite(deadline_seconds, "deadline", minimum=0.0)
        if deadline < self.fastest_seconds:
            raise InfeasibleError(
                f"no clocks finish an iteration within {deadline:g} s",
                remedy=f"the fastest take {self.fastest_seconds:.9g} s; allow at least that",
            )
        tries = THOROUGH if thorough else tries_for(len(self._network))
        found = (
            self._round(self.relaxation.durations(deadline * share), deadline, ways)
            for share, ways in tries
        )
        chosen, starts = min(found, key=lambda one: float(self._points.cost[one[0]].sum()))
        trials = trials_for(len(self._network), thorough=thorough)
        if trials:
            chosen, starts = self._round.improve(chosen, deadline, trials)
        return self._plan(deadline, chosen, starts)

    def best_by(self, deadline_seconds: float) -> Plan:
        """The plan of least energy if the next iteration starts as soon as this one ends."""
        return self.at(max(min(deadline_seconds, self.least_energy_seconds), 0.0))

    def for_straggler(self, factor: float) -> Plan:
        """The plan at the pace of a pipeline ``factor`` times as slow as this one's fastest."""
        if not finite(factor, "factor of a straggler", minimum=0.0) >= 1.0:
            raise InvalidValueError(
                f"a straggler {factor:g} times as slow is none", remedy="give a factor from 1 on"
            )
        return self.at(self.fastest_seconds * factor)

    def within_watts(self, watts: float) -> Plan:
        """The fastest plan whose mean power, over all devices, is at most ``watts``.

        Raises:
            InfeasibleError: Even the slowest iteration draws more.
        """
        finite(watts, "power budget", minimum=0.0)
        slowest = self.at(self.slowest_seconds)
        if slowest.watts > watts:
            raise InfeasibleError(
                f"no clocks keep the pipeline within {watts:g} W",
                remedy=f"the slowest iteration draws {slowest.watts:.6g} W; allow at least that",
            )
        fastest = self.at(self.fastest_seconds)
        if fastest.watts <= watts:
            return fastest
        low, high, found = self.fastest_seconds, self.slowest_seconds, slowest
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            tried = self.at(middle)
            if tried.watts <= watts:
                high, found = middle, tried
            else:
                low = middle
        return found

    def bound_joules(self, seconds: float) -> float:
        """No clocks, even clocks in between, need less in an iteration of ``seconds``."""
        return self.relaxation.bound(seconds) + self._network.blocking_watts * seconds

    def plans(self, count: int = 65) -> tuple[Plan, ...]:
        """Plans for deadlines evenly spread from the fastest to the least energy."""
        if count < 1:
            raise InvalidValueError(f"{count} plans make no sense", remedy="ask for at least 1")
        deadlines = np.linspace(self.fastest_seconds, self.least_energy_seconds, count)
        return tuple(self.at(deadline, thorough=True) for deadline in deadlines.tolist())

    def frontier(self, count: int = 65) -> Frontier:
        """The plans as operating points of one iteration."""
        provenance = self._provenance()
        setting = Setting(parallel=f"pp{len(self._problem.blocking_watts)}")
        cloud = (
            OperatingPoint(plan.seconds, plan.joules, setting, provenance)
            for plan in self.plans(count)
        )
        return Frontier.from_points(cloud, "one iteration")

    def _plan(
        self, deadline: float, chosen: NDArray[np.int32], starts: NDArray[np.float64]
    ) -> Plan:
        lasts = self._points.seconds[chosen]
        seconds = float(np.max(starts + lasts))
        waiting = self._network.blocking_watts * seconds
        return Plan(
            deadline_seconds=deadline,
            seconds=seconds,
            joules=float(self._points.cost[chosen].sum()) + waiting,
            lower_bound_joules=self.relaxation.bound(deadline) + waiting,
            points=self._points.point[chosen],
            clocks_hertz=self._clocks[chosen],
            starts=starts,
            durations=lasts,
            joules_each=self._joules[chosen],
            blocking_watts=self._network.blocking_watts,
        )

    def _provenance(self) -> Provenance:
        counts = np.bincount(self._problem.profile_of, minlength=len(self._problem.profiles))
        return Provenance.combined(
            (profile.fastest.provenance, profile.fastest.joules * count)
            for profile, count in zip(self._problem.profiles, counts.tolist(), strict=True)
            if count
        )


def plan(problem: Problem) -> PlannedFrontier:
    """Find all plans of a pipeline.

    Raises:
        InvalidValueError: Instructions wait for each other in a circle, or an array is amiss.
        MissingExtraError: There is neither a compiled core nor HiGHS.
    """
    arrays = network(problem)
    return PlannedFrontier(problem, arrays, relax(arrays))


def _joules_and_clocks(
    problem: Problem, arrays: Network, points: Points
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Energy and clock of every point of every curve."""
    _, example = np.unique(arrays.curve_of, return_index=True)
    joules, clocks = np.empty(len(points.point)), np.full(len(points.point), np.nan)
    for curve, instruction in enumerate(example.tolist()):
        profile = problem.profiles[int(problem.profile_of[instruction])]
        for k in range(int(points.first[curve]), int(points.first[curve + 1])):
            point = profile.points[int(points.point[k])]
            joules[k] = point.joules
            if point.setting.clock_hertz is not None:
                clocks[k] = point.setting.clock_hertz
    return joules, clocks
