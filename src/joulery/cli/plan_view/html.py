"""A planned pipeline as one HTML page: Gantt charts before and after, and the frontier."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_unit, seconds_unit
from joulery.cli.page import html_document
from joulery.cli.plan_view.curve import curve
from joulery.cli.plan_view.gantt import SHADES, GanttFrame, gantt
from joulery.cli.plan_view.rows import (
    SAVING_HEADERS,
    SCHEDULE_HEADERS,
    WINNER_HEADERS,
    figure,
    saving_rows,
    schedule_rows,
    search_caption,
    winner_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cli.plan_view.rows import PlanView
    from joulery.pipeline import ScheduleSearch

# More boxes than this make a page that browsers are slow to draw and too full to read. Where little
# would be cut off, nothing is.
_MAX_BOXES = 1500
_NEARLY_ALL = 0.8
# Columns of words; all others hold figures.
_WORDS = ("best", "with memory to spare", "")


def plan_page(view: PlanView) -> str:
    """One self-contained page, readable in light and dark, without scripts."""
    equal, frame = view.savings[0], _frame(view)
    joules = joules_unit([equal.full_clocks_joules])
    return html_document(
        view.title,
        "predicted",
        "joulery.cli.plan_view",
        summary=escape(
            f"The plan needs {figure(equal.joules, joules)} per iteration instead of "
            f"{figure(equal.full_clocks_joules, joules)}: {100 * equal.saved:.1f} % less, "
            f"in equal time.{'' if view.search is None else _search_summary(view.search)}"
        ),
        outcomes=_table(SAVING_HEADERS, saving_rows(view)),
        choice="" if view.search is None else _search(view.search),
        charts="\n".join(_charts(view, frame)),
        legend=_legend(frame),
        cut=_cut(view, frame),
        curve=curve(view),
        notes="".join(f"<li>{escape(note)}</li>" for note in view.notes),
        source=escape(view.plan.problem.source),
    )


def _frame(view: PlanView) -> GanttFrame:
    tables = [view.plan.full_clocks, *(saving.plan for saving in view.savings)]
    longest = max(table.seconds for table in tables)
    share = _MAX_BOXES / len(view.plan.problem)
    share = 1.0 if share > _NEARLY_ALL else share
    clocks = [clock for table in tables for clock in table.clocks_hertz.tolist()]
    return GanttFrame(view.plan.problem, longest * share, min(clocks), max(clocks))


def _charts(view: PlanView, frame: GanttFrame) -> list[str]:
    shown = [("Full clocks", view.plan.full_clocks)]
    shown += [(f"Planned: {saving.name}", saving.plan) for saving in view.savings]
    return [
        f"<figure><figcaption>{escape(name)}</figcaption>{gantt(frame, table, name)}</figure>"
        for name, table in shown
    ]


def _legend(frame: GanttFrame) -> str:
    boxes = "".join(f'<i class="c{shade}"></i>' for shade in range(SHADES))
    low, high = frame.lowest_hertz / 1e6, frame.highest_hertz / 1e6
    return f"{low:.0f} MHz <span>{boxes}</span> {high:.0f} MHz"


def _cut(view: PlanView, frame: GanttFrame) -> str:
    if frame.seconds >= max(view.plan.full_clocks.seconds, view.savings[-1].plan.seconds):
        return ""
    unit = seconds_unit([frame.seconds])
    return f"Only the first {unit.text(frame.seconds)} are drawn; the rest goes on alike."


def _search_summary(search: ScheduleSearch) -> str:
    """What the best schedule saves in the time of 1F1B."""
    before, after = search.wanted.full_clocks_joules, search.best.joules
    if after is None:
        return ""
    joules = joules_unit([before])
    return (
        f" In the time of 1F1B at full clocks, {search.best.schedule.name} needs "
        f"{figure(after, joules)} instead of {figure(before, joules)}: "
        f"{100 * (1 - after / before):.1f} % less."
    )


def _search(search: ScheduleSearch) -> str:
    return (
        f"<h2>Which schedule</h2><p>{escape(search_caption(search))}.</p>"
        f'<div class="wide">{_table(SCHEDULE_HEADERS, schedule_rows(search))}</div>'
        '<p class="soft">Saved: against 1F1B at full clocks. Activations: the most microbatches '
        "that a rank holds at once. Transfers: messages per iteration.</p>"
        f'<div class="wide">{_table(WINNER_HEADERS, winner_rows(search))}</div>'
    )


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col"{_kind(header)}>{header}</th>' for header in headers)
    body = "".join(_row(headers, row) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(headers: Sequence[str], row: Sequence[str]) -> str:
    cells = "".join(
        f"<td{_kind(header)}>{escape(cell)}</td>"
        for header, cell in zip(headers[1:], row[1:], strict=True)
    )
    mark = ' class="best"' if "★" in row[-1] else ""
    return f'<tr{mark}><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _kind(header: str) -> str:
    return ' class="word"' if header in _WORDS else ""
