"""A planned pipeline as a JSON document for other tools."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulery.pipeline import PipelineProblem, Saving, ScheduleComparison, ScheduleSearch
    from joulery.reports import PipelineView


def plan_document(view: PipelineView) -> dict[str, Any]:
    """Everything that was planned; ``planned_seconds`` is the iteration time of the last plan."""
    problem, full = view.plan.problem, view.plan.full_clocks
    document = {
        "planned_seconds": view.savings[-1].plan.seconds,
        "planning_cpu_seconds": view.plan.planning_cpu_seconds,
        "schedule": problem.schedule,
        "ranks": problem.ranks,
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "full_clocks": {"seconds": full.seconds, "joules": full.joules},
        "frontier": [plan.totals() for plan in view.plan.frontier_plans],
        "plans": [_saving(problem, saving) for saving in view.savings],
        "notes": list(view.notes),
    }
    return document if view.search is None else document | _search(view.search)


def _saving(problem: PipelineProblem, saving: Saving) -> dict[str, Any]:
    plan = saving.plan
    return {
        "name": saving.name,
        "deadline_seconds": saving.seconds,
        "seconds": plan.seconds,
        "joules": saving.joules,
        "lower_bound_joules": saving.lower_bound_joules,
        "full_clocks_joules": saving.full_clocks_joules,
        "saved": saving.saved,
        "instructions": [
            {
                "rank": item.rank,
                "stage": item.stage,
                "kind": item.kind,
                "microbatch": item.microbatch,
                "clock_hertz": None if math.isnan(clock) else clock,
                "start_seconds": start,
                "seconds": seconds,
                "joules": joules,
            }
            for item, clock, start, seconds, joules in zip(
                problem.instructions,
                plan.clocks_hertz.tolist(),
                plan.starts.tolist(),
                plan.durations.tolist(),
                plan.joules_each.tolist(),
                strict=True,
            )
        ],
    }


def _search(search: ScheduleSearch) -> dict[str, Any]:
    """The comparisons by number of microbatches, and the other partition if one was tried."""
    found: dict[str, Any] = {"comparisons": [_comparison(c, search) for c in search.comparisons]}
    if search.moved_layers:
        moved = search.moved_best
        found["other_partition"] = {
            "layers": list(search.moved_layers),
            "best": None if moved is None else moved.schedule.name,
            "joules": None if moved is None else moved.joules,
            "chosen": search.best is moved,
        }
    return found


def _comparison(comparison: ScheduleComparison, search: ScheduleSearch) -> dict[str, Any]:
    best = search.best_of(comparison)
    return {
        "microbatches": comparison.microbatches,
        "deadline_seconds": comparison.deadline_seconds,
        "full_clocks_joules": comparison.full_clocks_joules,
        "best": None if best is None else best.schedule.name,
        "best_with_any_memory": comparison.best(float("inf")).schedule.name,
        "schedules": [
            {
                "name": candidate.schedule.name,
                "full_clocks_seconds": candidate.plan.full_clocks.seconds,
                "seconds": None if candidate.best is None else candidate.best.seconds,
                "joules": candidate.joules,
                "activations": candidate.activations,
                "activation_bytes": candidate.activation_bytes,
                "transfers": candidate.transfers,
            }
            for candidate in comparison.candidates
        ],
        "refused": comparison.refused,
    }
