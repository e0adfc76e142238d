"""The six charts of a sweep as data, apart from how they are drawn.

They are Figures 2 to 7 of Koszczał et al. (Euro-Par 2023 workshops).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import Axis, Unit, round_ticks, seconds_unit
from joulery.sweep.table import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulery.sweep.table import SettingResult, SweepTable

_MARGIN = 0.09
_PLAIN = Unit("", 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Attributes:
        name: For the legend.
        points: (x, y) in ascending x.
        errors: One standard deviation of each y, 0 where unknown.
        best: Position of the point to mark as the best; None for none.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    errors: tuple[float, ...]
    best: int | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: What it shows.
        x_name: What is to the right, with its unit.
        y_name: What is upwards, with its unit.
        series: The lines.
        reference: Height of the line that stands for the default limit; None for none.
        x_ticks: Places to label below; round ones unless given.
    """

    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    reference: float | None = None
    x_ticks: tuple[float, ...] = ()

    def x_axis(self) -> Axis:
        """The axis to the right."""
        axis = _axis((x for line in self.series for x, _ in line.points), 9)
        return Axis(axis.low, axis.high, self.x_ticks, _PLAIN) if self.x_ticks else axis

    def y_axis(self) -> Axis:
        """The axis upwards, with room for the error bars."""
        values = [
            end
            for line in self.series
            for (_, y), error in zip(line.points, line.errors, strict=True)
            for end in (y - error, y + error)
        ]
        if self.reference is not None:
            values.append(self.reference)
        return _axis(values, 6)


def _axis(values: Iterable[float], most_ticks: int) -> Axis:
    found = list(values)
    low, high = min(found), max(found)
    margin = _MARGIN * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - margin, high + margin
    return Axis(low, high, round_ticks(low, high, most_ticks), _PLAIN)


def charts(table: SweepTable) -> tuple[Chart, ...]:
    """The six charts; those that need the default limit are left out where it has no result."""
    most = table.gpu_counts[-1]
    last = _times(table)
    if not any(table.default_of(gpus) for gpus in table.gpu_counts):
        return (last,)
    drawn = [
        _gain_chart(table, "Energy saved", "energy saved in %", _energy_gain, Metric.ENERGY),
        _gain_chart(table, "Time lost", "time lost in %", _time_loss, None),
        _gain_chart(
            table,
            "Energy saved minus time lost",
            "difference in %",
            _difference,
            Metric.DIFFERENCE,
        ),
    ]
    if table.default_of(most) is not None:
        drawn[2:2] = [_edp(table, most), _eds(table, most)]
    return (*drawn, last)


def _boards(gpus: int) -> str:
    return f"{gpus} GPU{'s' * (gpus > 1)}"


def _energy_gain(setting: SettingResult) -> tuple[float, float]:
    error = 100 * (setting.joules_sd or 0.0) / setting.point.joules
    return setting.gains[Metric.ENERGY], error


def _time_loss(setting: SettingResult) -> tuple[float, float]:
    return setting.time_loss or 0.0, 100 * (setting.seconds_sd or 0.0) / setting.point.seconds


def _difference(setting: SettingResult) -> tuple[float, float]:
    error = setting.gain_errors.get(Metric.DIFFERENCE, 0.0)
    # Back from the error of the mean to the spread of single runs, as in the other charts.
    return setting.gains[Metric.DIFFERENCE], error * setting.runs**0.5


def _gain_chart(
    table: SweepTable,
    title: str,
    y_name: str,
    value: Callable[[SettingResult], tuple[float, float]],
    metric: Metric | None,
) -> Chart:
    lines = []
    for gpus in table.gpu_counts:
        settings = [setting for setting in table.of_count(gpus) if setting.gains]
        if settings:
            best = table.best_by(gpus, metric) if metric is not None else None
            watts = None if best is None else best.watts
            lines.append(_line(_boards(gpus), settings, value, watts))
    return Chart(
        f"{title} against the default {table.default_watts:g} W",
        "power limit per GPU in W",
        f"{y_name} ({table.origin})",
        tuple(lines),
        reference=0.0,
    )


def _line(
    name: str,
    settings: list[SettingResult],
    value: Callable[[SettingResult], tuple[float, float]],
    best_watts: float | None,
) -> Series:
    places = [(setting.watts, *value(setting)) for setting in settings]
    watts = [place[0] for place in places]
    return Series(
        name,
        tuple((x, y) for x, y, _ in places),
        tuple(error for _, _, error in places),
        watts.index(best_watts) if best_watts in watts else None,
    )


def _edp(table: SweepTable, gpus: int) -> Chart:
    settings = list(table.of_count(gpus))
    products = [s.point.joules * s.point.seconds for s in settings]
    scale, unit = next(
        ((size, name) for size, name in ((1e6, "MJ·s"), (1e3, "kJ·s")) if max(products) >= size),
        (1.0, "J·s"),
    )

    def value(setting: SettingResult) -> tuple[float, float]:
        point = setting.point
        product = point.joules * point.seconds / scale
        # Both rise and fall together from run to run, so their errors add up.
        relative = (setting.joules_sd or 0.0) / point.joules
        return product, product * (relative + (setting.seconds_sd or 0.0) / point.seconds)

    best, default = table.best_by(gpus, Metric.EDP), table.default_of(gpus)
    return Chart(
        f"Energy-delay product, {_boards(gpus)}",
        "power limit per GPU in W",
        f"EDP in {unit} ({table.origin})",
        (_line(_boards(gpus), settings, value, best.watts if best else None),),
        reference=None if default is None else value(default)[0],
    )


def _eds(table: SweepTable, gpus: int) -> Chart:
    settings = list(table.of_count(gpus))
    lines = []
    for metric in (Metric.EDS_1_5, Metric.EDS_2_0):

        def value(setting: SettingResult, metric: Metric = metric) -> tuple[float, float]:
            error = setting.gain_errors.get(metric, 0.0) * setting.runs**0.5
            return 1 - setting.gains[metric] / 100, error / 100

        best = table.best_by(gpus, metric)
        lines.append(_line(metric.label, settings, value, best.watts if best else None))
    return Chart(
        f"Energy-delay sum, {_boards(gpus)}",
        "power limit per GPU in W",
        f"EDS, 1 at the default ({table.origin})",
        tuple(lines),
        reference=1.0,
    )


def _times(table: SweepTable) -> Chart:
    most = table.gpu_counts[-1]
    best = table.best_by(most, Metric.EDP)
    limits = [table.default_watts]
    if best is not None and best.watts != table.default_watts:
        limits.append(best.watts)
    elif best is None:
        limits = [table.of_count(most)[-1].watts]
    unit = seconds_unit(setting.point.seconds for setting in table.settings)
    lines = []
    for watts in limits:
        found = [s for s in table.settings if s.watts == watts]
        if found:
            label = f"{watts:g} W" + (" (default)" if watts == table.default_watts else " (best)")
            points = tuple((float(s.gpus), s.point.seconds / unit.size) for s in found)
            errors = tuple((s.seconds_sd or 0.0) / unit.size for s in found)
            lines.append(Series(label, points, errors))
    return Chart(
        "Time and number of GPUs",
        "number of GPUs",
        f"time in {unit.name} ({table.origin})",
        tuple(lines),
        x_ticks=tuple(float(gpus) for gpus in table.gpu_counts),
    )
