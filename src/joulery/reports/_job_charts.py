"""Charts of a recurring job: time and energy by setting, beliefs, search path, cost and drift."""

from __future__ import annotations

import itertools
import math
from statistics import fmean
from typing import TYPE_CHECKING

from joulery.frontier import Origin
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost
from joulery.reports._chart import (
    Axis,
    Chart,
    Series,
    energy_axis,
    thin,
    time_axis,
    watt_hours_unit,
)
from joulery.reports._text import add_origins, cost_text, date_text, energy_text, simulated_text
from joulery.units import human, human_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo

    from joulery.frontier import OperatingPoint
    from joulery.jobs import JobBeliefs, JobSummary, SettingChoice
    from joulery.reports._chart import Symbol

_MOST_DECISIONS = 150  # by hand: more symbols in a row would only blacken it
_FEW_RECURRENCES = 8  # by hand: up to here every recurrence has a tick
_MOST_STRETCH = 1.2  # by hand: a bound further right would squeeze the points
_SYMBOL_SHARE = 0.03  # by hand: width of a symbol as a share of the range of the points
_MARGIN = (
    0.06  # by hand: a line of equal cost reaches so far beyond the points, as a share of theirs
)
_MOST_BARS = 12  # by hand: names of more would overlap
_DRIFT_RUNS = 3  # two runs have no trend


def jobs_chart(summaries: Sequence[JobSummary]) -> Chart:
    """Energy of jobs, and what their default batch sizes would have used where that is known."""
    ranked = sorted(summaries, key=lambda summary: -summary.joules)[:_MOST_BARS]
    names = [summary.entry.name for summary in ranked]
    used = [(float(place), summary.joules) for place, summary in enumerate(ranked)]
    default = [
        (float(place), summary.joules / (1.0 - summary.saved.energy.share))
        for place, summary in enumerate(ranked)
        if summary.saved is not None and summary.saved.energy.share < 1.0
    ]
    series = (
        Series("used", tuple(used), tips=_tips(names, used), line="", symbol="bar"),
        Series(
            "with the default",
            tuple(default),
            tips=_tips(names, default),
            line="",
            symbol="diamond",
            colour=1,
        ),
    )
    x = Axis("job", ticks=tuple(place for place, _ in used), labels=tuple(names))
    unit = watt_hours_unit(joules for _, joules in used + default)
    y = Axis(f"energy in {unit.name}", unit)
    text = f"Energy of {len(ranked)} of {len(summaries)} jobs, those of most energy first."
    bars = tuple(line for line in series if line.points)
    simulated = simulated_text(add_origins(summary.origins for summary in summaries))
    return Chart("Energy by job", x, y, bars, text, 0.0, simulated)


def _tips(names: Sequence[str], points: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    return tuple(f"{names[int(place)]}: {energy_text(joules)}" for place, joules in points)


def choice_chart(choice: SettingChoice, description: str) -> Chart:
    """Time and energy by setting, with the choice, the default and the bound of the objective."""
    points, baseline, chosen = choice.points, choice.baseline, choice.point
    marked = [(p.seconds, p.joules) for p in (chosen, baseline) if p is not None]
    plain = [p for p in points if (p.seconds, p.joules) not in marked]
    predicted = [p for p in plain if p.provenance.origin == Origin.PREDICTED]
    measured = [p for p in plain if p.provenance.origin != Origin.PREDICTED]
    curve = tuple((p.seconds, p.joules) for p in choice.frontier)
    series = [
        Series("frontier", curve, symbol=""),
        _setting_series("from an epoch's limits", predicted, "triangle", 5, labels=False),
        _setting_series("run until the target", measured, "dot", 0),
    ]
    if baseline is not None and not choice.is_default:
        series.append(_setting_series("default", [baseline], "diamond", 1, emphasis=True))
    if chosen is not None:
        series.append(_setting_series("chosen", [chosen], "star", 2, emphasis=True))
        series += _bound_lines(choice, chosen)
    return Chart(
        "Time and energy of a whole run",
        time_axis(p.seconds for p in points),
        energy_axis(p.joules for p in points),
        tuple(_visible(series)),
        f"{len(points)} settings. {description} Bars are one standard error.",
    )


def _visible(series: Sequence[Series]) -> Iterator[Series]:
    """Series with points; of lines, those that are longer than the symbol at their end is wide."""
    points = [point for line in series for point in line.points]
    spans = [max(values) - min(values) for values in zip(*points, strict=True)]
    for line in series:
        if line.symbol:
            lengths = [math.inf] * bool(line.points)
        else:
            parts = zip(zip(*line.points, strict=True), spans, strict=False)
            lengths = [(max(part) - min(part)) / (span or 1.0) for part, span in parts]
        if any(length > _SYMBOL_SHARE for length in lengths):
            yield line


def _bound_lines(choice: SettingChoice, point: OperatingPoint) -> list[Series]:
    """The line of equal cost through the choice, or of the longest time that is allowed."""
    objective, baseline = choice.objective, choice.baseline
    points = [*choice.points, *([baseline] if baseline is not None else [])]
    times, energies = [p.seconds for p in points], [p.joules for p in points]
    bottom, top = min(energies), max(energies)
    slowdown = objective.bounds.max_slowdown
    if slowdown is not None and baseline is not None:
        longest = (1 + slowdown) * baseline.seconds
        if longest > _MOST_STRETCH * max(times):
            return []
        return [_dashed("longest time allowed", ((longest, bottom), (longest, top)))]
    if not isinstance(objective, Cost):
        return []
    if objective.eta == 0:
        return [_dashed("equal cost", ((point.seconds, bottom), (point.seconds, top)))]
    slope = -(1 - objective.eta) * objective.max_watts / objective.eta
    wider, higher = _MARGIN * (max(times) - min(times)), _MARGIN * (top - bottom)
    ends = []
    for edge in (min(times) - wider, max(times) + wider):
        energy = point.joules + slope * (edge - point.seconds)
        energy = min(top + higher, max(bottom - higher, energy))
        seconds = point.seconds + (energy - point.joules) / slope if slope else edge
        ends.append((seconds, energy))
    return [_dashed(f"equal cost, eta {objective.eta:g}", tuple(ends))]


def setting_text(point: OperatingPoint) -> str:
    """A setting, such as ``batch size 64 at 150 W``."""
    watts = point.setting.power_limit_watts
    size = f"batch size {point.setting.batch_size}"
    return size if watts is None else f"{size} at {watts:g} W"


def _label(point: OperatingPoint) -> str:
    size, watts = point.setting.batch_size, point.setting.power_limit_watts
    return f"{size}" if watts is None else f"{size}, {watts:g} W"


def _setting_series(
    name: str,
    points: Sequence[OperatingPoint],
    symbol: Symbol,
    colour: int,
    *,
    labels: bool = True,
    emphasis: bool = False,
) -> Series:
    prefix = f"{name} " if emphasis else ""
    return Series(
        name,
        tuple((p.seconds, p.joules) for p in points),
        errors=tuple((p.provenance.relative_error or 0.0) * p.joules for p in points),
        labels=tuple(prefix + _label(p) for p in points) if labels else (),
        tips=tuple(
            f"{setting_text(p)}: {human_duration(p.seconds)}, {human(p.joules, 'J')}, "
            f"{p.provenance.origin} ({p.provenance.source})"
            for p in points
        ),
        line="",
        symbol=symbol,
        colour=colour,
        emphasis=emphasis,
    )


def _dashed(name: str, points: tuple[tuple[float, float], ...], colour: int = 2) -> Series:
    return Series.curve(name, points, "dashed", colour)


def history_charts(
    summary: JobSummary, beliefs: JobBeliefs | None, zone: tzinfo | None
) -> Iterator[Chart]:
    """Charts of a job that has run: what its policy believes, and how its recurrences went."""
    compared = any(row.costs_joules for row in summary.batch_sizes)
    if beliefs is not None and beliefs.costs and compared:
        yield _belief_chart(summary, beliefs)
    yield from _path_chart(summary, zone)
    yield from _cost_charts(summary)
    yield from _drift_chart(summary)


def _belief_chart(summary: JobSummary, beliefs: JobBeliefs) -> Chart:
    """Expected cost of a run by batch size, with measured means beside."""
    believed = sorted(beliefs.costs.items())
    measured = [row for row in summary.batch_sizes if row.costs_joules]
    series = [
        Series(
            "believed by the policy, ± 1 sigma",
            tuple((math.log2(size), mean) for size, (_, mean, _) in believed),
            errors=tuple((high - low) / 2 for _, (low, _, high) in believed),
            tips=tuple(
                f"batch size {size}: {cost_text(mean)}, {cost_text(low)} to {cost_text(high)}"
                for size, (low, mean, high) in believed
            ),
        ),
        Series(
            "mean of its runs",
            tuple((math.log2(row.batch_size), fmean(row.costs_joules)) for row in measured),
            tips=tuple(
                f"batch size {row.batch_size}: {cost_text(fmean(row.costs_joules))} in "
                f"{len(row.costs_joules)} runs"
                for row in measured
            ),
            line="",
            symbol="diamond",
            colour=1,
        ),
    ]
    return Chart(
        "Cost of a run by batch size",
        _size_axis(summary),
        _cost_axis(cost for _, (_, cost, _) in believed),
        tuple(line for line in series if line.points),
        "What the policy believes a run of each batch size costs, and what runs did cost.",
    )


def _path_chart(summary: JobSummary, zone: tzinfo | None) -> Iterator[Chart]:
    """The batch size of every decision, and how it ended: the path of the search."""
    kinds: tuple[tuple[str, Symbol, int, RunEnd | None], ...] = (
        ("reached", "dot", 0, RunEnd.REACHED),
        ("stopped early", "cross", 1, RunEnd.STOPPED),
        ("failed", "square", 4, RunEnd.EXHAUSTED),
        ("probed for seconds", "triangle", 5, RunEnd.PROBED),
        ("under way", "diamond", 2, None),
    )
    latest = summary.decisions[-_MOST_DECISIONS:]
    series = []
    for name, symbol, colour, end in kinds:
        decisions = [
            entry.decision
            for entry in latest
            if (entry.outcome.end == end if entry.outcome else entry.state == "open" and not end)
        ]
        points = tuple((d.recurrence + 1.0, math.log2(d.batch_size)) for d in decisions)
        tips = tuple(
            f"recurrence {d.recurrence + 1}, {date_text(d.issued_wall_seconds, zone)}: "
            f"batch size {d.batch_size}, {d.reason}"
            for d in decisions
        )
        if points:
            series.append(Series(name, points, tips=tips, line="", symbol=symbol, colour=colour))
    text = "The batch size of every decision by recurrence, and how it ended."
    if series:
        yield _recurrence_chart(summary, "Search path", _size_axis(summary), series, text)


def _cost_charts(summary: JobSummary) -> Iterator[Chart]:
    """Cost of every recurrence, and what was paid beyond the best batch size."""
    recurrences = [r for r in summary.recurrences if r.cost_joules]
    costs = [(r.number + 1.0, r.cost_joules) for r in recurrences if r.target_reached]
    if not costs:
        return
    series = [Series("recurrence", thin(costs), symbol="" if len(costs) > 1 else "dot")]
    means = {r.batch_size: fmean(r.costs_joules) for r in summary.batch_sizes if r.costs_joules}
    if (level := means.get(summary.job.default)) is not None:
        ends = ((costs[0][0], level), (costs[-1][0], level))
        series.append(_dashed("mean of the default's runs", ends, 1))
    text = (
        "Cost of every recurrence that reached its target, with all its attempts, against runs of "
        "the default batch size."
    )
    axis = _cost_axis(cost for _, cost in costs)
    yield _recurrence_chart(summary, "Cost by recurrence", axis, series, text)
    if means:
        best = min(means.values())  # what was interrupted cost all that it used
        totals = itertools.accumulate(r.cost_joules - best * r.target_reached for r in recurrences)
        points = [(r.number + 1.0, total) for r, total in zip(recurrences, totals, strict=True)]
        text = (
            "Sum of what recurrences cost beyond the mean run of the batch size that is cheapest "
            "on average. It falls where a run was cheaper than that mean; what was interrupted "
            "counts in full."
        )
        axis = _cost_axis(total for _, total in points)
        series = [Series("", thin(points), symbol="")]
        title = "Cost beyond the best batch size, in all"
        yield _recurrence_chart(summary, title, axis, series, text)


def _drift_chart(summary: JobSummary) -> Iterator[Chart]:
    """Epochs to the target, over the mean of the same batch size; another level is drift."""
    runs = [
        (entry.decision.recurrence + 1.0, entry.decision.batch_size, entry.outcome.epochs)
        for entry in summary.decisions
        if entry.outcome is not None
        and entry.outcome.end == RunEnd.REACHED
        and entry.outcome.epochs
    ]
    if len(runs) < _DRIFT_RUNS:
        return
    sizes = {size for _, size, _ in runs}
    means = {
        batch_size: fmean(epochs for _, size, epochs in runs if size == batch_size)
        for batch_size in sizes
    }
    points = [(number, epochs / means[size]) for number, size, epochs in runs]
    series = (
        Series("run", thin(points), line="", symbol="dot"),
        _dashed("mean", ((points[0][0], 1.0), (points[-1][0], 1.0)), 5),
    )
    title = "Drift: epochs to the target, over the batch size's mean"
    text = "Runs that need ever more or fewer epochs than before show that the data has drifted."
    yield _recurrence_chart(summary, title, Axis("ratio"), series, text)


def _recurrence_chart(
    summary: JobSummary, title: str, y: Axis, series: Iterable[Series], description: str
) -> Chart:
    """A chart over recurrences, each of which has a tick where they are few."""
    few = len(summary.recurrences) <= _FEW_RECURRENCES
    ticks = tuple(r.number + 1.0 for r in summary.recurrences) if few else ()
    return Chart(title, Axis("recurrence", ticks=ticks), y, tuple(series), description)


def _size_axis(summary: JobSummary) -> Axis:
    """Batch sizes on a logarithmic scale."""
    sizes = summary.job.batch_sizes
    return Axis("batch size", ticks=tuple(map(math.log2, sizes)), labels=tuple(map(str, sizes)))


def _cost_axis(costs: Iterable[float]) -> Axis:
    return energy_axis(map(abs, costs), "cost")
