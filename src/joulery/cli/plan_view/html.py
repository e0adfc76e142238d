"""Show a planned pipeline as one HTML page: who works when, before and after, and the frontier."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_unit, seconds_unit
from joulery.cli.page import html_document
from joulery.cli.plan_view.choice_text import (
    SCHEDULE_HEADERS,
    WINNER_HEADERS,
    memory_limit,
    opening,
    schedule_rows,
    winner_rows,
)
from joulery.cli.plan_view.curve import curve
from joulery.cli.plan_view.gantt import SHADES, Frame, gantt
from joulery.cli.plan_view.text import figure, title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from joulery.cli.plan_view.choice import Choice
    from joulery.cli.plan_view.study import Outcome, Study

# More boxes than this make a page that browsers are slow to draw and nobody can read. Where little
# would be cut off, nothing is.
_MOST_BOXES = 1500
_NEARLY_ALL = 0.8
# Columns of words; all others hold figures.
_WORDS = ("best", "with memory to spare", "")


def html_page(study: Study, choice: Choice | None = None) -> str:
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
            f"in equal time.{'' if choice is None else _won(choice)}"
        ),
        outcomes=_outcomes(study),
        choice="" if choice is None else _choice(choice),
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
    share = _MOST_BOXES / len(study.problem)
    share = 1.0 if share > _NEARLY_ALL else share
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
    return _table(headers, [_row(study.outcomes, outcome) for outcome in study.outcomes])


def _won(choice: Choice) -> str:
    """What the schedule that won saves in the time of 1F1B."""
    before, after = choice.wanted.full_clock_joules, choice.best.joules
    if after is None:
        return ""
    joules = joules_unit([before])
    return (
        f" In the time of 1F1B at full clocks, {choice.best.schedule.name} needs "
        f"{figure(after, joules)} instead of {figure(before, joules)}: "
        f"{100 * (1 - after / before):.1f} % less."
    )


def _choice(choice: Choice) -> str:
    """Which schedule won among which, and at what number of microbatches."""
    wanted, limit = choice.wanted, choice.most_activations
    schedules = schedule_rows(wanted, limit)
    by_count = winner_rows(choice.comparisons, memory_limit(choice))
    return (
        f"<h2>Which schedule</h2><p>{escape(opening(wanted, limit))}.</p>"
        f'<div class="wide">{_table(SCHEDULE_HEADERS, _rows(SCHEDULE_HEADERS, schedules))}</div>'
        '<p class="soft">Saved: against 1F1B at full clocks. Activations: the most microbatches '
        "that a rank holds at once. Transfers: messages per iteration.</p>"
        f'<div class="wide">{_table(WINNER_HEADERS, _rows(WINNER_HEADERS, by_count))}</div>'
    )


def _table(headers: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f'<th scope="col"{_kind(header)}>{header}</th>' for header in headers)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _rows(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        cells = "".join(
            f"<td{_kind(header)}>{escape(cell)}</td>"
            for header, cell in zip(headers[1:], row[1:], strict=True)
        )
        mark = ' class="best"' if "★" in row[-1] else ""
        yield f'<tr{mark}><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _kind(header: str) -> str:
    return ' class="word"' if header in _WORDS else ""


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
