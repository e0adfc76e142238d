"""Show a planned pipeline as one HTML page: who works when, before and after, and the frontier."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_unit, seconds_unit
from joulery.cli.page import html_document
from joulery.cli.plan_view.curve import curve
from joulery.cli.plan_view.gantt import SHADES, Frame, gantt
from joulery.cli.plan_view.text import figure, title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cli.plan_view.study import Outcome, Study

# More boxes than this make a page that browsers are slow to draw and nobody can read.
_MOST_BOXES = 1500


def html_page(study: Study) -> str:
    """One self-contained page, readable in light and dark, without scripts."""
    equal = study.outcomes[0]
    joules = joules_unit([equal.unplanned.joules])
    frame = _frame(study)
    return html_document(
        title(study),
        "predicted",
        "joulery.cli.plan_view",
        summary=escape(
            f"The plan needs {figure(equal.plan.joules, joules)} per iteration instead of "
            f"{figure(equal.unplanned.joules, joules)}: {100 * equal.saved:.1f} % less, "
            "in equal time."
        ),
        outcomes=_outcomes(study),
        charts="\n".join(_charts(study, frame)),
        legend=_legend(frame),
        cut=_cut(study, frame),
        curve=curve(study),
        notes="".join(f"<li>{escape(note)}</li>" for note in study.notes),
        source=escape(study.source),
    )


def _frame(study: Study) -> Frame:
    tables = [study.unplanned, *(outcome.plan for outcome in study.outcomes)]
    longest = max(table.seconds for table in tables)
    share = min(1.0, _MOST_BOXES / len(study.problem))
    clocks = [clock for table in tables for clock in table.clocks_hertz.tolist()]
    return Frame(study.problem, longest * share, min(clocks), max(clocks))


def _charts(study: Study, frame: Frame) -> list[str]:
    shown = [("Full clocks", study.unplanned)]
    shown += [(f"Planned: {outcome.name}", outcome.plan) for outcome in study.outcomes]
    return [
        f"<figure><figcaption>{escape(name)}</figcaption>{gantt(frame, table, name)}</figure>"
        for name, table in shown
    ]


def _legend(frame: Frame) -> str:
    boxes = "".join(f'<i class="c{shade}"></i>' for shade in range(SHADES))
    low, high = frame.lowest_hertz / 1e6, frame.highest_hertz / 1e6
    return f"{low:.0f} MHz <span>{boxes}</span> {high:.0f} MHz"


def _cut(study: Study, frame: Frame) -> str:
    if frame.seconds >= max(study.unplanned.seconds, study.chosen.plan.seconds):
        return ""
    unit = seconds_unit([frame.seconds])
    return f"Only the first {unit.text(frame.seconds)} are drawn; the rest goes on alike."


def _outcomes(study: Study) -> str:
    headers = ("plan", "iteration", "full clocks", "planned", "saved", "above bound", "mean clock")
    head = "".join(f'<th scope="col">{header}</th>' for header in headers)
    rows = "".join(_row(study.outcomes, outcome) for outcome in study.outcomes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(outcomes: Sequence[Outcome], outcome: Outcome) -> str:
    joules = joules_unit([other.unplanned.joules for other in outcomes])
    seconds = seconds_unit([other.deadline_seconds for other in outcomes])
    cells = (
        figure(outcome.deadline_seconds, seconds),
        figure(outcome.unplanned.joules, joules),
        figure(outcome.plan.joules, joules),
        f"{100 * outcome.saved:.1f} %",
        f"{100 * outcome.gap:.2f} %",
        f"{outcome.plan.mean_clock_hertz / 1e6:.0f} MHz",
    )
    figures = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(outcome.name)}</th>{figures}</tr>'
