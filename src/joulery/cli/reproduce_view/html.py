"""Show a reproduction as one HTML page: what was saved, beside the published, then every figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from joulery.cli.page import html_document
from joulery.cli.reproduce_view.theme import network
from joulery.cli.reproduce_view.words import HEADERS, claim_rows, headline
from joulery.simulate.reproduce_claims import CITATION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.simulate.reproduce_claims import Claim
    from joulery.simulate.reproduce_rows import Cell, FigureData, Rows

# A longer table belongs into its CSV file.
_MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class Shown:
    """One figure on the page.

    Attributes:
        data: Its figures.
        drawings: Each picture's file, and the same as SVG.
        tables: The CSV files.
    """

    data: FigureData
    drawings: tuple[tuple[Path, str], ...]
    tables: tuple[Path, ...]


def html_page(
    shown: Sequence[Shown], claims: Sequence[Claim], missing: Sequence[str], seeds: int
) -> str:
    """One self-contained page, readable in light and dark, without scripts.

    Args:
        shown: The figures.
        claims: Ours beside the published.
        missing: What could not be made, and why.
        seeds: Of each comparison.
    """
    in_order = sorted(shown, key=lambda one: one.data.numbers or (0,))
    cards = "".join(
        f'<div class="card"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
        for figure, words in headline(claims, seeds)
    )
    return html_document(
        "Zeus (NSDI'23), reproduced",
        "simulated from traces",
        "joulery.cli.reproduce_view",
        cards=cards,
        citation=escape(CITATION),
        seeds=str(seeds),
        claims=_claims(claims),
        remarks=_remarks(claims),
        missing="".join(f"<li>{escape(line)}</li>" for line in missing),
        contents=" ".join(
            f'<a href="#{one.data.name}">{escape(one.data.label)}</a>' for one in in_order
        ),
        figures="\n".join(_figure(one) for one in in_order),
    )


def _claims(claims: Sequence[Claim]) -> str:
    if not claims:
        return '<p class="soft">The figures chosen have no published counterpart.</p>'
    words = {"figure", "GPU", "what"}
    head = "".join(
        f'<th scope="col"{" class=words" * (name in words)}>{escape(name)}</th>' for name in HEADERS
    )
    body = []
    for claim, row in zip(claims, claim_rows(claims), strict=True):
        cells = "".join(
            f"<td{' class=words' * (name in words)}>{escape(cell)}</td>"
            for name, cell in zip(HEADERS, row, strict=True)
        )
        marked = " class=published" if claim.published is not None else ""
        body.append(f"<tr{marked}>{cells}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _remarks(claims: Sequence[Claim]) -> str:
    lines = dict.fromkeys(f"{claim.figure}: {claim.remark}" for claim in claims if claim.remark)
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _figure(one: Shown) -> str:
    data = one.data
    pictures = "".join(
        f'<div class="plot" role="img" aria-label="{escape(_described(data, path))}">{svg}</div>'
        for path, svg in one.drawings
    )
    files = [path.name for path, _ in one.drawings] + [path.name for path in one.tables]
    links = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in files)
    remark = f"<p>{escape(data.remark)}</p>" if data.remark else ""
    return (
        f'<section id="{data.name}"><h2><span class="number">{escape(data.label)}</span> '
        f"{escape(data.title)}</h2>{remark}{pictures}{_table(data.tables[-1])}"
        f'<p class="soft">Files: {links}</p></section>'
    )


def _described(data: FigureData, path: Path) -> str:
    return f"{data.label}: {data.title} ({path.stem}); its figures are in the CSV files below"


def _table(rows: Rows) -> str:
    if len(rows) > _MOST_ROWS:
        return ""
    head = "".join(f'<th scope="col">{escape(_spaced(name))}</th>' for name in rows.columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=words' * isinstance(cell, str)}>{escape(_cell(cell))}</td>"
            for cell in row
        )
        + "</tr>"
        for row in rows.cells
    )
    return (
        f'<details><summary>Figures as a table</summary><div class="wide"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _cell(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1e4 else f"{cell:.4g}"
    return network(cell) if isinstance(cell, str) else str(cell)
