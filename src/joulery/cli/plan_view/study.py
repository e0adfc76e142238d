"""A planned pipeline beside what happens without a plan, apart from how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.pipeline.build import at_full_clock, build
from joulery.pipeline.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from joulery.pipeline.build import Surroundings
    from joulery.pipeline.planner import PlannedFrontier
    from joulery.pipeline.problem import Problem
    from joulery.pipeline.profiles import Profiles
    from joulery.pipeline.schedules import Schedule

# Points of the frontier that are shown, evenly over its time.
_POINTS = 33


@dataclass(frozen=True, slots=True)
class Timetable:
    """One way to run an iteration.

    Attributes:
        starts: (instructions,), seconds.
        durations: (instructions,), seconds.
        joules_each: (instructions,).
        clocks_hertz: (instructions,).
        seconds: When the last instruction ends.
        joules: Of everything, waiting until the deadline included.
    """

    starts: NDArray[np.float64]
    durations: NDArray[np.float64]
    joules_each: NDArray[np.float64]
    clocks_hertz: NDArray[np.float64]
    seconds: float
    joules: float

    @property
    def mean_clock_hertz(self) -> float:
        """Over the time at work."""
        return float(np.average(self.clocks_hertz, weights=self.durations))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan for one deadline.

    Attributes:
        name: What the deadline is, in words.
        deadline_seconds: When the iteration ends for everybody.
        plan: With planned clocks.
        unplanned: With every clock at its highest, and waiting for others if they set the pace.
        lower_bound_joules: Less is impossible by that deadline, even with clocks in between.
    """

    name: str
    deadline_seconds: float
    plan: Timetable
    unplanned: Timetable
    lower_bound_joules: float

    @property
    def saved(self) -> float:
        """Share of the unplanned energy."""
        return 1 - self.plan.joules / self.unplanned.joules

    @property
    def gap(self) -> float:
        """Share of energy above the lower bound."""
        # A plan on the bound may come out below it by the rounding of sums.
        return max(0.0, self.plan.joules / self.lower_bound_joules - 1)


@dataclass(frozen=True, slots=True)
class FrontierRow:
    """A point of the frontier of an iteration."""

    seconds: float
    joules: float
    lower_bound_joules: float

    @property
    def gap(self) -> float:
        """Share of energy above the lower bound."""
        return max(0.0, self.joules / self.lower_bound_joules - 1)


@dataclass(frozen=True, slots=True)
class Wish:
    """A deadline by name.

    Attributes:
        name: In words.
        seconds: The deadline; None to take ``factor``.
        factor: The deadline as a multiple of the time at full clocks.
        waits: Whether the next iteration starts at the deadline and not before, because others set
            the pace.
    """

    name: str
    seconds: float | None = None
    factor: float = 1.0
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Study:
    """Everything there is to show about one schedule."""

    schedule: Schedule
    problem: Problem
    surroundings: Surroundings
    source: str
    outcomes: tuple[Outcome, ...]
    frontier: tuple[FrontierRow, ...]
    planning_seconds: float
    notes: tuple[str, ...]

    @property
    def unplanned(self) -> Timetable:
        """Full clocks, without waiting for anybody."""
        return self.outcomes[0].unplanned

    @property
    def chosen(self) -> Outcome:
        """What was asked for most specifically."""
        return self.outcomes[-1]


def study(
    schedule: Schedule, profiles: Profiles, around: Surroundings, wishes: Iterable[Wish]
) -> Study:
    """Plan a pipeline for every wish, the first of which is the time at full clocks."""
    import time

    from joulery.pipeline.planner import plan

    problem = build(schedule, profiles, around)
    begin = time.process_time()
    frontier = plan(problem)
    planning_seconds = time.process_time() - begin
    seconds, joules, clocks = at_full_clock(problem, profiles, around)
    full_seconds = replay(problem, seconds, joules).seconds
    outcomes = []
    for wish in wishes:
        deadline = full_seconds * wish.factor if wish.seconds is None else wish.seconds
        found = frontier.at(deadline) if wish.waits else frontier.best_by(deadline)
        until = deadline if wish.waits else found.seconds
        each = found.durations, found.joules_each, found.clocks_hertz
        outcomes.append(
            Outcome(
                wish.name,
                until,
                _timetable(problem, each, until),
                _timetable(problem, (seconds, joules, clocks), deadline if wish.waits else 0.0),
                found.lower_bound_joules + found.blocking_watts * (until - found.seconds),
            )
        )
    return Study(
        schedule=schedule,
        problem=problem,
        surroundings=around,
        source=profiles.source,
        outcomes=tuple(outcomes),
        frontier=_rows(frontier),
        planning_seconds=planning_seconds,
        notes=tuple(profiles.notes),
    )


def _rows(frontier: PlannedFrontier) -> tuple[FrontierRow, ...]:
    rows: list[FrontierRow] = []
    for found in frontier.plans(_POINTS):
        # Whole clocks may leave two deadlines with one plan.
        if not rows or found.joules < rows[-1].joules:
            rows.append(FrontierRow(found.seconds, found.joules, found.lower_bound_joules))
    return tuple(rows)


def _timetable(
    problem: Problem,
    each: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    until: float,
) -> Timetable:
    """By the simulator, not by what the planner promises."""
    seconds, joules, clocks = each
    run = replay(problem, seconds, joules, until)
    end = float(np.max(run.starts + seconds))
    return Timetable(run.starts, seconds, joules, clocks, end, run.joules)
