"""Reports: headings, text, tables and charts, shown as one HTML page or in the terminal."""

from __future__ import annotations

import json
import math
import re
import textwrap
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.reports._chart import Chart, Gantt
from joulery.reports._drawing import bar_svg, draw, heat_legend, palette_css, svg
from joulery.reports._terminal import Terminal, plot, table_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from joulery.reports._chart import Axis

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading above what follows it."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; ``soft`` ones explain and stand back, an ``alert`` needs attention."""

    text: str
    soft: bool = False
    alert: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        headers: One title per column.
        rows: Cells, one sequence per row.
        align: Letter ``l`` or ``r`` per column; missing ones are left-aligned.
        best: (row, column) of every cell to mark as the best of its column.
        kinds: Role of each row, such as ``default`` or ``chosen``; empty for none.
        links: Address that the first cell of each row leads to in pages; empty for none.
        bars: Length and standard error of a bar after each row in pages, as shares; empty for none.
        hints: Advice on each row to whoever gives the command, after its last cell in the terminal
            only: readers of pages and papers cannot follow it.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    kinds: Sequence[str] = ()
    links: Sequence[str] = ()
    bars: Sequence[tuple[float, float]] = ()
    hints: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        rows: Iterable[_T],
        columns: Mapping[str, Callable[[_T], str]],
        best: frozenset[tuple[int, int]] = frozenset(),
        kinds: Sequence[str] = (),
    ) -> Table:
        """A table of rows, with a function per column.

        Args:
            rows: One thing per row.
            columns: Cell by title; a title that starts with ``>`` is of a right-aligned column.
            best: (row, column) of every cell to mark as the best of its column.
            kinds: Role of each row.
        """
        titles = [title.removeprefix(">") for title in columns]
        align = "".join("r" if title.startswith(">") else "l" for title in columns)
        cells = [[cell(row) for cell in columns.values()] for row in rows]
        return cls(titles, cells, align, best, kinds)

    def text(self, columns: int | None = None) -> str:
        """Plain text, no wider than the terminal unless so many columns are given."""
        # Every cell of a column with a star in it keeps a place for one, so that figures align.
        starred = {column for _, column in self.best}
        rows = [
            [
                f"{cell} {'*' if (row, column) in self.best else ' '}"
                if column in starred
                else cell
                for column, cell in enumerate(cells)
            ]
            for row, cells in enumerate(self.rows)
        ]
        for row, hint in zip(rows, self.hints, strict=False):
            row[-1] = ": ".join(filter(None, (row[-1], hint)))
        headers = [f"{h}  " if column in starred else h for column, h in enumerate(self.headers)]
        text = table_text(headers, rows, self.align, columns)
        return re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)


def table_of(rows: Iterable[_T], columns: Mapping[str, Callable[[_T], str]]) -> str:
    """A table as plain text; ``rows`` and ``columns`` are those of ``Table.of``."""
    return Table.of(rows, columns).text()


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A figure to be seen first.

    Attributes:
        name: Quantity.
        value: Figure with its unit and error.
        note: Reference and provenance, as text.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """Figures side by side."""

    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True, slots=True)
class HeatLegend:
    """Legend of the colours of Gantt charts."""

    cold: str
    hot: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Blocks for pages only, side by side where there is room unless they are ``stacked``."""

    blocks: tuple[Block, ...]
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that the reader opens."""

    summary: str
    blocks: tuple[Block, ...]
    open: bool = False


Block = Heading | Paragraph | Table | KeyFigures | Chart | Gantt | HeatLegend | Grid | Details


@dataclass(frozen=True, slots=True)
class Report:
    """A title, how its figures came about, and the blocks below.

    Attributes:
        title: Subject in one line.
        origin: Provenance of every figure, such as ``simulated``; empty where each states its own.
        blocks: Content from the top.
        sources: Sources of the figures, as text.
    """

    title: str
    origin: str
    blocks: tuple[Block, ...]
    sources: str = ""

    def __post_init__(self) -> None:
        # Charts are shown and written without their report, so each says it itself.
        object.__setattr__(self, "blocks", charts_of(self.blocks, self.origin))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All charts among the blocks, in order."""
        return tuple(_charts(self.blocks))

    def body(self, name: str = "chart", *, with_data: bool = False) -> str:
        """The content of a page below its title.

        Args:
            name: Beginning of the ids of its charts, unique in the page.
            with_data: Whether charts carry their figures for scripts that show values, zoom and
                save.
        """
        body = _HtmlWriter(self.title, name, with_data=with_data).blocks(self.blocks)
        sources = f"Source of the figures: {escape(self.sources)}" if self.sources else ""
        badge = f'<p><span class="badge">every figure here is {escape(self.origin)}</span></p>'
        return f'{badge if self.origin else ""}\n{body}\n<p class="soft">{sources}</p>'

    def html(self) -> str:
        """One self-contained page, readable in light and dark, without scripts."""
        return html_page(self.title, self.body())

    def text(self, terminal: Terminal) -> str:
        """The same for a terminal; what the reader would have to open is left out."""
        blocks = (Heading(self.title), *self.blocks)
        return "\n\n".join(_text_blocks(blocks, terminal))

    def markdown(self) -> str:
        """The same as Markdown, without the charts."""
        origin = [f"Every figure here is {self.origin}."] if self.origin else []
        parts = [f"## {self.title}", *origin, *_markdown_blocks(self.blocks)]
        sources = [f"Source of the figures: {self.sources}"] if self.sources else []
        return "\n\n".join([*parts, *sources]) + "\n"

    def latex(self) -> str:
        """The tables for a paper, as LaTeX that needs the packages booktabs and array."""
        note = f" Every figure here is {self.origin}." if self.origin else ""
        tables = "\n\n".join(_latex_tables(self.blocks, self.title, note))
        return f"% \\usepackage{{booktabs,array}}\n{tables}\n"


def _latex_tables(blocks: Sequence[Block], title: str, note: str) -> Iterator[str]:
    """Tables with captions: the title of the report, and the heading above each."""
    subject = title
    for block in blocks:
        if isinstance(block, Heading):
            subject = f"{title}: {block.text[:1].lower()}{block.text[1:]}"
        elif isinstance(block, Table):
            label = "-".join(re.findall("[a-z0-9]+", subject.lower()))
            yield _latex_table(block, f"{subject}.{note}", f"tab:{label}")
        elif isinstance(block, Grid | Details):
            yield from _latex_tables(block.blocks, title, note)


def _latex_table(table: Table, caption: str, label: str) -> str:
    columns = _latex_columns(table)
    header, *rows = (
        " & ".join(map(_latex_text, row)) + r" \\" for row in (table.headers, *table.rows)
    )
    if "p{" in columns:  # else it cannot be seen where a row of several lines ends
        rows[:-1] = [row + r"\addlinespace" for row in rows[:-1]]
    lines = [
        r"\begin{table}",
        rf"\caption{{{_latex_text(caption)}}}",
        rf"\label{{{label}}}",
        r"\footnotesize",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        *(r"\toprule", header, r"\midrule", *rows, r"\bottomrule"),
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_columns(table: Table) -> str:
    """Columns of a table: where it is wider than a line, those of words wrap in what is left."""
    columns = list(zip(table.headers, *table.rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    align = table.align.ljust(len(columns), "l")
    room = 1.0 - _LATEX_GAP * (len(columns) - 1)
    if _LATEX_LETTER * sum(widths) <= room:
        return align
    wrapped = [
        letter == "l" and width > _LATEX_WORD for letter, width in zip(align, widths, strict=True)
    ]
    room -= _LATEX_LETTER * sum(
        width for width, wraps in zip(widths, wrapped, strict=True) if not wraps
    )
    # By the root, so that no column is as narrow as a word because another has a sentence.
    roots = [wraps * math.sqrt(width) for width, wraps in zip(widths, wrapped, strict=True)]
    return "".join(
        rf">{{\raggedright\arraybackslash}}p{{{max(0.1, room * root / sum(roots)):.2f}\linewidth}}"
        if root
        else letter
        for letter, root in zip(align, roots, strict=True)
    )


# By hand: widths in \footnotesize, as shares of a line of 345 pt: of a letter, and between columns.
_LATEX_LETTER, _LATEX_GAP = 0.0127, 0.035
_LATEX_WORD = 16  # by hand: letters of a column that does not wrap
_LATEX = {char: f"\\{char}" for char in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "≤": r"$\leq$",
    "→": r"$\rightarrow$",
}


def _latex_text(text: str) -> str:
    escaped = "".join(_LATEX.get(char, char) for char in text)
    # Two hyphens of an option would become a dash.
    escaped = escaped.replace("--", "-{}-").replace("–", "--")
    return escaped.replace("CO2", r"CO\textsubscript{2}").replace(r" \%", r"~\%")


def _markdown_blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Heading):
            yield f"### {block.text}"
        elif isinstance(block, Paragraph):
            yield block.text
        elif isinstance(block, Table):
            marks = ["---:" if letter == "r" else "---" for letter in block.align]
            marks += ["---"] * (len(block.headers) - len(marks))
            rows = (
                [cell.replace("|", "\\|") for cell in row] for row in (block.headers, *block.rows)
            )
            lines = [f"| {' | '.join(cells)} |" for cells in rows]
            yield "\n".join([lines[0], f"| {' | '.join(marks)} |", *lines[1:]])
        elif isinstance(block, KeyFigures):
            yield "\n".join(
                f"- {figure.name}: {figure.value} ({figure.note})" for figure in block.figures
            )
        elif isinstance(block, Grid | Details):
            yield from _markdown_blocks(block.blocks)


def _charts(blocks: Sequence[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Chart):
            yield block
        elif isinstance(block, Grid | Details):
            yield from _charts(block.blocks)


def charts_of(blocks: Iterable[Block], origin: str) -> tuple[Block, ...]:
    """Blocks whose charts say the origin of their figures, where they do not already."""

    def marked(block: Block) -> Block:
        if isinstance(block, Chart):
            return block if block.origin else replace(block, origin=origin)
        if isinstance(block, Grid | Details):
            return replace(block, blocks=charts_of(block.blocks, origin))
        return block

    return tuple(map(marked, blocks))


def html_page(title: str, body: str) -> str:
    """A whole page around ``body``: one file, nothing to fetch."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{page_style()}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def page_style() -> str:
    """The style sheet of all pages."""
    return f"{palette_css()}\n{_STYLE}"


_PHONE = (380.0, 360.0)  # pixels of a chart on a narrow screen
_SCREEN, _HALF = (760.0, 440.0), (580.0, 360.0)  # on a wide one, and of one of two in a row
_STYLE = """\
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
p { max-width: 60rem; }
.badge { display: inline-block; background: #fff3c4; color: #5c4400; font-size: .85rem;
  font-weight: 600; padding: .1rem .6rem; border-radius: 1rem; }
figure { margin: 0 0 1rem; } figcaption { font-weight: 600; } .grid figure { margin: 0; }
.chart { max-width: 56rem; } .chart svg, .gantt svg { display: block; width: 100%; height: auto; }
.phone { display: none; }
@media (max-width: 34rem) { .chart .phone { display: inline; } .chart .screen { display: none; } }
.gantt svg { min-width: 44rem; } .heat { width: 16rem; min-width: 0; }
.heats { display: flex; gap: .4rem; align-items: center; white-space: nowrap; }
svg text { font-family: system-ui, sans-serif; font-size: 13px; paint-order: stroke;
  stroke: var(--paper); stroke-width: 3px; }
svg text.bare { stroke: none; font-size: 11px; } svg g:focus { outline: 2px solid var(--s0); }
.wide { overflow-x: auto; margin: 0 0 1rem;  /* shadows at the sides that can be scrolled */
  background: linear-gradient(to right, var(--paper) 1rem, transparent) left / 2rem 100% local,
    linear-gradient(to left, var(--paper) 1rem, transparent) right / 2rem 100% local,
    linear-gradient(to right, var(--rule), transparent) left / .8rem 100%,
    linear-gradient(to left, var(--rule), transparent) right / .8rem 100%;
  background-repeat: no-repeat; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 29rem), 1fr));
  gap: 1rem 2rem; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .95rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap;
  padding: .25rem .6rem; }
.left { text-align: left; } td.left { white-space: normal; min-width: 6rem; }
td.best, tr.chosen > * { color: var(--s2); font-weight: 600; }
tr.default > * { color: var(--s1); }
.soft { color: var(--soft); font-size: .9rem; }
.error { border-left: 4px solid var(--s4); padding: .2rem .8rem; }
a { color: var(--s0); } td a { font-weight: 600; text-decoration: none; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem;
  margin: 1rem 0; padding: 0; }
.figures > div { border: 1px solid var(--rule); border-radius: .6rem; padding: .8rem 1rem; }
.figures dt { color: var(--soft); font-size: .9rem; } .figures dd { margin: 0; }
.figures .value { font-size: 1.45rem; font-weight: 650; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
@media (max-width: 34rem) { .figures { grid-template-columns: 1fr 1fr; gap: .6rem; }
  .figures > div { padding: .5rem .7rem; } .figures .value { font-size: 1.15rem; }
  .wide > table { width: max-content; max-width: 46rem; } }
.bar { width: 8rem; height: 1rem; vertical-align: middle; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } th, td { white-space: normal; }
  .wide { overflow: visible; } figure, table { break-inside: avoid; } h2 { break-after: avoid; } }
@media (prefers-color-scheme: dark) { .badge { background: #4a3b0a; color: #ffe9a6; } }
"""


class _HtmlWriter:
    """Writes blocks as HTML, with ids that are unique in a page.

    Args:
        title: Title of the page, which a chart of the same title need not repeat.
        name: Beginning of the ids.
        with_data: Whether charts carry their figures for scripts.
    """

    def __init__(self, title: str, name: str, *, with_data: bool = False) -> None:
        self._title = title
        self._name = name
        self._with_data = with_data
        self._charts = 0
        self._size = _SCREEN

    def blocks(self, blocks: Sequence[Block]) -> str:
        return "\n".join(map(self.block, blocks))

    def block(self, block: Block) -> str:
        if isinstance(block, Chart | Gantt):
            return self._figure(block)
        if isinstance(block, Grid | Details):
            return self._nested(block)
        if isinstance(block, Table | KeyFigures):
            return _html_table(block) if isinstance(block, Table) else _html_figures(block)
        if isinstance(block, HeatLegend):
            return f'<p class="heats">{escape(block.cold)} {heat_legend()} {escape(block.hot)}</p>'
        if isinstance(block, Heading):
            return f"<h2>{escape(block.text)}</h2>"
        kind = ' class="error"' if block.alert else ' class="soft"' if block.soft else ""
        return f"<p{kind}>{escape(block.text)}</p>"

    def _nested(self, block: Grid | Details) -> str:
        if isinstance(block, Grid) and block.stacked:
            return self.blocks(block.blocks)
        if isinstance(block, Grid):
            self._size = _HALF
            inner = "\n".join(f"<div>{self.block(part)}</div>" for part in block.blocks)
            self._size = _SCREEN
            return f'<div class="grid">\n{inner}\n</div>'
        attribute = " open" if block.open else ""
        summary = f"<summary>{escape(block.summary)}</summary>"
        return f"<details{attribute}>{summary}\n{self.blocks(block.blocks)}</details>"

    def _figure(self, chart: Chart | Gantt) -> str:
        self._charts += 1
        kind = "gantt wide" if isinstance(chart, Gantt) else "chart"
        content = svg(draw(chart, *self._size), f"{self._name}-{self._charts}")
        if isinstance(chart, Chart):  # drawn anew for narrow screens, where letters would shrink
            narrow = svg(draw(chart, *_PHONE), f"{self._name}-{self._charts}-narrow")
            content = f'<div class="screen">{content}</div><div class="phone">{narrow}</div>'
        has_caption = chart.title != self._title
        caption = f"<figcaption>{escape(chart.title)}</figcaption>" if has_caption else ""
        data = ""
        if self._with_data and isinstance(chart, Chart):
            data = f' data-chart="{escape(json.dumps(_chart_data(chart)))}"'
        return f'<figure class="{kind}"{data}>{caption}{content}</figure>'


def _chart_data(chart: Chart) -> dict[str, Any]:
    """Figures of a chart in the units of its axes."""

    def axis(axis: Axis, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "unit": axis.unit.name,
            "ticks": [_shorten(tick) for tick in axis.ticks],
            "labels": axis.labels,
        }

    x, y = chart.x.unit.size, chart.y.unit.size
    series = [
        {
            "name": line.name,
            "bars": line.symbol == "bar",
            "points": [[_shorten(a / x), _shorten(b / y)] for a, b in line.points],
            "errors": [_shorten(error / y) for error in line.errors],
        }
        for line in chart.series
    ]
    return {
        "title": chart.title,
        "x": axis(chart.x, chart.x.name),
        "y": axis(chart.y, chart.y_name),
        "series": series,
    }


def _shorten(value: float) -> float:
    return float(f"{value:.6g}")


def _html_table(table: Table) -> str:
    aligned = [
        ' class="left"' if table.align[at : at + 1] != "r" else ""
        for at in range(len(table.headers))
    ]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title)}</th>'
        for kind, title in zip(aligned, table.headers, strict=True)
    )
    lowest = min((share - error for share, error in table.bars if share < 0), default=0.0)
    lines = []
    for row, cells in enumerate(table.rows):
        kind = table.kinds[row] if table.kinds else ""
        marked = f' class="{kind}"' if kind else ""
        columns = "".join(
            f'<td class="best">★ {escape(cell)}</td>'
            if (row, column) in table.best
            else f"<td{aligned[column]}>{_html_cell(table, row, column, cell)}</td>"
            for column, cell in enumerate(cells)
        )
        if table.bars:
            columns += f'<td class="left">{bar_svg(*table.bars[row], lowest)}</td>'
        lines.append(f"<tr{marked}>{columns}</tr>")
    body = "\n".join(lines)
    head = f"<thead><tr>{head}{'<td></td>' if table.bars else ''}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}\n<tbody>{body}</tbody></table></div>'


def _html_cell(table: Table, row: int, column: int, cell: str) -> str:
    if column or not table.links:
        return escape(cell)
    return f'<a href="{escape(table.links[row])}">{escape(cell)}</a>'


def _html_figures(block: KeyFigures) -> str:
    items = "\n".join(
        f'<div><dt>{escape(figure.name)}</dt><dd class="value">{escape(figure.value)}</dd>'
        f'<dd class="soft">{escape(figure.note)}</dd></div>'
        for figure in block.figures
    )
    return f'<dl class="figures">\n{items}\n</dl>'


def _text_blocks(blocks: Sequence[Block], terminal: Terminal) -> Iterator[str]:
    several = sum(isinstance(block, Chart) for block in blocks) > 1  # then each needs its title
    for block in blocks:
        if isinstance(block, Heading | Paragraph):
            width = min(100, terminal.columns)
            text = textwrap.fill(block.text, width, break_on_hyphens=False)
            yield terminal.bold(text) if isinstance(block, Heading) else text
        elif isinstance(block, KeyFigures):
            rows = [[figure.name, figure.value, figure.note] for figure in block.figures]
            yield table_text(["figure", "value", "note"], rows, "lll", terminal.columns)
        elif isinstance(block, Table):
            yield block.text(terminal.columns)
        elif isinstance(block, Chart):
            title = f"{terminal.bold(block.title)}\n\n" if several else ""
            yield title + plot(block, terminal)
        elif isinstance(block, Details) and block.open:
            yield from _text_blocks(block.blocks, terminal)
