"""A cluster as a report, replayed or under an agent: figures, and power against budget."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from joulery.reports._chart import Chart, Series, power_axis, time_axis
from joulery.reports._document import Heading, KeyFigure, KeyFigures, Paragraph, Report, Table
from joulery.units import human, human_age, human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulery.reports._document import Block


_MOST_SAMPLES = 300  # of a line
_STALE_SECONDS = 60.0  # an agent writes its status every few seconds


def cluster_report(found: Mapping[str, Any], title: str) -> Report:
    """A replay as a report.

    Args:
        found: Figures, as :func:`joulery.simulate.cluster.summarize` gives them.
        title: Subject in one line.
    """
    blocks: list[Block] = [Table(["figure", "value"], _rows(found)), _distributions(found)]
    if found["power"]["seconds"]:
        blocks.append(_power_chart(found["power"]))
    if found["skipped_rows"]:
        reasons = ", ".join(f"{count} × {why}" for why, count in found["skipped_rows"].items())
        blocks.append(Paragraph(f"Rows of the trace left out: {reasons}."))
    sources = (
        "the trace, with frontiers attached by the rule in docs/how-to/share-a-power-budget.md"
    )
    return Report(title, "simulated", tuple(blocks), sources)


def _rows(found: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        ["jobs ended", f"{found['ended']} of {found['jobs']}"],
        ["jobs larger than the cluster", str(found["refused"])],
        ["energy", human(1000 * found["energy_kilowatt_hours"], "Wh", 4)],
        ["peak power", human(found["peak_watts"], "W", 4)],
        ["time above the budget", human_duration(found["violation_seconds"])],
        ["mean performance", f"{100 * found['performance_mean']:.1f} %"],
        ["worst performance", f"{100 * found['performance_worst']:.1f} %"],
        ["Jain index", f"{found['jain_index']:.4f}"],
        ["pauses", str(found["pauses"])],
    ]
    if "carbon_kilograms" in found:
        rows.append(["carbon", f"{found['carbon_kilograms']:,.2f} kg CO2"])
    if "cost" in found:
        rows.append(["cost", f"{found['cost']:,.2f}"])
    return rows


def _distributions(found: Mapping[str, Any]) -> Table:
    shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "turnaround_seconds": ("turnaround", human_duration),
        "wait_seconds": ("waiting", human_duration),
        "slowdown": ("slowdown", lambda value: f"{value:.3f}"),
    }
    rows = [[text, *map(show, found[name].values())] for name, (text, show) in shown.items()]
    return Table(["", *found["slowdown"]], rows, "lrrrrr")


def _power_chart(power: Mapping[str, list[float]], origin: str = "simulated") -> Chart:
    times = power["seconds"]
    lines = [Series.curve("power", zip(times, power["watts"], strict=True))]
    if power.get("budget_watts"):
        points = zip(times, power["budget_watts"], strict=True)
        lines.append(Series.curve("budget", points, "dashed", 1))
    return Chart(
        "Power over time",
        time_axis(map(abs, times), origin),
        power_axis(power["watts"], origin, "IT power"),
        tuple(lines),
        "Mean IT power of the cluster in equal steps of time, against its budget.",
    )


def agent_report(
    status: Mapping[str, Any], history: Sequence[tuple[float, float, float]], now: float
) -> Report:
    """A cluster under an agent: power against budget, events, and what every job gets.

    Args:
        status: Status, as the agent writes it.
        history: Unix time, power and budget of samples so far.
        now: Unix time.
    """
    jobs, power, budget = status["jobs"], status["power_watts"], status["budget_watts"]
    shares = [one["performance"] for one in jobs]
    squares = sum(one * one for one in shares)
    jain = f"Jain index {sum(shares) ** 2 / (len(shares) * squares):.3f}" if squares else ""
    lost = f", {len(status['lost_nodes'])} of them lost" if status.get("lost_nodes") else ""
    speed, age = status["weighted_performance"], now - status["at"]
    of_budget = f"{100 * power / budget:.0f} % of the budget, " if budget else ""
    figures = (
        KeyFigure("Power", human(power, "W"), f"{of_budget}{human_age(age)} ago"),
        KeyFigure("Budget", human(budget, "W"), f"policy {status['policy']}"),
        KeyFigure(
            "Caps", human(status["caps_watts"], "W"), f"{status.get('nodes', 0)} nodes{lost}"
        ),
        KeyFigure("Speed", "–" if speed is None else f"{100 * speed:.0f} %", f"weighted. {jain}"),
    )
    blocks: list[Block] = [KeyFigures(figures)]
    alerts = [f"! {message}" for message in status["messages"]]
    if age > _STALE_SECONDS:
        alerts.insert(0, f"! The agent has been silent for {human_age(age)}: is it running?")
    if status["is_short"]:
        alerts.append("! The budget does not cover every job's least power.")
    blocks += [Paragraph(text, alert=True) for text in alerts]
    if len(history) > 1:
        step = -(-len(history) // _MOST_SAMPLES)
        some = history[::-step][::-1]
        times = [at - history[-1][0] for at, _, _ in some]
        chart = _power_chart(
            {
                "seconds": times,
                "watts": [watts for _, watts, _ in some],
                "budget_watts": [watts for _, _, watts in some],
            },
            "as nodes report it",
        )
        blocks.append(replace(chart, x=time_axis(map(abs, times), name="time until now")))
    if status["events"]:
        blocks += [Heading("Events"), _events_table(status["events"])]
    paused = [[name, "–", "paused"] for name in status["paused"]]
    rows = [
        [one["id"], human(one["watts"], "W"), f"{100 * (1 - one['performance']):.1f} % slower"]
        for one in sorted(jobs, key=lambda one: one["performance"])
        if one["id"] not in status["paused"]
    ]
    blocks.append(Heading("Jobs, the slowest first"))
    if rows or paused:
        blocks.append(Table(["job", "power", "slowdown"], [*rows, *paused], "lrr"))
    else:
        blocks.append(Paragraph("No job is running."))
    return Report("Cluster", "", tuple(blocks))


def _events_table(events: Sequence[Mapping[str, Any]]) -> Table:
    def at(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")

    def wanted(event: Mapping[str, Any]) -> str:
        watts = event.get("target_watts")
        return f"at most {human(watts, 'W')}" if watts else f"{100 * event['reduction']:.0f} % less"

    columns = {
        "event": lambda one: one["id"],
        "power": wanted,
        "from (UTC)": lambda one: at(one["start"]),
        "until": lambda one: at(one["end"]),
    }
    return Table.of(events, columns)
