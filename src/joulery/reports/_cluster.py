"""A replay of a cluster as a report: its figures, and power against budget over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.reports._chart import Axis, Chart, Series, time_axis, watts_unit
from joulery.reports._document import Paragraph, Report, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.reports._document import Block


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
    sources = "the trace, with frontiers attached by the rule in docs/cluster.md"
    return Report(title, "simulated", tuple(blocks), sources)


def _rows(found: Mapping[str, Any]) -> list[list[str]]:
    rows = [
        ["jobs ended", f"{found['ended']} of {found['jobs']}"],
        ["jobs larger than the cluster", str(found["refused"])],
        ["energy", f"{found['energy_kilowatt_hours']:.6g} kWh"],
        ["peak power", f"{found['peak_watts']:.6g} W"],
        ["time above the budget", f"{found['violation_seconds']:.6g} s"],
        ["mean performance", f"{100 * found['performance_mean']:.1f} %"],
        ["worst performance", f"{100 * found['performance_worst']:.1f} %"],
        ["Jain index", f"{found['jain_index']:.4f}"],
        ["pauses", str(found["pauses"])],
    ]
    if "carbon_kilograms" in found:
        rows.append(["carbon", f"{found['carbon_kilograms']:.6g} kg CO2"])
    if "cost" in found:
        rows.append(["cost", f"{found['cost']:.6g}"])
    return rows


def _distributions(found: Mapping[str, Any]) -> Table:
    names = {"turnaround_seconds": "turnaround", "wait_seconds": "waiting", "slowdown": "slowdown"}
    rows = [
        [
            f"{text} (s)" if name.endswith("seconds") else text,
            *(f"{value:.5g}" for value in found[name].values()),
        ]
        for name, text in names.items()
    ]
    return Table(["", *found["slowdown"]], rows, "lrrrrr")


def _power_chart(power: Mapping[str, list[float]]) -> Chart:
    times = power["seconds"]
    lines = [Series.curve("power", zip(times, power["watts"], strict=True))]
    if power.get("budget_watts"):
        points = zip(times, power["budget_watts"], strict=True)
        lines.append(Series.curve("budget", points, "dashed", 1))
    watts = watts_unit(power["watts"])
    return Chart(
        "Power over time",
        time_axis(times, "simulated"),
        Axis(f"IT power in {watts.name} (simulated)", watts),
        tuple(lines),
        "Mean IT power of the cluster in equal steps of time, against its budget.",
    )
