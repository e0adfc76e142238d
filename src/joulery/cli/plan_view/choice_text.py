"""Tell in the terminal which schedule wins, by how much, and at what number of microbatches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.cli.frontier_view import joules_unit, seconds_unit
from joulery.cli.plan_view.text import figure
from joulery.cli.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cli.plan_view.choice import Choice
    from joulery.pipeline.auto import Candidate, Comparison


def choice_text(choice: Choice) -> str:
    """Schedules beside each other, winners by number of microbatches, partitions."""
    texts = [_comparison(choice.wanted, choice.most_activations)]
    rows = winner_rows(choice.comparisons, memory_limit(choice))
    texts.append(table(WINNER_HEADERS, rows, "rlrlrr"))
    if choice.layers:
        texts.append(_partitions(choice))
    return "\n\n".join(texts)


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


def _comparison(comparison: Comparison, limit: float) -> str:
    """The schedules beside each other, the best one marked."""
    rows = schedule_rows(comparison, limit)
    return f"{opening(comparison, limit)}\n\n{table(SCHEDULE_HEADERS, rows, 'lrrrrrrl')}"


def opening(comparison: Comparison, limit: float) -> str:
    """What the schedules were given."""
    seconds = seconds_unit([comparison.deadline_seconds])
    return (
        f"{comparison.microbatches} microbatches, every schedule within "
        f"{figure(comparison.deadline_seconds, seconds)}; "
        f"memory for {limit:g} microbatches of activations per rank"
    )


def schedule_rows(comparison: Comparison, limit: float) -> list[list[str]]:
    """A row per schedule, under ``SCHEDULE_HEADERS``."""
    best = comparison.best(limit)
    joules = joules_unit([comparison.full_clock_joules])
    seconds = seconds_unit([comparison.deadline_seconds])
    rows = []
    for candidate in comparison.candidates:
        fits = candidate.activations <= limit + 1e-9
        verdict = "★ least energy" if candidate is best else "" if fits else "too much memory"
        rows.append(
            [
                candidate.schedule.name,
                figure(candidate.full_clock_seconds, seconds),
                "too slow" if candidate.best is None else figure(candidate.best.seconds, seconds),
                "" if candidate.joules is None else figure(candidate.joules, joules),
                ""
                if candidate.joules is None
                else f"{100 * (1 - candidate.joules / comparison.full_clock_joules):.1f} %",
                f"{candidate.activations:g}",
                str(candidate.transfers),
                verdict,
            ]
        )
    rows += [[name, *[""] * 6, why] for name, why in comparison.refused.items()]
    return rows


def memory_limit(choice: Choice) -> float | None:
    """What fits a rank at any number of microbatches; None for what 1F1B holds there.

    Fewer microbatches hold fewer activations: there 1F1B's own memory is less.
    """
    asked = choice.most_activations
    return None if asked == choice.wanted.reference_activations else asked


def winner_rows(comparisons: Sequence[Comparison], limit: float | None) -> list[list[str]]:
    """Which schedule wins at what number of microbatches, under ``WINNER_HEADERS``."""
    rows = []
    for comparison in comparisons:
        best, any_memory = comparison.best(limit), comparison.best(float("inf"))
        rows.append(
            [
                str(comparison.microbatches),
                best.schedule.name,
                _saved(comparison, best),
                any_memory.schedule.name,
                _saved(comparison, any_memory),
                f"{any_memory.activations:g}",
            ]
        )
    return rows


def _saved(comparison: Comparison, candidate: Candidate) -> str:
    joules = candidate.joules if candidate.joules is not None else float("nan")
    return f"{100 * (1 - joules / comparison.full_clock_joules):.1f} %"


def _partitions(choice: Choice) -> str:
    layers = ",".join(map(str, choice.layers))
    if not choice.moved_layers:
        return f"Layers {layers}: no other partition has a faster slowest stage."
    plain = choice.wanted.best(choice.most_activations)
    moved = choice.moved_best
    saved = "too much memory" if moved is None else _saved(choice.wanted, moved)
    rows = [
        [layers, plain.schedule.name, _saved(choice.wanted, plain)],
        [
            ",".join(map(str, choice.moved_layers)),
            "" if moved is None else moved.schedule.name,
            saved,
        ],
    ]
    rows[choice.best is not plain].append("★")
    rows[choice.best is plain].append("")
    return table(["layers", "best", "saved", ""], rows, "llrl")
