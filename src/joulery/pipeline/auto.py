"""Choose the schedule and the clocks together: which order needs the least energy in equal time.

A schedule with a smaller bubble is done sooner at full clocks, and can give that time back at lower
clocks. What it costs is charged: every hop between ranks takes its communication time, and the
activations that each rank must hold are counted, so that a schedule which does not fit is not
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.pipeline.build import Surroundings, at_full_clock, build
from joulery.pipeline.replay import replay
from joulery.pipeline.schedules import SCHEDULES, schedule
from joulery.pipeline.schedules_words import BACKWARD, BACKWARD_WEIGHT, FORWARD, RECOMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.pipeline.planner import Plan, PlannedFrontier
    from joulery.pipeline.problem import Problem
    from joulery.pipeline.profiles import Profiles
    from joulery.pipeline.schedules import Schedule

# Where plans are compared unless somebody says otherwise: at the pace people train at today.
_REFERENCE = "1f1b"

# Energies this close are the same: plans lie up to that far above their bound anyway.
_ALIKE = 1e-3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with its frontier, and what it needs besides energy.

    Attributes:
        schedule: The order.
        problem: The iteration.
        frontier: All its plans.
        full_clock_seconds: How long it takes with all clocks at their highest.
        activations: The most microbatches of activations that a rank holds at once.
        transfers: Messages between ranks per iteration.
        best: The plan of least energy within the deadline of the comparison; None if even the
            fastest takes longer.
    """

    schedule: Schedule
    problem: Problem
    frontier: PlannedFrontier
    full_clock_seconds: float
    activations: float
    transfers: int
    best: Plan | None

    @property
    def joules(self) -> float | None:
        """Of the best plan."""
        return None if self.best is None else self.best.joules


@dataclass(frozen=True, slots=True)
class Comparison:
    """Schedules for one number of microbatches.

    Attributes:
        microbatches: How many.
        pace_seconds: How long an iteration of 1F1B takes at full clocks.
        deadline_seconds: Every schedule is given this time; it may take less.
        full_clock_joules: What 1F1B at full clocks needs.
        candidates: Those that can run, in the order of ``SCHEDULES``.
        refused: Why the others cannot, by name.
    """

    microbatches: int
    pace_seconds: float
    deadline_seconds: float
    full_clock_joules: float
    candidates: tuple[Candidate, ...]
    refused: dict[str, str]

    @property
    def reference_activations(self) -> float:
        """What 1F1B holds, the memory that is there if pipelines are trained at all."""
        return next(c.activations for c in self.candidates if c.schedule.name == _REFERENCE)

    def best(self, most_activations: float | None = None) -> Candidate:
        """The candidate of least energy that meets the deadline and fits.

        Of those that need practically the same, the one with the least memory, then with the
        fewest messages: where time is ample, many reach the least energy there is.

        Args:
            most_activations: Microbatches of activations that fit a rank; what 1F1B holds by
                default.

        Raises:
            InfeasibleError: None does.
        """
        limit = self.reference_activations if most_activations is None else most_activations
        fitting = [
            (candidate.joules, candidate)
            for candidate in self.candidates
            if candidate.joules is not None and candidate.activations <= limit + 1e-9
        ]
        if not fitting:
            in_time = [c.activations for c in self.candidates if c.best is not None]
            if not in_time:
                fastest = min(c.frontier.fastest_seconds for c in self.candidates)
                raise InfeasibleError(
                    f"no schedule ends within {self.deadline_seconds:g} s",
                    remedy=f"the fastest takes {fastest:.6g} s; allow at least that",
                )
            raise InfeasibleError(
                f"no schedule gets by with {limit:g} microbatches of activations in "
                f"{self.deadline_seconds:g} s",
                remedy=f"make room for {min(in_time):g} microbatches, or recompute activations",
            )
        least_joules = min(joules for joules, _ in fitting)
        alike = [found for joules, found in fitting if joules <= least_joules * (1 + _ALIKE)]
        return min(alike, key=lambda found: (found.activations, found.transfers))


def compare(
    profiles: Profiles,
    ranks: int,
    microbatches: int,
    surroundings: Surroundings | None = None,
    deadline_seconds: float | None = None,
) -> Comparison:
    """Plan every schedule for one pipeline.

    Args:
        profiles: What its stages cost.
        ranks: Devices, or groups of devices, in it.
        microbatches: Per iteration.
        surroundings: Communication, waiting, and devices that share the plan.
        deadline_seconds: When an iteration is to end; as soon as 1F1B at full clocks by default.
    """
    around = surroundings or Surroundings()
    reference = build(schedule(_REFERENCE, ranks, microbatches), profiles, around)
    seconds, joules, _ = at_full_clock(reference, profiles, around)
    full = replay(reference, seconds, joules)
    deadline = full.seconds if deadline_seconds is None else deadline_seconds
    candidates, refused = [], {}
    for name in SCHEDULES:
        try:
            order = schedule(name, ranks, microbatches)
        except InvalidValueError as not_here:
            refused[name] = not_here.message
            continue
        candidates.append(_candidate(order, profiles, around, deadline))
    return Comparison(microbatches, full.seconds, deadline, full.joules, tuple(candidates), refused)


def winners(
    profiles: Profiles,
    ranks: int,
    counts: Iterable[int],
    surroundings: Surroundings | None = None,
) -> list[Comparison]:
    """Comparisons at several numbers of microbatches, each at 1F1B's pace for that number."""
    return [compare(profiles, ranks, count, surroundings) for count in counts]


def activations_in_flight(
    order: Schedule, sizes: Sequence[float] | None = None
) -> tuple[float, ...]:
    """The most that each rank holds at once, in microbatches of activations of a whole rank.

    Activations live from the forward (or the recomputation) to the end of the backward, its
    weight's half included. A rank with several stages holds a fraction per stage. ``sizes`` are the
    activations of each profiled stage, where they differ.
    """
    recomputing = {item.stage for rank in order.ranks for item in rank if item.kind == RECOMPUTE}
    most = []
    for rank in order.ranks:
        held = peak = 0.0
        for item in rank:
            makes = RECOMPUTE if item.stage in recomputing else FORWARD
            if item.kind == makes:
                held += _size(order, item.stage, sizes)
                peak = max(peak, held)
            elif item.kind in (BACKWARD, BACKWARD_WEIGHT):
                held -= _size(order, item.stage, sizes)
        most.append(peak / order.chunks)
    return tuple(most)


def _size(order: Schedule, stage: int, sizes: Sequence[float] | None) -> float:
    return sizes[stage * len(sizes) // order.stages] if sizes else 1.0


def _candidate(
    order: Schedule, profiles: Profiles, around: Surroundings, deadline: float
) -> Candidate:
    from joulery.pipeline.planner import plan

    problem = build(order, profiles, around)
    frontier = plan(problem)
    seconds, energies, _ = at_full_clock(problem, profiles, around)
    ranks = [item.rank for item in problem.instructions]
    hops = sum(
        ranks[before] != ranks[after]
        for before, after in zip(problem.edge_from.tolist(), problem.edge_to.tolist(), strict=True)
    )
    try:
        best = frontier.best_by(deadline)
    except InfeasibleError:
        best = None
    return Candidate(
        schedule=order,
        problem=problem,
        frontier=frontier,
        full_clock_seconds=replay(problem, seconds, energies).seconds,
        activations=max(activations_in_flight(order, profiles.sizes)),
        transfers=hops,
        best=best,
    )
