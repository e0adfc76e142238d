"""What a look around the machine yields: devices, and what stands in the way of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from joulery.errors import JouleryError
    from joulery.hardware.device import Device


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that is here but cannot be used as it stands.

    Attributes:
        what: The device, meter or plug-in.
        why: What went wrong, one line.
        remedy: What the reader can do about it, one line.
    """

    what: str
    why: str
    remedy: str

    @classmethod
    def from_error(cls, what: str, error: JouleryError) -> Self:
        """The obstacle that an error describes."""
        return cls(what, error.message, error.remedy)

    def __str__(self) -> str:
        return f"{self.what}: {self.why} ({self.remedy})"


@dataclass(frozen=True, slots=True)
class Survey:
    """The devices found and the obstacles met, each in the order of discovery."""

    devices: tuple[Device, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()

    def __add__(self, other: Survey) -> Survey:
        return Survey(self.devices + other.devices, self.obstacles + other.obstacles)
