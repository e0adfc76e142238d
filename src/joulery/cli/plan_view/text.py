"""A planned pipeline in the terminal: tables, and the frontier as a chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.cli.frontier_view import FrontierView, joules_unit, seconds_unit, terminal_plot
from joulery.cli.plan_view.rows import (
    SAVING_HEADERS,
    SCHEDULE_HEADERS,
    WINNER_HEADERS,
    figure,
    saved,
    saving_rows,
    schedule_rows,
    search_caption,
    winner_rows,
)
from joulery.cli.table import table
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting

if TYPE_CHECKING:
    from joulery.cli.frontier_view import Canvas
    from joulery.cli.plan_view.rows import PlanView
    from joulery.pipeline import ClockPlan, ScheduleSearch

# Marks on the chart; with more, their labels would cover each other.
_MARKS = 8


def plan_text(view: PlanView, canvas: Canvas) -> str:
    """The search if there was one, savings, the frontier, and what was done to the profile."""
    parts = [] if view.search is None else _search(view.search)
    if view.search is not None and not view.plan.problem.config.communication_seconds:
        parts.append("Communication counts nothing: give the time of a hop with --communication.")
    parts += [
        view.title,
        table(SAVING_HEADERS, saving_rows(view), "lrrrrrr"),
        terminal_plot(_frontier_view(view), canvas),
        _frontier_table(view),
        "\n".join(_remarks(view)),
    ]
    return "\n\n".join(parts)


def _search(search: ScheduleSearch) -> list[str]:
    """Schedules side by side, winners by number of microbatches, partitions."""
    parts = [
        search_caption(search),
        table(SCHEDULE_HEADERS, schedule_rows(search), "lrrrrrrl"),
        table(WINNER_HEADERS, winner_rows(search), "rlrlrr"),
    ]
    return [*parts, _partitions(search)] if search.layers else parts


def _partitions(search: ScheduleSearch) -> str:
    layers = ",".join(map(str, search.layers))
    if not search.moved_layers:
        return f"Layers {layers}: no other partition has a faster slowest stage."
    plain, moved = search.wanted.best(search.max_activations), search.moved_best
    rows = [
        [layers, plain.schedule.name, saved(search.wanted, plain)],
        [
            ",".join(map(str, search.moved_layers)),
            "" if moved is None else moved.schedule.name,
            "too much memory" if moved is None else saved(search.wanted, moved),
        ],
    ]
    rows[search.best is not plain].append("★")
    rows[search.best is plain].append("")
    return table(["layers", "best", "saved", ""], rows, "llrl")


def _frontier_table(view: PlanView) -> str:
    plans, full = view.plan.frontier_plans, view.plan.full_clocks
    joules = joules_unit([plan.joules for plan in plans])
    seconds = seconds_unit([plan.seconds for plan in plans])
    rows = [
        [
            figure(plan.seconds, seconds),
            f"{100 * (plan.seconds / plans[0].seconds - 1):+.1f} %",
            figure(plan.joules, joules),
            f"{100 * (1 - plan.joules / full.joules):.1f} %",
            f"{100 * max(0.0, plan.gap):.2f} %",
        ]
        for plan in _spread(plans)
    ]
    return table(["iteration", "slower", "energy", "saved", "above bound"], rows, "rrrrr")


def _spread(plans: tuple[ClockPlan, ...]) -> list[ClockPlan]:
    """A few plans, evenly over the frontier, both ends included."""
    last = len(plans) - 1
    picked = dict.fromkeys(round(last * part / (_MARKS - 1)) for part in range(_MARKS))
    return [plans[position] for position in picked]


def _frontier_view(view: PlanView) -> FrontierView:
    """The frontier in the form of other drawings of frontiers."""
    provenance = Provenance(Origin.PREDICTED, f"planned from {view.plan.problem.source}")
    full, chosen = view.plan.full_clocks, view.savings[-1]
    fastest = view.plan.frontier_plans[0].seconds

    def point(seconds: float, joules: float, label: str) -> OperatingPoint:
        return OperatingPoint(seconds, joules, Setting(parallel=label), provenance)

    line = [
        point(plan.seconds, plan.joules, f"{100 * (plan.seconds / fastest - 1):+.0f} %")
        for plan in _spread(view.plan.frontier_plans)
    ]
    return FrontierView(
        frontier=Frontier.from_points(line),
        title=view.title,
        default=point(full.seconds, full.joules, "full clocks"),
        chosen=point(chosen.seconds, chosen.joules, chosen.name),
    )


def _remarks(view: PlanView) -> list[str]:
    remarks = [f"Planned in {1000 * view.plan.planning_cpu_seconds:.0f} ms of CPU time."]
    if not view.plan.problem.config.blocking_watts:
        remarks.append("Waiting counts nothing: give the power of a device with --blocking-watts.")
    return [*remarks, *(f"Profile: {note}." for note in view.notes)]
