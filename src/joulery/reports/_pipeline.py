"""A planned pipeline as a report: savings, Gantt charts before and after, and the frontier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.pipeline import FORWARD, LETTERS, MINIMUM_HOLD_SECONDS
from joulery.reports._chart import (
    Bar,
    Chart,
    Gantt,
    Series,
    energy_axis,
    joules_unit,
    percent,
    seconds_unit,
    time_axis,
)
from joulery.reports._document import Grid, Heading, HeatLegend, Paragraph, Report, Table
from joulery.units import human

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulery.pipeline import (
        ClockPlan,
        HeldPlan,
        PipelinePlan,
        Saving,
        ScheduleCandidate,
        ScheduleComparison,
        ScheduleSearch,
        Timetable,
    )
    from joulery.reports._document import Block

_LETTERS = {kind: letter for letter, kind in LETTERS.items()}
# Plans to list of a frontier.
_ROWS = 8
# More bars than this make a page that browsers are slow to draw and too full to read. Where little
# would be cut off, nothing is.
_MAX_BARS = 1500
_NEARLY_ALL = 0.8


@dataclass(frozen=True, slots=True)
class PipelineView:
    """Everything to show about one planned pipeline.

    Attributes:
        plan: Plans of the pipeline.
        savings: Savings, equal time first, the most specific target last.
        notes: Changes that were made to the profile.
        search: Search that chose the schedule; None if it was given.
        holding: Plan of the first saving with its clocks held long enough; None where not made.
    """

    plan: PipelinePlan
    savings: tuple[Saving, ...]
    notes: tuple[str, ...] = ()
    search: ScheduleSearch | None = None
    holding: HeldPlan | None = None

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


_DIGITS = 4  # so that savings of half a per cent show


def _saving_table(view: PipelineView) -> Table:
    """A row per saving."""
    joules = joules_unit([saving.full_clocks_joules for saving in view.savings])
    seconds = seconds_unit([saving.seconds for saving in view.savings])
    return Table.of(
        view.savings,
        {
            "plan": lambda saving: saving.name,
            ">iteration": lambda saving: seconds.text(saving.seconds, _DIGITS),
            ">full clocks": lambda saving: joules.text(saving.full_clocks_joules, _DIGITS),
            ">planned": lambda saving: joules.text(saving.joules, _DIGITS),
            ">saved": lambda saving: percent(100 * saving.saved),
            ">gap": lambda saving: percent(100 * saving.gap, 2),
            ">mean clock": lambda saving: f"{saving.plan.mean_clock_hertz / 1e6:.0f} MHz",
        },
    )


def _search_caption(search: ScheduleSearch) -> str:
    """The terms of the comparison of schedules."""
    target = search.wanted
    seconds = seconds_unit([target.deadline_seconds])
    if target.memory_bytes is not None:
        memory = f"{human(target.memory_bytes, 'B')} for activations per device"
    else:
        memory = f"memory for {target.max_activations:g} microbatches of activations per rank"
    return (
        f"{target.microbatches} microbatches, every schedule within "
        f"{seconds.text(target.deadline_seconds, _DIGITS)}; {memory}."
    )


def _schedule_table(search: ScheduleSearch) -> Table:
    """A row per schedule, the best one marked."""
    target, best = search.wanted, search.wanted.best()
    joules = joules_unit([target.full_clocks_joules])
    seconds = seconds_unit([target.deadline_seconds])
    rows = []
    for candidate in target.candidates:
        fits, activation_bytes = target.fits(candidate), candidate.activation_bytes
        plan = candidate.best
        rows.append(
            [
                candidate.schedule.name,
                seconds.text(candidate.plan.full_clocks.seconds, _DIGITS),
                "too slow" if plan is None else seconds.text(plan.seconds, _DIGITS),
                "" if plan is None else joules.text(plan.joules, _DIGITS),
                _saved(target, candidate),
                f"{candidate.activations:g}"
                if activation_bytes is None
                else human(activation_bytes, "B"),
                str(candidate.transfers),
                "★ best" if candidate is best else "" if fits else "too big",
            ]
        )
    rows += [[name, *[""] * 6, reason] for name, reason in target.refused.items()]
    kinds = ["chosen" if row[-1].startswith("★") else "" for row in rows]
    headers = ["schedule", "unplanned", "planned", "energy", "saved", "stored", "sends", ""]
    return Table(headers, rows, "lrrrrrrl", kinds=kinds)


def _winner_table(search: ScheduleSearch) -> Table:
    """The best schedule by number of microbatches."""

    def any_memory(comparison: ScheduleComparison) -> ScheduleCandidate | None:
        return comparison.best(any_memory=True)

    return Table.of(
        search.comparisons,
        {
            ">microbatches": lambda comparison: str(comparison.microbatches),
            "best": lambda comparison: _name(comparison.best()),
            ">saved": lambda comparison: _saved(comparison, comparison.best()),
            "with memory to spare": lambda comparison: _name(any_memory(comparison)),
            "> saved": lambda comparison: _saved(comparison, any_memory(comparison)),
            ">stored": lambda comparison: (
                f"{candidate.activations:g}" if (candidate := any_memory(comparison)) else ""
            ),
        },
    )


def _name(candidate: ScheduleCandidate | None) -> str:
    return "none fits" if candidate is None else candidate.schedule.name


def _saved(comparison: ScheduleComparison, candidate: ScheduleCandidate | None) -> str:
    """The share of the energy of 1F1B at full clocks that is saved; empty if nothing is in time."""
    if candidate is None or candidate.joules is None:
        return ""
    return percent(100 * (1 - candidate.joules / comparison.full_clocks_joules))


def pipeline_report(view: PipelineView) -> Report:
    """A planned pipeline as a report."""
    equal = view.savings[0]
    joules = joules_unit([equal.full_clocks_joules])
    summary = (
        f"The plan needs {joules.text(equal.joules, _DIGITS)} per iteration instead of "
        f"{joules.text(equal.full_clocks_joules, _DIGITS)}: {100 * equal.saved:.1f} % less, in "
        f"equal time.{'' if view.search is None else _search_summary(view.search)}"
    )
    blocks: list[Block] = [
        Paragraph(summary),
        _saving_table(view),
        Paragraph(
            "Full clocks: every instruction at its highest clock, waiting for others where they "
            "set the pace. Gap: how far the plan lies above the bound that clocks in between could "
            "reach.",
            soft=True,
        ),
    ]
    if view.search is not None:
        blocks += _search_blocks(view.search)
    blocks += [
        Heading("Time and energy of an iteration"),
        _frontier_chart(view),
        _frontier_table(view),
        Grid((Heading("Work of each rank"), *_gantts(view)), stacked=True),
        Paragraph("\n".join(_remarks(view)), soft=True),
    ]
    return Report(view.title, "predicted", tuple(blocks), view.plan.problem.source)


def _search_blocks(search: ScheduleSearch) -> list[Block]:
    """Schedules side by side, winners by number of microbatches, partitions."""
    return [
        Heading("Which schedule"),
        Paragraph(_search_caption(search)),
        _schedule_table(search),
        Paragraph(
            "Unplanned: time at full clocks. Saved: energy against 1F1B at full clocks. Stored: "
            "most activations that a rank holds at once, in microbatches or bytes. Sends: messages "
            "per iteration.",
            soft=True,
        ),
        _winner_table(search),
        *([_partitions(search)] if search.layers else []),
    ]


def _search_summary(search: ScheduleSearch) -> str:
    """Savings of the best schedule against 1F1B at full clocks."""
    before, after = search.wanted.full_clocks_joules, search.best.joules
    if after is None:
        return ""
    joules = joules_unit([before])
    deadline = search.wanted.deadline_seconds
    return (
        f" Within {seconds_unit([deadline]).text(deadline, _DIGITS)}, "
        f"{search.best.schedule.name} needs {joules.text(after, _DIGITS)} instead of the "
        f"{joules.text(before, _DIGITS)} of 1F1B at full clocks: "
        f"{100 * (1 - after / before):.1f} % less."
    )


def _partitions(search: ScheduleSearch) -> Block:
    layers = ",".join(map(str, search.layers))
    if not search.moved_layers:
        return Paragraph(f"Layers {layers}: no other partition has a faster slowest stage.")
    plain = search.wanted.best()
    partitions = {search.layers: plain, search.moved_layers: search.moved_best}
    return Table.of(
        partitions.items(),
        {
            "layers": lambda partition: ",".join(map(str, partition[0])),
            "best": lambda partition: _name(partition[1]),
            ">saved": lambda partition: _saved(search.wanted, partition[1]),
            "": lambda partition: "★" * ((partition[1] is plain) == (search.best is plain)),
        },
    )


def _frontier_table(view: PipelineView) -> Table:
    plans, full = view.plan.frontier_plans, view.plan.full_clocks
    joules = joules_unit([plan.joules for plan in plans])
    seconds = seconds_unit([plan.seconds for plan in plans])
    return Table.of(
        _spread(plans),
        {
            ">iteration": lambda plan: seconds.text(plan.seconds, _DIGITS),
            ">slower": lambda plan: f"{100 * (plan.seconds / plans[0].seconds - 1):+.1f} %",
            ">energy": lambda plan: joules.text(plan.joules, _DIGITS),
            ">saved": lambda plan: percent(100 * (1 - plan.joules / full.joules)),
            ">gap": lambda plan: percent(100 * max(0.0, plan.gap), 2),
        },
    )


def _spread(plans: Sequence[ClockPlan]) -> list[ClockPlan]:
    """A few plans, evenly over the frontier, both ends included."""
    last = len(plans) - 1
    picked = dict.fromkeys(round(last * part / (_ROWS - 1)) for part in range(_ROWS))
    return [plans[position] for position in picked]


def _frontier_chart(view: PipelineView) -> Chart:
    """The frontier with the bound below it and the plans on it."""
    full, plans = view.plan.full_clocks, view.plan.frontier_plans
    series = [
        Series.curve(
            "bound", [(plan.seconds, plan.lower_bound_joules) for plan in plans], "dashed", 5
        ),
        Series.curve("plans", [(plan.seconds, plan.joules) for plan in plans]),
        Series.mark((full.seconds, full.joules), "full clocks", symbol="diamond", colour=1),
    ]
    for saving in view.savings:
        if saving.seconds > plans[-1].seconds:  # beyond the least energy devices only wait
            tail = [(plans[-1].seconds, plans[-1].joules), (saving.seconds, saving.joules)]
            series.append(Series.curve("", tail, "dotted"))
        label = f"{saving.name}: {100 * saving.saved:.1f} % saved"
        series.append(Series.mark((saving.seconds, saving.joules), label, colour=2))
    return Chart(
        "Energy over iteration time",
        time_axis(
            [*(plan.seconds for plan in plans), *(s.seconds for s in view.savings)],
            "iteration time",
        ),
        energy_axis([full.joules]),
        tuple(series),
        f"From {plans[0].joules:.4g} J in {plans[0].seconds:.4g} s to {plans[-1].joules:.4g} J in "
        f"{plans[-1].seconds:.4g} s; full clocks need {full.joules:.4g} J in {full.seconds:.4g} s.",
    )


def _gantts(view: PipelineView) -> Iterator[Block]:
    """The work of each rank before and after, with the clock as colour."""
    tables = [("Full clocks", view.plan.full_clocks)]
    tables += [(f"Planned: {saving.name}", saving.plan) for saving in view.savings]
    share = _MAX_BARS / len(view.plan.problem)
    share = 1.0 if share > _NEARLY_ALL else share
    seconds = share * max(table.seconds for _, table in tables)
    clocks = [c for _, table in tables for c in table.clocks_hertz.tolist() if not math.isnan(c)]
    low, high = min(clocks, default=0.0), max(clocks, default=0.0)
    yield HeatLegend(f"{low / 1e6:.0f} MHz", f"{high / 1e6:.0f} MHz")
    for name, table in tables:
        yield _gantt(view, name, table, seconds, (low, high))
    cut = "" if share == 1.0 else f" Only the first {seconds:.3g} s are drawn."
    yield Paragraph(
        "F forward (lower bars), B backward, I and W its halves, R recomputation, G reduction of "
        "gradients, O optimizer, with the microbatch; grey is waiting, the dashed line the end of "
        "the iteration." + cut,
        soft=True,
    )


def _gantt(
    view: PipelineView, name: str, table: Timetable, seconds: float, clocks: tuple[float, float]
) -> Gantt:
    low, high = clocks
    rows = zip(
        view.plan.problem.instructions,
        table.starts.tolist(),
        table.durations.tolist(),
        table.clocks_hertz.tolist(),
        strict=True,
    )
    bars = []
    for item, start, duration, hertz in rows:
        word = _LETTERS.get(item.kind, item.kind[:1].upper())
        bars.append(
            Bar(
                item.rank,
                start,
                duration,
                (hertz - low) / (high - low) if high > low and not math.isnan(hertz) else 1.0,
                f"{word}{item.microbatch}" if item.microbatch >= 0 else word,
                f"{item}: {1000 * duration:.1f} ms"
                + ("" if math.isnan(hertz) else f" at {hertz / 1e6:.0f} MHz"),
                low=item.kind == FORWARD,
            )
        )
    ranks = tuple(f"rank {rank}" for rank in range(view.plan.problem.ranks))
    return Gantt(name, ranks, tuple(bars), seconds, table.seconds)


def _remarks(view: PipelineView) -> list[str]:
    remarks = [f"Planned in {1000 * view.plan.planning_cpu_seconds:.0f} ms of CPU time."]
    if view.holding is not None:
        remarks.append(_holding_remark(view.holding, view.savings[0].joules))
    problem = view.plan.problem
    if not problem.blocking_watts.any():
        remarks.append("Waiting counts nothing: give the power of a device with --blocking-power.")
    if view.search is not None and not problem.config.communication_seconds:
        remarks.append("Communication counts nothing: give the time of a hop with --communication.")
    return [*remarks, *(f"Profile: {note}." for note in view.notes)]


def _holding_remark(holding: HeldPlan, joules: float) -> str:
    """What it costs to hold clocks for as long as boards need to change them."""
    extra = max(0.0, holding.extra_joules)
    share = round(100 * extra / joules, 2)
    cost = f"{human(extra, 'J')}, {share:.2f} %" if share else "nothing here"
    ranks = ", ".join(map(str, holding.unheld_ranks))
    return (
        f"Ranks hold each clock for at least {1000 * MINIMUM_HOLD_SECONDS:.0f} ms; on short "
        f"instructions that costs {cost}."
        + (f" The measured clocks allow no such runs on rank {ranks}." if ranks else "")
    )
