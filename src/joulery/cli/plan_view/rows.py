"""The tables of a planned pipeline as rows of text, for the terminal and for the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.cli.frontier_view import joules_unit, seconds_unit

if TYPE_CHECKING:
    from joulery.cli.frontier_view import Unit
    from joulery.pipeline import (
        PipelinePlan,
        Saving,
        ScheduleCandidate,
        ScheduleComparison,
        ScheduleSearch,
    )

SAVING_HEADERS = (
    "plan",
    "iteration",
    "full clocks",
    "planned",
    "saved",
    "above bound",
    "mean clock",
)
SCHEDULE_HEADERS = (
    "schedule",
    "full clocks",
    "planned",
    "energy",
    "saved",
    "activations",
    "transfers",
    "",
)
WINNER_HEADERS = ("microbatches", "best", "saved", "with memory to spare", "saved", "activations")


@dataclass(frozen=True, slots=True)
class PlanView:
    """Everything to show about one planned pipeline.

    Attributes:
        plan: Plans of the pipeline.
        savings: Savings, equal time first, the most specific target last.
        notes: What was done to the profile.
        search: Search that chose the schedule; None if it was given.
    """

    plan: PipelinePlan
    savings: tuple[Saving, ...]
    notes: tuple[str, ...] = ()
    search: ScheduleSearch | None = None

    @property
    def title(self) -> str:
        """One line about the pipeline."""
        problem = self.plan.problem
        devices, replicas = problem.config.devices_per_rank, problem.config.replicas
        return (
            f"{problem.source}: {problem.schedule}, {problem.ranks} ranks"
            + (f" of {devices} devices" if devices > 1 else "")
            + (f", {problem.stages} stages" if problem.stages != problem.ranks else "")
            + f", {problem.microbatches} microbatches, {len(problem)} instructions"
            + (f", {replicas} replicas" if replicas > 1 else "")
        )


def figure(value: float, unit: Unit) -> str:
    """An SI value in a unit with four digits, so that savings of half a per cent show."""
    scaled = value / unit.size
    digits = max(0, 3 - math.floor(math.log10(max(abs(scaled), 1e-9))))
    return f"{scaled:.{min(digits, 6)}f} {unit.name}"


def saving_rows(view: PlanView) -> list[list[str]]:
    """A row per saving, under ``SAVING_HEADERS``."""
    joules = joules_unit([saving.full_clocks_joules for saving in view.savings])
    seconds = seconds_unit([saving.seconds for saving in view.savings])
    return [
        [
            saving.name,
            figure(saving.seconds, seconds),
            figure(saving.full_clocks_joules, joules),
            figure(saving.joules, joules),
            f"{100 * saving.saved:.1f} %",
            f"{100 * saving.gap:.2f} %",
            f"{saving.plan.mean_clock_hertz / 1e6:.0f} MHz",
        ]
        for saving in view.savings
    ]


def search_caption(search: ScheduleSearch) -> str:
    """The terms of the comparison of schedules."""
    wanted = search.wanted
    seconds = seconds_unit([wanted.deadline_seconds])
    return (
        f"{wanted.microbatches} microbatches, every schedule within "
        f"{figure(wanted.deadline_seconds, seconds)}; "
        f"memory for {search.max_activations:g} microbatches of activations per rank"
    )


def schedule_rows(search: ScheduleSearch) -> list[list[str]]:
    """A row per schedule, under ``SCHEDULE_HEADERS``, the best one marked."""
    wanted, limit = search.wanted, search.max_activations
    best = wanted.best(limit)
    joules = joules_unit([wanted.full_clocks_joules])
    seconds = seconds_unit([wanted.deadline_seconds])
    rows = []
    for candidate in wanted.candidates:
        fits = candidate.activations <= limit + 1e-9
        planned = candidate.best
        rows.append(
            [
                candidate.schedule.name,
                figure(candidate.plan.full_clocks.seconds, seconds),
                "too slow" if planned is None else figure(planned.seconds, seconds),
                "" if planned is None else figure(planned.joules, joules),
                saved(wanted, candidate),
                f"{candidate.activations:g}",
                str(candidate.transfers),
                "★ least energy" if candidate is best else "" if fits else "too much memory",
            ]
        )
    rows += [[name, *[""] * 6, reason] for name, reason in wanted.refused.items()]
    return rows


def winner_rows(search: ScheduleSearch) -> list[list[str]]:
    """The best schedule by number of microbatches, under ``WINNER_HEADERS``."""
    rows = []
    for comparison in search.comparisons:
        best, any_memory = comparison.best(memory_limit(search)), comparison.best(math.inf)
        rows.append(
            [
                str(comparison.microbatches),
                best.schedule.name,
                saved(comparison, best),
                any_memory.schedule.name,
                saved(comparison, any_memory),
                f"{any_memory.activations:g}",
            ]
        )
    return rows


def memory_limit(search: ScheduleSearch) -> float | None:
    """What fits a rank at any number of microbatches; None for what 1F1B holds there.

    Fewer microbatches hold fewer activations: there 1F1B's own memory is less.
    """
    usual = search.max_activations == search.wanted.reference_activations
    return None if usual else search.max_activations


def saved(comparison: ScheduleComparison, candidate: ScheduleCandidate) -> str:
    """The share of the energy of 1F1B at full clocks that a candidate saves; empty if too slow."""
    if candidate.joules is None:
        return ""
    return f"{100 * (1 - candidate.joules / comparison.full_clocks_joules):.1f} %"
