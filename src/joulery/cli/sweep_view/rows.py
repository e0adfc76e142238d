"""The tables of a sweep as rows of words, for the terminal and the page alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_unit, seconds_unit
from joulery.sweep.table import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cli.frontier_view.axis import Unit
    from joulery.sweep.published import PublishedSweep
    from joulery.sweep.table import SettingResult, SweepTable


@dataclass(frozen=True, slots=True)
class Rows:
    """A table of words.

    Attributes:
        headers: One title per column.
        cells: The rows.
        align: ``l`` or ``r`` per column.
        top: (row, column) of every cell that is the best of its column.
    """

    headers: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    align: str
    top: frozenset[tuple[int, int]] = frozenset()


_SHORT = {
    Metric.ENERGY: "saved",
    Metric.DIFFERENCE: "diff.",
    Metric.EDP: "EDP",
    Metric.EDS_1_5: "EDS 1.5",
    Metric.EDS_2_0: "EDS 2.0",
}


def setting_rows(table: SweepTable, gpus: int) -> Rows:
    """Every limit with that many boards, highest first."""
    settings = tuple(reversed(table.of_count(gpus)))
    seconds = seconds_unit(setting.point.seconds for setting in table.settings)
    joules = joules_unit(setting.point.joules for setting in table.settings)
    some_idle = any(setting.idle_gpu_joules for setting in settings)
    headers = ["limit", "runs", "time", "± sd", "energy", "± sd", "slower"]
    first_gain = len(headers)
    headers += [_SHORT[metric] for metric in Metric] + ["idle GPUs"] * some_idle
    cells = [_setting_row(s, seconds, joules, some_idle=some_idle) for s in settings]
    best = {metric: table.best_by(gpus, metric) for metric in Metric}
    top = frozenset(
        (row, first_gain + column)
        for column, found in enumerate(best.values())
        for row, setting in enumerate(settings)
        if found is not None and found.watts == setting.watts
    )
    return Rows(tuple(headers), tuple(cells), "r" * len(headers), top)


def _setting_row(
    setting: SettingResult, seconds: Unit, joules: Unit, *, some_idle: bool
) -> tuple[str, ...]:
    runs = f"{setting.runs}" + (f" of {setting.runs + setting.failed}" if setting.failed else "")
    idle = [_or_unknown(setting.idle_gpu_joules, joules)] if some_idle else []
    return (
        f"{setting.watts:g} W",
        runs,
        seconds.text(setting.point.seconds),
        _spread(setting.seconds_sd, setting.point.seconds),
        joules.text(setting.point.joules),
        _spread(setting.joules_sd, setting.point.joules),
        percent(setting.time_loss),
        *(percent(setting.gains.get(metric)) for metric in Metric),
        *idle,
    )


def _or_unknown(joules: float | None, unit: Unit) -> str:
    return "unknown" if joules is None else unit.text(joules)


def _spread(deviation: float | None, mean: float) -> str:
    return "" if deviation is None or mean == 0 else f"{100 * deviation / mean:.2f} %"


def percent(value: float | None) -> str:
    """Two decimals, as the paper prints them; nothing for unknown."""
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return "" if value is None else f"{round(value, 2) + 0.0:.2f} %"


def best_rows(table: SweepTable) -> Rows:
    """The best limit by each metric, the most boards first."""
    cells = [
        (
            str(best.gpus),
            best.metric.label,
            f"{best.watts:g} W",
            percent(best.gain),
            _limits(best.as_good_watts) if len(best.as_good_watts) > 1 else "",
        )
        for gpus in reversed(table.gpu_counts)
        for best in table.best()
        if best.gpus == gpus
    ]
    headers = ("GPUs", "best by", "limit", "gain", "as good")
    return Rows(headers, tuple(cells), "rlrrl")


def _limits(watts: Sequence[float]) -> str:
    return ", ".join(f"{limit:g}" for limit in watts) + " W"


def published_rows(table: SweepTable, published: PublishedSweep) -> Rows:
    """Ours beside the published, as far as the same settings were run."""
    cells = []
    for theirs in published.best:
        ours = table.best_by(theirs.gpus, theirs.metric)
        if ours is not None:
            cells.append(
                (
                    str(theirs.gpus),
                    f"best by {theirs.metric.label}",
                    f"{percent(ours.gain)} at {ours.watts:g} W",
                    f"{theirs.gain:.4g} %"
                    + ("" if theirs.watts is None else f" at {theirs.watts:g} W"),
                )
            )
    cells += [
        (
            str(time.gpus),
            f"time at {time.watts:g} W",
            f"{setting.point.seconds:.1f} s",
            f"{time.seconds:.1f} s",
        )
        for time in published.times
        for setting in table.of_count(time.gpus)
        if setting.watts == time.watts
    ]
    headers = ("GPUs", "figure", f"ours ({table.origin})", "published")
    return Rows(headers, tuple(cells), "rlrr")
