"""The dashboard: pages for people, rendered here and drawn by :mod:`joulery.reports`.

People log in with a team's token, which stays in a cookie that scripts cannot read; the API does
not take that cookie. Pages work without scripts; one small script keeps them up to date.
"""

from __future__ import annotations

import asyncio
import threading
from html import escape
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, StreamingResponse

from joulery import __version__
from joulery.client import job_summary
from joulery.errors import InvalidValueError, JouleryError
from joulery.jobs import (
    Outcome,
    decision_energy,
    decision_page,
    job_beliefs,
    job_entry,
    job_totals,
)
from joulery.objectives import Cost, LeastEnergy
from joulery.reports import (
    Heartbeat,
    energy_text,
    job_report,
    objective_words,
    overview_report,
    page_style,
    run_report,
    saved_text,
)
from joulery.server._auth import authenticate, authorize, context_of, may_see, may_see_all
from joulery.server._problems import (
    ProblemError,
    body_too_large,
    no_permission,
    not_found,
    problem_of,
)
from joulery.storage import DecisionRecord, Permission, job_heads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from joulery.jobs import DecisionEntry, JobTotals
    from joulery.objectives import Objective
    from joulery.server._auth import ServerContext
    from joulery.storage import JobHead, TokenRecord, Transaction

COOKIE = "joulery_token"
_SESSION_SECONDS = 12 * 3600
_STATIC = FilePath(__file__).parent / "static"
_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_MOST_FORM_BYTES = 4096
_CHUNK_JOBS = 200  # jobs whose figures are added up at once
_READ_SECONDS = 0.25  # that a page spends on adding up
_FRESH_SECONDS = 1.0
_MOST_EVENTS = 1000  # of a job that its page reads (by hand: some tens of milliseconds)
_JOBS_PER_PAGE = 50
_STREAM_SECONDS = 15.0  # less than the longest time of an answer; browsers come again
_LOOK_SECONDS = 1.0
_SORTS: dict[str, tuple[str, Callable[[JobTotals], Any]]] = {
    "saved": ("energy saved", lambda one: (one.saved is None, -one.saved_joules)),
    "used": ("energy used", lambda one: -one.joules),
    "recurrences": ("recurrences", lambda one: -one.head.recurrences),
    "name": ("job", lambda one: (one.head.name, one.head.device)),
}


class FiguresCache:
    """Figures of all jobs, of which only those are added up again that something happened to."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._heads: list[JobHead] = []
        self._known: dict[int, JobTotals] = {}
        self._read_seconds = float("-inf")
        self._outstanding = 0

    def current(self) -> tuple[list[JobTotals], int]:
        """Figures as far as they could be added up in time, and how many are still to come."""
        # Of many who look at the same moment one adds up, and the others need not wait for it.
        if self._lock.acquire(blocking=not self._known):
            try:
                self._add_up(self._context.clock.now())
            finally:
                self._lock.release()
        return list(self._known.values()), self._outstanding

    def _add_up(self, began: float) -> None:
        if began - self._read_seconds > _FRESH_SECONDS:
            self._heads = self._context.read(job_heads)
            self._read_seconds = began
            alive = {head.id for head in self._heads}
            self._known = {job: one for job, one in self._known.items() if job in alive}
        stale = [head for head in self._heads if self._head_of(head.id) != head]
        while stale and self._context.clock.now() - began < _READ_SECONDS:
            some, stale = stale[:_CHUNK_JOBS], stale[_CHUNK_JOBS:]
            found = self._context.read(lambda one, some=some: job_totals(one, some))  # type: ignore[misc]
            self._known = self._known | {one.head.id: one for one in found}
        self._outstanding = len(stale)

    def _head_of(self, job: int) -> JobHead | None:
        known = self._known.get(job)
        return None if known is None else known.head


class PageRoute(APIRoute):
    """A route of the dashboard: logged in by cookie, with security headers and readable errors."""

    def get_route_handler(self) -> Any:
        handle = super().get_route_handler()
        public = self.path.startswith(("/login", "/assets"))

        async def page(request: Request) -> Response:
            try:
                _same_origin(request)
                if not public:
                    await authenticate(request, request.cookies.get(COOKIE, ""))
                    await authorize(request, Permission.READ)
                answer: Response = await handle(request)
            except ProblemError as error:
                answer = _error_page(request, error)
            except RequestValidationError:
                answer = _error_page(request, not_found())
            except JouleryError as error:
                answer = _error_page(request, problem_of(error))
            answer.headers.update(_SECURITY)
            return answer

        return page


def _same_origin(request: Request) -> None:
    """Refuse a form that another site has sent; the cookie stays at home anyhow."""
    came_from = request.headers.get("sec-fetch-site", "same-origin")
    if request.method == "POST" and came_from not in ("same-origin", "none"):
        raise no_permission()


pages = APIRouter(route_class=PageRoute, include_in_schema=False)


def _error_page(request: Request, error: ProblemError) -> Response:
    if error.status_code == 401 and request.method == "GET":
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)
    problem = error.problem
    words = error_text(problem.detail, problem.remedy)
    body = f'<h1>{escape(problem.title)}</h1>{words}<p><a href="/">Back to the overview</a></p>'
    answer = page_of(request, problem.title, body, status=error.status_code)
    answer.headers.update(error.headers or {})
    return answer


def error_text(message: str, remedy: str) -> str:
    """An error and its remedy, for a page."""
    return (
        f'<p class="error" role="alert">{escape(message)}.</p><p>What to do: {escape(remedy)}.</p>'
    )


def page_of(
    request: Request, title: str, body: str, *, events: str = "", mark: str = "", status: int = 200
) -> HTMLResponse:
    """A whole page with its navigation.

    Args:
        request: Request that is answered.
        title: Title of the page.
        body: Content.
        events: Address of the stream that says when the content changes; empty for none.
        mark: Present value of that stream.
        status: HTTP status.
    """
    record: TokenRecord | None = getattr(request.state, "caller", None)
    nav = _nav(request, record) if record is not None else ""
    live = f' data-events="{escape(events)}" data-mark="{escape(mark)}"' if events else ""
    return HTMLResponse(
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} – Joulery</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/dashboard.css?{__version__}">
<script type="module" src="/assets/dashboard.js?{__version__}"></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header><strong>Joulery</strong>{nav}</header>
<main id="main"{live}>
{body}
</main>
<footer><output id="live"></output></footer>
</body>
</html>
""",
        status,
    )


def _nav(request: Request, record: TokenRecord) -> str:
    links = {"/": "Overview", "/jobs": "Jobs"}
    if request.app.state.cluster is not None and may_see_all(record):
        links["/cluster"] = "Cluster"
    if request.app.state.plans is not None and may_see_all(record):
        links["/plans"] = "Plans"
    path = request.url.path
    shown = "".join(
        f'<a href="{address}"{_current(path, address)}>{name}</a>'
        for address, name in links.items()
    )
    team = "all teams" if may_see_all(record) else record.team
    rights = record.right.name.lower()
    return (
        f'<nav aria-label="Pages">{shown}</nav><span class="soft">{escape(team)}, {rights}</span>'
        '<form method="post" action="/logout"><button class="plain">Log out</button></form>'
    )


def _current(path: str, address: str) -> str:
    here = path == address or (address != "/" and path.startswith(f"{address}/"))
    return ' aria-current="page"' if here else ""


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MOST_FORM_BYTES:
            raise body_too_large(_MOST_FORM_BYTES)
    fields = parse_qs(content.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


@pages.get("/login", operation_id="loginPage")
async def login_page(request: Request, next: str = "/") -> Response:  # noqa: A002 - as browsers know it
    """Ask for a token."""
    return _login(request, next)


def _login(request: Request, following: str, error: str = "", status: int = 200) -> Response:
    shown = f'<p class="error" role="alert">{escape(error)}</p>' if error else ""
    body = f"""<div class="login"><h1>Log in</h1>{shown}
<form method="post" action="/login">
<p><label for="token">Token of your team</label>
<input id="token" name="token" type="password" autocomplete="current-password" required
autofocus></p>
<input type="hidden" name="next" value="{escape(following)}">
<p><button class="main">Log in</button></p></form>
<p class="soft">Make one that may only read with
<code>joulery serve token create --team NAME --rights read</code></p></div>"""
    return page_of(request, "Log in", body, status=status)


@pages.post("/login", operation_id="login")
async def login(request: Request) -> Response:
    """Check a token and keep it in a cookie."""
    fields = await form_of(request)
    token, following = fields.get("token", "").strip(), fields.get("next", "/")
    try:
        await authenticate(request, token)
    except ProblemError as error:
        words = "This token is not valid: it may have expired or been revoked."
        if error.status_code != 401:
            words = f"{error.problem.detail}; {error.problem.remedy}."
        return _login(request, following, words, error.status_code)
    local = following.startswith("/") and not following.startswith(("//", "/\\"))
    answer = RedirectResponse(following if local else "/", 303)
    answer.set_cookie(
        COOKIE,
        token,
        max_age=_SESSION_SECONDS,
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
        httponly=True,
        samesite="strict",
    )
    return answer


@pages.post("/logout", operation_id="logout")
async def logout() -> Response:
    """Forget the token."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@pages.get("/assets/{name}", operation_id="asset")
async def asset(name: str) -> Response:
    """The style sheet and the script."""
    contents: dict[str, tuple[Callable[[], str], str]] = {
        "dashboard.css": (lambda: page_style() + _static("dashboard.css"), "text/css"),
        "dashboard.js": (lambda: _static("dashboard.js"), "text/javascript"),
    }
    if name not in contents:
        raise not_found()
    make, media = contents[name]
    return Response(make(), media_type=media, headers={"Cache-Control": "max-age=3600"})


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _seen(request: Request) -> tuple[list[JobTotals], int]:
    """Figures of the jobs that the caller may see, and how many jobs are still to be added up."""
    figures: FiguresCache = request.app.state.figures
    found, outstanding = figures.current()
    record: TokenRecord = request.state.caller
    return [one for one in found if may_see(record, one.head.team)], outstanding


def _mark(figures: Sequence[JobTotals], outstanding: int) -> str:
    """A text that changes when anything has happened to a job."""
    events = sum(one.head.events + one.head.paused for one in figures)
    return f"{len(figures)}.{events}.{outstanding}"


def _job_link(job: int) -> str:
    return f"/jobs/{job}"


@pages.get("/", operation_id="overviewPage")
def overview(request: Request) -> Response:
    """Savings, and what needs attention."""
    figures, outstanding = _seen(request)
    electricity, now = request.app.state.electricity, context_of(request).clock.wall()
    report = overview_report(figures, electricity, now, _job_link, outstanding=outstanding)
    body = f'<h1>Overview</h1><div id="overview" data-live>{report.body()}</div>'
    mark = _mark(figures, outstanding)
    return page_of(request, "Overview", body, events="/changes", mark=mark)


@pages.get("/jobs", operation_id="jobsPage")
def jobs(request: Request, q: str = "", sort: str = "saved", page: int = 1) -> Response:
    """All jobs, newest versions, page by page."""
    figures, outstanding = _seen(request)
    newest = {(one.head.team, one.head.name, one.head.device): one for one in figures}
    wanted = q.casefold()
    found = [one for one in newest.values() if wanted in _searched(one)]
    sort = sort if sort in _SORTS else "saved"
    found.sort(key=_SORTS[sort][1])
    count = max(1, -(-len(found) // _JOBS_PER_PAGE))
    page = min(max(1, page), count)
    shown = found[(page - 1) * _JOBS_PER_PAGE : page * _JOBS_PER_PAGE]

    def address(**changed: Any) -> str:
        return "/jobs?" + urlencode({"q": q, "sort": sort, "page": page} | changed)

    more = f", {outstanding:,} more are being added up" if outstanding else ""
    turn = "".join(
        f'<a href="{escape(address(page=to))}" rel="{rel}">{text}</a>'
        for to, rel, text in ((page - 1, "prev", "← Previous"), (page + 1, "next", "Next →"))
        if 1 <= to <= count
    )
    body = f"""<h1>Jobs</h1>
<form class="row" role="search"><label>Name, device or team
<input type="search" name="q" value="{escape(q)}"></label>
<input type="hidden" name="sort" value="{sort}"><button>Search</button></form>
<div id="jobs" data-live><p class="soft">{len(found):,} of {len(newest):,} jobs{more}</p>
{_jobs_table(shown, sort, address)}
<p class="pages">{turn}<span class="soft">page {page} of {count}</span></p></div>"""
    return page_of(request, "Jobs", body, events="/changes", mark=_mark(figures, outstanding))


def _searched(one: JobTotals) -> str:
    return f"{one.head.name} {one.head.device} {one.head.team}".casefold()


def _jobs_table(shown: Sequence[JobTotals], sort: str, address: Callable[..., str]) -> str:
    if not shown:
        return "<p>No job fits. A joulery.Run with batch_sizes=[…] makes one.</p>"

    def head(name: str, kind: str = "") -> str:
        marked = ' aria-sort="descending"' if name == sort else ""
        link = f'<a href="{escape(address(sort=name, page=1))}">{_SORTS[name][0]}</a>'
        return f'<th scope="col"{kind}{marked}>{link}</th>'

    left = ' class="left"'
    plain = "".join(f'<th scope="col"{left}>{name}</th>' for name in ("team", "device", "policy"))
    rows = "\n".join(
        f'<tr><td{left}><a href="{_job_link(one.head.id)}">{escape(one.head.name)}</a></td>'
        f"<td{left}>{escape(one.head.team)}</td><td{left}>{escape(one.head.device or '–')}</td>"
        f"<td{left}>{escape(one.head.policy)}</td><td>{one.head.recurrences:,}</td>"
        f"<td>{energy_text(one.joules) if one.joules else '–'}</td>"
        f"<td>{energy_text(one.saved_joules) if one.saved else '–'}</td>"
        f"<td>{saved_text(one.saved)}</td><td{left}>{_state(one)}</td></tr>"
        for one in shown
    )
    return f"""<div class="wide" tabindex="0"><table><thead><tr>{head("name", left)}{plain}
{head("recurrences")}{head("used")}{head("saved")}<th scope="col">of the default</th>
<th scope="col"{left}>state</th></tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _state(one: JobTotals) -> str:
    words = []
    if one.head.paused:
        words.append(("paused", "state"))
    if one.quarantined:
        words.append((f"{one.quarantined} in quarantine", "state"))
    if one.open:
        words.append((f"{one.open} running", "state fine"))
    return " ".join(f'<span class="{kind}">{word}</span>' for word, kind in words)


@pages.get("/jobs/{job:number}", operation_id="jobPage")
def job_page(request: Request, job: int, eta: str = "", slowdown: str = "") -> Response:
    """All about one job; ``eta`` or ``slowdown`` show what another objective would choose."""
    context = context_of(request)
    record, beliefs = context.read(lambda one: (one.job(job), job_beliefs(one, one.job(job))))
    summary = job_summary(context.jobs, job_entry(record), most_events=_MOST_EVENTS)
    entry, own = summary.entry, summary.job
    objective, wrong = _objective(own.cost, eta, slowdown)
    link = f"/jobs/{entry.id}/runs/"
    head, choice, rest = job_report(
        summary, beliefs, objective, lambda one: link + one.rpartition(".")[2]
    )
    device = f" on {escape(entry.device)}" if entry.device else ""
    state = '<span class="state">paused</span>' if entry.paused else ""
    value = objective.eta if isinstance(objective, Cost) else own.cost.eta
    per_cent = escape(slowdown) if isinstance(objective, LeastEnergy) else ""
    manages = request.state.caller.right >= Permission.MANAGE
    pause = _pause_form(entry.id, entry.paused) if manages else ""
    warm = f'<p class="soft">warm start: {escape(entry.warm_start)}</p>' if entry.warm_start else ""
    own_words = objective_words(own.objective or own.cost)
    tried = _try_form(entry.id, value, per_cent, own_words) if choice.charts else ""
    body = f"""<div class="lead"><h1>{escape(entry.name)}</h1>
<span class="soft">{escape(entry.team)}{device}, version {entry.version}, policy
{escape(entry.definition.policy)}</span>{state}{pause}</div>
{warm}<div id="figures" data-live>{head.body()}</div>
<h2>{escape(choice.title)}</h2><div class="choice">
<div id="choice" data-live>{wrong}{choice.body("choice")}</div>{tried}</div>
<div id="job" data-live>{rest.body("history")}</div>"""
    mark = f"{entry.events}.{entry.paused}"
    return page_of(request, entry.name, body, events=f"/changes?job={entry.id}", mark=mark)


def _objective(own: Cost, eta: str, slowdown: str) -> tuple[Objective | None, str]:
    """The objective that was asked for; else what is wrong with it, for the page."""
    try:
        if slowdown:
            return LeastEnergy(float(slowdown) / 100), ""
        if eta:
            return Cost(float(eta), own.max_watts), ""
    except (ValueError, InvalidValueError) as error:
        return None, f'<p class="error" role="alert">{escape(str(error))}</p>'
    return None, ""


def _try_form(job: int, eta: float, slowdown: str, own: str) -> str:
    """The form that tries other objectives."""
    return f"""<form data-instant><h3>Try another objective</h3>
<p><label for="eta">weight of energy against time, eta</label>
<input id="eta" type="range" name="eta" min="0" max="1" step="0.05" value="{eta:g}">
<output for="eta">{eta:g}</output></p>
<p><label for="slowdown">or least energy, at most so many % slower than the default</label>
<input id="slowdown" type="number" name="slowdown" min="0" max="1000" step="any"
value="{slowdown}"></p>
<p><button>Show</button> <a href="/jobs/{job}">as the job is: {escape(own)}</a></p>
<p class="soft">This changes nothing. To adopt it, give the objective to the run.</p></form>"""


def _pause_form(job: int, paused: bool) -> str:  # noqa: FBT001 - a state, not a switch
    value, text = ("0", "Resume") if paused else ("1", "Pause")
    return (
        f'<form method="post" action="/jobs/{job}/pause">'
        f'<button id="pause" name="paused" value="{value}">{text}</button></form>'
    )


@pages.post("/jobs/{job:number}/pause", operation_id="pausePage")
async def pause_job(request: Request, job: int) -> Response:
    """Pause or resume a job."""
    if request.state.caller.right < Permission.MANAGE:
        raise no_permission()
    paused, service = (await form_of(request)).get("paused") == "1", context_of(request).jobs
    await run_in_threadpool(lambda: service.pause(job, paused=paused))
    return RedirectResponse(_job_link(job), 303)


@pages.get("/jobs/{job:number}/runs/{number:number}", operation_id="runPage")
def run_page(request: Request, job: int, number: int) -> Response:
    """One run: how it stands, its devices over time and its energy."""
    context = context_of(request)

    def look(one: Transaction) -> tuple[Any, ...]:
        found = decision_page(one, job, max(0, number - 1), 1)[0]
        if not found or found[0].number != number:
            raise not_found()
        record = one.find(DecisionRecord, job, sequence=number)
        progress = None if record is None else record.progress
        return job_entry(one.job(job)), found[0], progress, decision_energy(one, job, number)

    entry, decision, progress, energy = context.read(look)
    beats = list(request.app.state.heartbeats.of(decision.decision.id))
    last = decision.outcome or (Outcome.from_document(progress) if progress else None)
    if last is not None and (not beats or beats[-1].seconds < last.seconds):
        told = decision.heartbeat_wall_seconds or decision.decision.issued_wall_seconds
        beats.append(Heartbeat(last.seconds, last.joules, last.epochs, told))
    cost = entry.definition.job.cost
    report = run_report(decision, cost, beats, energy, context.clock.wall())
    body = f"""<div class="lead"><h1>Run {number}</h1><span class="soft">of
<a href="/jobs/{job}">{escape(entry.name)}</a>, recurrence {decision.decision.recurrence + 1}</span>
</div><div id="run" data-live>{report.body()}</div>"""
    events, mark = f"/changes?job={job}&run={number}", _run_mark(request, decision)
    return page_of(request, f"Run {number} of {entry.name}", body, events=events, mark=mark)


def _run_mark(request: Request, entry: DecisionEntry) -> str:
    beats = request.app.state.heartbeats.of(entry.decision.id)
    latest = beats[-1].wall_seconds if beats else None
    return f"{entry.state}.{entry.heartbeat_wall_seconds}.{latest}"


@pages.get("/changes", operation_id="changes")
async def changes(
    request: Request, job: int | None = None, run: int | None = None, *, cluster: bool = False
) -> Response:
    """A stream of marks, one whenever something changes; of a run, a job, all, or the cluster."""
    context, watch = context_of(request), request.app.state.cluster
    caller = request.state.caller
    if job is not None and not may_see(caller, await context.team_of(job)):
        raise not_found()

    def look() -> str:
        if cluster and watch is not None and may_see_all(caller):
            return str(watch.look()["at"])
        if job is None:
            return _mark(*_seen(request))
        if run is not None:
            found, _ = context.read(lambda one: decision_page(one, job, max(0, run - 1), 1))
            return _run_mark(request, found[0]) if found else ""
        record = context.read(lambda one: one.job(job))
        return f"{record.events}.{record.paused}"

    async def marks() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        said, end = None, context.clock.now() + _STREAM_SECONDS
        while context.clock.now() < end and not context.draining:
            mark = await run_in_threadpool(look)
            if mark != said:
                yield f"data: {mark}\n\n"
                said = mark
            await asyncio.sleep(_LOOK_SECONDS)

    return StreamingResponse(marks(), media_type="text/event-stream")


@pages.get("/jobs/{rest:path}", operation_id="noPage")
async def no_page(rest: str) -> Response:  # noqa: ARG001 - any other address
    """Show that there is no such job, as a page."""
    raise not_found()
