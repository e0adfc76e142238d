"""What a device can do: the protocols that every vendor implements and every consumer sees.

A device is any object with ``info``, ``provenance``, ``capabilities`` and the methods of the
protocols it claims. It claims a capability only after it tried it, so a consumer may trust
:attr:`Device.capabilities` and never needs to know the vendor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from joulery.errors import UnsupportedError

if TYPE_CHECKING:
    from joulery.frontier import Provenance


class Capability(StrEnum):
    """What a device may offer; each names the protocol of the same purpose below."""

    ENERGY = "energy"
    POWER = "power"
    POWER_LIMIT = "power_limit"
    CLOCK_LOCK = "clock_lock"
    TELEMETRY = "telemetry"


class DeviceKind(StrEnum):
    """What part of a machine a device measures."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Who a device is.

    Attributes:
        id: Stable across reboots where the vendor allows it (a UUID, ``rapl:package-0``).
        name: What people call it.
        kind: The part of the machine it measures.
        vendor: ``nvidia``, ``amd``, ``powercap``, ``simulated``, …
        index: Position among the vendor's devices, as its own tools count.
        max_watts: The most it can draw by its specification, if known.
        parent: Id of the device whose energy already includes this one's (a MIG slice's board).
        share: The fraction of the parent that this device stands for; 1 for whole devices.
    """

    id: str
    name: str
    kind: DeviceKind
    vendor: str
    index: int = 0
    max_watts: float | None = None
    parent: str | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """One look at an energy counter.

    Attributes:
        joules: Energy since some fixed moment; only differences mean anything.
        read_at_seconds: When it was read, on the device's clock (``Clock.now``).
        refreshed_at_seconds: When the hardware last updated the counter, on the same clock, if
            it says so. Boards update every 20-100 ms, so a reading is as old as this.
        watts: Power at the refresh, where it came with the same call.
    """

    joules: float
    read_at_seconds: float
    refreshed_at_seconds: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class PowerLimitRange:
    """Limits in watts: what the board accepts, its default, and what is in force."""

    min_watts: float
    max_watts: float
    default_watts: float
    current_watts: float


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What else a device tells about itself; None where it does not say.

    Attributes:
        utilisation: Fraction of time busy, 0 to 1.
        temperature_celsius: Core temperature.
        clock_hertz: Current core clock.
        memory_used_bytes: Memory in use.
        process_ids: Processes that hold the device, as far as this user may see them.
    """

    utilisation: float | None = None
    temperature_celsius: float | None = None
    clock_hertz: float | None = None
    memory_used_bytes: int | None = None
    process_ids: tuple[int, ...] | None = None


@runtime_checkable
class Device(Protocol):
    """What every device says about itself."""

    @property
    def info(self) -> DeviceInfo:
        """Who it is."""
        ...

    @property
    def provenance(self) -> Provenance:
        """Where its energy figures come from, with the relative error of a settled reading."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do, tried and found working."""
        ...


@runtime_checkable
class EnergyMeter(Protocol):
    """A counter of joules (:attr:`Capability.ENERGY`)."""

    def read_energy(self) -> EnergyReading:
        """The counter, unwrapped where the range is known.

        Raises:
            DeviceError: The driver failed; try again later.
            DeviceLostError: The device is gone.
        """
        ...

    def counter_range_joules(self) -> float | None:
        """Where the counter wraps to zero; None when it never does."""
        ...


@runtime_checkable
class PowerMeter(Protocol):
    """A power sensor (:attr:`Capability.POWER`)."""

    def read_power(self) -> float:
        """Watts drawn now, as recent as the sensor can tell."""
        ...


@runtime_checkable
class PowerLimit(Protocol):
    """A power cap (:attr:`Capability.POWER_LIMIT`).

    Changed only through ``joulery.governor.lease``, which gives back what it found.
    """

    def power_limits(self) -> PowerLimitRange:
        """The range and what is in force."""
        ...

    def set_power_limit(self, watts: float) -> None:
        """Set the cap and check that it took.

        Raises:
            MissingRightsError: This user may not.
            InvalidValueError: Outside the board's range.
        """
        ...


@runtime_checkable
class ClockLock(Protocol):
    """A core clock that can be pinned (:attr:`Capability.CLOCK_LOCK`)."""

    def supported_clocks(self) -> tuple[float, ...]:
        """Clocks in hertz that the board accepts, ascending."""
        ...

    def lock_clock(self, hertz: float) -> None:
        """Pin the core clock; MissingRightsError where this user may not."""
        ...

    def unlock_clock(self) -> None:
        """Give the clock back to the board."""
        ...


@runtime_checkable
class TelemetrySource(Protocol):
    """Utilisation, temperature and the like (:attr:`Capability.TELEMETRY`)."""

    def telemetry(self) -> Telemetry:
        """What the device tells now."""
        ...


_PROTOCOLS: dict[Capability, type] = {
    Capability.ENERGY: EnergyMeter,
    Capability.POWER: PowerMeter,
    Capability.POWER_LIMIT: PowerLimit,
    Capability.CLOCK_LOCK: ClockLock,
    Capability.TELEMETRY: TelemetrySource,
}


def protocol_of(capability: Capability) -> type:
    """The protocol class that a claimed capability promises."""
    return _PROTOCOLS[capability]


def require(device: Device, capability: Capability) -> None:
    """Raise :class:`UnsupportedError` unless ``device`` has ``capability``."""
    if capability not in device.capabilities:
        raise UnsupportedError(
            f"{device.info.name} ({device.info.id}) offers no {capability.value.replace('_', ' ')}",
            remedy="see `joulery doctor` for what each device can do",
        )
