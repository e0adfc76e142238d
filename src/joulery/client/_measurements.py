"""Measurements of a run besides its outcome: energy by device, and the frontier of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.documents import Codec, Foreign, JsonModel, Text
from joulery.errors import FileError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin
from joulery.jobs import BatchSize, EnergyEntry, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.client._backend import DecisionBackend

_RANKS = list(Origin)


def _read_point(document: object) -> OperatingPoint:
    try:
        return OperatingPoint.from_dict(document)  # type: ignore[arg-type]  # checks what it is given
    except (FileError, InvalidValueError) as error:
        raise InvalidValueError(str(error), remedy="measure again") from None


_POINT = Codec(OperatingPoint.to_dict, _read_point, {"type": "object"})


class RunMeasurements(JsonModel, frozen=True):
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
    points: tuple[Foreign[OperatingPoint, _POINT], ...] = ()
    energy: tuple[EnergyEntry, ...] = ()
    work: str = ""


def upload_measurements(backend: DecisionBackend, job: int, measurements: RunMeasurements) -> None:
    """Store the measurements of a run; safe to repeat."""
    for energy in measurements.energy:
        backend.add_energy(job, energy)
    if not measurements.points:
        return
    profiles = backend.profiles(job)
    stored = {(profile.batch_size, profile.device): profile.frontier for profile in profiles}
    key = (measurements.batch_size, measurements.device)
    frontier = merged_frontier(stored.get(key), measurements)
    if frontier is not None:
        backend.put_profile(job, ProfileEntry(*key, frontier))


def merged_frontier(stored: Frontier | None, measurements: RunMeasurements) -> Frontier | None:
    """The stored frontier updated by what was measured; None to leave it as it is.

    Limits that were not measured now stay as they were. Figures of different origins are not mixed:
    those of the better one count.
    """
    points: dict[float | None, OperatingPoint] = {}
    if stored is not None:
        before, now = _weakest(stored.points), _weakest(measurements.points)
        if before < now:
            return None
        points = {_limit(point): point for point in stored} if before == now else {}
    points |= {_limit(point): point for point in measurements.points}
    return Frontier.from_points(points.values(), measurements.work)


def _weakest(points: Sequence[OperatingPoint]) -> int:
    """The worst origin of the points, as a rank; the best is 0."""
    return max(_RANKS.index(point.provenance.origin) for point in points)


def _limit(point: OperatingPoint) -> float | None:
    return point.setting.power_limit_watts
