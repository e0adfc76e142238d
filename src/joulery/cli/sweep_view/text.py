"""Show a sweep, or the plan of one, as text for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from joulery.cli.sweep_view.rows import best_rows, published_rows, setting_rows
from joulery.cli.table import table as text_table
from joulery.units import human_duration

if TYPE_CHECKING:
    from joulery.cli.sweep_view.rows import Rows
    from joulery.sweep.plan import SweepPlan
    from joulery.sweep.published import PublishedSweep
    from joulery.sweep.table import SweepTable

_MOST_FAILURES = 5


def sweep_text(table: SweepTable, published: PublishedSweep | None = None) -> str:
    """The settings with the most boards, the best limits, and what failed."""
    most = table.gpu_counts[-1]
    heading = (
        f"{most} GPU{'s' * (most > 1)}, time and energy lost and gained against the default "
        f"{table.default_watts:g} W\n(figures are {table.origin}; * is the best of its column):"
    )
    parts = [
        heading,
        _table(setting_rows(table, most)),
    ]
    best = best_rows(table)
    if best.cells:
        legend = (
            f"Best limits ({table.origin}); difference is energy saved minus time lost, as good is "
            "what the\nruns cannot tell from the best:"
        )
        parts += [legend, _table(best)]
    else:
        parts.append(
            f"No run at the default {table.default_watts:g} W succeeded, so there is nothing to "
            "compare with."
        )
    if published is not None:
        heading = (
            f"Ours ({table.origin}) beside {published.citation} (measured);\n"
            "host and job of the simulated node were fitted to these figures:"
        )
        parts += [heading, _table(published_rows(table, published))]
    if table.failures:
        parts.append(_failures(table))
    return "\n\n".join(parts)


def _table(rows: Rows) -> str:
    # Every cell of a column with a star in it keeps a place for one, so that figures align.
    starred = {column for _, column in rows.top}
    cells = [
        [
            f"{cell} {'*' if (row, column) in rows.top else ' '}" if column in starred else cell
            for column, cell in enumerate(line)
        ]
        for row, line in enumerate(rows.cells)
    ]
    headers = [f"{h}  " if column in starred else h for column, h in enumerate(rows.headers)]
    return textwrap.indent(text_table(headers, cells, rows.align), "  ")


def _failures(table: SweepTable) -> str:
    count = len(table.failures)
    lines = [f"{count} run{'s' * (count > 1)} failed; the same command tries again:"]
    lines += [
        f"  {run.trial}: exit code {run.exit_code}" for run in table.failures[:_MOST_FAILURES]
    ]
    if count > _MOST_FAILURES:
        lines.append(f"  and {count - _MOST_FAILURES} more, see the journal")
    return "\n".join(lines)


def plan_text(plan: SweepPlan, done: int, seconds: float | None, *, simulated: bool = False) -> str:
    """What a sweep would do."""
    limits = ", ".join(f"{watts:g}" for watts in plan.limits_watts)
    counts = ", ".join(str(gpus) for gpus in plan.gpu_counts)
    left = len(plan) - done
    lines = [
        f"work     {' '.join(plan.work)}",
        f"boards   {len(plan.boards)}, all under the same limit",
        f"limits   {limits} W; the default is {plan.default_watts:g} W",
        f"GPUs     {counts}",
        f"repeats  {plan.repeats}",
        f"runs     {len(plan)}" + (f", of which {done} are done already" if done else ""),
    ]
    if seconds is None:
        lines.append(
            f"duration unknown before the first run; {human_duration(60.0 * left)} if each run "
            "takes a minute (say how long with --run-seconds)"
        )
    else:
        clock = " on the simulated clock; seconds here" if simulated else ""
        lines.append(f"duration about {human_duration(seconds)}{clock}")
    return "\n".join(lines)
