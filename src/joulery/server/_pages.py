"""What all pages of the dashboard share: who may see them, their template, and how errors look.

People log in with a team's token and get a session, whose random id is in a cookie that scripts
cannot read; the API does not take that cookie. Another cookie names the reader's time zone.
"""

from __future__ import annotations

from datetime import UTC
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, RedirectResponse

from joulery import __version__
from joulery.errors import JouleryError
from joulery.reports import date_text, energy_text, saved_text, simulated_text
from joulery.server._auth import authenticate_session, authorize, context_of, may_see_all
from joulery.server._problems import (
    LIST_REMEDY,
    ProblemError,
    body_too_large,
    not_found,
    other_origin,
    problem_of,
)
from joulery.server._shares import charged
from joulery.storage import Permission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import tzinfo

    from fastapi import Request, Response

    from joulery.reports import Report
    from joulery.storage import TokenRecord

_COOKIE = "joulery_session"
LIVE_HEADER = "joulery-live"  # of requests that the script makes, not a person
_STREAM = "/changes"
ZONE_COOKIE = "joulery_zone"
_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_MOST_FORM_BYTES = 4096  # by hand: every form of the dashboard fits many times over
_LOOK = "look for it in the lists of jobs and runs; it may have been deleted"
_ZONES = 64  # by hand: time zones whose rules stay in memory


def _body(report: Report, name: str = "chart") -> Markup:
    return Markup(report.body(name, with_data=True))  # noqa: S704 - reports escape what they show


def _prose(text: str) -> Markup:
    """Text in which what stands between backticks is code."""
    parts = str(escape(text)).split("`")
    marked = (f"<code>{part}</code>" if odd % 2 else part for odd, part in enumerate(parts))
    return Markup("".join(marked))  # noqa: S704 - escaped above


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"body": _body, "energy": energy_text, "saved": saved_text}
_TEMPLATES.filters |= {"simulated": simulated_text, "prose": _prose}


class PageRoute(APIRoute):
    """A route of the dashboard: logged in by cookie, with security headers and readable errors."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, charged(endpoint), **options)

    def get_route_handler(self) -> Any:
        handle = super().get_route_handler()
        public = self.path.startswith(("/login", "/assets"))

        return partial(_page, partial(self._answer, handle), public=public)

    @staticmethod
    async def _answer(handle: Any, request: Request) -> Any:
        team = request.scope.get("joulery.team")
        if team is None or request.url.path == _STREAM:  # which does not end
            return await handle(request)
        async with context_of(request).shares.turn(team):
            return await handle(request)


async def no_page(request: Request) -> Response:
    """The page of an address that has none."""

    async def fail(_: Request) -> Response:
        raise not_found("there is nothing at this address")

    return await _page(fail, request)


async def _page(
    handle: Callable[[Request], Awaitable[Response]], request: Request, *, public: bool = False
) -> Response:
    """The answer to a reader, or the page of the error that came instead."""
    try:
        _check_origin(request)
        if not public:
            session_id = request.cookies.get(cookie_name(request), "")
            is_stream = request.url.path == _STREAM
            by_person = not is_stream and LIVE_HEADER not in request.headers
            await authenticate_session(request, session_id, by_person=by_person)
            await authorize(request, Permission.READ)
        answer = await handle(request)
    except ProblemError as error:
        answer = _error_page(request, error)
    except RequestValidationError:
        answer = _error_page(request, not_found())
    except JouleryError as error:
        answer = _error_page(request, problem_of(error))
    answer.headers.update(_SECURITY)
    return answer


def is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, with this server or with a proxy before it."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))


def cookie_name(request: Request) -> str:
    """Name of the cookie of sessions; with TLS, browsers then accept it from this host only."""
    return f"__Host-{_COOKIE}" if is_secure(request) else _COOKIE


def _check_origin(request: Request) -> None:
    """Refuse an unsafe request of a page that is not of this host and port.

    Cookies do not tell ports apart, and browsers send no Sec-Fetch-Site to plain HTTP; all of
    them state the origin.
    """
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    origin = urlsplit(request.headers.get("origin", "")).netloc.lower()
    hosts = (request.headers.get(name, "").lower() for name in ("host", "x-forwarded-host"))
    if not origin or origin not in hosts:
        raise other_origin()


def _error_page(request: Request, error: ProblemError) -> Response:
    if error.status_code == 401:
        return _ask_to_log_in(request, error.problem.detail)
    problem = error.problem
    remedy = _LOOK if problem.remedy == LIST_REMEDY else problem.remedy
    answer = render(
        request,
        "error.html",
        problem.title,
        error.status_code,
        message=problem.detail,
        remedy=remedy,
    )
    answer.headers.update(error.headers or {})
    return answer


def _ask_to_log_in(request: Request, detail: str) -> Response:
    """The log-in page, which leads back to where the reader is."""
    if request.method == "GET":
        address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?{urlencode({'next': address})}", 303)
    page = urlsplit(request.headers.get("referer", ""))
    text = f"Nothing was changed: {detail}. Log in and try again."
    return render(request, "login.html", "Log in", 401, following=page.path or "/", error=text)


def render(
    request: Request,
    template: str,
    title: str,
    status: int = 200,
    *,
    events: str = "",
    mark: str = "",
    **values: Any,
) -> HTMLResponse:
    """A whole page with its navigation.

    Args:
        request: Request that is answered.
        template: Name of the template.
        title: Title of the page.
        status: HTTP status.
        events: Topic of the stream that says when the content changes; empty for none.
        mark: Present mark of that topic.
        **values: Values of the template.
    """
    caller: TokenRecord | None = getattr(request.state, "caller", None)
    sees_all, state, zone = caller is not None and may_see_all(caller), request.app.state, zone_of
    links = {"/": "Overview", "/runs": "Runs", "/jobs": "Jobs"}
    if sees_all and state.cluster is not None:
        links["/cluster"] = "Cluster"
    if sees_all and state.plans is not None:
        links["/plans"] = "Plans"
    content = _TEMPLATES.get_template(template).render(
        title=title,
        version=__version__,
        caller=caller,
        team="all teams" if sees_all else caller.team if caller else "",
        links=links,
        path=request.url.path,
        zone=str(zone(request)),
        notice=state.notice,
        date=partial(date_text, zone=zone(request)),
        events=events,
        mark=mark,
        **values,
    )
    return HTMLResponse(content, status)


def zone_of(request: Request) -> tzinfo:
    """The time zone of the reader, as the browser has named it; UTC where it has not."""
    return _read_zone(request.cookies.get(ZONE_COOKIE, ""))


@lru_cache(_ZONES)
def _read_zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return UTC


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MOST_FORM_BYTES:
            raise body_too_large(_MOST_FORM_BYTES)
    try:
        fields = parse_qs(content.decode("utf-8", "replace"), keep_blank_values=True)
    except ValueError:  # more fields than any form has
        raise body_too_large(_MOST_FORM_BYTES) from None
    return {name: values[-1] for name, values in fields.items()}
