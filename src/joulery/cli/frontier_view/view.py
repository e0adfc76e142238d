"""What a drawing of a frontier shows, apart from how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from joulery.frontier import Origin

if TYPE_CHECKING:
    from joulery.frontier import Frontier, OperatingPoint


class Kind(StrEnum):
    """What a mark stands for; later ones are drawn on top of earlier ones."""

    DOMINATED = "dominated"
    FRONTIER = "frontier"
    DEFAULT = "default"
    CHOSEN = "chosen"


# With more marks than this, labels on all of them would only cover each other.
_MOST_LABELS = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """One point of the drawing."""

    point: OperatingPoint
    kind: Kind

    @property
    def label(self) -> str:
        """The setting in a word or two; the power limit where there is one."""
        watts = self.point.setting.power_limit_watts
        return f"{watts:g} W" if watts is not None else str(self.point.setting)


@dataclass(frozen=True, slots=True)
class FrontierView:
    """A frontier, and which of its points to point out.

    Attributes:
        frontier: The line.
        title: What it is about, one line.
        cloud: Every point that was measured; those off the frontier are drawn as dominated.
        default: What happens if nothing is changed.
        chosen: What the objective picked.
        objective: What it was picked by, in words.
    """

    frontier: Frontier
    title: str
    cloud: tuple[OperatingPoint, ...] = ()
    default: OperatingPoint | None = None
    chosen: OperatingPoint | None = None
    objective: str = ""

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Every point to draw, once."""
        pointed_out = [point for point in (self.default, self.chosen) if point is not None]
        return tuple(dict.fromkeys((*self.frontier, *self.cloud, *pointed_out)))

    @property
    def origin(self) -> str:
        """How the figures came about, such as ``simulated``; every kind that is among them."""
        found = {point.provenance.origin for point in self.points}
        return " and ".join(origin for origin in Origin if origin in found)

    @property
    def sources(self) -> str:
        """Where the figures come from, in words."""
        return "; ".join(dict.fromkeys(p.provenance.source for p in self.points)).strip("; ")

    def marks(self) -> tuple[Mark, ...]:
        """A mark per point, those to be drawn on top last."""
        kinds = list(Kind)
        marks = [Mark(point, self._kind(point)) for point in self.points]
        return tuple(sorted(marks, key=lambda mark: kinds.index(mark.kind)))

    def caption(self, mark: Mark) -> str:
        """What to write beside a mark; nothing where there are too many."""
        if mark.kind in (Kind.DEFAULT, Kind.CHOSEN):
            return f"{mark.kind} {mark.label}"
        return mark.label if len(self.points) <= _MOST_LABELS else ""

    def _kind(self, point: OperatingPoint) -> Kind:
        if point == self.chosen:
            return Kind.CHOSEN
        if point == self.default:
            return Kind.DEFAULT
        return Kind.FRONTIER if point in self.frontier.points else Kind.DOMINATED
