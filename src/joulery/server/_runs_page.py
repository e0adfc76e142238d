"""Pages of runs of any kind: a table to search and sort, one run, and several compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from joulery.documents import LARGEST_ID
from joulery.jobs import run_entry
from joulery.reports import (
    comparison_report,
    energy_text,
    logged_run_report,
    run_state,
    slowdown_text,
)
from joulery.server._auth import context_of, may_see, may_see_all
from joulery.server._pages import PageRoute, render, zone_of
from joulery.server._problems import not_found
from joulery.storage import MOST_SEARCHED, SORTS, RunQuery, count_runs, list_runs, runs_mark
from joulery.units import human, human_duration, per_cent

if TYPE_CHECKING:
    from joulery.jobs import RunEntry
    from joulery.storage import TokenRecord

run_pages = APIRouter(route_class=PageRoute, include_in_schema=False)
_RUNS_PER_PAGE = 50  # by hand: two screens
_MOST_COMPARED = 5  # by hand: columns that fit a screen
_LONGEST_TEXT = 200  # characters of a search (by hand)
_COLUMNS = {"name": "run", "started": "begun", "time": "time", "energy": "energy"}
_COLUMNS |= {"power": "mean power"}


@run_pages.get("/runs", operation_id="runsPage")
def runs(
    request: Request, q: str = "", sort: str = "started", page: int = 1, *, now: bool = False
) -> Response:
    """All runs of the reader's teams, page by page."""
    context, caller = context_of(request), request.state.caller
    text = q[:_LONGEST_TEXT].replace("\0", "")
    query = RunQuery(
        None if may_see_all(caller) else caller.team,
        text,
        open_only=now,
        sort=sort if sort in SORTS else "started",
    )
    count = context.read(lambda transaction: count_runs(transaction, query))
    pages = max(1, -(-count // _RUNS_PER_PAGE))
    page = min(max(1, page), pages)
    records, mark = context.read(
        lambda transaction: (
            list_runs(transaction, query, _RUNS_PER_PAGE, (page - 1) * _RUNS_PER_PAGE),
            runs_mark(transaction),
        )
    )

    def address(**changes: Any) -> str:
        values = {"q": text, "sort": query.sort, "page": page} | ({"now": 1} if now else {})
        return "/runs?" + urlencode(values | changes)

    return render(
        request,
        "runs.html",
        "Runs",
        events="runs",
        mark=mark,
        rows=[_row(run_entry(record), context.clock.wall()) for record in records],
        count=count,
        q=text,
        now=now,
        sort=query.sort,
        columns=_COLUMNS,
        page=page,
        pages=pages,
        address=address,
        most_compared=_MOST_COMPARED,
        most_searched=MOST_SEARCHED,
    )


def _row(run: RunEntry, now: float) -> dict[str, Any]:
    """Texts of a run's row."""
    watts = run.mean_watts
    return {
        "run": run,
        "state": run_state(run, now),
        "energy": "–" if run.joules is None else energy_text(run.joules),
        "time": human_duration(run.seconds),
        "power": "–" if watts is None else human(watts, "W"),
        "saved": "–" if run.energy_saving is None else per_cent(run.energy_saving),
        "slowdown": "" if run.energy_saving is None else slowdown_text(run),
        "note": ", ".join(
            [run.origin] * (run.origin != "measured") + ["part of another"] * bool(run.part_of)
        ),
    }


def _find(request: Request, number: int) -> RunEntry:
    if number > LARGEST_ID:
        raise not_found()
    entry = context_of(request).jobs.run(number)
    caller: TokenRecord = request.state.caller
    if not may_see(caller, entry.team):
        raise not_found()
    return entry


@run_pages.get("/runs/{run:number}", operation_id="loggedRunPage")
def run_page(request: Request, run: int) -> Response:
    """One run: power over time, energy by device, its metric and tags."""
    context, entry = context_of(request), _find(request, run)
    now = context.clock.wall()
    job, _, number = entry.decision.partition(".")
    return render(
        request,
        "logged_run.html",
        entry.name,
        events="" if entry.ended else "runs",
        mark=context.read(runs_mark),
        run=entry,
        decision=f"/jobs/{job}/runs/{number}" if number else "",
        report=logged_run_report(entry, now, zone_of(request)),
    )


@run_pages.get("/runs/compare", operation_id="compareRunsPage")
def compare(request: Request) -> Response:
    """The runs that the query names as ``run``, beside each other."""
    texts = [value for name, value in request.query_params.multi_items() if name == "run"]
    numbers = [int(text) for text in texts if text.isdecimal() and len(text) < 19]
    entries = [_find(request, number) for number in dict.fromkeys(numbers[:_MOST_COMPARED])]
    now = context_of(request).clock.wall()
    report = comparison_report(entries, now, zone_of(request)) if len(entries) > 1 else None
    return render(request, "compare.html", "Compare runs", report=report)
