"""The ASGI application: FastAPI with the routes, problem documents, metrics and a request log."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from joulery import __version__
from joulery.errors import InvalidValueError, JouleryError, StoreError
from joulery.grid import electricity_price
from joulery.server._auth import context_of
from joulery.server._cluster_page import cluster_pages
from joulery.server._dashboard import pages
from joulery.server._figures import BeliefsCache, FiguresCache, OverviewCache
from joulery.server._heartbeats import HeartbeatLog
from joulery.server._pages import no_page
from joulery.server._plans_page import plan_pages
from joulery.server._problems import internal, later, problem_of, problem_of_http
from joulery.server._routes import ROUTERS, described_schemas
from joulery.server._runs_page import run_pages

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from joulery.grid import ElectricityPrice
    from joulery.server._auth import ServerContext
    from joulery.server._cluster_page import ClusterWatch

_log = logging.getLogger("joulery.server")

_SLOW_SECONDS = 1.0  # by hand: a request that took longer is logged
_ABOUT = """Decisions for recurring training jobs: what to run next, and reports on how it ended.

Ask with a team's token, run what the decision says, report with the decision's own token. Every
request may be repeated: the same key gets the same answer. Errors are problem documents (RFC 9457)
with a remedy; those with Retry-After may be repeated unchanged.

A decision is a lease of 600 seconds: a heartbeat prolongs it by as much. One without a heartbeat or
report counts as abandoned; a report that comes later still counts. A decision of the kind `train`
is trained until the target is reached, the cost ceiling is passed or the epochs are exhausted. A
`probe`, which only clients that ask for `probing` get, runs its batch size for seconds under each
of its `probe_limits_watts`, reports what an epoch would take in `measured` with the end `probed`,
and asks again with `after`."""

_TOKENS = {
    "teamToken": "token of a team, made with `joulery serve token create`",
    "decisionToken": "token that came with the decision",
}


def create_app(
    context: ServerContext | None = None,
    electricity: ElectricityPrice | None = None,
    cluster: ClusterWatch | None = None,
    plans: Path | None = None,
    notice: str = "",
) -> FastAPI:
    """The application.

    Args:
        context: State of the server; None where only the description is wanted.
        electricity: Carbon and price of a kWh on the dashboard; None for the world's mean.
        cluster: Agent of a cluster that the dashboard shows; None for none.
        plans: Folder of plans and recommendations that the dashboard shows; None for none.
        notice: Sentence at the head of every page of the dashboard; empty for none.
    """
    app = FastAPI(
        title="Joulery",
        version=__version__,
        description=_ABOUT,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    app.state.notice = notice
    if context is not None:
        app.state.figures = FiguresCache(context)
        app.state.beliefs = BeliefsCache()
        app.state.overviews = OverviewCache()
        app.state.heartbeats = HeartbeatLog()
        app.state.cluster = cluster
        app.state.plans = plans
        app.state.electricity = electricity or electricity_price()
    for router in (*ROUTERS, pages, run_pages, cluster_pages, plan_pages):
        app.include_router(router)
    app.add_middleware(_Observer)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(JouleryError, _on_own_error)
    describe = app.openapi
    app.openapi = lambda: _completed(describe())  # type: ignore[method-assign]  # as FastAPI's manual shows
    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    problem = problem_of_http(error)
    by_browser = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    # Without an error of ours, no route was found.
    if problem.status_code == 404 and problem is not error and by_browser:
        return await no_page(request)
    return problem.response()


async def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it only
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if not isinstance(cause, JouleryError):
        name = first["loc"][-1]
        cause = InvalidValueError(f"{name}: {first['msg']}", remedy=f"give {name} as described")
    return problem_of(cause).response()


async def _on_own_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, JouleryError)  # noqa: S101 - registered for it only
    if isinstance(error, StoreError):
        _log.warning("store", extra={"fields": {"message": str(error)}})
    return problem_of(error).response()


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """The description with the documents, and with tokens."""
    schemes = {
        name: {"type": "http", "scheme": "bearer", "description": text}
        for name, text in _TOKENS.items()
    }
    document["components"] = {"schemas": described_schemas(), "securitySchemes": schemes}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                name = "decisionToken" if "{decision}" in path else "teamToken"
                operation["security"] = [{name: []}]
    return document


class _Observer:
    """Middleware that bounds, counts, times and logs requests, and hides internal errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = context_of(Request(scope))
        began, answer = time.perf_counter(), _Answer(send)
        # Names keep their slashes: routes are found before, and names decoded after.
        scope["path"] = (scope.get("raw_path") or quote(scope["path"]).encode()).decode(
            "utf-8", "replace"
        )
        self._in_flight += 1
        context.metrics.in_flight.set(self._in_flight)
        full = self._in_flight > context.limits.waiting_requests
        refused = full and scope["path"].startswith("/v1/")  # not health and metrics
        try:
            app = later("too many requests at the same time").response() if refused else self._app
            work = asyncio.ensure_future(app(scope, receive, answer.send))
            # Not a timeout, which would wait for a thread that waits for the database.
            done, _ = await asyncio.wait({work}, timeout=context.limits.answer_seconds)
            if done:
                work.result()
            elif not answer.status:
                work.add_done_callback(lambda late: late.cancelled() or late.exception())
                silent = later("the store does not answer, so the request may yet be executed")
                await silent.response()(scope, receive, answer.close())
        except ClientDisconnect:
            pass
        except Exception:  # noqa: BLE001 - the edge: callers must not see our insides
            _log.exception("failed")
            if not answer.status:
                await internal().response()(scope, receive, answer.send)
        finally:
            self._in_flight -= 1
            context.metrics.in_flight.set(self._in_flight)
            context.left(scope.pop("joulery.team", None))
            seconds = math.nan if answer.is_stream else time.perf_counter() - began
            _note(context, scope, answer.status, seconds)


class _Answer:
    """The answer to a request, as it is sent.

    Attributes:
        status: HTTP status; 0 before the answer has begun.
        is_stream: Whether it lasts as long as somebody looks, so that its time says nothing.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._closed = False
        self.status = 0
        self.is_stream = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer; answers are not for caches unless they say so.

        Raises:
            ClientDisconnect: The connection failed, which is not an error of the application, or
                another answer was sent.
        """
        if self._closed:
            raise ClientDisconnect
        await self._forward(message)

    def close(self) -> Send:
        """The function for an answer in place of one that did not come in time."""
        self._closed = True
        return self._forward

    async def _forward(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.is_stream = (b"content-type", b"text/event-stream") in [
                (name, value.partition(b";")[0]) for name, value in message["headers"]
            ]
            if not any(name == b"cache-control" for name, _ in message["headers"]):
                message["headers"] = [*message["headers"], (b"cache-control", b"no-store")]
        try:
            await self._send(message)
        except Exception as error:
            raise ClientDisconnect from error


def _note(context: ServerContext, scope: Scope, status: int, seconds: float) -> None:
    operation = getattr(scope.get("route"), "operation_id", None) or "none"
    context.metrics.observe(operation, status, seconds)
    if context.log_requests or status >= 500 or seconds > _SLOW_SECONDS:
        client = scope.get("client")
        fields = {
            "operation": operation,
            "method": scope["method"],
            "status": status,
            "seconds": None if math.isnan(seconds) else round(seconds, 6),
            "address": client[0] if client else "",
        }
        _log.info("request", extra={"fields": fields})
