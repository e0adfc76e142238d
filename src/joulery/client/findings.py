"""What a run found out besides how it ended: energy by device, and the frontier of an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.frontier import Frontier, Origin
from joulery.jobs.wire_measurements import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.client.backend import DecisionBackend
    from joulery.frontier import OperatingPoint
    from joulery.jobs.wire_measurements import EnergyEntry

# A figure that differs by no more than this many standard errors is no news.
_SIGMAS = 2.0
# One that is surer by this factor is.
_SURER = 0.7
# What has held for so long is told again, so that everyone sees that it does.
_STALE_SECONDS = 86_400.0
_RANKS = list(Origin)


@dataclass(frozen=True, slots=True)
class RunMeasurements:
    """What an attempt found out.

    Attributes:
        batch_size: That was run.
        device: Kind of device, as the job is known on it.
        points: An epoch under each power limit that was measured.
        energy: Of each device.
        work: What the points are about, in words.
    """

    batch_size: int
    device: str
    points: tuple[OperatingPoint, ...] = ()
    energy: tuple[EnergyEntry, ...] = ()
    work: str = ""


class ProfileUploader:
    """Tells findings about one job to a clerk, with no request for what is no news.

    Args:
        clerk: Who keeps them.
        job: Its number.
        wall: The time, in seconds since 1970.
    """

    def __init__(self, clerk: DecisionBackend, job: int, wall: Callable[[], float]) -> None:
        self._clerk = clerk
        self._job = job
        self._wall = wall
        self._known: dict[tuple[int, str], ProfileEntry] | None = None

    def tell(self, found: RunMeasurements, check: Callable[[], object]) -> None:
        """Have all of it kept; ``check`` is called before every request, and may raise."""
        for used in found.energy:
            check()
            self._clerk.note_energy(self._job, used)
        if found.points:
            check()
            self._tell_points(found, check)

    def _tell_points(self, found: RunMeasurements, check: Callable[[], object]) -> None:
        if self._known is None:
            kept = self._clerk.profiles(self._job)
            self._known = {(one.batch_size, one.device): one for one in kept}
        place = (found.batch_size, found.device)
        frontier = news(self._known.get(place), found, self._wall())
        if frontier is not None:
            check()
            profile = ProfileEntry(*place, frontier, self._wall())
            self._clerk.keep_profile(self._job, profile)
            self._known[place] = profile


def news(
    kept: ProfileEntry | None, found: RunMeasurements, now_wall_seconds: float
) -> Frontier | None:
    """The frontier that findings make of the one that is kept; None where they tell nothing new.

    Limits that were not measured now stay as they were. Figures of different origins are not mixed:
    those of the better one count.
    """
    if kept is None:
        return Frontier.from_points(found.points, found.work)
    before, now = _weakest(kept.frontier.points), _weakest(found.points)
    if before < now:
        return None
    known = {_limit(point): point for point in kept.frontier} if before == now else {}
    stale = now_wall_seconds - (kept.wall_seconds or 0.0) > _STALE_SECONDS
    fresh = {
        _limit(point): point
        for point in found.points
        if stale or not _agree(known.get(_limit(point)), point)
    }
    merged = Frontier.from_points((known | fresh).values(), found.work)
    return None if merged.points == kept.frontier.points and not stale else merged


def _weakest(points: Sequence[OperatingPoint]) -> int:
    """Of the origins, as a rank; the best is 0."""
    return max(_RANKS.index(point.provenance.origin) for point in points)


def _limit(point: OperatingPoint) -> float | None:
    return point.setting.power_limit_watts


def _agree(kept: OperatingPoint | None, fresh: OperatingPoint) -> bool:
    """Whether what was kept says the same, and is about as sure."""
    if kept is None:
        return False
    before, now = kept.provenance.relative_error, fresh.provenance.relative_error
    if before is None or now is None or now < _SURER * before:
        return False
    away = max(
        abs(math.log(one / other)) if one > 0 and other > 0 else math.inf
        for one, other in ((fresh.seconds, kept.seconds), (fresh.joules, kept.joules))
    )
    return away <= _SIGMAS * math.hypot(before, now)
