"""The page of a cluster under a power budget, from the state folder of its agent."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from joulery.clock import REAL_CLOCK
from joulery.cluster import announce, read_status
from joulery.errors import FileError, InvalidValueError, JouleryError
from joulery.grid import GridEvent
from joulery.reports import agent_report
from joulery.server._auth import context_of, may_see_all
from joulery.server._pages import PageRoute, read_form, render, zone_of
from joulery.server._problems import no_permission, not_found
from joulery.storage import Permission
from joulery.units import human

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.cluster import AgentStatus

cluster_pages = APIRouter(route_class=PageRoute, include_in_schema=False)
WATCH_SECONDS = 5.0  # by hand: as often as an agent decides
_MOST_SAMPLES = 17_280  # a day of samples
_MOST_MINUTES = 10_080  # a week: grid operators ask for hours


class ClusterWatch:
    """Reads an agent's status from time to time, and remembers power and budget."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._history: deque[tuple[float, float, float]] = deque(maxlen=_MOST_SAMPLES)

    def look(self) -> AgentStatus:
        """The latest status.

        Raises:
            FileError: There is none.
        """
        status = read_status(self.state)
        if not self._history or self._history[-1][0] < status.at:
            self._history.append((status.at, status.power_watts, status.budget_watts))
        return status

    def sample(self) -> None:
        """Remember the latest status, if there is one."""
        with suppress(FileError):
            self.look()

    def latest_seconds(self) -> float:
        """Unix time of the latest status that could be read; 0 where there is none."""
        self.sample()
        return self._history[-1][0] if self._history else 0.0

    @property
    def history(self) -> tuple[tuple[float, float, float], ...]:
        """Unix time, power and budget of every sample."""
        return tuple(self._history)


def _watch(request: Request) -> ClusterWatch:
    """The agent, for tokens of every team: its page names the jobs of all of them."""
    watch: ClusterWatch | None = request.app.state.cluster
    if watch is None:
        raise not_found(
            "this server shows no cluster",
            "start it with --cluster-state DIR, the state folder of a `joulery cluster agent`",
        )
    if not may_see_all(request.state.caller):
        raise no_permission()
    return watch


def _may_announce(request: Request) -> bool:
    return bool(request.state.caller.right >= Permission.MANAGE)


@cluster_pages.get("/cluster", operation_id="clusterPage")
def cluster(request: Request) -> Response:
    """Power against budget, and what every job gets."""
    return _render_cluster(request)


def _render_cluster(request: Request, error: str = "", code: int = 200) -> Response:
    watch = _watch(request)
    try:
        status = watch.look()
    except FileError as missing:
        return render(request, "cluster.html", "Cluster", missing=missing)
    now, zone = context_of(request).clock.wall(), zone_of(request)
    return render(
        request,
        "cluster.html",
        "Cluster",
        code,
        events="cluster",
        mark=str(status.at),
        missing=None,
        error=error,
        report=agent_report(status, watch.history, now, zone),
        may_announce=_may_announce(request),
        most_minutes=_MOST_MINUTES,
    )


@cluster_pages.post("/cluster/events", operation_id="announceEvent")
async def announce_event(request: Request) -> Response:
    """Ask the cluster for less power, from now on; once that is confirmed."""
    watch = _watch(request)
    if not _may_announce(request):
        raise no_permission()
    fields = await read_form(request)
    try:
        event = _read_event(fields)
        if fields.get("confirmed") != "1":
            return _ask_to_confirm(request, watch, fields)
        await run_in_threadpool(announce, watch.state, event)
    except (ValueError, InvalidValueError) as error:
        return _render_cluster(request, f"No event was announced: {error}", 422)
    except JouleryError as error:
        return _render_cluster(request, f"{error.message}; {error.remedy}", 503)
    return RedirectResponse("/cluster", 303)


def _ask_to_confirm(request: Request, watch: ClusterWatch, fields: dict[str, str]) -> Response:
    """Say what an event would change, before it acts on a cluster."""
    budget_watts = watch.look().budget_watts
    share = float(fields["reduce"]) / 100
    return render(
        request,
        "confirm.html",
        "Announce an event?",
        fields={name: fields[name] for name in ("id", "reduce", "minutes")},
        budget=human(budget_watts, "W"),
        lowered=human((1 - share) * budget_watts, "W"),
    )


def _read_event(fields: dict[str, str]) -> GridEvent:
    now = REAL_CLOCK.wall()
    share, minutes = float(fields.get("reduce", "")), float(fields.get("minutes", ""))
    if not 0 < minutes <= _MOST_MINUTES:
        raise InvalidValueError(
            f"an event takes up to {_MOST_MINUTES:,} minutes, not {minutes:g}",
            remedy="announce a shorter one",
        )
    name = fields.get("id", "")
    if not (name.isascii() and name.isalnum()):
        raise InvalidValueError(
            "the name of an event has letters and digits only", remedy="choose another name"
        )
    return GridEvent(name, now, now + 60 * minutes, None, share / 100, now)
