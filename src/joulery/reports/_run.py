"""One run of a job as a report: how it stands, its devices over time, and its energy."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from joulery.jobs import RunProgress, total_watts
from joulery.reports._chart import Axis, Chart, Series, Unit, thin, time_axis
from joulery.reports._document import (
    Grid,
    Heading,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Report,
    Table,
    charts_of,
)
from joulery.reports._footprint import significant
from joulery.reports._text import (
    NONE,
    add_origins,
    cost_text,
    date_text,
    end_text,
    energy_text,
    limit_difference,
    limit_text,
    simulated_text,
    with_error,
)
from joulery.units import human, human_age, human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import tzinfo

    from joulery.jobs import (
        DecisionEntry,
        EnergyEntry,
        LiveDevice,
        LiveState,
        Measured,
        RunHistory,
    )
    from joulery.reports._document import Block

_MEGAHERTZ = Unit("MHz", 1e6)
_WATT = Unit("W")
_MOST_LINES = 5  # by hand: devices that have a line each; of more, the range is drawn
_MOST_PHASES = 12  # by hand: rows of a list that fit a screen
_LIMIT_COLOUR = 5  # grey, which no device has
_NOT_LIVE = (
    "Power is the mean between heartbeats, at most a minute apart. Clocks, limits and the power of "
    "each device are shown for runs that report to this server while it is up."
)


def run_report(run: RunHistory, now_wall_seconds: float, zone: tzinfo | None = None) -> Report:
    """One run: how it stands or ended, its devices over time, and its energy by device.

    Args:
        run: Decision, heartbeats and energy of the run.
        now_wall_seconds: Unix time.
        zone: Time zone of the reader; UTC unless given.
    """
    decision, outcome, heartbeats = run.entry.decision, run.entry.outcome, run.heartbeats
    live = [beat.live for beat in heartbeats if beat.live is not None]
    blocks: list[Block] = [_figures(run, now_wall_seconds, zone)]
    blocks.append(Paragraph(f"Why batch size {decision.batch_size}: {decision.reason}."))
    held = outcome.limit_watts if outcome else None
    if difference := limit_difference(decision.power_limit_watts, held):
        blocks.append(Paragraph(difference))
    if why := run.entry.quarantine_reason:
        blocks.append(Paragraph(f"In quarantine, so that nothing is learned from it: {why}."))
    charts = tuple(_charts(heartbeats, live))
    if charts:
        blocks += charts_of((Grid(charts),), simulated_text(_origins(run.energy)))
    if live:
        blocks += _live_blocks(live, is_open=outcome is None)
    elif outcome is None and heartbeats:
        blocks.append(Paragraph(_NOT_LIVE, soft=True))
    if run.energy:
        blocks += [Heading("By device"), _energy_table(run.energy)]
    if outcome is not None and outcome.measured:
        blocks += [Heading("Limits measured on the way"), _limits_table(outcome.measured)]
    return Report(f"Decision {decision.id}", "", tuple(blocks))


def _figures(run: RunHistory, now: float, zone: tzinfo | None) -> KeyFigures:
    decision, last = run.entry.decision, _last_heartbeat(run)
    figures = [
        _state_figure(run.entry, last, now),
        KeyFigure("Begun", date_text(decision.issued_wall_seconds, zone), _end_note(run, zone)),
    ]
    if run.entry.outcome is None and last.live is not None:
        steps = last.live.steps_per_second
        pace = "" if steps is None else f", {steps:,.3g} steps a second"
        power = total_watts(last.live)
        watts = NONE if power is None else human(power, "W")
        figures.append(KeyFigure("Now", watts, f"{last.live.phase}{pace}"))
    if last.seconds > 0:
        epochs = f"{significant(last.epochs):,g} epoch{'s' * (last.epochs != 1)}"
        rate = f", {3600 * last.epochs / last.seconds:,.1f} an hour" if last.epochs else ""
        mean = f"mean power {_mean_watts(last.seconds, last.joules)}"
        if simulated := simulated_text(_origins(run.energy)):
            mean = f"{mean}; {simulated}"
        elif run.entry.outcome is None:
            mean = f"{mean}; origin reported at its end"
        figures += [
            KeyFigure("Time", human_duration(last.seconds), f"{epochs}{rate}"),
            KeyFigure("Energy", energy_text(last.joules), mean),
        ]
    advised = decision.power_limit_watts
    limit = (outcome.limit_watts if (outcome := run.entry.outcome) else None) or advised
    note = "power limit " + ("chosen by the tuner" if limit is None else limit_text(limit))
    note += f", advised {limit_text(advised)}" if limit_difference(advised, limit) else ""
    figures.append(KeyFigure("Batch size", str(decision.batch_size), note))
    figures.append(_cost_figure(run, last))
    return KeyFigures(tuple(figures))


def _origins(energy: Sequence[EnergyEntry]) -> dict[str, float]:
    """Joules by origin."""
    return add_origins({entry.origin: entry.joules} for entry in energy)


def _last_heartbeat(run: RunHistory) -> RunProgress:
    return run.heartbeats[-1] if run.heartbeats else RunProgress(0.0, 0.0, 0.0)


def _state_figure(entry: DecisionEntry, last: RunProgress, now: float) -> KeyFigure:
    latest = max(entry.heartbeat_wall_seconds or 0.0, last.wall_seconds)
    note = f"last heartbeat {human_age(now - latest)} ago" if latest else ""
    if entry.outcome is not None:
        note = "reported late" if entry.late else "as reported"
    return KeyFigure("State", end_text(entry), note)


def _end_note(run: RunHistory, zone: tzinfo | None) -> str:
    reported = run.entry.reported_wall_seconds
    return f"reported {date_text(reported, zone)}" if reported else ""


def _cost_figure(run: RunHistory, last: RunProgress) -> KeyFigure:
    cost = run.job.definition.job.cost.of(last.seconds, last.joules)
    ceiling = run.entry.decision.cost_ceiling_joules
    note = "no cost ceiling: it is not stopped early"
    if math.isfinite(ceiling) and ceiling > 0:
        note = f"{per_cent(cost / ceiling)} of {cost_text(ceiling)}, where it is stopped"
    return KeyFigure("Cost", cost_text(cost), note)


def _charts(beats: Sequence[RunProgress], live: Sequence[LiveState]) -> Iterator[Chart]:
    """Power, clocks, steps and epochs over the time of the run."""
    latest = max((beat.seconds for beat in beats), default=0.0)
    time = time_axis([latest, *(state.seconds for state in live)])

    def chart(title: str, y: Axis, series: Sequence[Series]) -> Iterator[Chart]:
        if any(len(line.points) > 1 for line in series):
            yield Chart(title, time, y, tuple(series), f"{y.name} over the time of the run.")

    watts = Axis("power in W", _WATT, from_zero=True)
    devices = _lines(live, lambda device: device.watts)
    yield from chart("Power by device", watts, [*devices, *_limit_lines(live)])
    if not any(len(line.points) > 1 for line in devices) or live[-1].processes > 1:
        power = [
            ((a.seconds + b.seconds) / 2, (b.joules - a.joules) / (b.seconds - a.seconds))
            for a, b in itertools.pairwise((RunProgress(0.0, 0.0, 0.0), *beats))
            if b.seconds > a.seconds and b.joules >= a.joules
        ]
        yield from chart("Power of all devices", watts, [Series.curve("", thin(power))])
    clocks = _lines(live, lambda device: device.clock_hertz)
    yield from chart(
        "Core clock by device", Axis("clock in MHz", _MEGAHERTZ, from_zero=True), clocks
    )
    steps = [(s.seconds, s.steps_per_second) for s in live if s.steps_per_second is not None]
    yield from chart(
        "Training steps", Axis("steps per second", from_zero=True), [Series.curve("", thin(steps))]
    )
    epochs = [(beat.seconds, beat.epochs) for beat in beats]
    yield from chart("Epochs trained", Axis("epochs"), [Series.curve("", thin(epochs))])


def _lines(live: Sequence[LiveState], value: Callable[[LiveDevice], float | None]) -> list[Series]:
    """A figure of every device over time; of many devices, the lowest, the mean and the highest."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for state in live:
        for device in state.devices:
            if (figure := value(device)) is not None:
                lines.setdefault(device.name, []).append((state.seconds, figure))
    if len(lines) <= _MOST_LINES:
        return [
            Series.curve(name, thin(points), colour=colour)
            for colour, (name, points) in enumerate(lines.items())
        ]
    spread: dict[str, list[tuple[float, float]]] = {"highest": [], "mean": [], "lowest": []}
    for state in live:
        figures = [figure for device in state.devices if (figure := value(device)) is not None]
        if figures:
            spread["highest"].append((state.seconds, max(figures)))
            spread["mean"].append((state.seconds, sum(figures) / len(figures)))
            spread["lowest"].append((state.seconds, min(figures)))
    return [
        Series.curve(f"{name} of {len(lines)}", thin(points), colour=colour)
        for colour, (name, points) in enumerate(spread.items())
    ]


def _limit_lines(live: Sequence[LiveState]) -> list[Series]:
    """The power limits: one line where all devices have the same."""
    lines = _lines(live, lambda device: device.limit_watts)
    if len({line.points for line in lines}) == 1:
        return [Series.curve("power limit", lines[0].points, "dashed", _LIMIT_COLOUR)]
    return [
        Series.curve("" if line.colour else "power limits", line.points, "dashed", line.colour)
        for line in lines
    ]


def _live_blocks(live: Sequence[LiveState], *, is_open: bool) -> Iterator[Block]:
    """The devices now, the phases so far, and whose view this is."""
    last = live[-1]
    if is_open and last.devices:
        columns: dict[str, Callable[[LiveDevice], str]] = {
            "device": lambda device: device.name,
            ">power": lambda device: _watts(device.watts),
            ">power limit": lambda device: limit_text(device.limit_watts),
            ">core clock": lambda device: (
                NONE if device.clock_hertz is None else f"{device.clock_hertz / 1e6:.0f} MHz"
            ),
        }
        yield Heading("Devices now")
        yield Table.of(last.devices, columns)
    yield Heading("Phases")
    yield _phases_table(live)
    whose = ""
    if last.processes > 1:
        whose = (
            f" {last.processes} processes train together: clocks, limits, steps and the power by "
            "device are what rank 0 sees in its own process; energy and epochs are those of all, "
            "as of the latest epoch."
        )
    text = (
        "Power and steps are means between heartbeats, some seconds apart; limits and clocks are "
        "those of the moment, so power may lie above a limit that was just lowered."
    )
    yield Paragraph(text + whose, soft=True)


def _phases_table(live: Sequence[LiveState]) -> Table:
    """Phases of the run, the latest first, with means over their time."""
    times = [0.0, *(state.seconds for state in live)]
    spans = list(zip(itertools.pairwise(times), live, strict=True))
    rows = []
    for phase, group in itertools.groupby(spans, key=lambda span: span[1].phase):
        members = list(group)
        begin, end = members[0][0][0], members[-1][0][1]
        lengths = [after - before for (before, after), _ in members]
        states = [state for _, state in members]
        watts = _mean(lengths, [total_watts(state) for state in states])
        steps = _mean(lengths, [state.steps_per_second for state in states])
        rows.append(
            [
                phase or NONE,
                human_duration(begin),
                human_duration(end - begin),
                _watts(watts),
                NONE if steps is None else f"{steps:.3g}",
            ]
        )
    headers = ["phase", "from", "for", "mean power", "steps per second"]
    return Table(headers, rows[: -_MOST_PHASES - 1 : -1], "lrrrr")


def _mean(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    pairs = [(w, v) for w, v in zip(weights, values, strict=True) if v is not None and w > 0]
    return sum(w * v for w, v in pairs) / sum(w for w, _ in pairs) if pairs else None


def _energy_table(energy: Sequence[EnergyEntry]) -> Table:
    columns: dict[str, Callable[[EnergyEntry], str]] = {
        "device": lambda entry: entry.device,
        ">energy": lambda entry: with_error(
            entry.joules,
            None if entry.relative_error is None else entry.relative_error * entry.joules,
            energy_text,
        ),
        ">time": lambda entry: human_duration(entry.seconds),
        ">mean power": lambda entry: _mean_watts(entry.seconds, entry.joules),
        "obtained": lambda entry: f"{entry.origin} ({entry.source or 'unstated'})",
    }
    return Table.of(energy, columns)


def _limits_table(measured: Sequence[Measured]) -> Table:
    return Table.of(
        sorted(measured, key=lambda measurement: measurement.limit_watts or 0.0),
        {
            ">power limit": lambda measurement: limit_text(measurement.limit_watts),
            ">time of an epoch": lambda measurement: human_duration(measurement.epoch_seconds),
            ">energy of an epoch": lambda measurement: energy_text(measurement.epoch_joules),
            ">error": lambda measurement: f"± {per_cent(measurement.relative_error)}",
        },
    )


def _watts(watts: float | None) -> str:
    return NONE if watts is None else f"{watts:.0f} W"


def _mean_watts(seconds: float, joules: float) -> str:
    return human(joules / seconds, "W") if seconds else NONE
