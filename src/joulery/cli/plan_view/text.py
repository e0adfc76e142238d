"""Tell what a plan saves in the terminal: tables, and the frontier as a chart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.cli.frontier_view import (
    Canvas,
    FrontierView,
    joules_unit,
    seconds_unit,
    terminal_plot,
)
from joulery.cli.table import table
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting

if TYPE_CHECKING:
    from joulery.cli.frontier_view import Unit
    from joulery.cli.plan_view.study import FrontierRow, Study

# Marks on the chart; with more, their labels would cover each other.
_MARKS = 8


def study_text(study: Study, canvas: Canvas) -> str:
    """What there is to save, the frontier, and what was done to the profile."""
    return "\n".join(
        [
            title(study),
            "",
            _outcomes(study),
            "",
            terminal_plot(frontier_view(study), canvas),
            "",
            _frontier(study),
            "",
            *_remarks(study),
        ]
    )


def figure(value: float, unit: Unit) -> str:
    """An SI value in a unit, with four digits: savings of half a per cent are to be seen."""
    scaled = value / unit.size
    digits = max(0, 3 - math.floor(math.log10(max(abs(scaled), 1e-9))))
    return f"{scaled:.{min(digits, 6)}f} {unit.name}"


def title(study: Study) -> str:
    """One line about the pipeline."""
    around, order = study.surroundings, study.schedule
    devices = around.devices_per_rank
    return (
        f"{study.source}: {order.name}, {len(order.ranks)} ranks"
        + (f" of {devices} devices" if devices > 1 else "")
        + (f", {order.stages} stages" if order.stages != len(order.ranks) else "")
        + f", {order.microbatches} microbatches, {len(study.problem)} instructions"
        + (f", {around.replicas} replicas" if around.replicas > 1 else "")
    )


def _outcomes(study: Study) -> str:
    joules = joules_unit([outcome.unplanned.joules for outcome in study.outcomes])
    seconds = seconds_unit([outcome.deadline_seconds for outcome in study.outcomes])
    rows = [
        [
            outcome.name,
            figure(outcome.deadline_seconds, seconds),
            figure(outcome.unplanned.joules, joules),
            figure(outcome.plan.joules, joules),
            f"{100 * outcome.saved:.1f} %",
            f"{100 * outcome.gap:.2f} %",
            f"{outcome.plan.mean_clock_hertz / 1e6:.0f} MHz",
        ]
        for outcome in study.outcomes
    ]
    headers = ["plan", "iteration", "full clocks", "planned", "saved", "above bound", "mean clock"]
    return table(headers, rows, "lrrrrrr")


def _frontier(study: Study) -> str:
    first = study.frontier[0]
    joules = joules_unit([row.joules for row in study.frontier])
    seconds = seconds_unit([row.seconds for row in study.frontier])
    rows = [
        [
            figure(row.seconds, seconds),
            f"{100 * (row.seconds / first.seconds - 1):+.1f} %",
            figure(row.joules, joules),
            f"{100 * (1 - row.joules / study.unplanned.joules):.1f} %",
            f"{100 * row.gap:.2f} %",
        ]
        for row in _spread(study)
    ]
    return table(["iteration", "slower", "energy", "saved", "above bound"], rows, "rrrrr")


def _spread(study: Study) -> list[FrontierRow]:
    """A few rows, evenly over the frontier, both ends included."""
    last = len(study.frontier) - 1
    picked = dict.fromkeys(round(last * part / (_MARKS - 1)) for part in range(_MARKS))
    return [study.frontier[position] for position in picked]


def frontier_view(study: Study) -> FrontierView:
    """The frontier as other drawings of frontiers take it."""
    provenance = Provenance(Origin.PREDICTED, f"planned from {study.source}")
    fastest = study.frontier[0].seconds

    def point(seconds: float, joules: float, label: str) -> OperatingPoint:
        return OperatingPoint(seconds, joules, Setting(parallel=label), provenance)

    line = [
        point(row.seconds, row.joules, f"{100 * (row.seconds / fastest - 1):+.0f} %")
        for row in _spread(study)
    ]
    chosen = study.chosen
    return FrontierView(
        frontier=Frontier.from_points(line),
        title=title(study),
        default=point(study.unplanned.seconds, study.unplanned.joules, "full clocks"),
        chosen=point(chosen.deadline_seconds, chosen.plan.joules, chosen.name),
    )


def _remarks(study: Study) -> list[str]:
    remarks = [f"Planned in {1000 * study.planning_seconds:.0f} ms of CPU time."]
    if not study.surroundings.blocking_watts:
        remarks.append("Waiting counts nothing: say what a device draws with --blocking-watts.")
    return [*remarks, *(f"Profile: {note}." for note in study.notes)]
