"""The page of a cluster under a power budget, from the state folder of its agent."""

from __future__ import annotations

import json
from collections import deque
from html import escape
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from joulery.clock import REAL_CLOCK
from joulery.cluster import announce
from joulery.errors import FileError, InvalidValueError, JouleryError
from joulery.grid import GridEvent
from joulery.reports import agent_report
from joulery.server._auth import context_of, may_see_all
from joulery.server._dashboard import PageRoute, error_text, form_of, page_of
from joulery.server._problems import no_permission, not_found
from joulery.storage import Permission

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.storage import TokenRecord

cluster_pages = APIRouter(route_class=PageRoute, include_in_schema=False)
WATCH_SECONDS = 5.0
_KEPT = 17_280  # a day of samples


class ClusterWatch:
    """Reads an agent's status from time to time, and remembers power and budget."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._history: deque[tuple[float, float, float]] = deque(maxlen=_KEPT)

    def look(self) -> dict[str, Any]:
        """The latest status.

        Raises:
            FileError: There is none.
        """
        try:
            status: dict[str, Any] = json.loads((self.state / "status.json").read_bytes())
            sample = status["at"], status["power_watts"], status["budget_watts"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            why = getattr(error, "strerror", None) or error
            raise FileError(
                f"no status of an agent in {self.state}: {why}",
                remedy="start `joulery cluster agent` with this state folder",
            ) from None
        if not self._history or self._history[-1][0] < sample[0]:
            self._history.append(sample)
        return status

    def sample(self) -> None:
        """Remember the latest status, if there is one."""
        try:
            self.look()
        except FileError:
            return

    @property
    def history(self) -> tuple[tuple[float, float, float], ...]:
        """Unix time, power and budget of every sample."""
        return tuple(self._history)


def _watch(request: Request) -> ClusterWatch:
    """The agent, for tokens of every team: its page names the jobs of all of them."""
    watch: ClusterWatch | None = request.app.state.cluster
    if watch is None:
        raise not_found()
    if not may_see_all(request.state.caller):
        raise no_permission()
    return watch


def _may_announce(request: Request) -> bool:
    record: TokenRecord = request.state.caller
    return record.right >= Permission.MANAGE


@cluster_pages.get("/cluster", operation_id="clusterPage")
def cluster(request: Request) -> Response:
    """Power against budget, and what every job gets."""
    return _cluster_page(request)


def _cluster_page(request: Request, error: str = "", status: int = 200) -> Response:
    watch = _watch(request)
    form = _EVENT_FORM if _may_announce(request) else ""
    alert = f'<p class="error" role="alert">{escape(error)}</p>' if error else ""
    try:
        found = watch.look()
    except FileError as missing:
        body = error_text(missing.message, missing.remedy)
        return page_of(request, "Cluster", f"<h1>Cluster</h1>{body}")
    report = agent_report(found, watch.history, context_of(request).clock.wall())
    body = f'<h1>Cluster</h1>{alert}<div id="cluster" data-live>{report.body()}</div>{form}'
    events, mark = "/changes?cluster=1", str(found["at"])
    return page_of(request, "Cluster", body, events=events, mark=mark, status=status)


_EVENT_FORM = """<h2>Announce an event</h2>
<form class="row" method="post" action="/cluster/events">
<label>name, letters and digits
<input name="id" required pattern="[A-Za-z0-9]+" maxlength="60"></label>
<label>reduce power by %<input type="number" name="reduce" min="1" max="99" required></label>
<label>for minutes<input type="number" name="minutes" min="1" max="10080" required></label>
<button>Announce</button></form>
<p class="soft">The agent lowers the budget at once and restores it when the event ends.</p>"""


@cluster_pages.post("/cluster/events", operation_id="announceEvent")
async def announce_event(request: Request) -> Response:
    """Ask the cluster for less power, from now on."""
    watch = _watch(request)
    if not _may_announce(request):
        raise no_permission()
    fields = await form_of(request)
    try:
        now = REAL_CLOCK.wall()
        share, minutes = float(fields.get("reduce", "")), float(fields.get("minutes", ""))
        event = GridEvent(fields.get("id", ""), now, now + 60 * minutes, None, share / 100, now)
        await run_in_threadpool(announce, watch.state, event)
    except (ValueError, InvalidValueError) as error:
        return _cluster_page(request, f"No event was announced: {error}", 422)
    except JouleryError as error:
        return _cluster_page(request, f"{error.message}; {error.remedy}", 503)
    return RedirectResponse("/cluster", 303)
