"""The dashboard: pages for people, from templates, with charts drawn by ``joulery.reports``.

Pages work without scripts; one small script keeps them up to date.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, cast, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, StreamingResponse

from joulery.client import job_summary
from joulery.errors import InvalidValueError
from joulery.jobs import PeriodUnit, decision_page, job_entry, open_runs, run_history, total_watts
from joulery.objectives import Cost, LeastEnergy
from joulery.reports import (
    Measure,
    OtherRuns,
    OverviewRange,
    all_time,
    count_text,
    describe_objective,
    job_report,
    overview_report,
    page_style,
    run_report,
    running_report,
    suitable_unit,
)
from joulery.server._auth import authenticate, context_of, may_see, may_see_all, session_end
from joulery.server._pages import PageRoute, cookie_name, is_secure, read_form, render, zone_of
from joulery.server._problems import ProblemError, no_permission, not_found
from joulery.storage import (
    LIFETIME_SECONDS,
    Permission,
    begin_session,
    digest_of,
    end_session,
    other_energy,
    run_totals,
    runs_mark,
)
from joulery.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import tzinfo

    from joulery.jobs import DecisionEntry, JobTotals
    from joulery.objectives import Objective
    from joulery.reports import Report
    from joulery.server._figures import FiguresCache
    from joulery.storage import OtherEnergy, TokenRecord


RANGES = {"7": "7 days", "30": "30 days", "90": "90 days", "365": "a year", "all": "all time"}
UNITS = ("", *get_args(PeriodUnit))  # the empty one for what suits the range
MEASURES = {"energy": "energy", "co2": "CO2", "money": "money"}
_DEFAULT_DAYS = "30"
_LONGEST = 30 * 366 * SECONDS_PER_DAY  # by hand: months that a chart shows


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """What a reader has asked for, as text that may be anything.

    Attributes:
        days: One of ``RANGES``.
        first: First day, as ISO date; in place of ``days``.
        last: Last day, as ISO date.
        unit: Length of periods; what suits the range unless it is a length.
        measure: Quantity of charts.
    """

    days: str = ""
    first: str = ""
    last: str = ""
    unit: str = ""
    measure: str = ""

    def resolve(
        self,
        jobs: Sequence[JobTotals],
        now: float,
        zone: tzinfo,
        others: Sequence[OtherEnergy] = (),
    ) -> OverviewRange:
        """The range; what makes no sense is left out."""
        chosen = self.measure if self.measure in MEASURES else "energy"
        measure = cast("Measure", chosen)
        whole = all_time(jobs, now, measure, zone, others)
        first, last = _midnight(self.first, zone), _midnight(self.last, zone, days=1)
        end = last if last is not None else whole.end_wall_seconds
        start = whole.start_wall_seconds
        if first is not None:
            start = first
        elif self.days != "all" and last is None:
            days = int(self.days if self.days in RANGES else _DEFAULT_DAYS)
            today = datetime.fromtimestamp(now, zone).date()
            start = _midnight((today - timedelta(days=days - 1)).isoformat(), zone) or start
        start = min(max(start, end - _LONGEST), end)
        unit = self.unit if self.unit in UNITS[1:] else suitable_unit(end - start)
        if suitable_unit(end - start) == "month":
            unit = "month"
        return OverviewRange(start, end, cast("PeriodUnit", unit), measure, zone)

    def values(self, span: OverviewRange) -> dict[str, Any]:
        """Values of the form."""
        dates = _is_date(self.first) or _is_date(self.last)
        return {
            "days": "" if dates else self.days if self.days in RANGES else _DEFAULT_DAYS,
            "first": self.first if _is_date(self.first) else "",
            "last": self.last if _is_date(self.last) else "",
            "unit": self.unit if self.unit in UNITS else "",
            "measure": span.measure,
            "ranges": RANGES,
            "units": UNITS,
            "measures": MEASURES,
            "is_empty": dates and span.start_wall_seconds >= span.end_wall_seconds,
        }


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _midnight(text: str, zone: tzinfo, days: int = 0) -> float | None:
    """Unix time at which a day begins, some days later; None for text that is not a day."""
    try:
        day = date.fromisoformat(text) + timedelta(days=days)
        return datetime.combine(day, time(), zone).timestamp()
    except (ValueError, OverflowError):
        return None


_STATIC = FilePath(__file__).parent / "static"
_JOBS_PER_PAGE = 50  # by hand: two screens
_MOST_EVENTS = 1000  # of a job that its page reads (by hand: some tens of milliseconds)
_STREAM_SECONDS = 15.0  # less than the longest time of an answer; browsers come again
_MOST_TOPICS = 20  # of a stream (by hand: tabs that a person keeps open)
_POWER_SECONDS = 10.0  # by hand: time between two looks at the power of all runs
_LOOK_SECONDS = 1.0  # by hand: time between two looks for a change
_SORTS: dict[str, tuple[str, Callable[[JobTotals], Any]]] = {
    "saved": ("energy saved", lambda job: (job.saved is None, -job.saved_joules)),
    "used": ("energy used", lambda job: -job.joules),
    "recurrences": ("recurrences", lambda job: -job.head.recurrences),
    "latest": ("latest run", lambda job: -job.latest_wall_seconds),
    "name": ("job", lambda job: (job.head.name, job.head.device)),
}

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


@pages.get("/login", operation_id="loginPage")
async def login_page(request: Request, next: str = "/") -> Response:  # noqa: A002 - as browsers know it
    """Ask for a token; say why the session has ended, if there was one."""
    reason = await session_end(request, request.cookies.get(cookie_name(request), ""))
    error = f"{reason[:1].upper()}{reason[1:]}." if reason else ""
    return render(request, "login.html", "Log in", following=next, error=error)


@pages.post("/login", operation_id="login")
async def login(request: Request) -> Response:
    """Check a token and begin a session."""
    fields = await read_form(request)
    token, following = fields.get("token", "").strip(), fields.get("next", "/")
    try:
        await authenticate(request, token)
    except ProblemError as error:
        text = "This token is not valid: it may have expired or been revoked."
        if error.status_code != 401:
            text = f"{error.problem.detail}; {error.problem.remedy}."
        values = {"following": following, "error": text}
        return render(request, "login.html", "Log in", error.status_code, **values)
    local = following.startswith("/") and not following.startswith(("//", "/\\"))
    answer = RedirectResponse(following if local else "/", 303)
    answer.set_cookie(
        cookie_name(request),
        await _begin_session(request),
        max_age=round(LIFETIME_SECONDS),
        secure=is_secure(request),
        httponly=True,
        samesite="strict",
    )
    return answer


async def _begin_session(request: Request) -> str:
    context, number = context_of(request), request.state.caller.id
    now = context.clock.wall()
    future = context.store.submit(lambda transaction: begin_session(transaction, number, now))
    return await asyncio.wrap_future(future)


@pages.post("/logout", operation_id="logout")
async def logout(request: Request) -> Response:
    """End the session, on the server too."""
    context, name = context_of(request), cookie_name(request)
    session_id, now = request.cookies.get(name, ""), context.clock.wall()
    digest = digest_of(session_id)
    future = context.store.submit(lambda transaction: end_session(transaction, digest, now))
    await asyncio.wrap_future(future)
    context.sessions.forget(session_id)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(name, secure=is_secure(request), httponly=True, samesite="strict")
    return answer


@pages.get("/assets/{name}", operation_id="asset")
async def asset(name: str) -> Response:
    """The style sheet and the scripts."""
    contents: dict[str, tuple[Callable[[], str], str]] = {
        "dashboard.css": (lambda: page_style() + _static("dashboard.css"), "text/css"),
        "dashboard.js": (lambda: _static("dashboard.js"), "text/javascript"),
        "charts.js": (lambda: _static("charts.js"), "text/javascript"),
        "stream.js": (lambda: _static("stream.js"), "text/javascript"),
    }
    if name not in contents:
        raise not_found()
    read, media = contents[name]
    return Response(read(), media_type=media, headers={"Cache-Control": "max-age=3600"})


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _visible_totals(request: Request) -> tuple[list[JobTotals], int]:
    """Figures of the jobs that the caller may see, and how many jobs are still to be added up."""
    figures: FiguresCache = request.app.state.figures
    totals, outstanding = figures.current()
    caller: TokenRecord = request.state.caller
    return [job for job in totals if may_see(caller, job.head.team)], outstanding


def _mark(totals: Sequence[JobTotals], outstanding: int) -> str:
    """A text that changes when anything has happened to a job."""
    events = sum(job.head.events + job.head.paused for job in totals)
    return f"{len(totals)}.{events}.{outstanding}"


def _overview_mark(request: Request, totals: Sequence[JobTotals], outstanding: int) -> str:
    """Likewise, or to the power of its runs, at most every few seconds."""
    latest = request.app.state.heartbeats.latest_seconds(job.head.id for job in totals)
    return f"{_mark(totals, outstanding)}.{latest // _POWER_SECONDS:.0f}"


def _job_link(job: int) -> str:
    return f"/jobs/{job}"


@pages.get("/", operation_id="overviewPage")
def overview(request: Request) -> Response:
    """Savings over time, what runs now, and what needs attention."""
    context, zone = context_of(request), zone_of(request)
    totals, outstanding = _visible_totals(request)
    now, names = context.clock.wall(), request.query_params
    query = RangeQuery(
        names.get("range", ""),
        names.get("from", ""),
        names.get("to", ""),
        names.get("unit", ""),
        names.get("measure", ""),
    )
    # To the end of the minute, so that readers of the same minute share an overview.
    minute = 60.0 * math.ceil(now / 60.0)
    caller, mark = request.state.caller, _mark(totals, outstanding)
    team = None if may_see_all(caller) else caller.team
    teams = context.read(lambda transaction: other_energy(transaction, team))
    span = query.resolve(totals, minute, zone, teams)
    bounds = span.start_wall_seconds, span.end_wall_seconds
    runs, _ = context.read(lambda transaction: run_totals(transaction, team, *bounds))
    savings, lists = request.app.state.overviews.get(
        (caller.team, mark, span, tuple(teams)),
        lambda: overview_report(
            totals,
            request.app.state.electricity,
            minute,
            _job_link,
            span=span,
            others=OtherRuns(
                teams,
                context.read(
                    lambda transaction: other_energy(transaction, team, *bounds, by_time=True)
                ),
            ),
        ),
    )
    return render(
        request,
        "overview.html",
        "Overview",
        runs=count_text(runs, "run") if runs else "",
        request_address=str(request.base_url).rstrip("/"),
        outstanding=outstanding,
        events="overview",
        mark=_overview_mark(request, totals, outstanding),
        savings=savings,
        lists=lists,
        running=_running_report(request, totals, now),
        **query.values(span),
    )


def _running_report(request: Request, totals: Sequence[JobTotals], now: float) -> Report:
    runs = context_of(request).read(lambda transaction: open_runs(transaction, totals))
    heartbeats = request.app.state.heartbeats
    latest = {run.decision: beats[-1] for run in runs if (beats := heartbeats.of(run.decision))}

    def watts(decision: str) -> float | None:
        live = latest[decision].live if decision in latest else None
        return None if live is None else total_watts(live)

    # The store has a heartbeat of the last minute, memory the last one.
    runs = [
        replace(run, heartbeat_wall_seconds=beat.wall_seconds, joules=beat.joules)
        if (beat := latest.get(run.decision))
        else run
        for run in runs
    ]
    return running_report(runs, watts, now, _run_link, zone_of(request))


def _run_link(decision: str) -> str:
    job, _, number = decision.partition(".")
    return f"/jobs/{job}/runs/{number}"


@pages.get("/jobs", operation_id="jobsPage")
def jobs(request: Request, q: str = "", sort: str = "saved", page: int = 1) -> Response:
    """All jobs, newest versions, page by page."""
    totals, outstanding = _visible_totals(request)
    newest = {(job.head.team, job.head.name, job.head.device): job for job in totals}
    text = q.casefold()
    matches = [job for job in newest.values() if text in _searched_text(job)]
    sort = sort if sort in _SORTS else "saved"
    matches.sort(key=_SORTS[sort][1])
    count = max(1, -(-len(matches) // _JOBS_PER_PAGE))
    page = min(max(1, page), count)

    def address(**changes: Any) -> str:
        return "/jobs?" + urlencode({"q": q, "sort": sort, "page": page} | changes)

    return render(
        request,
        "jobs.html",
        "Jobs",
        events="jobs",
        mark=_mark(totals, outstanding),
        jobs=matches[(page - 1) * _JOBS_PER_PAGE : page * _JOBS_PER_PAGE],
        count=len(matches),
        total=len(newest),
        outstanding=outstanding,
        q=q,
        sort=sort,
        sorts={key: name for key, (name, _) in _SORTS.items()},
        page=page,
        pages=count,
        address=address,
    )


def _searched_text(job: JobTotals) -> str:
    return f"{job.head.name} {job.head.device} {job.head.team}".casefold()


@pages.get("/jobs/{job:number}", operation_id="jobPage")
def job_page(request: Request, job: int, eta: str = "", slowdown: str = "") -> Response:
    """All about one job; ``eta`` or ``slowdown`` show what another objective would choose."""
    context, cache = context_of(request), request.app.state.beliefs
    record, beliefs = context.read(
        lambda transaction: (transaction.job(job), cache.of(transaction, job))
    )
    summary = job_summary(context.jobs, job_entry(record), most_events=_MOST_EVENTS)
    entry, own = summary.entry, summary.job
    objective, error = _read_objective(own.cost, eta, slowdown)
    figures, choice, history = job_report(summary, beliefs, objective, _run_link, zone_of(request))
    return render(
        request,
        "job.html",
        entry.name,
        events=f"job.{entry.id}",
        mark=f"{entry.events}.{entry.paused}",
        entry=entry,
        figures=figures,
        choice=choice,
        history=history,
        error=error,
        may_manage=request.state.caller.right >= Permission.MANAGE,
        eta=f"{objective.eta if isinstance(objective, Cost) else own.cost.eta:g}",
        slowdown=slowdown if isinstance(objective, LeastEnergy) else "",
        objective=describe_objective(own.objective or own.cost),
    )


def _read_objective(own: Cost, eta: str, slowdown: str) -> tuple[Objective | None, str]:
    """The objective of a query, None for the job's own; and what is wrong with the query."""
    try:
        if slowdown:
            return LeastEnergy(float(slowdown) / 100), ""
        if eta:
            return Cost(float(eta), own.max_watts), ""
    except (ValueError, InvalidValueError) as error:
        return None, str(error)
    return None, ""


@pages.post("/jobs/{job:number}/pause", operation_id="pausePage")
async def pause_job(request: Request, job: int) -> Response:
    """Pause or resume a job."""
    if request.state.caller.right < Permission.MANAGE:
        raise no_permission()
    paused, service = (await read_form(request)).get("paused") == "1", context_of(request).jobs
    await run_in_threadpool(lambda: service.pause(job, paused=paused))
    return RedirectResponse(_job_link(job), 303)


@pages.get("/jobs/{job:number}/runs/{number:number}", operation_id="runPage")
def run_page(request: Request, job: int, number: int) -> Response:
    """One run: how it stands, its devices over time and its energy."""
    context, heartbeats = context_of(request), request.app.state.heartbeats.of(f"{job}.{number}")
    run = context.read(lambda transaction: run_history(transaction, job, number, heartbeats))
    recurrence = run.entry.decision.recurrence + 1
    return render(
        request,
        "run.html",
        f"{run.job.name}, recurrence {recurrence}",
        events=f"run.{job}.{number}",
        mark=_run_mark(request, run.entry),
        number=number,
        job=run.job,
        recurrence=recurrence,
        report=run_report(run, context.clock.wall(), zone_of(request)),
    )


def _run_mark(request: Request, entry: DecisionEntry) -> str:
    heartbeats = request.app.state.heartbeats.of(entry.decision.id)
    latest = heartbeats[-1].wall_seconds if heartbeats else None
    return f"{entry.state}.{entry.heartbeat_wall_seconds}.{latest}"


@pages.get("/changes", operation_id="changes")
async def changes(request: Request) -> Response:
    """A stream of marks by topic, one whenever something changes; one for all tabs of a browser.

    Topics are ``overview``, ``jobs``, ``runs``, ``cluster``, ``job.7`` and ``run.7.12``.
    """
    context = context_of(request)
    names = [value for name, value in request.query_params.multi_items() if name == "topic"]
    topics = [await _read_topic(request, name) for name in dict.fromkeys(names[:_MOST_TOPICS])]

    async def marks() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        latest: dict[str, str] = {}
        end = context.clock.now() + _STREAM_SECONDS
        while context.clock.now() < end and not context.draining:
            present = await run_in_threadpool(_present_marks, request, topics)
            for name, mark in present.items():
                if latest.get(name) != mark:
                    yield f"event: {name}\ndata: {mark}\n\n"
            latest = present
            await asyncio.sleep(_LOOK_SECONDS)

    return StreamingResponse(marks(), media_type="text/event-stream")


async def _read_topic(request: Request, name: str) -> tuple[str, tuple[int, ...]]:
    """A kind of topic and its numbers.

    Raises:
        ProblemError: There is no such topic, or it is another team's.
    """
    kind, *texts = name.split(".")
    numbers = tuple(int(text) for text in texts if text.isdecimal() and len(text) < 19)
    count = {"overview": 0, "jobs": 0, "runs": 0, "cluster": 0, "job": 1, "run": 2}.get(kind)
    if count != len(texts) or count != len(numbers):
        raise not_found()
    if numbers and not may_see(request.state.caller, await context_of(request).team_of(numbers[0])):
        raise not_found()
    return kind, numbers


def _present_marks(
    request: Request, topics: Sequence[tuple[str, tuple[int, ...]]]
) -> dict[str, str]:
    return {
        ".".join((kind, *map(str, numbers))): _present_mark(request, kind, numbers)
        for kind, numbers in topics
    }


def _present_mark(request: Request, kind: str, numbers: tuple[int, ...]) -> str:
    context, watch = context_of(request), request.app.state.cluster
    if kind == "cluster":
        visible = watch is not None and may_see_all(request.state.caller)
        return str(watch.latest_seconds()) if visible else ""
    if kind == "runs":
        return context.read(runs_mark)
    if kind == "jobs":
        return _mark(*_visible_totals(request))
    if kind == "overview":
        return _overview_mark(request, *_visible_totals(request))
    if kind == "job":
        record = context.read(lambda transaction: transaction.job(numbers[0]))
        return f"{record.events}.{record.paused}"
    job, run = numbers
    entries, _ = context.read(
        lambda transaction: decision_page(transaction, job, max(0, run - 1), 1)
    )
    return _run_mark(request, entries[0]) if entries else ""
