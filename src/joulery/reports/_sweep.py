"""A power-limit sweep as a report: best limits, six charts, and a table of every setting.

The charts are Figures 2 to 7 of Koszczał et al. (Euro-Par 2023 workshops).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from joulery.reports._chart import (
    Axis,
    Chart,
    Series,
    joules_unit,
    percent,
    seconds_unit,
    time_axis,
)
from joulery.reports._document import Details, Grid, Heading, Paragraph, Report, Table
from joulery.reports._drawing import series_symbol
from joulery.sweep import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from joulery.reports._document import Block
    from joulery.sweep import Best, SettingResult, SweepTable

    Value = Callable[[SettingResult], tuple[float, float]]

_SHORT = {
    Metric.ENERGY: "saved",
    Metric.DIFFERENCE: "diff.",
    Metric.EDP: "EDP",
    Metric.EDS_1_5: "EDS 1.5",
    Metric.EDS_2_0: "EDS 2.0",
}
_DIGITS = 5  # of times and energies: gains have two decimals of a per cent
_MOST_FAILURES = 5  # by hand: more would hide the table
_CHART_NOTE = "In charts ★ is the best by that metric, and the dashed line is the default limit"
_BAR_NOTE = "; bars are one standard deviation over the runs"
_NO_SPREAD = "one run per limit: no spread, --repeat 3 gives one"


def sweep_report(table: SweepTable, title: str, summary: str = "") -> Report:
    """A sweep as a report.

    Args:
        table: Results of the sweep.
        title: Subject in one line.
        summary: Sentences for people.
    """
    best = best_table(table)
    has_ties = "as good" in best.headers
    as_good = "; as good is what the runs cannot tell from the best" if has_ties else ""
    blocks: list[Block] = [Paragraph(summary)] if summary else []
    blocks.append(_settings(table, table.gpu_counts[-1], is_open=True))
    if best.rows:
        blocks += [
            Heading("Best limits"),
            best,
            Paragraph(
                f"Difference is energy saved minus time lost, in per cent{as_good}.", soft=True
            ),
        ]
    else:
        blocks.append(
            Paragraph(
                f"No run at the default {table.default_watts:g} W succeeded, so there is nothing "
                "to compare with."
            )
        )
    blocks += _failures(table)
    chart_note = f"{_CHART_NOTE}{_BAR_NOTE * _has_spread(table)}."
    blocks.append(Grid((*sweep_charts(table), Paragraph(chart_note, soft=True))))
    blocks += [_settings(table, gpus) for gpus in reversed(table.gpu_counts[:-1])]
    return Report(title, table.origin, tuple(blocks), table.sources)


def _settings(table: SweepTable, gpus: int, *, is_open: bool = False) -> Details:
    spread = "± is one standard deviation over the runs" if _has_spread(table) else _NO_SPREAD
    note = (
        f"Time and energy lost and gained against the default {table.default_watts:g} W; figures "
        f"are {table.origin}; {spread}; a star marks the best of its column."
    )
    return Details(_boards(gpus), (setting_table(table, gpus), Paragraph(note, soft=True)), is_open)


def _failures(table: SweepTable) -> list[Block]:
    if not table.failures:
        return []
    failures = [
        f"{run.trial}: exit code {run.exit_code}" for run in table.failures[:_MOST_FAILURES]
    ]
    if len(table.failures) > _MOST_FAILURES:
        failures.append(f"and {len(table.failures) - _MOST_FAILURES} more, see the journal")
    count = len(table.failures)
    heading = f"{count} run{'s' * (count > 1)} failed; the same command tries again"
    return [Heading(heading), *map(Paragraph, failures)]


def setting_table(table: SweepTable, gpus: int) -> Table:
    """Every limit with that many boards, highest first."""
    settings = tuple(reversed(table.of_count(gpus)))
    seconds = seconds_unit(setting.point.seconds for setting in table.settings)
    joules = joules_unit(setting.point.joules for setting in table.settings)
    time_places = _places(
        100 * (row.seconds_sd or 0.0) / row.point.seconds / math.sqrt(row.runs) for row in settings
    )
    columns: dict[str, Callable[[SettingResult], str]] = {
        ">limit": lambda row: f"{row.watts:g} W",
        ">runs": lambda row: str(row.runs) + f" of {row.runs + row.failed}" * bool(row.failed),
        ">time": lambda row: seconds.text(row.point.seconds, _DIGITS),
        ">± sd": lambda row: _spread(row.seconds_sd, row.point.seconds),
        ">energy": lambda row: joules.text(row.point.joules, _DIGITS),
        "> ± sd": lambda row: _spread(row.joules_sd, row.point.joules),
        ">slower": lambda row: percent(row.time_loss, time_places),
    }
    if not _has_spread(table):
        del columns[">± sd"], columns["> ± sd"]
    first_gain = len(columns)
    for metric in Metric:
        places = _places(row.gain_errors.get(metric, 0.0) for row in settings)
        columns[f">{_SHORT[metric]}"] = lambda row, metric=metric, places=places: percent(  # type: ignore[misc]
            row.gains.get(metric), places
        )
    if any(setting.idle_gpu_joules for setting in settings):
        columns[">idle GPUs"] = lambda row: (
            "unknown" if row.idle_gpu_joules is None else joules.text(row.idle_gpu_joules, _DIGITS)
        )
    best = {metric: table.best_by(gpus, metric) for metric in Metric}
    marked = frozenset(
        (row, first_gain + column)
        for column, rows in enumerate(best.values())
        for row, setting in enumerate(settings)
        if rows is not None and rows.watts == setting.watts
    )
    kinds = ["default" if s.watts == table.default_watts else "" for s in settings]
    return Table.of(settings, columns, marked, kinds)


def _has_spread(table: SweepTable) -> bool:
    return any(setting.joules_sd is not None for setting in table.settings)


def _spread(deviation: float | None, mean: float) -> str:
    if deviation is None or mean == 0:
        return ""
    share = 100 * deviation / mean
    return percent(share, _places([share / 10]))  # two digits


def _places(errors: Iterable[float]) -> int:
    """Decimal places of a column in per cent: to the first digit of its usual error, at most two.

    One number for the whole column keeps its figures aligned; two without errors.
    """
    positive = [error for error in errors if error > 0]
    return min(2, max(0, -math.floor(math.log10(median(positive))))) if positive else 2


def best_table(table: SweepTable) -> Table:
    """The best limit by each metric, the most boards first."""
    optima = sorted(table.best(), key=lambda best: -best.gpus)
    errors = {(setting.gpus, setting.watts): setting.gain_errors for setting in table.settings}

    def gain(best: Best) -> str:
        error = errors[best.gpus, best.watts].get(best.metric, 0.0)
        return percent(best.gain, _places([error]))

    columns: dict[str, Callable[[Best], str]] = {
        ">GPUs": lambda best: str(best.gpus),
        "best by": lambda best: best.metric.label,
        ">limit": lambda best: f"{best.watts:g} W",
        ">gain": gain,
    }
    if any(len(best.as_good_watts) > 1 for best in optima):
        columns["as good"] = lambda best: (
            f"{', '.join(f'{watts:g}' for watts in best.as_good_watts)} W"
            if len(best.as_good_watts) > 1
            else ""
        )
    return Table.of(optima, columns)


def sweep_charts(table: SweepTable) -> tuple[Chart, ...]:
    """The six charts; charts that need the default limit are left out where it has no result."""
    gpus, versus = table.gpu_counts[-1], f"against the default {table.default_watts:g} W"
    if not any(table.default_of(gpus) for gpus in table.gpu_counts):
        return (_times(table),)

    def by_count(title: str, name: str, value: Value, metric: Metric | None) -> Chart:
        lines = [_Line(_boards(gpus), gpus, value, metric) for gpus in table.gpu_counts]
        return _chart(table, f"{title} {versus}", name, lines, 0.0)

    def gain(metric: Metric) -> Value:
        return lambda setting: (setting.gains[metric], _run_error(setting, metric))

    def lost(setting: SettingResult) -> tuple[float, float]:
        return setting.time_loss or 0.0, 100 * (setting.seconds_sd or 0.0) / setting.point.seconds

    charts = [
        by_count("Energy saved", "energy saved in %", gain(Metric.ENERGY), Metric.ENERGY),
        by_count("Time lost", "time lost in %", lost, None),
    ]
    if (default := table.default_of(gpus)) is not None:
        charts += [_edp(table, default), _eds(table, gpus)]
    title, difference = "Energy saved minus time lost", Metric.DIFFERENCE
    charts.append(by_count(title, "difference in %", gain(difference), difference))
    # Of a single number of boards there is nothing to see.
    return (*charts, *([_times(table)] if len(table.gpu_counts) > 1 else []))


def _run_error(setting: SettingResult, metric: Metric) -> float:
    """Spread of single runs, as in all charts, from the error of their mean."""
    return setting.gain_errors.get(metric, 0.0) * float(setting.runs**0.5)


def _boards(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus > 1)}"


@dataclass(frozen=True, slots=True)
class _Line:
    """A value with its error over the limits of a number of boards; a metric has a best limit."""

    name: str
    gpus: int
    value: Value
    metric: Metric | None

    def series(self, table: SweepTable, number: int) -> list[Series]:
        """The line, and a star on the best limit."""
        settings = [setting for setting in table.of_count(self.gpus) if setting.gains]
        points = [(setting.watts, *self.value(setting)) for setting in settings]
        tips = [
            f"{self.name}, {x:g} W: {y:.4g}" + (f" ± {error:.2g}" if error else "")
            for x, y, error in points
        ]
        line = Series(
            self.name,
            tuple((x, y) for x, y, _ in points),
            tuple(error for *_, error in points),
            tips=tuple(tips),
            symbol=series_symbol(number),
            colour=number,
        )
        best = self.metric and table.best_by(self.gpus, self.metric)
        stars = [
            Series.mark((x, y), f"{x:g} W", f"{tip} (best)", colour=number)
            for (x, y, _), tip in zip(points, tips, strict=True)
            if best and x == best.watts
        ]
        return [line, *stars] if points else []


def _chart(
    table: SweepTable, title: str, name: str, lines: Sequence[_Line], reference: float
) -> Chart:
    series = [
        series_line
        for number, line in enumerate(lines)
        for series_line in line.series(table, number)
    ]
    ends = [
        f"{s.name}: from {s.points[0][1]:.3g} at {s.points[0][0]:g} W to {s.points[-1][1]:.3g} at "
        f"{s.points[-1][0]:g} W"
        for s in series
        if s.line
    ]
    return Chart(
        title,
        Axis("power limit per GPU in W"),
        Axis(name),
        tuple(series),
        f"{name} over the power limit. {'; '.join(ends)}.",
        reference,
    )


def _edp(table: SweepTable, default: SettingResult) -> Chart:
    gpus = default.gpus
    largest = max(s.point.joules * s.point.seconds for s in table.of_count(gpus))
    units = ((1e6, "MJ·s"), (1e3, "kJ·s"), (1.0, "J·s"))
    scale, unit = next((pair for pair in units if largest >= pair[0]), units[-1])

    def value(setting: SettingResult) -> tuple[float, float]:
        point = setting.point
        product = point.joules * point.seconds / scale
        # Both rise and fall together from run to run, so their errors add up.
        relative = (setting.joules_sd or 0.0) / point.joules
        return product, product * (relative + (setting.seconds_sd or 0.0) / point.seconds)

    lines = [_Line(_boards(gpus), gpus, value, Metric.EDP)]
    title = f"Energy-delay product, {_boards(gpus)}"
    return _chart(table, title, f"EDP in {unit}", lines, value(default)[0])


def _eds(table: SweepTable, gpus: int) -> Chart:
    def sum_of(metric: Metric) -> Value:
        return lambda s: (1 - s.gains[metric] / 100, _run_error(s, metric) / 100)

    metrics = (Metric.EDS_1_5, Metric.EDS_2_0)
    lines = [_Line(metric.label, gpus, sum_of(metric), metric) for metric in metrics]
    return _chart(table, f"Energy-delay sum, {_boards(gpus)}", "EDS, 1 at the default", lines, 1.0)


def _times(table: SweepTable) -> Chart:
    gpus = table.gpu_counts[-1]
    best = table.best_by(gpus, Metric.EDP)
    limits = [table.default_watts]
    if best is not None and best.watts != table.default_watts:
        limits.append(best.watts)
    elif best is None:
        limits = [table.of_count(gpus)[-1].watts]
    lines = []
    for number, watts in enumerate(limits):
        settings = [s for s in table.settings if s.watts == watts]
        if settings:
            lines.append(
                Series(
                    f"{watts:g} W" + (" (default)" if watts == table.default_watts else " (best)"),
                    tuple((float(s.gpus), s.point.seconds) for s in settings),
                    tuple(s.seconds_sd or 0.0 for s in settings),
                    symbol=series_symbol(number),
                    colour=number,
                )
            )
    return Chart(
        "Time and number of GPUs",
        Axis("number of GPUs", ticks=tuple(float(gpus) for gpus in table.gpu_counts)),
        time_axis(setting.point.seconds for setting in table.settings),
        tuple(lines),
        "Time of the work over the number of GPUs.",
    )
