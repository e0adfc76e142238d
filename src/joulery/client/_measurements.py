"""Measurements of a run besides its outcome: energy by device, and the frontier of an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from joulery.errors import FileError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin
from joulery.jobs import BatchSize, Codec, EnergyEntry, JsonModel, ProfileEntry, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.client._backend import DecisionBackend

# A figure that differs by no more than this many standard errors is no news.
_SIGMAS = 2.0
# A figure whose error is smaller by this factor is.
_SURER = 0.7
# A profile that has held for so long is stored again, so that its age shows that it still holds.
_STALE_SECONDS = 86_400.0
_RANKS = list(Origin)


def _read_point(document: object, name: str) -> OperatingPoint:
    try:
        return OperatingPoint.from_dict(document)  # type: ignore[arg-type]  # checks what it is given
    except (FileError, InvalidValueError) as error:
        raise InvalidValueError(f"{name}: {error}", remedy="measure again") from None


_POINT = Codec(OperatingPoint.to_dict, _read_point, {"type": "object"})


@dataclass(frozen=True, slots=True)
class RunMeasurements(JsonModel):
    """Measurements of an attempt.

    Attributes:
        batch_size: Batch size that was run.
        device: Kind of device, as in the job's definition.
        points: Time and energy of an epoch under each power limit that was measured.
        energy: Energy of each device.
        work: Description of the work that the points refer to.
    """

    batch_size: BatchSize
    device: Text
    points: tuple[Annotated[OperatingPoint, _POINT], ...] = ()
    energy: tuple[EnergyEntry, ...] = ()
    work: str = ""


def upload_measurements(
    backend: DecisionBackend, job: int, found: RunMeasurements, now_wall_seconds: float
) -> None:
    """Store the measurements of a run unless nothing has changed; safe to repeat."""
    for used in found.energy:
        backend.note_energy(job, used)
    if not found.points:
        return
    stored = {(one.batch_size, one.device): one for one in backend.profiles(job)}
    place = (found.batch_size, found.device)
    frontier = updated_frontier(stored.get(place), found, now_wall_seconds)
    if frontier is not None:
        backend.keep_profile(job, ProfileEntry(*place, frontier))


def updated_frontier(
    kept: ProfileEntry | None, found: RunMeasurements, now_wall_seconds: float
) -> Frontier | None:
    """The stored frontier updated by what was measured; None where nothing has changed.

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
    """The worst origin of the points, as a rank; the best is 0."""
    return max(_RANKS.index(point.provenance.origin) for point in points)


def _limit(point: OperatingPoint) -> float | None:
    return point.setting.power_limit_watts


def _agree(kept: OperatingPoint | None, fresh: OperatingPoint) -> bool:
    """Whether the stored point agrees with a new one, with about the same error."""
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
