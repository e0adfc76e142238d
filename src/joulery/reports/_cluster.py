"""A cluster as a report, replayed or under an agent: figures, and power against budget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulery.reports._chart import Chart, Series, power_axis, time_axis
from joulery.reports._document import Heading, KeyFigure, KeyFigures, Paragraph, Report, Table
from joulery.reports._text import NONE, count_text, date_text
from joulery.units import human, human_age, human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import tzinfo

    from joulery.cluster import AgentStatus
    from joulery.grid import GridEvent
    from joulery.reports._document import Block


_MOST_SAMPLES = 300  # by hand: a line of more points would only blacken


def cluster_report(summary: Mapping[str, Any], title: str) -> Report:
    """A replay as a report.

    Args:
        summary: Figures, as ``joulery.simulate.cluster.summarize`` gives them.
        title: Subject in one line.
    """
    blocks: list[Block] = [Table(["figure", "value"], _rows(summary)), _distributions(summary)]
    if summary["power"]["seconds"]:
        blocks.append(_power_chart(summary["power"]))
    if summary["skipped_rows"]:
        reasons = ", ".join(
            f"{count} × {reason}" for reason, count in summary["skipped_rows"].items()
        )
        blocks.append(Paragraph(f"Rows of the trace left out: {reasons}."))
    sources = (
        "the trace, with frontiers attached by the rule in docs/how-to/share-a-power-budget.md"
    )
    return Report(title, "simulated", tuple(blocks), sources)


def _rows(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        ["jobs ended", f"{summary['ended']} of {summary['jobs']}"],
        ["jobs larger than the cluster", str(summary["refused"])],
        ["energy", human(1000 * summary["energy_kilowatt_hours"], "Wh", 4)],
        ["peak power", human(summary["peak_watts"], "W", 4)],
        ["time above the budget", human_duration(summary["violation_seconds"])],
        ["time at the budget", human_duration(summary["capped_seconds"])],
        ["mean performance", f"{100 * summary['performance_mean']:.1f} %"],
        ["worst performance", f"{100 * summary['performance_worst']:.1f} %"],
        ["Jain index", f"{summary['jain_index']:.4f}"],
        ["pauses", str(summary["pauses"])],
    ]
    if "carbon_kilograms" in summary:
        rows.append(["carbon", f"{summary['carbon_kilograms']:,.2f} kg CO2"])
    if "cost" in summary:
        rows.append(["cost", f"{summary['cost']:,.2f}"])
    return rows


def _distributions(summary: Mapping[str, Any]) -> Table:
    rows_shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "turnaround_seconds": ("turnaround", human_duration),
        "wait_seconds": ("waiting", human_duration),
        "slowdown": ("slowdown", lambda value: f"{value:.3f}"),
    }
    rows = [[text, *map(show, summary[name].values())] for name, (text, show) in rows_shown.items()]
    return Table(["", *summary["slowdown"]], rows, "lrrrrr")


def _power_chart(power: Mapping[str, list[float]]) -> Chart:
    times = power["seconds"]
    lines = [Series.curve("power", zip(times, power["watts"], strict=True))]
    if power.get("budget_watts"):
        points = zip(times, power["budget_watts"], strict=True)
        lines.append(Series.curve("budget", points, "dashed", 1))
    return Chart(
        "Power over time",
        time_axis(map(abs, times)),
        power_axis(power["watts"], "IT power"),
        tuple(lines),
        "Mean IT power of the cluster in equal steps of time, against its budget.",
    )


def agent_report(
    status: AgentStatus,
    history: Sequence[tuple[float, float, float]],
    now: float,
    zone: tzinfo | None = None,
) -> Report:
    """A cluster under an agent: power against budget, events, and what every job gets.

    Args:
        status: Status, as the agent writes it.
        history: Unix time, power and budget of samples.
        now: Unix time.
        zone: Time zone of the reader; UTC unless given.
    """
    blocks: list[Block] = [_agent_figures(status, now, zone)]
    blocks += [Paragraph(f"! {text}", alert=True) for text in _alerts(status, now)]
    if len(history) > 1:
        blocks.append(_history_chart(history))
    if status.events:
        blocks += [Heading("Events"), _events_table(status.events, zone)]
    running = [job for job in status.jobs if job.id not in status.paused]
    rows = [
        [
            f"{job.id} {job.name}".strip(),
            human(job.watts, "W"),
            f"{100 * (1 - job.performance):,.1f} % slower" + ", follows" * job.follows,
        ]
        for job in sorted(running, key=lambda job: job.performance)
    ]
    rows += [[name, NONE, "paused"] for name in status.paused]
    jobs = Table(["job", "power", "slowdown"], rows, "lrr")
    blocks += [
        Heading("Jobs, the slowest first"),
        jobs if rows else Paragraph("No job is running."),
    ]
    return Report("Cluster", "", tuple(blocks))


def _agent_figures(status: AgentStatus, now: float, zone: tzinfo | None) -> KeyFigures:
    shares = [job.performance for job in status.jobs]
    squares = sum(share * share for share in shares)
    jain = f"Jain index {sum(shares) ** 2 / (len(shares) * squares):.3f}" if squares else ""
    lost = f", {len(status.lost_nodes)} of them lost" if status.lost_nodes else ""
    power, budget, speed = status.power_watts, status.budget_watts, status.weighted_performance
    share = f"{100 * power / budget:,.0f} % of the budget, " if budget else ""
    age = f"{date_text(status.at, zone)}, {human_age(now - status.at)} ago"
    return KeyFigures(
        (
            KeyFigure("Power", human(power, "W"), f"{share}{age}"),
            KeyFigure("Budget", human(budget, "W"), f"policy {status.policy}"),
            KeyFigure(
                "Caps", human(status.caps_watts, "W"), count_text(status.nodes, "node") + lost
            ),
            KeyFigure("Speed", NONE, "no jobs")
            if speed is None
            else KeyFigure("Speed", f"{100 * speed:.0f} %", f"weighted. {jain}"),
        )
    )


def _alerts(status: AgentStatus, now: float) -> Iterator[str]:
    age = now - status.at
    if status.is_dead(now):
        yield f"The agent has been silent for {human_age(age)}: is it running?"
    yield from status.messages
    if status.is_short:
        yield "The budget does not cover every job's least power."


def _history_chart(history: Sequence[tuple[float, float, float]]) -> Chart:
    step = -(-len(history) // _MOST_SAMPLES)
    samples = history[::-step][::-1]
    times = [at - history[-1][0] for at, _, _ in samples]
    power = {
        "seconds": times,
        "watts": [watts for _, watts, _ in samples],
        "budget_watts": [watts for _, _, watts in samples],
    }
    time = time_axis(map(abs, times), "time until now")
    return replace(_power_chart(power), x=time, origin="as nodes report it")


def _events_table(events: Sequence[GridEvent], zone: tzinfo | None) -> Table:
    def power(event: GridEvent) -> str:
        if event.target_watts is not None:
            return f"at most {human(event.target_watts, 'W')}"
        return f"{100 * (event.reduction or 0.0):.0f} % less"

    return Table.of(
        events,
        {
            "event": lambda event: event.id,
            "power": power,
            "from": lambda event: date_text(event.start, zone),
            "until": lambda event: date_text(event.end, zone),
        },
    )
