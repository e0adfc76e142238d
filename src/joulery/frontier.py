"""Time-energy frontiers: Pareto sets of (seconds, joules, setting) for one fixed amount of work.

Measurements, predictions and simulations produce frontiers; optimizers and reports use them. A
frontier is immutable, has a JSON form, and each of its points carries its provenance.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_right
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from numbers import Real
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Any, Self

from joulery.arguments import check_items, check_type
from joulery.errors import (
    FileError,
    InfeasibleError,
    InvalidValueError,
    document_errors,
    flaw_text,
)
from joulery.tables import KNOBS, Tabular
from joulery.units import finite, human, human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SCHEMA = "joulery.frontier/1"


class Origin(StrEnum):
    """Origin of a figure, best first: an assumed joule was at least used, a simulated one never."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    ASSUMED = "assumed"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin, source and error of a figure.

    Attributes:
        origin: Measured, predicted, assumed or simulated.
        source: The counter, model or trace, as text.
        relative_error: Relative standard error (one sigma) of the joules; None when unknown.
    """

    origin: Origin
    source: str = ""
    relative_error: float | None = None

    def __post_init__(self) -> None:
        if type(self.origin) is not Origin:
            object.__setattr__(self, "origin", _origin(self.origin))
        check_type(self.source, str, "source must be text", "put it in quotes, or leave it out")
        if self.relative_error is not None:
            error = finite(self.relative_error, "relative error", minimum=0.0)
            object.__setattr__(self, "relative_error", error)

    def __str__(self) -> str:
        error = "" if self.relative_error is None else f" ±{per_cent(self.relative_error)}"
        return f"{self.origin}{error}" + (f" ({self.source})" if self.source else "")

    @classmethod
    def combined(cls, parts: Iterable[tuple[Provenance, float]]) -> Provenance:
        """Provenance of a sum, from (provenance, joules) of each term.

        The sum is as good as its weakest term; independent errors add in squares. Terms that are
        assumed from the same source are wrong in the same way, so their errors add as they are. One
        unknown error makes the sum's unknown.
        """
        terms = list(parts)
        if not terms:
            raise InvalidValueError("nothing to combine", remedy="give at least one part")
        ranks = list(Origin)
        weakest = max((part.origin for part, _ in terms), key=ranks.index)
        sources = "; ".join(dict.fromkeys(part.source for part, _ in terms if part.source))
        total = sum(joules for _, joules in terms)
        if total <= 0 or any(part.relative_error is None for part, _ in terms):
            return cls(weakest, sources, None)
        shared: dict[str, float] = {}
        variance = 0.0
        for part, joules in terms:
            error = (part.relative_error or 0.0) * joules
            if part.origin is Origin.ASSUMED:
                shared[part.source] = shared.get(part.source, 0.0) + error
            else:
                variance += error**2
        variance += sum(error**2 for error in shared.values())
        return cls(weakest, sources, math.sqrt(variance) / total)


def _origin(text: object) -> Origin:
    try:
        return Origin(text)  # type: ignore[arg-type]  # refuses what is no text too
    except ValueError:
        raise InvalidValueError(
            f"{text!r} is not an origin of figures",
            remedy=f"origin is one of {', '.join(Origin)}",
        ) from None


ASSUMED = Provenance(Origin.ASSUMED)


_PARTS_RULE = "parts of a setting must be settings"
_PARTS_REMEDY = "give several, each with its knobs"
_SETTING_REMEDY = "give Setting(power_limit_watts=300), say"


@dataclass(frozen=True, slots=True)
class Setting:
    """The knobs that produced a point; None means left alone.

    Attributes:
        power_limit_watts: Cap per device.
        clock_hertz: Locked core clock.
        batch_size: Samples per step over all devices.
        device: Type of accelerator, as the catalog names it.
        devices: Number of accelerators.
        parallel: Parallel scheme as text, such as ``dp4-tp2-pp1``.
        parts: Settings of consecutive pieces of work, where the point is their sum.
    """

    power_limit_watts: float | None = None
    clock_hertz: float | None = None
    batch_size: int | None = None
    device: str | None = None
    devices: int | None = None
    parallel: str | None = None
    parts: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        for name in ("power_limit_watts", "clock_hertz", "batch_size", "devices"):
            value = getattr(self, name)
            if value is not None:
                number = finite(value, f"{name} of a setting", minimum=0.0)
                if not isinstance(value, int | float):  # of NumPy, which JSON does not know
                    number = int(number) if name in ("batch_size", "devices") else number
                    object.__setattr__(self, name, number)
        for name in ("device", "parallel"):
            value = getattr(self, name)
            if value is not None:
                check_type(value, str, f"{name} must be text", "put it in quotes")
        if self.parts != ():
            parts = check_items(self.parts, Setting, _PARTS_RULE, _PARTS_REMEDY)
            object.__setattr__(self, "parts", parts)

    def then(self, later: Setting) -> Setting:
        """The setting of doing this piece of work and then the other."""
        return Setting(parts=(*(self.parts or (self,)), *(later.parts or (later,))))

    def __str__(self) -> str:
        if self.parts:
            return " → ".join(str(part) for part in self.parts)
        words = [
            f"{self.power_limit_watts:g} W" if self.power_limit_watts is not None else "",
            f"{self.clock_hertz / 1e6:g} MHz" if self.clock_hertz is not None else "",
            f"batch {self.batch_size}" if self.batch_size is not None else "",
            f"{self.devices} ×" if self.devices is not None else "",
            self.device or "",
            self.parallel or "",
        ]
        return " ".join(word for word in words if word) or "as found"

    def to_dict(self) -> dict[str, Any]:
        """Only what is set, ready for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["parts"] = [part.to_dict() for part in self.parts]
        return {name: value for name, value in values.items() if value not in (None, [])}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """The inverse of ``to_dict``; unknown knobs are an error."""
        if not isinstance(document, dict):
            raise FileError(
                f"{short_repr(document)} is not a setting",
                remedy='write {"power_limit_watts": 300.0, "devices": 8}',
            )
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(document) - names)
        if unknown:
            raise FileError(
                f"unknown knob {unknown[0]!r} in a setting",
                remedy=f"known knobs are {', '.join(sorted(names))}",
            )
        parts = check_items(document.get("parts", ()), dict, _PARTS_RULE, _PARTS_REMEDY)
        return cls(**document | {"parts": tuple(map(cls.from_dict, parts))})


@dataclass(frozen=True, slots=True, repr=False)
class OperatingPoint(Tabular):
    """Time and energy of the work at one setting, with their provenance."""

    seconds: float
    joules: float
    setting: Setting = field(default_factory=Setting)
    provenance: Provenance = ASSUMED

    def __post_init__(self) -> None:
        # Plain floats, so that every point goes through JSON whatever number it was made from.
        seconds = finite(self.seconds, "seconds of an operating point", minimum=0.0)
        joules = finite(self.joules, "joules of an operating point", minimum=0.0)
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "joules", joules)
        if self.seconds == 0:
            raise InvalidValueError(
                "an operating point must take some time, not 0 s",
                remedy="measure a larger amount of work",
            )
        check_type(self.setting, Setting, "setting must be a Setting", _SETTING_REMEDY)
        check_type(
            self.provenance,
            Provenance,
            "provenance must be a Provenance",
            'give Provenance("measured"), say',
        )

    def __str__(self) -> str:
        error = self.provenance.relative_error
        bar = "" if error is None else f" ± {per_cent(error)}"
        energy = f"{human(self.joules, 'J')}{bar} in {human_duration(self.seconds)}"
        return f"{self.setting}: {energy} ({self.provenance.origin})"

    def rows(self) -> list[dict[str, Any]]:
        """Its row: seconds, joules, setting, origin and error, and the knobs that are set."""
        return _rows([self])

    @property
    def watts(self) -> float:
        """Mean power over the work."""
        return self.joules / self.seconds

    def scaled(self, factor: float) -> OperatingPoint:
        """The same setting for ``factor`` times the work."""
        return replace(self, seconds=self.seconds * factor, joules=self.joules * factor)

    def then(self, later: OperatingPoint) -> OperatingPoint:
        """This piece of work followed by the other."""
        return OperatingPoint(
            self.seconds + later.seconds,
            self.joules + later.joules,
            self.setting.then(later.setting),
            Provenance.combined([(self.provenance, self.joules), (later.provenance, later.joules)]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "seconds": self.seconds,
            "joules": self.joules,
            "setting": self.setting.to_dict(),
            "origin": self.provenance.origin.value,
            "source": self.provenance.source,
            "relative_error": self.provenance.relative_error,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """The inverse of ``to_dict``; ``origin`` and the rest may be missing."""
        if not isinstance(document, dict):
            raise FileError(
                f"{short_repr(document)} is not an operating point",
                remedy='write {"seconds": 1.0, "joules": 250.0, "setting": {…}}',
            )
        try:
            provenance = Provenance(
                document.get("origin", "assumed"),
                document.get("source") or "",
                document.get("relative_error"),
            )
            setting = Setting.from_dict(document.get("setting", {}))
            return cls(document["seconds"], document["joules"], setting, provenance)
        except KeyError as missing:
            raise FileError(
                f"an operating point lacks {missing}", remedy="each needs seconds and joules"
            ) from None
        except RecursionError as broken:
            raise FileError(
                f"not an operating point: {flaw_text(broken)}", remedy="write parts less deep"
            ) from None


def origins(points: Iterable[OperatingPoint]) -> str:
    """Origins of figures: every one among them, such as ``measured and simulated``."""
    origins = {point.provenance.origin for point in points}
    return " and ".join(origin for origin in Origin if origin in origins)


def sources(points: Iterable[OperatingPoint]) -> str:
    """Sources of the figures, each once."""
    sources = dict.fromkeys(point.provenance.source for point in points)
    return "; ".join(filter(None, sources))


@dataclass(frozen=True, slots=True, repr=False)
class Frontier(Tabular):
    """The Pareto-optimal operating points of one fixed amount of work, fastest first.

    Build it from any cloud with ``from_points``; the constructor itself takes only points
    that already form a frontier, so every ``Frontier`` in the program is one.

    Examples:
        >>> cloud = [OperatingPoint(1.0, 300.0), OperatingPoint(1.2, 200.0)]
        >>> cloud.append(OperatingPoint(1.3, 250.0))
        >>> [point.seconds for point in Frontier.from_points(cloud)]
        [1.0, 1.2]
    """

    points: tuple[OperatingPoint, ...]
    work: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", _checked_points(self.points))
        check_type(self.work, str, "work must be text", "put it in quotes, or leave it out")
        if not self.points:
            raise InvalidValueError(
                "a frontier needs at least one point", remedy="measure at least one setting"
            )
        for earlier, later in itertools.pairwise(self.points):
            if not (earlier.seconds < later.seconds and earlier.joules > later.joules):
                is_same = (earlier.seconds, earlier.joules) == (later.seconds, later.joules)
                kind = "duplicate" if is_same else "dominated or unsorted"
                raise InvalidValueError(
                    f"{kind} points in a frontier: ({earlier.seconds:g} s, {earlier.joules:g} J) "
                    f"then ({later.seconds:g} s, {later.joules:g} J)",
                    remedy="build it with Frontier.from_points, or give a plain list of points: "
                    "both keep the Pareto set",
                )

    @classmethod
    def from_points(cls, cloud: Iterable[OperatingPoint], work: str = "") -> Self:
        """The Pareto set of any cloud, in O(n log n).

        Of points equal in both seconds and joules the first one given stays.
        """
        points_kept: list[OperatingPoint] = []
        for point in sorted(_checked_points(cloud), key=lambda p: (p.seconds, p.joules)):
            if not points_kept or point.joules < points_kept[-1].joules:
                points_kept.append(point)
        return cls(tuple(points_kept), work)

    def __str__(self) -> str:
        first, last, work = self.fastest, self.least_energy, f" of {self.work}" * bool(self.work)
        return (
            f"{len(self)} point{'s' * (len(self) > 1)}{work}, {human_duration(first.seconds)} and "
            f"{human(first.joules, 'J')} to {human_duration(last.seconds)} and "
            f"{human(last.joules, 'J')}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row per point: seconds, joules, setting, origin and error, and knobs that are set."""
        return _rows(self.points)

    def __iter__(self) -> Iterator[OperatingPoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def fastest(self) -> OperatingPoint:
        """The point of least time."""
        return self.points[0]

    @property
    def least_energy(self) -> OperatingPoint:
        """The point of least energy."""
        return self.points[-1]

    def hull(self) -> Frontier:
        """The lower convex hull: what mixing settings over time cannot beat."""
        return Frontier(tuple(lower_hull(self.points)), self.work)

    def within(self, seconds: float) -> OperatingPoint:
        """The point of least energy that takes at most ``seconds``, by binary search."""
        check_type(seconds, Real, "seconds must be a number", "give a plain number")
        if not seconds >= self.fastest.seconds:
            raise InfeasibleError(
                f"nothing here finishes within {seconds:g} s",
                remedy=f"the fastest takes {self.fastest.seconds:g} s; allow at least that",
            )
        position = bisect_right(self.points, seconds, key=lambda point: point.seconds)
        return self.points[position - 1]

    def scaled(self, factor: float) -> Frontier:
        """The frontier of ``factor`` times the work."""
        check_type(factor, Real, "a factor must be a number", "give a plain number")
        if not (math.isfinite(factor) and factor > 0):
            raise InvalidValueError(
                f"cannot scale work by {factor}", remedy="give a positive, finite factor"
            )
        return Frontier.from_points((point.scaled(factor) for point in self), self.work)

    def then(self, later: Frontier) -> Frontier:
        """The frontier of this work followed by the other, each free in its setting.

        Exact over all pairs, O(n·m·log(n·m)); the result may have as many points as there are
        pairs. For long chains compose hulls, and take the hull of each result.
        """
        check_type(later, Frontier, "later must be a Frontier", "use Frontier.from_points")
        pairs = (first.then(second) for first in self for second in later)
        return Frontier.from_points(pairs, _joined(self.work, later.work))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "schema": SCHEMA,
            "work": self.work,
            "points": [point.to_dict() for point in self],
        }

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, document: Any) -> Self:
        """The inverse of ``to_dict``; refuses what is not a frontier."""
        if not isinstance(document, dict) or not isinstance(document.get("points"), list):
            raise FileError(
                "not a frontier: expected an object with a list of points",
                remedy=f'write {{"schema": "{SCHEMA}", "points": […]}}',
            )
        schema = document.get("schema", SCHEMA)
        if schema != SCHEMA:
            raise FileError(
                f"unknown frontier format {schema!r}",
                remedy=f"this version reads {SCHEMA}; upgrade Joulery or export again",
            )
        points = tuple(OperatingPoint.from_dict(point) for point in document["points"])
        return cls(points, str(document.get("work", "")))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of ``to_json``."""
        check_type(text, str | bytes, "a frontier's JSON must be text", "give what to_json returns")
        with document_errors("not valid JSON", remedy="export the frontier again"):
            document = json.loads(text)
        return cls.from_dict(document)


def _rows(points: Sequence[OperatingPoint]) -> list[dict[str, Any]]:
    """Rows of points, with a column for each knob that one of them sets."""
    knobs = [name for name in KNOBS if any(getattr(p.setting, name) is not None for p in points)]
    return [
        {
            "seconds": point.seconds,
            "joules": point.joules,
            "setting": str(point.setting),
            "origin": point.provenance.origin.value,
            "relative_error": point.provenance.relative_error,
        }
        | {name: getattr(point.setting, name) for name in knobs}
        for point in points
    ]


def _checked_points(points: Any) -> tuple[OperatingPoint, ...]:
    remedy = "give points such as OperatingPoint(seconds=10.0, joules=2500.0)"
    return check_items(points, OperatingPoint, "points must be operating points", remedy)


def lower_hull(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Vertices of the lower convex hull of points sorted by time (monotone chain, O(n))."""
    hull: list[OperatingPoint] = []
    for point in points:
        while len(hull) >= 2 and _above_chord(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _above_chord(earlier: OperatingPoint, middle: OperatingPoint, later: OperatingPoint) -> bool:
    """Whether ``middle`` lies on or above the line from ``left`` to ``right``."""
    return (middle.joules - earlier.joules) * (later.seconds - earlier.seconds) >= (
        later.joules - earlier.joules
    ) * (middle.seconds - earlier.seconds)


def _joined(first: str, second: str) -> str:
    return " → ".join(word for word in (first, second) if word)
