"""Charts as data, apart from how they are drawn: units, axes, series and Gantt bars."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MARGIN = 0.08  # by hand: space between the outermost points and the frame, as a share of the range
_NARROWEST = 0.005  # by hand: a range below this share of its values is shown as a single value
_MOST_POINTS = 150  # by hand: a line of more points would only blacken


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that people read, for all figures of one table or axis.

    Attributes:
        name: Name such as ``kJ``.
        size: SI units in one of it.
        from_size: Smallest largest figure, in SI units, for which it is used.
    """

    name: str
    size: float = 1.0
    from_size: float = 0.0

    def text(self, value: float, digits: int | None = None) -> str:
        """An SI value in this unit, such as ``12.3 kJ``; to so many digits where given."""
        scaled, decimals = value / self.size, 1
        if digits is not None:
            decimals = digits - 1 - math.floor(math.log10(max(abs(scaled), 1e-9)))
        return f"{scaled:.{min(max(0, decimals), 6)}f} {self.name}"


_JOULES = (
    Unit("GJ", 1e9, 2e9),
    Unit("MJ", 1e6, 2e6),
    Unit("kJ", 1e3, 2e3),
    Unit("J", 1.0, 2.0),
    Unit("mJ", 1e-3, 0.0),
)
_SECONDS = (
    Unit("d", 86400.0, 3 * 86400.0),
    Unit("h", 3600.0, 3 * 3600.0),
    # Runs of some minutes compare better in seconds.
    Unit("min", 60.0, 30 * 60.0),
    Unit("s", 1.0, 2.0),
    Unit("ms", 1e-3, 0.0),
)


_WATT_HOURS = (
    Unit("GWh", 3.6e12, 7.2e12),
    Unit("MWh", 3.6e9, 7.2e9),
    Unit("kWh", 3.6e6, 7.2e6),
    Unit("Wh", 3.6e3, 7.2e3),
    Unit("J"),
)
_GRAMS = (Unit("t", 1e6, 2e6), Unit("kg", 1e3, 2e3), Unit("g"))
_WATTS = (Unit("MW", 1e6, 2e6), Unit("kW", 1e3, 2e3), Unit("W"))


def percent(value: float | None, decimals: int = 1) -> str:
    """A figure that is in per cent already; nothing for unknown."""
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return "" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f} %"


def joules_unit(values: Iterable[float]) -> Unit:
    """One unit of energy for all of ``values``."""
    return _unit_for(values, _JOULES)


def watt_hours_unit(values: Iterable[float]) -> Unit:
    """One unit of energy as bills state it for all of ``values`` in joules."""
    return _unit_for(values, _WATT_HOURS)


def grams_unit(values: Iterable[float]) -> Unit:
    """One unit of mass for all of ``values`` in grams."""
    return _unit_for(values, _GRAMS)


def seconds_unit(values: Iterable[float]) -> Unit:
    """One unit of time for all of ``values``."""
    return _unit_for(values, _SECONDS)


def _unit_for(values: Iterable[float], units: tuple[Unit, ...]) -> Unit:
    largest = max(values)
    return next((unit for unit in units if largest >= unit.from_size), units[-1])


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Attributes:
        name: Quantity and unit, as written beside the axis.
        unit: Unit of the ticks.
        ticks: Values to label, in the unit; round ones unless given.
        labels: Text of each tick; the value unless given.
        most_ticks: Number of ticks shown at once; 0 for all.
        from_zero: Whether it begins at 0, so that lengths compare.
    """

    name: str
    unit: Unit = Unit("")
    ticks: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    most_ticks: int = 0
    from_zero: bool = False

    def text(self, tick: float) -> str:
        """The label of a tick."""
        return dict(zip(self.ticks, self.labels, strict=False)).get(tick, f"{tick:g}")


def time_axis(values: Iterable[float], name: str = "time") -> Axis:
    """Axis of seconds in the unit that suits them."""
    return _axis(name, seconds_unit(values))


def energy_axis(values: Iterable[float], name: str = "energy") -> Axis:
    """Axis of joules in the unit that suits them."""
    return _axis(name, joules_unit(values))


def power_axis(values: Iterable[float], name: str = "power") -> Axis:
    """Axis of watts from 0, in the unit that suits them."""
    return replace(_axis(name, _unit_for(values, _WATTS)), from_zero=True)


def _axis(name: str, unit: Unit) -> Axis:
    return Axis(f"{name} in {unit.name}", unit)


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of an axis in its unit, with round ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    size: float = 1.0

    def share(self, value: float) -> float:
        """Position of an SI value: 0 at the low end, 1 at the high end."""
        return self.tick_share(value / self.size)

    def tick_share(self, tick: float) -> float:
        """Position of a tick."""
        return (tick - self.low) / (self.high - self.low)


def scale_of(values: Iterable[float], axis: Axis, most_ticks: int) -> Scale:
    """A scale around SI values, with some room at both ends."""
    scaled = [value / axis.unit.size for value in values] + [0.0] * axis.from_zero
    low, high = min(scaled), max(scaled)
    margin = _MARGIN * (high - low)
    # A single point needs room on both sides, and rounding is not to be magnified.
    if high - low < _NARROWEST * max(abs(high), abs(low)):
        margin = 0.1 * max(abs(high), abs(low))
    if low == high == 0.0:  # such as no epoch yet: an axis upwards from 0
        margin, high = _MARGIN, 1.0
    low, high = low - margin, high + margin
    if axis.from_zero and low == -margin:  # nothing is below 0
        low = 0.0
    stated_ticks = tuple(tick for tick in axis.ticks if low <= tick <= high)
    if axis.most_ticks:
        stated_ticks = stated_ticks[:: -(-len(stated_ticks) // axis.most_ticks) or 1]
    return Scale(low, high, stated_ticks or round_ticks(low, high, most_ticks), axis.unit.size)


def round_ticks(low: float, high: float, most_ticks: int) -> tuple[float, ...]:
    """At most ``most`` multiples of 1, 2 or 5 times a power of ten between two values."""
    magnitude = 10.0 ** math.floor(math.log10((high - low) / most_ticks))
    for factor in (1, 2, 5, 10, 20):
        step = factor * magnitude
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most_ticks:
            break
    # Rounded, so that 3 × 0.1 reads 0.3; adding 0.0 turns -0.0 into 0.0.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return tuple(round(count * step, digits) + 0.0 for count in range(first, last + 1))


Symbol = Literal["", "bar", "dot", "square", "triangle", "cross", "diamond", "star"]
Line = Literal["", "solid", "dashed", "dotted"]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a chart that belong together.

    Attributes:
        name: Name for the legend; empty for none.
        points: (x, y) in SI units.
        errors: One standard deviation of each y; empty where unknown.
        labels: Text beside each point; empty for none.
        tips: Text of each point for mouse and screen reader; empty for none.
        line: Line that connects the points.
        symbol: Shape of each point; a ``bar`` reaches from 0 to its point.
        colour: Number of the colour in the palette.
        emphasis: Whether labels are bold and placed before all others.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    errors: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    tips: tuple[str, ...] = ()
    line: Line = "solid"
    symbol: Symbol = "dot"
    colour: int = 0
    emphasis: bool = False

    @property
    def spacing(self) -> float:
        """The least distance of neighbours to the right; 1 where there is only one point."""
        distances = [b - a for (a, _), (b, _) in itertools.pairwise(self.points)]
        return min(distances, default=1.0)

    @classmethod
    def curve(
        cls,
        name: str,
        points: Iterable[tuple[float, float]],
        line: Line = "solid",
        colour: int = 0,
    ) -> Series:
        """A line without symbols."""
        return cls(name, tuple(points), line=line, symbol="", colour=colour)

    @classmethod
    def mark(
        cls,
        point: tuple[float, float],
        label: str,
        tip: str = "",
        symbol: Symbol = "star",
        colour: int = 0,
    ) -> Series:
        """One point that stands out."""
        tips = (tip,) if tip else ()
        return cls("", (point,), (), (label,), tips, "", symbol, colour, emphasis=True)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of y over x.

    Attributes:
        title: Title of the chart.
        x: Axis to the right.
        y: Axis upwards.
        series: Lines and points, later ones drawn on top.
        description: Content as text, for screen readers.
        reference: Height of a dashed line across, such as the default; None for none.
        origin: Provenance of its figures, beside the axis upwards; that of its report unless given.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    description: str = ""
    reference: float | None = None
    origin: str = ""

    @property
    def y_name(self) -> str:
        """Name of the axis upwards, with the origin of the figures."""
        return f"{self.y.name} ({self.origin})" if self.origin else self.y.name

    def x_scale(self, most_ticks: int) -> Scale:
        """The scale to the right."""
        values = [x for s in self.series for x, _ in s.points]
        for s in self.series:
            if s.symbol == "bar":
                half = s.spacing / 2
                values += [s.points[0][0] - half, s.points[-1][0] + half]
        return scale_of(values, self.x, most_ticks)

    def y_scale(self, most_ticks: int) -> Scale:
        """The scale upwards, with room for error bars and the reference."""
        values = [y for s in self.series for _, y in s.points]
        for s in self.series:
            for (_, y), error in zip(s.points, s.errors, strict=False):
                values += [y - error, y + error]
        if self.reference is not None:
            values.append(self.reference)
        if any(s.symbol == "bar" for s in self.series):
            values.append(0.0)
        return scale_of(values, self.y, most_ticks)


@dataclass(frozen=True, slots=True)
class Bar:
    """One piece of work in a Gantt chart.

    Attributes:
        row: Number of the row, from the top.
        start_seconds: Start of the work.
        seconds: Length of the work.
        heat: Colour from 0 (cold) to 1 (hot).
        label: Text inside, where it fits.
        tip: Text for mouse and screen reader.
        low: Whether the bar is lower than the others of its row.
    """

    row: int
    start_seconds: float
    seconds: float
    heat: float
    label: str = ""
    tip: str = ""
    low: bool = False


@dataclass(frozen=True, slots=True)
class Gantt:
    """Work over time, one row per worker.

    Attributes:
        title: Title of the chart.
        rows: Name of each row.
        bars: Pieces of work.
        seconds: Time that the width stands for; later work is cut off.
        end_seconds: Time to mark as the end.
    """

    title: str
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    seconds: float
    end_seconds: float


def thin(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most so many points as a line can show: means of as many stretches."""
    if len(points) <= _MOST_POINTS:
        return tuple(points)
    edges = [round(at * len(points) / _MOST_POINTS) for at in range(_MOST_POINTS + 1)]
    stretches = [points[a:b] for a, b in itertools.pairwise(edges)]
    return tuple((fmean(x for x, _ in part), fmean(y for _, y in part)) for part in stretches)
