"""Show a sweep as one HTML page: tables and six charts in inline SVG, nothing to fetch."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from joulery.cli.page import html_document
from joulery.cli.sweep_view.charts import charts
from joulery.cli.sweep_view.rows import best_rows, published_rows, setting_rows
from joulery.cli.sweep_view.svg import svg

if TYPE_CHECKING:
    from joulery.cli.sweep_view.rows import Rows
    from joulery.sweep.published import PublishedSweep
    from joulery.sweep.table import SweepTable


def html_page(
    table: SweepTable, title: str, summary: str, published: PublishedSweep | None = None
) -> str:
    """One self-contained page, readable in light and dark, without scripts.

    Args:
        table: What the sweep found.
        title: What was swept, one line.
        summary: A sentence or two for people.
        published: Figures by others to show beside ours.
    """
    drawn = [
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{svg(chart, number)}</figure>"
        for number, chart in enumerate(charts(table), start=1)
    ]
    return html_document(
        title,
        table.origin,
        "joulery.cli.sweep_view",
        summary=escape(summary),
        best=_table(best_rows(table)),
        published=_published(table, published),
        charts="\n".join(drawn),
        settings="\n".join(_settings(table, gpus) for gpus in reversed(table.gpu_counts)),
        failures=_failures(table),
        sources=escape(table.sources),
    )


def _table(rows: Rows, default: str = "") -> str:
    kinds = ["" if letter == "r" else ' class="words"' for letter in rows.align]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title)}</th>'
        for kind, title in zip(kinds, rows.headers, strict=True)
    )
    body = []
    for row, cells in enumerate(rows.cells):
        marked = ' class="default"' if default and cells[0] == default else ""
        body.append(
            f"<tr{marked}>"
            + "".join(
                f'<td class="top">★ {escape(cell)}</td>'
                if (row, column) in rows.top
                else f"<td{kinds[column]}>{escape(cell)}</td>"
                for column, cell in enumerate(cells)
            )
            + "</tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{chr(10).join(body)}</tbody></table>"


def _settings(table: SweepTable, gpus: int) -> str:
    shown = " open" if gpus == table.gpu_counts[-1] else ""
    rows = _table(setting_rows(table, gpus), f"{table.default_watts:g} W")
    name = f"{gpus} GPU{'s' * (gpus > 1)}"
    return f'<details{shown}><summary>{name}</summary><div class="wide">{rows}</div></details>'


def _published(table: SweepTable, published: PublishedSweep | None) -> str:
    if published is None:
        return ""
    rows = _table(published_rows(table, published))
    return (
        f"<section><h2>Beside {escape(published.citation)}</h2>\n"
        f'<div class="wide">{rows}</div>\n<p class="soft">Ours is {escape(table.origin)}, '
        "theirs was measured at the plug of a real node. Host and job of the simulated node were "
        "fitted to these figures, so their agreement is no independent evidence.</p></section>"
    )


def _failures(table: SweepTable) -> str:
    if not table.failures:
        return ""
    listed = "".join(
        f"<li>{escape(str(run.trial))}: exit code {run.exit_code}</li>" for run in table.failures
    )
    return f"<h2>Runs that failed</h2>\n<ul>{listed}</ul>"
