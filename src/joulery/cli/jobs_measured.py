"""What was measured of a recurring job: the energy that it used, and frontiers of its epochs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from joulery.cli.table import table
from joulery.errors import UnknownRecordError, UsageError
from joulery.jobs.wire_measurements import profile_document
from joulery.units import human, human_duration, kilowatt_hours

if TYPE_CHECKING:
    from joulery.client.backend import DecisionBackend
    from joulery.frontier import Frontier, OperatingPoint
    from joulery.jobs.wire_entries import JobEntry
    from joulery.jobs.wire_measurements import ProfileEntry

_PAGE = 1000
_MOST_PAGES = 20  # enough for years of most jobs; all of it is not read for one look
_UNTOLD = 0.01  # less than this share is rounding
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


@dataclass(slots=True)
class EnergyUsed:
    """Energy whose figures came about in one way.

    Attributes:
        origin: Which, as :class:`joulery.frontier.Origin` names it.
        joules: How much.
        device_seconds: How long, added up over devices.
        records: How many figures that is.
    """

    origin: str
    joules: float = 0.0
    device_seconds: float = 0.0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a job.

    Attributes:
        energy: Used so far, by how the figures came about.
        complete: Whether all of it was read.
        profiles: Frontiers, by batch size.
    """

    energy: tuple[EnergyUsed, ...] = ()
    complete: bool = True
    profiles: tuple[ProfileEntry, ...] = ()

    @property
    def joules(self) -> float:
        """Used so far, however the figures came about."""
        return sum(one.joules for one in self.energy)


def measured_of(clerk: DecisionBackend, job: JobEntry) -> Measured:
    """Read what was measured of a job, and add it up."""
    found: dict[str, EnergyUsed] = {}
    after: int | None = 0
    for _ in range(_MOST_PAGES):
        if after is None:
            break
        entries, after = clerk.energy(job.id, after, _PAGE)
        for entry in entries:
            used = found.setdefault(entry.origin, EnergyUsed(entry.origin))
            used.joules += entry.joules
            used.device_seconds += entry.seconds
            used.records += 1
    return Measured(tuple(found.values()), after is None, tuple(clerk.profiles(job.id)))


def energy_text(measured: Measured, reported_joules: float) -> str:
    """What a job has used, in one line; empty where nothing is known.

    Args:
        measured: Of the job.
        reported_joules: What its reports tell, which also count where devices were not told apart.
    """
    parts = [
        f"{human(one.joules, 'J')} ({kilowatt_hours(one.joules):.3g} kWh), {one.origin}"
        for one in measured.energy
    ]
    rest = reported_joules - measured.joules
    if rest > _UNTOLD * reported_joules and measured.complete:
        more = " more" if parts else ""
        parts.append(f"{human(rest, 'J')}{more} by reports that do not say how it was measured")
    if not parts:
        return ""
    least = "" if measured.complete else "at least "
    return f"energy used so far: {least}{'; '.join(parts)}"


def profiles_text(measured: Measured, now_wall_seconds: float) -> str:
    """An epoch at each batch size, under its limits; empty where nothing is known."""
    if not measured.profiles:
        return ""
    rows = [
        [
            str(one.batch_size),
            _point(one.frontier.fastest),
            _point(one.frontier.least_energy),
            _limits(one.frontier),
            _origins(one.frontier),
            _age(now_wall_seconds - (one.wall_seconds or now_wall_seconds)),
        ]
        for one in measured.profiles
    ]
    headers = ["batch size", "fastest epoch", "leanest epoch", "limits", "figures", "age"]
    return table(headers, rows, "rrrrlr")


def _point(point: OperatingPoint) -> str:
    watts = point.setting.power_limit_watts
    limit = "" if watts is None else f" at {human(watts, 'W')}"
    return f"{human_duration(point.seconds)}, {human(point.joules, 'J')}{limit}"


def _limits(frontier: Frontier) -> str:
    """How many there are between the two, both included."""
    return str(sum(point.setting.power_limit_watts is not None for point in frontier) or "–")


def _origins(frontier: Frontier) -> str:
    return ", ".join(dict.fromkeys(point.provenance.origin.value for point in frontier))


def _age(seconds: float) -> str:
    """How long ago something was, to one unit."""
    if seconds < _MINUTE:
        return "now"
    units = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"))
    unit, name = next(one for one in units if seconds >= one[0])
    return f"{seconds // unit:.0f} {name}"


def measured_document(measured: Measured) -> dict[str, Any]:
    """The same, ready for JSON."""
    return {
        "energy": {
            "joules": measured.joules,
            "by_origin": [asdict(one) for one in measured.energy],
            "complete": measured.complete,
        },
        "profiles": [profile_document(one) for one in measured.profiles],
    }


def chosen_profile(profiles: list[ProfileEntry], batch_size: int | None) -> ProfileEntry:
    """The one of a batch size; where there is but one, it need not be named.

    Raises:
        UnknownRecordError: Nothing is known of it.
        UsageError: There are several.
    """
    fitting = [one for one in profiles if batch_size in (None, one.batch_size)]
    if not fitting:
        what = "this job" if batch_size is None else f"batch size {batch_size}"
        known = ", ".join(str(one.batch_size) for one in profiles)
        raise UnknownRecordError(
            f"no limit of {what} has been measured yet",
            remedy=f"give --batch-size: {known}" if known else "run it once",
        )
    if len(fitting) > 1:
        sizes = ", ".join(str(one.batch_size) for one in fitting)
        raise UsageError("several batch sizes were measured", remedy=f"give --batch-size: {sizes}")
    return fitting[0]
