"""Hold every clock of a plan for a minimum time, for hardware that needs time to change clocks.

A clock that takes 10 ms to set cannot follow instructions of 5 ms. So along the order of each rank
instructions are joined into runs of one clock, each at least as long as the minimum hold time. At
first no instruction of a run takes longer than planned, so neither does the iteration; which runs
then need the least energy is found exactly for each rank. Faster clocks free time, which is given
back where it saves most.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.errors import InfeasibleError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.pipeline.planning._planner import ClockPlan, PipelinePlan
    from joulery.pipeline.planning._problem import PipelineProblem

# Three times what a change of a clock takes on most boards.
MINIMUM_HOLD_SECONDS = 0.030
# Iteration times that are tried for a power differ by this share; by hand.
_PACE_STEP = 0.005
# Rounding in the sum of a run's seconds.
_LAST_DIGITS = 1e-12
# Instructions visited while freed time is given back: keeps large pipelines within seconds; by
# hand.
_MAX_VISITS = 400_000
# Longer runs are not cut: trying every place would take too long; by hand.
_LONGEST_CUT = 32


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """A plan whose clocks are held long enough.

    Attributes:
        plan: Clocks, times and energy; never later than the deadline of the plan it was made
            from. Where a run's clock was not measured for an instruction, its time and energy are
            the larger ones of the clocks around it.
        extra_joules: Energy above that of the plan it was made from, at that one's deadline.
        unheld_ranks: Ranks whose measurements allow no runs that long within the deadline; they
            keep the clocks of the plan.
    """

    plan: ClockPlan
    extra_joules: float
    unheld_ranks: tuple[int, ...] = ()


def hold_clocks(
    pipeline: PipelinePlan, plan: ClockPlan, minimum_seconds: float = MINIMUM_HOLD_SECONDS
) -> HeldPlan:
    """One of a pipeline's plans, with every clock held for a minimum time at least."""
    finite(minimum_seconds, "minimum hold time", minimum=0.0)
    holding = _Holding(pipeline, plan, minimum_seconds)
    runs, unheld = holding.join()
    holding.give_back(runs)
    return holding.held(unheld)


def hold_power(pipeline: PipelinePlan, watts: float) -> HeldPlan:
    """The fastest plan whose mean power is at most ``watts`` with every clock held.

    Raises:
        InfeasibleError: The lowest clocks draw more.
    """

    @functools.cache
    def held(seconds: float) -> HeldPlan:
        plans = pipeline.slowed(seconds)
        return hold_clocks(plans, plans.at(seconds))

    def power(seconds: float) -> float:
        plan = held(seconds).plan
        return plan.joules / plan.seconds

    fastest, longest = pipeline.for_power(watts).seconds, pipeline.longest_seconds
    count = math.ceil(math.log(max(1.0, longest / fastest)) / math.log1p(_PACE_STEP))
    paces = [*(fastest * (1 + _PACE_STEP) ** k for k in range(count)), longest]
    # Searched by negative power, since that of longer iterations falls.
    first = bisect_left(paces, -watts, key=lambda seconds: -power(seconds))
    for seconds in paces[first:]:
        if power(seconds) <= watts:
            return held(seconds)
    raise InfeasibleError(
        f"no clocks held for {MINIMUM_HOLD_SECONDS:g} s keep the pipeline below {watts:g} W",
        remedy=f"the lowest draw {math.ceil(power(longest))} W; allow at least that",
    )


def rank_orders(problem: PipelineProblem, plan: ClockPlan) -> list[list[int]]:
    """The instructions of each rank, first to last."""
    orders: list[list[int]] = [[] for _ in range(problem.ranks)]
    for i in np.argsort(plan.starts, kind="stable").tolist():
        orders[problem.instructions[i].rank].append(i)
    return orders


def run_seconds(clocks: Sequence[float], durations: Sequence[float]) -> list[float]:
    """Time for which each clock is held, without waiting; what needs no clock joins any run."""
    runs: list[tuple[float, float]] = []
    for clock, seconds in zip(clocks, durations, strict=True):
        if runs and (math.isnan(clock) or math.isnan(runs[-1][0]) or runs[-1][0] == clock):
            megahertz_before = runs[-1][0] if math.isnan(clock) else clock
            runs[-1] = (megahertz_before, runs[-1][1] + seconds)
        else:
            runs.append((clock, seconds))
    return [seconds for _, seconds in runs]


class _Choice(NamedTuple):
    """An instruction at a clock; ``hertz`` is NaN where it needs none."""

    hertz: float
    seconds: float
    joules: float

    def above(self, blocking_watts: float) -> float:
        """Joules above those of waiting as long."""
        return self.joules - blocking_watts * self.seconds


class _Holding:
    """The choices of a plan's instructions while they are joined into runs."""

    def __init__(self, pipeline: PipelinePlan, plan: ClockPlan, minimum: float) -> None:
        self._problem = pipeline.problem
        self._network = pipeline.network
        self._plan = plan
        self._minimum = minimum
        self._deadline = max(plan.deadline_seconds, plan.seconds)
        self._measured: dict[int, tuple[_Choice, ...]] = {}
        arrays = plan.clocks_hertz, plan.durations, plan.joules_each
        self._chosen = list(map(_Choice, *(array.tolist() for array in arrays)))

    def join(self) -> tuple[list[list[int]], tuple[int, ...]]:
        """Join instructions into runs; the runs of equal clocks, and the ranks without any."""
        runs: list[list[int]] = []
        unheld = []
        for rank, order in enumerate(rank_orders(self._problem, self._plan)):
            if not self._is_held(order):
                choices = self._least_energy(order) or self._one_clock(order)
                if choices is None:
                    unheld.append(rank)
                    continue
                for i, choice in zip(order, choices, strict=True):
                    self._chosen[i] = choice
            runs += [
                list(run)
                for _, run in itertools.groupby(order, key=lambda i: self._chosen[i].hertz)
            ]
        return runs, tuple(unheld)

    def _is_held(self, order: list[int]) -> bool:
        """Whether the clocks of a rank are held long enough as they are."""
        steps = [self._chosen[i] for i in order]
        runs = run_seconds([step.hertz for step in steps], [step.seconds for step in steps])
        return len(runs) <= 1 or min(runs) >= self._minimum

    def _least_energy(self, order: list[int]) -> list[_Choice] | None:
        """The choices of a rank with the least energy above waiting; None if there are none.

        ``best[j]`` is the best way to run the first j instructions in whole runs, ``running[c]``
        the best in which the run at clock c is long enough already. Every start of a run becomes
        long enough at exactly one instruction, so this is linear in instructions times clocks.
        """
        blocking = self._blocking_watts(order[0])
        longest = [self._chosen[i].seconds * (1 + _LAST_DIGITS) for i in order]
        columns = self._columns(order, longest)[::-1]
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # cost, start and clock of the last run
        complete = [_complete_runs(column, self._minimum, blocking) for column in columns]
        running: dict[int, tuple[float, int]] = {}
        for j in range(1, len(order) + 1):
            cheapest = (math.inf, 0, 0)
            for c, column in enumerate(columns):
                options = []
                last = column[j - 1]
                if c in running and last is not None:
                    options.append((running[c][0] + last.above(blocking), running[c][1]))
                options += [(best[i][0] + cost, i) for i, cost in complete[c].get(j, ())]
                if options:
                    running[c] = min(options)
                    cheapest = min(cheapest, (*running[c], c))
                else:
                    running.pop(c, None)
            best.append(cheapest)
        for c, column in enumerate(columns):
            # One clock throughout never changes, however short the iteration.
            column_choices = [choice for choice in column if choice is not None]
            if len(column_choices) == len(order):
                cost = math.fsum(choice.above(blocking) for choice in column_choices)
                best[-1] = min(best[-1], (cost, 0, c))
        return _trace(columns, best) if math.isfinite(best[-1][0]) else None

    def _one_clock(self, order: list[int]) -> list[_Choice] | None:
        """A rank at the one clock of least energy with which the iteration is still in time."""
        options = self._columns(order, [math.inf] * len(order))
        complete = [
            [c for c in option if c is not None] for option in options if None not in option
        ]
        blocking = self._blocking_watts(order[0])
        for option in sorted(complete, key=lambda run: math.fsum(c.above(blocking) for c in run)):
            durations = np.array([choice.seconds for choice in self._chosen])
            durations[order] = [choice.seconds for choice in option]
            if self._network.end_seconds(durations) <= self._deadline:
                return option
        return None

    def _columns(
        self, order: list[int], longest_seconds: list[float]
    ) -> list[list[_Choice | None]]:
        """Choices of instructions at each clock, lowest first; None where one takes too long."""
        limits = list(zip(order, longest_seconds, strict=True))
        clocks = set[float]().union(*(self._clocks(i, longest) for i, longest in limits))
        return [[self._at(i, clock, longest) for i, longest in limits] for clock in sorted(clocks)]

    def give_back(self, runs: list[list[int]]) -> None:
        """Slow runs down where time is left, or their beginnings or ends, the largest first."""
        slack = self._slack()
        visits = max(1, _MAX_VISITS // max(1, len(self._chosen)))
        for run in sorted(runs, key=lambda run: -sum(self._chosen[i].joules for i in run))[:visits]:
            best: tuple[float, list[int], list[_Choice]] | None = None
            for part in self._parts(run):
                # Some path may hold all of them, so together they may take this much longer.
                available = min(slack[i] for i in part)
                slower = self._slower(part, available) if available > 0 else None
                if slower is not None and (best is None or slower[0] > best[0]):
                    best = (slower[0], part, slower[1])
            if best is not None:
                for i, choice in zip(best[1], best[2], strict=True):
                    self._chosen[i] = choice
                slack = self._slack()

    def _slack(self) -> list[float]:
        """Time by which each instruction may be longer before the iteration ends late."""
        durations = np.array([choice.seconds for choice in self._chosen])
        ends = self._network.starts(durations) + durations
        late: list[float] = (self._network.latest_ends(durations, self._deadline) - ends).tolist()
        return late

    def _parts(self, run: list[int]) -> list[list[int]]:
        """The run, and what it can be cut into if both pieces are held long enough."""
        parts = [run]
        if len(run) > _LONGEST_CUT:
            return parts
        seconds = [self._chosen[i].seconds for i in run]
        total, elapsed = math.fsum(seconds), 0.0
        for cut in range(1, len(run)):
            elapsed += seconds[cut - 1]
            if self._minimum <= elapsed and self._minimum <= total - elapsed:
                parts += [run[:cut], run[cut:]]
        return parts

    def _slower(self, run: list[int], slack: float) -> tuple[float, list[_Choice]] | None:
        """The run at the lower clock that saves most, taking ``slack`` longer at most."""
        now = [self._chosen[i] for i in run]
        if any(math.isnan(choice.hertz) for choice in now):
            return None
        blocking = self._blocking_watts(run[0])
        common = set.intersection(*(self._clocks(i, math.inf) for i in run))
        before = least = math.fsum(choice.above(blocking) for choice in now)
        best: list[_Choice] | None = None
        budget = sum(choice.seconds for choice in now) + slack * (1 - _LAST_DIGITS)
        for clock in sorted(common):
            if clock >= now[0].hertz:
                break
            choices = [c for i in run if (c := self._at(i, clock, math.inf)) is not None]
            # No instruction may get faster: a shorter run could fall below the minimum.
            slows = len(choices) == len(now) and all(
                b.seconds >= a.seconds for a, b in zip(now, choices, strict=True)
            )
            cost = math.fsum(choice.above(blocking) for choice in choices)
            if slows and cost < least and sum(choice.seconds for choice in choices) <= budget:
                best, least = choices, cost
        return None if best is None else (before - least, best)

    def _choices(self, i: int) -> tuple[_Choice, ...]:
        """The measured figures of an instruction, by increasing clock."""
        profile = int(self._problem.profile_of[i])
        if profile not in self._measured:
            choices = self._problem.profiles[profile]
            points = (
                _Choice(point.setting.clock_hertz, point.seconds, point.joules)
                for point in (*choices.points, *choices.others)
                if point.setting.clock_hertz is not None
            )
            self._measured[profile] = tuple(sorted(points, key=_hertz))
        return self._measured[profile]

    def _clocks(self, i: int, longest_seconds: float) -> set[float]:
        """The clocks at which an instruction was measured and fast enough."""
        if math.isnan(self._chosen[i].hertz):
            return set()
        return {c.hertz for c in self._choices(i) if c.seconds <= longest_seconds}

    def _at(self, i: int, hertz: float, longest_seconds: float) -> _Choice | None:
        """The figures of an instruction at any clock; None if too slow or below all measured.

        Between two measured clocks time and energy are the larger ones of both, an upper bound.
        """
        if math.isnan(self._chosen[i].hertz):
            return self._chosen[i]
        measured = self._choices(i)
        above = bisect_right(measured, hertz, key=_hertz)
        if not above:
            return None
        point = measured[above - 1]
        if point.hertz != hertz:
            seconds, joules = point.seconds, point.joules
            if above < len(measured):
                seconds = max(seconds, measured[above].seconds)
                joules = max(joules, measured[above].joules)
            else:  # power grows at least so
                joules *= (hertz / point.hertz) ** 2
            point = _Choice(hertz, seconds, joules)
        return point if point.seconds <= longest_seconds else None

    def _blocking_watts(self, i: int) -> float:
        return float(self._problem.blocking_watts[self._problem.instructions[i].rank])

    def held(self, unheld: tuple[int, ...]) -> HeldPlan:
        """The plan as it is now."""
        plan = self._plan
        durations = np.array([choice.seconds for choice in self._chosen])
        joules = np.array([choice.joules for choice in self._chosen])
        starts = self._network.starts(durations)
        seconds = float(np.max(starts + durations))
        steady = replace(
            plan,
            seconds=seconds,
            joules=float(joules.sum()) + self._problem.waiting_joules(durations, seconds),
            lower_bound_joules=plan.lower_bound_joules
            + plan.blocking_watts * (seconds - plan.seconds),
            clocks_hertz=np.array([choice.hertz for choice in self._chosen]),
            starts=starts,
            durations=durations,
            joules_each=joules,
        )
        extra = steady.joules_until(self._deadline) - plan.joules_until(self._deadline)
        return HeldPlan(steady, extra, unheld)


def _complete_runs(
    column: list[_Choice | None], minimum: float, blocking: float
) -> dict[int, list[tuple[int, float]]]:
    """Starts, by end, of the runs at one clock that just became long enough, with their cost."""
    complete: dict[int, list[tuple[int, float]]] = {}
    for start in range(len(column)):
        seconds = cost = 0.0
        for j in range(start, len(column)):
            choice = column[j]
            if choice is None:
                break
            seconds += choice.seconds
            cost += choice.above(blocking)
            if seconds >= minimum:
                complete.setdefault(j + 1, []).append((start, cost))
                break
    return complete


def _trace(
    columns: list[list[_Choice | None]], best: list[tuple[float, int, int]]
) -> list[_Choice]:
    """The choices behind the best way to run everything, from its end."""
    steps: list[_Choice] = []
    j = len(best) - 1
    while j:
        _, start, c = best[j]
        steps[:0] = [choice for choice in columns[c][start:j] if choice is not None]
        j = start
    return steps


def _hertz(choice: _Choice) -> float:
    return choice.hertz
