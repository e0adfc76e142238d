"""A chart of energy over time as SVG: where points lie, the grid, and the marks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.cli.frontier_view.axis import Axis


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes of a chart and the room around it, in pixels."""

    time: Axis
    energy: Axis
    height: int
    width: int = 760
    left: int = 72
    right: int = 24
    top: int = 20
    bottom: int = 56

    def x(self, seconds: float) -> float:
        """Where a time lies."""
        return round(
            self.left + self.time.share(seconds) * (self.width - self.left - self.right), 1
        )

    def y(self, joules: float) -> float:
        """Where an energy lies."""
        room = self.height - self.top - self.bottom
        return round(self.top + (1 - self.energy.share(joules)) * room, 1)

    def label_place(self, x: float, gap: float, room: float) -> str:
        """Attributes of a label beside a mark: to the right, unless it would leave the frame."""
        if x < self.width - self.right - room:
            return f'x="{x + gap}"'
        return f'x="{x - gap}" text-anchor="end"'

    def grid(self, time_name: str, energy_name: str) -> list[str]:
        """Lines, ticks and the names of both axes."""
        right, bottom = self.width - self.right, self.height - self.bottom
        parts = []
        for tick in self.time.ticks:
            x = self.x(tick * self.time.unit.size)
            parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{self.top}" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 18}">{tick:g}</text>')
        for tick in self.energy.ticks:
            y = self.y(tick * self.energy.unit.size)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick left" x="{self.left - 8}" y="{y + 4}">{tick:g}</text>')
        middle_x, middle_y = (self.left + right) / 2, (self.top + bottom) / 2
        parts.append(f'<text class="name" x="{middle_x}" y="{self.height - 11}">{time_name}</text>')
        turned = f'transform="rotate(-90 18 {middle_y})"'
        parts.append(f'<text class="name" x="18" y="{middle_y}" {turned}>{energy_name}</text>')
        return parts


def diamond(x: float, y: float) -> str:
    """What was there before."""
    return f'<path d="M{x},{y - 8}l8,8l-8,8l-8,-8z"/>'


def star(x: float, y: float) -> str:
    """What was chosen."""
    corners = (
        (x + radius * math.sin(math.pi * turn / 5), y - radius * math.cos(math.pi * turn / 5))
        for turn, radius in zip(range(10), (11, 4.6) * 5, strict=True)
    )
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'
