"""Runs of any kind as reports: one run over time and by device, and several beside each other."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from joulery.frontier import Origin
from joulery.reports._chart import (
    Axis,
    Chart,
    Series,
    Unit,
    energy_axis,
    power_axis,
    thin,
    time_axis,
)
from joulery.reports._document import (
    Grid,
    Heading,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Report,
    Table,
)
from joulery.reports._text import (
    NONE,
    count_text,
    date_text,
    energy_text,
    limit_text,
    with_error,
)
from joulery.units import human, human_age, human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import tzinfo

    from joulery.jobs import RunCurve, RunDevice, RunEntry
    from joulery.reports._document import Block

_MEGAHERTZ = Unit("MHz", 1e6)
_MOST_LINES = 5  # by hand: devices with a line each; of more, the sum is drawn
_LIMIT_COLOUR = 5  # grey, which no device has
_CURVE_SECONDS = 10.0  # by hand: on a busy machine, sampling begins some seconds late
_MOST_ROWS = 30  # by hand: names of runs in a report
_LATE_SECONDS = 300.0  # by hand: a run under way reports every minute


def logged_run_report(run: RunEntry, now: float, zone: tzinfo | None = None) -> Report:
    """A run: its figures, power over time with limits, energy by device, and its metric.

    Args:
        run: Run with its curves.
        now: Unix time, to tell a run under way from one that has fallen silent.
        zone: Time zone of the reader; UTC unless given.
    """
    blocks: list[Block] = [_figures(run, now, zone)]
    charts = tuple(_charts(run))
    blocks.append(Grid(charts) if charts else Paragraph(_no_curves(run), soft=True))
    if run.devices:
        blocks += [Heading("Energy by device"), _device_table(run)]
    if run.tags:
        columns: dict[str, Callable[[tuple[str, str]], str]] = {
            "tag": lambda tag: tag[0],
            "value": lambda tag: tag[1] or NONE,
        }
        blocks += [Heading("Tags"), Table.of(sorted(run.tags.items()), columns)]
    return Report(run.name, _origin(run), tuple(blocks))


def runs_table(runs: Sequence[RunEntry]) -> Table:
    """Runs of one name and boards added up, those of the most energy first."""
    groups: dict[tuple[str, str], list[RunEntry]] = defaultdict(list)
    for run in runs:
        groups[run.name, run.boards].append(run)
    ranked = sorted(groups.items(), key=lambda group: -_sum_joules(group[1]))
    rest = [run for _, group in ranked[_MOST_ROWS:] for run in group]
    if rest:
        ranked[_MOST_ROWS:] = [((f"{len(ranked) - _MOST_ROWS:,} other names", ""), rest)]
    return Table.of(
        ranked,
        {
            "other runs": lambda group: group[0][0],
            "boards": lambda group: group[0][1] or NONE,
            ">runs": lambda group: f"{len(group[1]):,}",
            ">time": lambda group: human_duration(sum(run.seconds for run in group[1])),
            ">energy": lambda group: energy_text(_sum_joules(group[1])),
            "obtained": lambda group: ", ".join(sorted({run.origin for run in group[1]})),
        },
    )


def _sum_joules(runs: Sequence[RunEntry]) -> float:
    return sum(run.joules or 0.0 for run in runs)


def _no_curves(run: RunEntry) -> str:
    if run.seconds < _CURVE_SECONDS:
        return "The run was too short for curves: they begin with its third second."
    return "The run was reported without curves."


def _origin(run: RunEntry) -> str:
    return "simulated" if run.origin == "simulated" else ""


def run_state(run: RunEntry, now: float) -> str:
    """State of a run in a word or two."""
    if run.ended:
        return "ended"
    silent = now - run.started_wall_seconds - run.seconds
    return "under way" if silent < _LATE_SECONDS else f"silent for {human_age(silent)}"


def _figures(run: RunEntry, now: float, zone: tzinfo | None) -> KeyFigures:
    watts = run.mean_watts
    steps = count_text(run.steps, "step") if run.steps else ""
    pace = f", {run.steps / run.seconds:,.3g} a second" if run.steps and run.seconds else ""
    simulated = "; simulated" if run.origin == Origin.SIMULATED.value else ""
    part = ", counted in the run around it" * bool(run.part_of)
    figures = [
        KeyFigure("Energy", _energy(run), run.origin + part),
        KeyFigure("Time", human_duration(run.seconds), steps + pace),
        KeyFigure(
            "Mean power", NONE if watts is None else human(watts, "W"), f"{run.boards}{simulated}"
        ),
        KeyFigure("Begun", date_text(run.started_wall_seconds, zone), f"on {run.host or NONE}"),
        KeyFigure("State", run_state(run, now), f"reported by {run.kind}"),
    ]
    if run.setting:
        figures.append(KeyFigure("Setting", run.setting, run.objective))
    if run.energy_saving is not None:
        note = f"of the energy, {slowdown_text(run)}, against the original setting{simulated}"
        figures.append(KeyFigure("Saved", per_cent(run.energy_saving), note))
    return KeyFigures(tuple(figures))


def slowdown_text(run: RunEntry) -> str:
    """The time that a saving costs, in words."""
    if run.slowdown is None:
        return "change in time not known"
    return f"{per_cent(run.slowdown)} more time" if run.slowdown > 0 else "no more time"


def _energy(user: RunEntry | RunDevice) -> str:
    if user.joules is None:
        return NONE
    error = None if user.relative_error is None else user.relative_error * user.joules
    return with_error(user.joules, error, energy_text)


def _curves(run: RunEntry, quantity: str) -> list[RunCurve]:
    return [curve for curve in run.curves if curve.quantity == quantity and curve.points]


def _charts(run: RunEntry) -> Iterator[Chart]:
    time = time_axis([run.seconds])
    power = [*_device_lines(_curves(run, "watts")), *_limit_lines(_curves(run, "limit_watts"))]
    if power:
        axis = power_axis([y for line in power for _, y in line.points])
        yield Chart("Power by device", time, axis, tuple(power), "Power over the time of the run.")
    for title, quantity, axis in (
        ("Core clock by device", "clock_hertz", Axis("clock in MHz", _MEGAHERTZ, from_zero=True)),
        ("Training steps", "steps_per_second", Axis("steps per second", from_zero=True)),
        ("Metric", "metric", Axis("metric")),
    ):
        lines = _device_lines(_curves(run, quantity))
        if lines:
            text = f"{title} over the time of the run."
            yield Chart(title, time, axis, tuple(lines), text)
    metric = _metric_by_energy(run)
    if metric:
        energy = energy_axis([x for x, _ in metric])
        series = (Series("", tuple(metric)),)
        yield Chart("Metric by energy", energy, Axis("metric"), series, "Metric against energy.")


def _device_lines(curves: Sequence[RunCurve]) -> list[Series]:
    if len(curves) > _MOST_LINES:
        total: dict[float, float] = {}
        for curve in curves:
            for seconds, figure in curve.points:
                total[seconds] = total.get(seconds, 0.0) + figure / len(curves)
        name = f"mean of {len(curves)} devices"
        return [Series.curve(name, thin(sorted(total.items())))]
    return [
        Series.curve(curve.device, thin(curve.points), colour=colour)
        for colour, curve in enumerate(curves)
    ]


def _limit_lines(curves: Sequence[RunCurve]) -> list[Series]:
    """Power limits: one line where all devices have the same."""
    different = {curve.points: curve for curve in curves}
    if len(different) > _MOST_LINES:
        return []
    return [
        Series.curve("power limit" * (not number), thin(curve.points), "dashed", _LIMIT_COLOUR)
        for number, curve in enumerate(different.values())
    ]


def _metric_by_energy(run: RunEntry) -> list[tuple[float, float]]:
    """Joules used until each metric was reported, by the curves of power; and the metric."""
    metric, power = _curves(run, "metric"), _curves(run, "watts")
    if not metric or not power:
        return []
    return [
        (sum(_joules_until(curve, seconds) for curve in power), value)
        for seconds, value in metric[0].points
    ]


def _joules_until(curve: RunCurve, end_seconds: float) -> float:
    joules = curve.points[0][0] * curve.points[0][1]
    for (start, _), (stop, watts) in itertools.pairwise(curve.points):
        if start >= end_seconds:
            break
        joules += watts * (min(stop, end_seconds) - start)
    return joules


def _device_table(run: RunEntry) -> Table:
    most = max((device.joules or 0.0 for device in run.devices), default=0.0)
    columns: dict[str, Callable[[RunDevice], str]] = {
        "device": lambda device: device.name,
        ">energy": _energy,
        ">mean power": lambda device: _mean(device, run.seconds),
        ">peak power": lambda device: (
            NONE if device.peak_watts is None else human(device.peak_watts, "W")
        ),
        ">power limit": lambda device: limit_text(device.limit_watts),
        "obtained": lambda device: device.origin,
    }
    table = Table.of(run.devices, columns)
    bars = [((device.joules or 0.0) / most if most else 0.0, 0.0) for device in run.devices]
    return Table(table.headers, table.rows, table.align, bars=bars)


def _mean(device: RunDevice, seconds: float) -> str:
    return NONE if device.joules is None or not seconds else human(device.joules / seconds, "W")


def comparison_report(runs: Sequence[RunEntry], now: float, zone: tzinfo | None = None) -> Report:
    """Several runs beside each other, differences of those that ended against the first.

    Args:
        runs: Runs, at least two, with their curves.
        now: Unix time, to tell a run under way from one that has fallen silent.
        zone: Time zone of the reader; UTC unless given.
    """
    first = runs[0]
    steps = [_compared_steps(run, first) for run in runs]
    rows = [
        ["begun", *(date_text(run.started_wall_seconds, zone) for run in runs)],
        ["state", *(run_state(run, now) for run in runs)],
        ["host", *(run.host or NONE for run in runs)],
        ["boards", *(run.boards or NONE for run in runs)],
        ["setting", *(run.setting or NONE for run in runs)],
        ["energy", *(_compared_total(_energy(run), run, first, "joules") for run in runs)],
        [
            "time",
            *(_compared_total(human_duration(run.seconds), run, first, "seconds") for run in runs),
        ],
        ["mean power", *(_compared_watts(run, first) for run in runs)],
        *([["energy a step", *steps]] if any(step != NONE for step in steps) else []),
        ["figures are", *(run.origin for run in runs)],
    ]
    headers = ["", *(f"{run.name} ({run.id})" if run.id else run.name for run in runs)]
    blocks: list[Block] = [Table(headers, rows, "l" + "r" * len(runs))]
    simulated = all(_origin(run) for run in runs)
    lines = [
        Series.curve(
            f"{name} ({run.origin})" if _origin(run) and not simulated else name,
            thin(_whole_power(run)),
            colour=colour,
        )
        for colour, (run, name) in enumerate(zip(runs, headers[1:], strict=True))
        if _curves(run, "watts")
    ]
    if lines:
        axis = power_axis([y for line in lines for _, y in line.points])
        time = time_axis([run.seconds for run in runs])
        text = "Power of all devices of each run over its time."
        blocks.append(Chart("Power of all devices", time, axis, tuple(lines), text))
    return Report(" and ".join(headers[1:]), "simulated" if simulated else "", tuple(blocks))


def power_chart(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Chart | None:
    """Power over time, one line per name; of many, the first ones; None where nothing is known."""
    lines = [
        Series.curve(name, thin(points), colour=colour)
        for colour, (name, points) in enumerate(list(curves.items())[:_MOST_LINES])
        if len(points) > 1
    ]
    if not lines:
        return None
    axis = power_axis([y for line in lines for _, y in line.points])
    time = time_axis([x for line in lines for x, _ in line.points])
    return Chart(
        "Power over time", time, axis, tuple(lines), "Power over the time of each session."
    )


def _whole_power(run: RunEntry) -> list[tuple[float, float]]:
    total: dict[float, float] = {}
    for curve in _curves(run, "watts"):
        for seconds, watts in curve.points:
            total[seconds] = total.get(seconds, 0.0) + watts
    return sorted(total.items())


def _compared(text: str, value: float | None, reference: float | None) -> str:
    """A figure with its difference from the first run's; without it for the first itself."""
    if value is None or not reference or value == reference:
        return text
    return f"{text} ({value / reference - 1:+.1%})".replace("%", " %").replace("-", "−")


def _compared_total(text: str, run: RunEntry, first: RunEntry, total: str) -> str:
    """A total, with its difference where both runs ended: part of a run compares with nothing."""
    if not (run.ended and first.ended):
        return text
    return _compared(text, getattr(run, total), getattr(first, total))


def _compared_watts(run: RunEntry, first: RunEntry) -> str:
    watts = run.mean_watts
    text = NONE if watts is None else human(watts, "W")
    return _compared(text, watts, first.mean_watts)


def _compared_steps(run: RunEntry, first: RunEntry) -> str:
    def joules(entry: RunEntry) -> float | None:
        return entry.joules / entry.steps if entry.joules is not None and entry.steps else None

    figure = joules(run)
    text = NONE if figure is None else human(figure, "J")
    return _compared(text, figure, joules(first))
