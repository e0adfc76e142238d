"""Measurements of a run besides its outcome: energy by device, and the frontier of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from joulery.errors import FileError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin
from joulery.jobs import BatchSize, Codec, EnergyEntry, JsonModel, ProfileEntry, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.client._backend import DecisionBackend

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


def upload_measurements(backend: DecisionBackend, job: int, found: RunMeasurements) -> None:
    """Store the measurements of a run; safe to repeat."""
    for used in found.energy:
        backend.note_energy(job, used)
    if not found.points:
        return
    stored = {(one.batch_size, one.device): one.frontier for one in backend.profiles(job)}
    place = (found.batch_size, found.device)
    frontier = merged_frontier(stored.get(place), found)
    if frontier is not None:
        backend.keep_profile(job, ProfileEntry(*place, frontier))


def merged_frontier(kept: Frontier | None, found: RunMeasurements) -> Frontier | None:
    """The stored frontier updated by what was measured; None to leave it as it is.

    Limits that were not measured now stay as they were. Figures of different origins are not mixed:
    those of the better one count.
    """
    known: dict[float | None, OperatingPoint] = {}
    if kept is not None:
        before, now = _weakest(kept.points), _weakest(found.points)
        if before < now:
            return None
        known = {_limit(point): point for point in kept} if before == now else {}
    fresh = {_limit(point): point for point in found.points}
    return Frontier.from_points((known | fresh).values(), found.work)


def _weakest(points: Sequence[OperatingPoint]) -> int:
    """The worst origin of the points, as a rank; the best is 0."""
    return max(_RANKS.index(point.provenance.origin) for point in points)


def _limit(point: OperatingPoint) -> float | None:
    return point.setting.power_limit_watts
