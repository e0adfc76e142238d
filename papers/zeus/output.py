"""The output folder: pictures, tables, a summary as JSON and one page; all of it or nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError
from papers.zeus.claims import CITATION, HEADERS, claim_rows, claims, headline
from papers.zeus.tables import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from papers.zeus.claims import Claim
    from papers.zeus.tables import Cell, Figure, Table

SCHEMA = "joulery.reproduce/1"
PAGE, DOCUMENT = "index.html", "reproduce.json"
_MOST_ROWS = 60  # a longer table is in its CSV file only
_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 75rem; margin: auto; padding: 1rem; }
img { max-width: 100%; background: white; }
.wide { overflow-x: auto; }
td, th { padding: 0.2rem 0.6rem; text-align: right; white-space: nowrap; }
td.words, th.words { text-align: left; }
.headline b { font-size: 1.5rem; }
"""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of ``out`` when all went well.

    Raises:
        FileError: ``out`` holds something else, or cannot be written to.
    """
    ours = out.is_dir() and ((out / DOCUMENT).exists() or not any(out.iterdir()))
    if out.exists() and not ours:
        raise FileError(
            f"{out} exists and holds other things", remedy="choose another folder with --out"
        )
    fresh = out.parent / f".{out.name}.{os.getpid()}.new"
    old = out.parent / f".{out.name}.{os.getpid()}.old"
    try:
        fresh.mkdir(parents=True)
    except OSError as error:
        raise FileError(
            f"cannot make {fresh}: {error.strerror}", remedy="choose another folder with --out"
        ) from None
    try:
        yield fresh
        if out.exists():
            out.rename(old)
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class WrittenFigure:
    """A figure with its files.

    Attributes:
        figure: The figure.
        pictures: Names of the PNG files.
        tables: Names of the CSV files.
    """

    figure: Figure
    pictures: tuple[str, ...]
    tables: tuple[str, ...]


def write_reproduction(
    figures: Iterable[Figure],
    folder: Path,
    seeds: int,
    missing: Sequence[str],
    remarks: Sequence[str],
) -> tuple[dict[str, Any], list[Claim]]:
    """Write tables, pictures and the page; the summary that is also written, and the claims.

    Args:
        figures: Figures, made as they are iterated over.
        folder: Folder to write to.
        seeds: Number of seeds of each comparison.
        missing: Parts of the publication that could not be made.
        remarks: Notes on the traces.
    """
    written = []
    draw = _draw_function()
    if draw is None:
        remarks = [*remarks, "no pictures without matplotlib: pip install 'joulery[plots]'"]
    for figure in figures:
        for table in figure.tables:
            (folder / f"{table.name}.csv").write_text(table.csv_text(), encoding="utf-8")
        pictures = () if draw is None else tuple(path.name for path in draw(figure, folder))
        tables = tuple(f"{table.name}.csv" for table in figure.tables)
        written.append(WrittenFigure(figure, pictures, tables))
    results = claims({item.figure.name: item.figure for item in written})
    document = {
        "schema": SCHEMA,
        "seeds": seeds,
        "claims": [asdict(claim) for claim in results],
        "figures": [
            {
                "name": item.figure.name,
                "numbers": item.figure.numbers,
                "title": item.figure.title,
                "files": [*item.pictures, *item.tables],
            }
            for item in written
        ],
        "missing": list(missing),
        "remarks": list(remarks),
    }
    text = json.dumps(document, allow_nan=False, indent=1)
    (folder / DOCUMENT).write_text(text + "\n", encoding="utf-8")
    (folder / PAGE).write_text(html_page(written, results, missing, seeds), encoding="utf-8")
    return document, results


def _draw_function() -> Callable[[Figure, Path], list[Path]] | None:
    """The function that draws a figure; None where matplotlib is not installed."""
    try:
        from papers.zeus.drawings import draw
    except ImportError:
        return None
    return draw


def html_page(
    written: Sequence[WrittenFigure], results: Sequence[Claim], missing: Sequence[str], seeds: int
) -> str:
    """One page: the headline, the claims next to the published figures, then every figure."""
    in_order = sorted(written, key=lambda item: item.figure.numbers or (0,))
    lines = [f"<b>{escape(value)}</b> {escape(words)}" for value, words in headline(results, seeds)]
    remarks = dict.fromkeys(f"{claim.figure}: {claim.remark}" for claim in results if claim.remark)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Zeus (NSDI'23), reproduced</title><style>{_STYLE}</style></head><body>",
            "<h1>Zeus (NSDI'23), reproduced from its traces</h1>",
            f"<p>{escape(CITATION)}. Simulated with {seeds} seeds.</p>",
            *(f'<p class="headline">{line}</p>' for line in lines),
            _html_table(HEADERS, claim_rows(results)) if results else "",
            _html_list([*remarks, *(f"missing: {line}" for line in missing)]),
            *(_html_figure(item) for item in in_order),
            "</body></html>\n",
        ]
    )


def _html_figure(item: WrittenFigure) -> str:
    figure = item.figure
    title = escape(f"{figure.label} {figure.title}")
    pictures = "".join(
        f'<img src="{escape(n)}" alt="{title} ({escape(n)})">' for n in item.pictures
    )
    links = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in item.tables)
    table = _figure_table(figure.tables[-1])
    return (
        f'<section id="{figure.name}"><h2>{title}</h2><p>{escape(figure.remark)}</p>{pictures}'
        f"{table}<p>Tables: {links}</p></section>"
    )


def _figure_table(table: Table) -> str:
    if not 0 < len(table) <= _MOST_ROWS:
        return ""
    cells = [[_text(cell) for cell in row.values()] for row in table.rows]
    headers = [name.replace("_", " ") for name in table.rows[0]]
    return f"<details><summary>Figures as a table</summary>{_html_table(headers, cells)}</details>"


def _html_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f"<{tag}{' class=words' if cell[:1].isalpha() else ''}>{escape(cell)}</{tag}>"
            for cell in cells
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="wide"><table>{line("th", headers)}{body}</table></div>'


def _html_list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _text(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1e4 else f"{cell:.4g}"
    return network(cell) if isinstance(cell, str) else str(cell)
