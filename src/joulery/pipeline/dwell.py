"""Make a plan fit for hardware that needs time to change its clock.

A clock that takes 10 ms to set cannot follow instructions of 5 ms. So along the order of each rank
instructions are joined into runs of one clock, each long enough to be worth a change. At first no
instruction of a run takes longer than it was planned to, so neither does the iteration; which runs
then need the least energy is found exactly for each rank. Faster clocks free time, which is given
back where it saves most.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.pipeline.dwell_choices import Choice, ChoiceBook
from joulery.pipeline.dwell_slack import SlackKeeper
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.pipeline.planner import Plan
    from joulery.pipeline.problem import Problem

_SET_LATENCIES = 3.0
# Rounding in the sum of a run's seconds.
_LAST_DIGITS = 1e-12
# Instructions looked at while freed time is given back: keeps large pipelines within seconds.
_MOST_LOOKS = 400_000
# Longer runs are not cut: trying every place would take too long.
_LONGEST_CUT = 32


@dataclass(frozen=True, slots=True)
class Dwell:
    """How long a clock must be held.

    Attributes:
        set_seconds: From the command until the clock is in force.
        minimum_seconds: Least time between two changes; three times the former unless given.
    """

    set_seconds: float = 0.010
    minimum_seconds: float = math.nan

    def __post_init__(self) -> None:
        finite(self.set_seconds, "seconds to set a clock", minimum=0.0)
        if math.isnan(self.minimum_seconds):
            object.__setattr__(self, "minimum_seconds", _SET_LATENCIES * self.set_seconds)
        finite(self.minimum_seconds, "least seconds of a clock", minimum=0.0)


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """A plan whose clocks are held long enough.

    Attributes:
        plan: Its clocks, times and energy; never later than the plan it was made from. Where a
            run's clock was not measured for an instruction, its time is that of the next lower
            clock and its energy an estimate.
        given_up_joules: What it needs more than the plan it was made from, at that one's pace.
        switches: (ranks,), changes of clock within an iteration.
        unheld_ranks: Ranks whose measurements allow no runs that long without losing time; they
            keep the clocks of the plan.
    """

    plan: Plan
    given_up_joules: float
    switches: tuple[int, ...]
    unheld_ranks: tuple[int, ...] = ()


def held(problem: Problem, plan: Plan, dwell: Dwell) -> HeldPlan:
    """The plan with every clock held for ``dwell.minimum_seconds`` at least."""
    orders = rank_orders(problem, plan)
    minimum = dwell.minimum_seconds
    planned = [
        Choice(point, clock, seconds, joules)
        for point, clock, seconds, joules in zip(
            plan.points.tolist(),
            plan.clocks_hertz.tolist(),
            plan.durations.tolist(),
            plan.joules_each.tolist(),
            strict=True,
        )
    ]
    keeper, book = SlackKeeper(problem, plan), ChoiceBook(problem)
    joined, runs, unheld = _joined(book, orders, planned, minimum)
    _give_back(book, runs, joined, keeper, minimum)
    return _assembled(problem, plan, joined, keeper, unheld)


def _joined(
    book: ChoiceBook, orders: list[list[int]], planned: list[Choice], minimum: float
) -> tuple[list[Choice], list[list[int]], tuple[int, ...]]:
    """The choices, the runs of equal clocks, and the ranks for which there are none."""
    chosen = list(planned)
    runs: list[list[int]] = []
    unheld = []
    for rank, order in enumerate(orders):
        steps = [planned[i] for i in order]
        found = steps if _holds(steps, minimum) else _least_energy(book, order, steps, minimum)
        if found is None:
            unheld.append(rank)
            continue
        for i, choice in zip(order, found, strict=True):
            chosen[i] = choice
        runs += _equal_clocks(order, chosen)
    return chosen, runs, tuple(unheld)


def rank_orders(problem: Problem, plan: Plan) -> list[list[int]]:
    """The instructions of each rank, first to last."""
    orders: list[list[int]] = [[] for _ in range(len(problem.blocking_watts))]
    for i in np.argsort(plan.starts, kind="stable").tolist():
        orders[problem.instructions[i].rank].append(i)
    return orders


def run_seconds(clocks: Sequence[float], durations: Sequence[float]) -> list[float]:
    """How long each clock is held, waiting not counted; what needs no clock joins any run."""
    runs: list[tuple[float, float]] = []
    for clock, seconds in zip(clocks, durations, strict=True):
        if runs and (math.isnan(clock) or math.isnan(runs[-1][0]) or runs[-1][0] == clock):
            named = runs[-1][0] if math.isnan(clock) else clock
            runs[-1] = (named, runs[-1][1] + seconds)
        else:
            runs.append((clock, seconds))
    return [seconds for _, seconds in runs]


def _holds(steps: Sequence[Choice], minimum: float) -> bool:
    """Whether the clocks stay long enough as they are."""
    held_for = run_seconds([step.hertz for step in steps], [step.seconds for step in steps])
    return len(held_for) <= 1 or min(held_for) >= minimum


def _least_energy(
    book: ChoiceBook, order: list[int], planned: list[Choice], minimum: float
) -> list[Choice] | None:
    """The choice per instruction with the least energy above waiting; None if there is none.

    ``done[j]`` is the best way to run the first j instructions in whole runs, ``running[c]`` the
    best in which the run at clock c is long enough already. Every start of a run becomes long
    enough at exactly one instruction, so all of this is linear in instructions times clocks.
    """
    blocking = book.blocking_watts(order[0])
    tables = [book.of(i, step) for i, step in zip(order, planned, strict=True)]
    clocks = sorted({clock for table in tables for clock in table.clocks()}, reverse=True)
    whole = [[table.at(clock) for table in tables] for clock in clocks]
    best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # cost, start and clock of the last run
    ripening = _ripening(whole, minimum, blocking)
    running: dict[int, tuple[float, int]] = {}
    for j in range(1, len(order) + 1):
        found = (math.inf, 0, 0)
        for c, column in enumerate(whole):
            options = []
            last = column[j - 1]
            if c in running and last is not None:
                options.append((running[c][0] + last.above(blocking), running[c][1]))
            options += [(best[i][0] + cost, i) for i, cost in ripening[c].get(j, ())]
            if options:
                running[c] = min(options)
                found = min(found, (*running[c], c))
            else:
                running.pop(c, None)
        best.append(found)
    for c, column in enumerate(whole):
        # One clock throughout is held for ever, however short the iteration.
        kept = [choice for choice in column if choice is not None]
        if len(kept) == len(order):
            best[-1] = min(best[-1], (math.fsum(choice.above(blocking) for choice in kept), 0, c))
    if not math.isfinite(best[-1][0]):
        return None
    return _traced(whole, best)


def _traced(whole: list[list[Choice | None]], best: list[tuple[float, int, int]]) -> list[Choice]:
    """The choices behind the best way to run everything, from its end."""
    steps: list[Choice] = []
    j = len(best) - 1
    while j:
        _, start, c = best[j]
        run = [choice for choice in whole[c][start:j] if choice is not None]
        steps[:0] = run
        j = start
    return steps


def _ripening(
    whole: list[list[Choice | None]], minimum: float, blocking: float
) -> list[dict[int, list[tuple[int, float]]]]:
    """By clock and end: starts of the runs that just became long enough, with their cost."""
    found: list[dict[int, list[tuple[int, float]]]] = []
    for column in whole:
        ripe: dict[int, list[tuple[int, float]]] = {}
        for start in range(len(column)):
            seconds = cost = 0.0
            for j in range(start, len(column)):
                choice = column[j]
                if choice is None:
                    break
                seconds += choice.seconds
                cost += choice.above(blocking)
                if seconds >= minimum:
                    ripe.setdefault(j + 1, []).append((start, cost))
                    break
        found.append(ripe)
    return found


def _equal_clocks(order: list[int], chosen: list[Choice]) -> list[list[int]]:
    """The order cut where the clock changes."""
    return [list(run) for _, run in itertools.groupby(order, key=lambda i: chosen[i].hertz)]


def _give_back(
    book: ChoiceBook,
    runs: list[list[int]],
    chosen: list[Choice],
    keeper: SlackKeeper,
    minimum: float,
) -> None:
    """Slow runs down where time is left, or their beginnings or ends, the largest first."""
    keeper.refresh([choice.seconds for choice in chosen])
    looks = max(1, _MOST_LOOKS // max(1, len(chosen)))
    for run in sorted(runs, key=lambda run: -sum(chosen[i].joules for i in run))[:looks]:
        best: tuple[float, list[int], list[Choice]] | None = None
        for part in _parts(run, chosen, minimum):
            slack = keeper.least_slack(part)
            found = _slower(book, part, chosen, slack) if slack > 0 else None
            if found is not None and (best is None or found[0] > best[0]):
                best = (found[0], part, found[1])
        if best is not None:
            for i, choice in zip(best[1], best[2], strict=True):
                chosen[i] = choice
            keeper.refresh([choice.seconds for choice in chosen])


def _parts(run: list[int], chosen: list[Choice], minimum: float) -> list[list[int]]:
    """The run, and what it can be cut into if both pieces are held long enough."""
    parts = [run]
    if len(run) > _LONGEST_CUT:
        return parts
    seconds = [chosen[i].seconds for i in run]
    total, done = math.fsum(seconds), 0.0
    for cut in range(1, len(run)):
        done += seconds[cut - 1]
        if minimum <= done and minimum <= total - done:
            parts += [run[:cut], run[cut:]]
    return parts


def _slower(
    book: ChoiceBook, run: list[int], chosen: list[Choice], slack: float
) -> tuple[float, list[Choice]] | None:
    """The run at the lower clock that saves most, taking ``slack`` longer at most."""
    now = [chosen[i] for i in run]
    if any(math.isnan(choice.hertz) for choice in now):
        return None
    blocking = book.blocking_watts(run[0])
    tables = [book.of(i, choice, math.inf) for i, choice in zip(run, now, strict=True)]
    common = set.intersection(*(set(table.clocks()) for table in tables))
    before = least = math.fsum(choice.above(blocking) for choice in now)
    best: list[Choice] | None = None
    budget = sum(choice.seconds for choice in now) + slack * (1 - _LAST_DIGITS)
    for clock in sorted(common):
        if clock >= now[0].hertz:
            break
        there = [choice for table in tables if (choice := table.at(clock)) is not None]
        # Nobody may get faster: a shorter run could fall below its least time.
        slows = len(there) == len(now) and all(
            b.seconds >= a.seconds for a, b in zip(now, there, strict=True)
        )
        cost = math.fsum(choice.above(blocking) for choice in there)
        if slows and cost < least and sum(choice.seconds for choice in there) <= budget:
            best, least = there, cost
    return None if best is None else (before - least, best)


def _assembled(
    problem: Problem,
    plan: Plan,
    chosen: list[Choice],
    keeper: SlackKeeper,
    unheld: tuple[int, ...],
) -> HeldPlan:
    durations = np.array([choice.seconds for choice in chosen])
    joules = np.array([choice.joules for choice in chosen])
    ranks = np.array([item.rank for item in problem.instructions])
    seconds = float(np.max(keeper.starts + durations))
    waiting = problem.blocking_watts.sum() * seconds - problem.blocking_watts[ranks] @ durations
    made = replace(
        plan,
        seconds=seconds,
        joules=float(joules.sum() + waiting),
        lower_bound_joules=plan.lower_bound_joules + plan.blocking_watts * (seconds - plan.seconds),
        points=np.array([choice.point for choice in chosen], dtype=np.int64),
        clocks_hertz=np.array([choice.hertz for choice in chosen]),
        starts=keeper.starts,
        durations=durations,
        joules_each=joules,
    )
    pace = max(plan.deadline_seconds, plan.seconds)
    orders = rank_orders(problem, made)
    return HeldPlan(
        made,
        made.joules_until(pace) - plan.joules_until(pace),
        tuple(
            max(
                0,
                len(run_seconds(made.clocks_hertz[order].tolist(), durations[order].tolist())) - 1,
            )
            for order in orders
        ),
        unheld,
    )
