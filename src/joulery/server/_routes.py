"""The HTTP API: decisions, jobs, measurements and health, one function per route.

Bodies and answers are documents of ``joulery.jobs`` and ``joulery.client``, which
``joulery.documents`` reads and describes. Routes that decide or report wait for the group commit
of the store in the event loop; all others block a thread of the pool.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from msgspec.structs import replace
from starlette.concurrency import run_in_threadpool

from joulery.client import (
    MOST_PER_PAGE,
    DecisionPage,
    EnergyPage,
    JobPage,
    OutcomeReport,
    PauseState,
    ProblemDetails,
    ProfileList,
    ProgressReport,
    RunPage,
)
from joulery.documents import LARGEST_ID, JsonModel, json_schemas
from joulery.errors import InvalidValueError, JouleryError, StoreBusyError
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.jobs import (
    Decision,
    DecisionLease,
    Definition,
    EnergyEntry,
    JobEntry,
    ProfileEntry,
    Receipt,
    Request as DecisionRequest,
    RunEntry,
)
from joulery.server._auth import authenticate, authorize, context_of, may_see, named_team
from joulery.server._problems import (
    MEDIA_TYPE,
    ProblemError,
    body_too_large,
    later,
    not_found,
    problem_of,
    store_replaced,
)
from joulery.server._shares import charged, run_charged
from joulery.storage import Permission, totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs import JobService
    from joulery.server._auth import ServerContext
    from joulery.server._heartbeats import HeartbeatLog

_READY_SECONDS = 5.0  # by hand: load balancers do not wait much longer
_METRICS_SECONDS = 1.0  # by hand: many scrapers cost one query a second
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class _BoundedRequest(Request):
    """A request whose body is JSON, read within limits on its size and time."""

    _content: bytes | None = None

    async def body(self) -> bytes:
        """The body.

        Raises:
            ProblemError: It is not declared to be JSON, is empty, too large or too slow.
        """
        if self._content is None:
            context = context_of(self)
            limits = context.limits
            media = self.headers.get("content-type", "").partition(";")[0].strip().lower()
            if media != "application/json":
                raise ProblemError(
                    415,
                    InvalidValueError,
                    "the body is not declared to be JSON",
                    "send Content-Type: application/json",
                )
            size = int(self.headers.get("content-length", "0"))
            if size > limits.body_bytes:
                raise body_too_large(limits.body_bytes)
            self._take(context, size)
            try:
                async with asyncio.timeout(limits.body_seconds):
                    self._content = await self._read(limits.body_bytes)
            except TimeoutError:
                raise ProblemError(
                    408,
                    StoreBusyError,
                    "the body took too long to arrive",
                    "make the same request again",
                ) from None
        return self._content

    def _take(self, context: ServerContext, size: int) -> None:
        """Take bytes from what the team may send."""
        team, now = self.scope["joulery.team"], context.clock.now()
        seconds = context.bytes.wait_seconds(team, now, size)
        if seconds:
            raise later("too many bytes from this team", 429, int(seconds) + 1)

    async def _read(self, limit_bytes: int) -> bytes:
        content = bytearray()
        async for chunk in self.stream():
            content += chunk
            if len(content) > limit_bytes:
                raise body_too_large(limit_bytes)
        if "content-length" not in self.headers:
            self._take(context_of(self), len(content))
        return bytes(content)


_RIGHTS = {
    "GET": Permission.READ,
    "POST": Permission.WORK,
    "PUT": Permission.WORK,
    "PATCH": Permission.MANAGE,
    "DELETE": Permission.MANAGE,
}


class _Route(APIRoute):
    """A route that checks the token first, and reads bodies by ``_BoundedRequest``.

    The method says which right a token needs; a decision is opened by its own token.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, charged(endpoint), **options)

    def get_route_handler(self) -> Any:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            await authenticate(request)
            if "decision" not in request.path_params:
                await authorize(request, _RIGHTS[request.method])
            bounded_request = _BoundedRequest(request.scope, request.receive)
            if not _is_heavy(request):
                return await handle(bounded_request)
            async with context_of(request).shares.turn(request.scope["joulery.team"]):
                return await handle(bounded_request)

        return bounded


def _is_heavy(request: Request) -> bool:
    """Whether a request may take long: a list, or a body that is large or of unknown size."""
    size = request.headers.get("content-length", "")
    small = size.isdecimal() and int(size) < context_of(request).limits.heavy_bytes
    return request.method == "GET" or not (small or request.method == "DELETE")


_Model = TypeVar("_Model", bound=JsonModel)


def _body(kind: type[_Model]) -> Any:
    """The dependency that reads a body by its document's own rules, as client and store do."""

    async def read(request: Request) -> _Model:
        content, context = await request.body(), context_of(request)
        if len(content) < context.limits.heavy_bytes:
            return kind.from_json(content)
        team = request.scope["joulery.team"]
        return await run_charged(context.shares, team, kind.from_json, content)

    return Depends(read)


def _answer(model: JsonModel, status: int = 200) -> Response:
    return Response(model.to_json(), status, media_type="application/json")


_PROBLEMS = {
    400: "The body is not JSON.",
    401: "The request has no valid token.",
    403: "The token does not allow this.",
    404: "There is no such record, or it is another team's.",
    408: "The body took too long.",
    409: "The request contradicts what is stored.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON.",
    422: "Something in the request is wrong; the detail names it.",
    429: "There are too many calls; see Retry-After.",
    503: "The server or its store is busy; see Retry-After.",
}


_DOCUMENTS: dict[str, type[JsonModel]] = {}


def _content(kind: type[JsonModel], media_type: str = "application/json", **options: Any) -> Any:
    """The description of a body or an answer; ``described_schemas`` has its document."""
    _DOCUMENTS[kind.__name__] = kind
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}} | options}


def described_schemas() -> dict[str, Any]:
    """JSON Schema of the documents that routes read and answer with, by name."""
    return json_schemas(_DOCUMENTS.values())


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of the problem documents that a route may answer with."""
    descriptions: dict[int | str, dict[str, Any]] = {}
    for status in sorted(statuses):
        description: dict[str, Any] = {
            "description": _PROBLEMS[status],
            "content": _content(ProblemDetails, MEDIA_TYPE),
        }
        if status in (429, 503):
            seconds = {"schema": {"type": "integer"}, "description": "seconds to wait"}
            description["headers"] = {"Retry-After": seconds}
        descriptions[status] = description
    return descriptions


def _describe(
    body: type[JsonModel] | None = None,
    answer: type[JsonModel] | None = None,
    problems: dict[int | str, dict[str, Any]] | None = None,
    **example: Any,
) -> dict[str, Any]:
    """Options of a route: its body, with an example for a new server, answer and problems."""
    options: dict[str, Any] = {"responses": dict(problems or {}), "response_class": Response}
    if answer is not None:
        success = {"description": "Successful Response", "content": _content(answer)}
        options["responses"] = {200: success} | options["responses"]
    if body is not None:
        content = _content(body, example=example)
        options["openapi_extra"] = {"requestBody": {"content": content, "required": True}}
    return options


_COMMON = _problems(401, 403, 404, 422, 429, 503)
_BODY = _problems(400, 408, 413, 415)
_STORED = _BODY | _problems(409)
decisions = APIRouter(prefix="/v1", tags=["decisions"], route_class=_Route, responses=_COMMON)
jobs = APIRouter(prefix="/v1", tags=["jobs"], route_class=_Route, responses=_COMMON)
measurements = APIRouter(prefix="/v1", tags=["measurements"], route_class=_Route, responses=_COMMON)
health = APIRouter(tags=["health"])
ROUTERS = (decisions, jobs, measurements, health)


def _only_known(request: Request, *names: str) -> None:
    """Refuse a query with other names, or with one twice: a typo would be taken for nothing."""
    keys = [name for name, _ in request.query_params.multi_items()]
    if len(set(keys)) < len(keys) or not set(keys) <= set(names):
        raise problem_of(
            InvalidValueError(
                "the query has a name that is unknown or given twice",
                remedy=f"give {' and '.join(names)} once at most",
            )
        )


async def _page(
    request: Request,
    after: Annotated[
        int, Query(ge=0, le=LARGEST_ID, description="number that the page begins after")
    ] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MOST_PER_PAGE, description="most entries of the page")
    ] = 100,
) -> tuple[int, int]:
    _only_known(request, "after", "limit")
    return after, limit


Page = Annotated[tuple[int, int], Depends(_page)]
JobNumber = Annotated[
    int, Path(ge=0, le=LARGEST_ID, description="number of a job's version", examples=[1])
]
TeamName = Annotated[
    str,
    Path(description="namespace of the jobs; `default` for that of the token", examples=["vision"]),
]
DecisionId = Annotated[str, Path(description="id of the decision", examples=["1.1"])]


@decisions.post(
    "/jobs/{job:number}/decisions",
    operation_id="decide",
    **_describe(DecisionRequest, Decision, _STORED, key="night 1"),
)
async def decide(
    request: Request, job: JobNumber, body: Annotated[DecisionRequest, _body(DecisionRequest)]
) -> Response:
    """Get the decision on what to run next.

    The answer is durable when it arrives. The same key gets the same decision, so that a request
    whose answer was lost can be sent again. Without a heartbeat or report until
    `expires_wall_seconds`, the decision counts as abandoned.
    """
    context = context_of(request)
    decision = await asyncio.wrap_future(context.jobs.decide_soon(job, body))
    token = context.signer.token(decision.id, decision.issued_wall_seconds)
    return _answer(replace(decision, token=token))


@decisions.put(
    "/decisions/{decision}/outcome",
    operation_id="report",
    **_describe(
        OutcomeReport,
        Receipt,
        _STORED,
        key="night 1",
        outcome={"end": "reached", "epochs": 20, "seconds": 50.0, "joules": 12_500.0},
    ),
)
async def report(
    request: Request, decision: DecisionId, body: Annotated[OutcomeReport, _body(OutcomeReport)]
) -> Response:
    """Report how a decision ended.

    The report counts once, however late and however often it is sent: the same report gets the
    same receipt, another one is refused. Figures must be possible: no longer than the decision is
    old, no more energy than all boards can draw.
    """
    issued: float = request.state.issued
    future = context_of(request).jobs.report_soon(decision, body.outcome, body.key, issued)
    receipt = await asyncio.wrap_future(future)
    request.app.state.heartbeats.end((decision, issued))
    return _answer(receipt)


@decisions.post(
    "/decisions/{decision}/heartbeat",
    operation_id="heartbeat",
    **_describe(
        ProgressReport,
        DecisionLease,
        _BODY,
        progress={"end": "abandoned", "epochs": 2, "seconds": 5.0, "joules": 1250.0},
        live={
            "seconds": 5.0,
            "phase": "holding 160 W",
            "steps_per_second": 12.5,
            "devices": [
                {"name": "A40", "watts": 158.0, "clock_hertz": 1.2e9, "limit_watts": 160.0}
            ],
        },
    ),
)
async def heartbeat(
    request: Request, decision: DecisionId, body: Annotated[ProgressReport, _body(ProgressReport)]
) -> Response:
    """Prolong the lease of a decision; the progress counts if no report follows.

    With `live` figures, which people see on the dashboard, heartbeats may come every few seconds:
    heartbeats that follow within 50 seconds of a stored one are remembered and not stored.
    """
    context, issued = context_of(request), request.state.issued
    log: HeartbeatLog = request.app.state.heartbeats
    now = context.clock.now()
    lease = None if body.live is None else log.recent_lease((decision, issued), now)
    if lease is None:
        future = context.jobs.heartbeat_soon(decision, body.progress, issued)
        lease = await asyncio.wrap_future(future)
        log.keep_lease((decision, issued), lease, now)
    log.note(decision, body, context.clock.wall())
    return _answer(lease)


@decisions.get(
    "/jobs/{job:number}/decisions", operation_id="listDecisions", **_describe(answer=DecisionPage)
)
def list_decisions(request: Request, job: JobNumber, page: Page) -> Response:
    """List the decisions of a job with their outcomes, in order."""
    entries, following = context_of(request).jobs.decisions(job, *page)
    return _answer(DecisionPage(tuple(entries), following))


@jobs.post(
    "/teams/{team}/jobs",
    operation_id="defineJob",
    **_describe(
        Definition,
        JobEntry,
        _STORED,
        job={
            "name": "resnet-nightly",
            "batch_sizes": [64, 128, 256],
            "default": 128,
            "cost": "cost:eta=0.5,max_watts=300",
            "max_epochs": 50,
        },
        device="A40",
    ),
)
def define_job(
    request: Request, team: TeamName, body: Annotated[Definition, _body(Definition)]
) -> Response:
    """Define a job.

    The same definition gets the same job. A changed one makes a new version, which is warm-started
    from what still holds; `warm_start` says what.
    """
    return _answer(_jobs_of(request, team).define(body))


@jobs.get("/teams/{team}/jobs", operation_id="listJobs", **_describe(answer=JobPage))
def list_jobs(request: Request, team: TeamName, page: Page) -> Response:
    """List the jobs of a team by number, all versions."""
    entries, following = _jobs_of(request, team).jobs(*page)
    return _answer(JobPage(tuple(entries), following))


@jobs.get("/teams/{team}/jobs/{name:path}", operation_id="showJob", **_describe(answer=JobEntry))
def show_job(
    request: Request,
    team: TeamName,
    name: Annotated[str, Path(description="name of the job", examples=["resnet-nightly"])],
    device: Annotated[
        str | None, Query(description="kind of device that the job runs on; any unless given")
    ] = None,
) -> Response:
    """Get the newest version of a job."""
    _only_known(request, "device")
    name = unquote(name)
    if "\0" in name + (device or ""):  # no name has one, and PostgreSQL accepts none
        raise not_found()
    return _answer(_jobs_of(request, team).job(name, device))


def _jobs_of(request: Request, team: str) -> JobService:
    return context_of(request).jobs.for_team(named_team(request.state.caller, team))


@jobs.patch(
    "/jobs/{job:number}",
    operation_id="pauseJob",
    **_describe(PauseState, PauseState, _BODY, paused=False),
)
def pause_job(
    request: Request, job: JobNumber, body: Annotated[PauseState, _body(PauseState)]
) -> Response:
    """Refuse decisions of a job, or make them again."""
    context_of(request).jobs.pause(job, paused=body.paused)
    return _answer(body)


@jobs.delete("/jobs/{job:number}", operation_id="deleteJob", status_code=204)
def delete_job(request: Request, job: JobNumber) -> None:
    """Delete a job with all its history."""
    context_of(request).jobs.delete(job)


@measurements.get(
    "/jobs/{job:number}/profiles", operation_id="listProfiles", **_describe(answer=ProfileList)
)
def list_profiles(request: Request, job: JobNumber) -> Response:
    """List the time-energy frontiers of a job, by batch size."""
    return _answer(ProfileList(tuple(context_of(request).jobs.profiles(job))))


@measurements.put(
    "/jobs/{job:number}/profiles",
    operation_id="putProfile",
    status_code=204,
    **_describe(
        ProfileEntry,
        problems=_BODY,
        batch_size=128,
        device="A40",
        frontier=Frontier.from_points(
            [OperatingPoint(2.5, 625.0, Setting(300.0)), OperatingPoint(2.7, 540.0, Setting(200.0))]
        ).to_dict(),
    ),
)
def put_profile(
    request: Request, job: JobNumber, body: Annotated[ProfileEntry, _body(ProfileEntry)]
) -> None:
    """Store a frontier, in place of an earlier one of the same batch size and device."""
    context_of(request).jobs.put_profile(job, body)


@measurements.get(
    "/jobs/{job:number}/energy", operation_id="listEnergy", **_describe(answer=EnergyPage)
)
def list_energy(request: Request, job: JobNumber, page: Page) -> Response:
    """List the energy that a job has used, in the order of the reports."""
    entries, following = context_of(request).jobs.energy(job, *page)
    return _answer(EnergyPage(tuple(entries), following))


@measurements.post(
    "/jobs/{job:number}/energy",
    operation_id="addEnergy",
    status_code=204,
    **_describe(
        EnergyEntry,
        problems=_STORED,
        decision="1.1",
        device="GPU-4f",
        seconds=50.0,
        joules=12_500.0,
        origin="measured",
    ),
)
def add_energy(
    request: Request, job: JobNumber, body: Annotated[EnergyEntry, _body(EnergyEntry)]
) -> None:
    """Store energy that a job has used; where a decision is named, once for each device."""
    context_of(request).jobs.add_energy(job, body)


@measurements.put(
    "/teams/{team}/runs",
    operation_id="putRun",
    status_code=204,
    **_describe(
        RunEntry,
        problems=_BODY,
        key="8d1c",
        name="fine-tune",
        started_wall_seconds=1.7e9,
        seconds=50.0,
        joules=12_500.0,
        ended=True,
        host="node1",
        devices=[{"name": "A40", "joules": 12_500.0}],
        curves=[{"quantity": "watts", "device": "A40", "points": [[0.0, 240.0], [50.0, 260.0]]}],
    ),
)
def put_run(request: Request, team: TeamName, body: Annotated[RunEntry, _body(RunEntry)]) -> None:
    """Store a run of any kind, in place of what was reported under its key before."""
    _jobs_of(request, team).put_run(body)


@measurements.get("/teams/{team}/runs", operation_id="listRuns", **_describe(answer=RunPage))
def list_runs(
    request: Request,
    team: TeamName,
    text: Annotated[
        str, Query(max_length=200, description="text that the runs contain, of the latest 20,000")
    ] = "",
    below: Annotated[
        int, Query(ge=0, le=LARGEST_ID, description="number that the page begins below; 0 for all")
    ] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MOST_PER_PAGE, description="most entries of the page")
    ] = 100,
    *,
    open_only: Annotated[
        bool, Query(alias="open", description="only runs that have not reported their end")
    ] = False,
) -> Response:
    """List the runs of a team, recurring or not, the latest first."""
    _only_known(request, "text", "below", "limit", "open")
    if "\0" in text:  # no name has one, and PostgreSQL accepts none
        return _answer(RunPage((), None))
    entries, following = _jobs_of(request, team).runs(text, below, limit, open_only=open_only)
    return _answer(RunPage(tuple(entries), following))


@measurements.get("/runs/{run:number}", operation_id="showRun", **_describe(answer=RunEntry))
def show_run(
    request: Request,
    run: Annotated[int, Path(ge=0, le=LARGEST_ID, description="number of a run", examples=[1])],
) -> Response:
    """Get a run with its curves."""
    entry = context_of(request).jobs.run(run)
    if not may_see(request.state.caller, entry.team):
        raise not_found()
    return _answer(entry)


class HealthState(JsonModel, frozen=True):
    """The state of the server.

    Attributes:
        status: `live` if the process answers, `ready` if it accepts requests.
    """

    status: Literal["live", "ready"]


@health.get(
    "/health/live",
    operation_id="live",
    **_describe(answer=HealthState, problems=_problems(503)),
)
async def live(request: Request) -> Response:
    """Check that the process answers and needs no restart, as after a restore of its store."""
    if context_of(request).store.replaced:
        raise store_replaced()
    return _answer(HealthState("live"))


@health.get(
    "/health/ready",
    operation_id="ready",
    **_describe(answer=HealthState, problems=_problems(503)),
)
async def ready(request: Request) -> Response:
    """Check that the server accepts requests.

    The store answers, the latest write of the last seconds was durable, and the server is not
    being stopped.
    """
    context = context_of(request)
    if context.draining:
        raise later("the server is being stopped")
    reading = asyncio.ensure_future(
        run_in_threadpool(context.read, lambda transaction: transaction.jobs("", 0, 1))
    )
    # Not a timeout, which would wait for the thread.
    done, _ = await asyncio.wait({reading}, timeout=_READY_SECONDS)
    if context.store.replaced:
        raise store_replaced()
    if not done or reading.exception() is not None:
        raise later("the store does not answer")
    if context.store.write_failure:
        raise later("the store does not accept writes")
    return _answer(HealthState("ready"))


@health.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_problems(503)},
)
async def metrics(request: Request) -> Response:
    """Get figures for Prometheus, at most one second old."""
    context = context_of(request)
    now, (latest_seconds, text) = context.clock.now(), context.metrics.latest
    if now - latest_seconds > _METRICS_SECONDS:
        context.metrics.latest = now, text  # of many callers, one has them made
        text = await run_in_threadpool(_metrics_text, context, now)
    return Response(text, media_type=_PROMETHEUS)


def _metrics_text(context: ServerContext, now: float) -> bytes:
    try:
        counts = context.read(totals)
    except JouleryError:
        counts = None  # the other figures are needed most when the store does not answer
    return context.metrics.text(counts, now)
