"""A planned pipeline as a JSON document for other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulery.cli.plan_view.choice import Choice
    from joulery.cli.plan_view.study import Outcome, Study
    from joulery.pipeline.auto import Comparison


def study_document(study: Study) -> dict[str, Any]:
    """Everything that was planned; ``planned_seconds`` is the iteration time of the last plan."""
    return {
        "planned_seconds": study.chosen.plan.seconds,
        "planning_cpu_seconds": study.planning_seconds,
        "schedule": study.schedule.name,
        "ranks": len(study.schedule.ranks),
        "stages": study.schedule.stages,
        "microbatches": study.schedule.microbatches,
        "full_clocks": {"seconds": study.unplanned.seconds, "joules": study.unplanned.joules},
        "frontier": [
            {
                "seconds": row.seconds,
                "joules": row.joules,
                "lower_bound_joules": row.lower_bound_joules,
            }
            for row in study.frontier
        ],
        "plans": [_outcome(study, outcome) for outcome in study.outcomes],
        "notes": list(study.notes),
    }


def _outcome(study: Study, outcome: Outcome) -> dict[str, Any]:
    plan = outcome.plan
    return {
        "name": outcome.name,
        "deadline_seconds": outcome.deadline_seconds,
        "seconds": plan.seconds,
        "joules": plan.joules,
        "lower_bound_joules": outcome.lower_bound_joules,
        "full_clocks_joules": outcome.unplanned.joules,
        "saved": outcome.saved,
        "instructions": [
            {
                "rank": item.rank,
                "stage": item.stage,
                "kind": item.kind,
                "microbatch": item.microbatch,
                "clock_hertz": clock,
                "start_seconds": start,
                "seconds": seconds,
                "joules": joules,
            }
            for item, clock, start, seconds, joules in zip(
                study.problem.instructions,
                plan.clocks_hertz.tolist(),
                plan.starts.tolist(),
                plan.durations.tolist(),
                plan.joules_each.tolist(),
                strict=True,
            )
        ],
    }


def choice_document(choice: Choice) -> dict[str, Any]:
    """What was compared, by number of microbatches, and the other partition if one was tried."""
    usual = choice.most_activations == choice.wanted.reference_activations
    limit = None if usual else choice.most_activations
    found: dict[str, Any] = {
        "comparisons": [_comparison(one, limit) for one in choice.comparisons],
    }
    if choice.moved is not None:
        moved = choice.moved_best
        found["other_partition"] = {
            "layers": list(choice.moved_layers),
            "best": None if moved is None else moved.schedule.name,
            "joules": None if moved is None else moved.joules,
            "chosen": choice.best is moved,
        }
    return found


def _comparison(comparison: Comparison, limit: float | None) -> dict[str, Any]:
    """The schedules beside each other."""
    return {
        "microbatches": comparison.microbatches,
        "deadline_seconds": comparison.deadline_seconds,
        "full_clocks_joules": comparison.full_clock_joules,
        "best": comparison.best(limit).schedule.name,
        "best_with_any_memory": comparison.best(float("inf")).schedule.name,
        "schedules": [
            {
                "name": candidate.schedule.name,
                "full_clocks_seconds": candidate.full_clock_seconds,
                "seconds": None if candidate.best is None else candidate.best.seconds,
                "joules": candidate.joules,
                "activations": candidate.activations,
                "transfers": candidate.transfers,
            }
            for candidate in comparison.candidates
        ],
        "refused": comparison.refused,
    }
