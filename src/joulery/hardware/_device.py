"""The device protocols that every vendor implements and every consumer uses.

A device is any object with ``info``, ``provenance``, ``capabilities`` and the methods of the
protocols it claims. It claims a capability only after it tried it, so a consumer may trust
``Device.capabilities`` and never needs to know the vendor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from joulery.errors import InvalidValueError, JouleryError, UnsupportedError
from joulery.units import HERTZ_PER_MEGAHERTZ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.frontier import Provenance

_T = TypeVar("_T")


class Capability(StrEnum):
    """Capability of a device; each stands for one of the protocols below."""

    ENERGY = "energy"
    POWER = "power"
    POWER_LIMIT = "power_limit"
    CLOCK_LOCK = "clock_lock"
    TELEMETRY = "telemetry"


class DeviceKind(StrEnum):
    """Part of a machine that a device measures."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Identity of a device.

    Attributes:
        id: Identifier, stable across reboots where the vendor allows it (a UUID,
            ``rapl:package-0``).
        name: Name for people.
        kind: Part of the machine that it measures.
        vendor: ``nvidia``, ``amd``, ``powercap``, ``simulated``, …
        index: Position among the vendor's devices, as the vendor's tools count.
        max_watts: Highest power by its specification, if known.
        min_watts: Lowest power that it can draw; 0 where that is unknown.
        parent: Id of the device whose energy already includes this one's (a MIG slice's board).
        share: Fraction of the parent that this device stands for; 1 for whole devices.
    """

    id: str
    name: str
    kind: DeviceKind
    vendor: str
    index: int = 0
    max_watts: float | None = None
    min_watts: float = 0.0
    parent: str | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """One reading of an energy counter.

    Attributes:
        joules: Energy since some fixed moment; only differences mean anything.
        read_at_seconds: Time of the reading, on the device's clock (``Clock.now``).
        refreshed_at_seconds: Time of the hardware's last update of the counter, on the same
            clock, where the driver reports it. Boards update every 20-100 ms.
        watts: Power at the refresh, where it came with the same call.
        range_joules: Value at which the counter wraps to zero; None when it never does.
    """

    joules: float
    read_at_seconds: float
    refreshed_at_seconds: float | None = None
    watts: float | None = None
    range_joules: float | None = None


@dataclass(frozen=True, slots=True)
class PowerLimitRange:
    """Power limits in watts: the range accepted, the default, and the limit in force."""

    min_watts: float
    max_watts: float
    default_watts: float
    current_watts: float

    def check(self, watts: float, name: str) -> None:
        """Raise ``InvalidValueError`` unless device ``name`` accepts a limit of ``watts``."""
        if not self.min_watts <= watts <= self.max_watts:
            raise InvalidValueError(
                f"power limit {watts:g} W is outside what {name} accepts",
                remedy=f"give {self.min_watts:g} to {self.max_watts:g} W",
            )


class Throttle(StrEnum):
    """Reason why a device runs below the clock that it would choose."""

    POWER_CAP = "power cap"
    THERMAL = "thermal slowdown"
    HARDWARE = "hardware slowdown"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """State of a device besides its power; None where the device does not report it.

    Attributes:
        utilisation: Fraction of time busy, 0 to 1.
        temperature_celsius: Core temperature.
        clock_hertz: Current core clock.
        process_ids: Processes that use the device, as far as this user may see them.
        throttles: Reasons why its clock is lowered now.
    """

    utilisation: float | None = None
    temperature_celsius: float | None = None
    clock_hertz: float | None = None
    process_ids: tuple[int, ...] | None = None
    throttles: frozenset[Throttle] | None = None


@runtime_checkable
class Device(Protocol):
    """Properties of every device; plain attributes will do."""

    @property
    def info(self) -> DeviceInfo:
        """Identity of the device."""
        ...

    @property
    def provenance(self) -> Provenance:
        """Source of its energy figures, with the relative error of a settled reading."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities that were tried and found working."""
        ...


@runtime_checkable
class EnergyMeter(Protocol):
    """A counter of joules (``Capability.ENERGY``)."""

    def read_energy(self) -> EnergyReading:
        """Counter value, unwrapped where the range is known.

        Raises:
            DeviceError: The driver failed; try again later.
            DeviceLostError: The device is gone.
        """
        ...


@runtime_checkable
class PowerMeter(Protocol):
    """A power sensor (``Capability.POWER``)."""

    def read_power(self) -> float:
        """Power in watts, as recent as the sensor reports it."""
        ...


@runtime_checkable
class PowerLimit(Protocol):
    """A power cap (``Capability.POWER_LIMIT``).

    Set only through ``joulery.governor.lease``, which restores the original limit.
    """

    def power_limits(self) -> PowerLimitRange:
        """Range of limits, and the limit in force."""
        ...

    def set_power_limit(self, watts: float) -> None:
        """Set the limit and check that it is in force.

        Raises:
            MissingRightsError: This user may not set it.
            InvalidValueError: The limit is outside the board's range.
        """
        ...


@runtime_checkable
class ClockLock(Protocol):
    """A core clock that can be pinned (``Capability.CLOCK_LOCK``)."""

    def supported_clocks(self) -> tuple[float, ...]:
        """Clocks in hertz that the board accepts, ascending."""
        ...

    def lock_clock(self, hertz: float) -> None:
        """Pin the core clock; MissingRightsError where this user may not."""
        ...

    def unlock_clock(self) -> None:
        """Return the clock to the board's own control."""
        ...


@runtime_checkable
class TelemetrySource(Protocol):
    """Utilisation, temperature and the like (``Capability.TELEMETRY``)."""

    def telemetry(self) -> Telemetry:
        """Present state of the device."""
        ...


_PROTOCOLS: dict[Capability, type] = {
    Capability.ENERGY: EnergyMeter,
    Capability.POWER: PowerMeter,
    Capability.POWER_LIMIT: PowerLimit,
    Capability.CLOCK_LOCK: ClockLock,
    Capability.TELEMETRY: TelemetrySource,
}


def protocol_of(capability: Capability) -> type:
    """Protocol that a device with ``capability`` implements."""
    return _PROTOCOLS[capability]


def check_devices(devices: Any, *, allow_names: bool = False) -> tuple[Any, ...]:
    """The devices as a tuple, as a caller gave them.

    Args:
        devices: Several devices.
        allow_names: Whether names of devices are as good.

    Raises:
        InvalidValueError: They are something else.
    """
    several = isinstance(devices, Iterable) and not isinstance(devices, str)
    entries = tuple(devices) if several else (None,)
    if all(hasattr(entry, "info") or (allow_names and isinstance(entry, str)) for entry in entries):
        return entries
    raise InvalidValueError(
        f"devices={devices!r} are no devices",
        remedy="leave it out for all that this job sees, or give a list such as "
        "joulery.hardware.discover()",
    )


def device_text(device: Any) -> str:
    """A device for people, such as ``<NvidiaGpu GPU-212e4085: NVIDIA V100>``."""
    return f"<{type(device).__name__} {device.info.id}: {device.info.name}>"


def check_clock(hertz: float, clocks: Sequence[float], name: str) -> None:
    """Raise ``InvalidValueError`` unless ``hertz`` is within device ``name``'s ``clocks``."""
    low, high = clocks[0] / HERTZ_PER_MEGAHERTZ, clocks[-1] / HERTZ_PER_MEGAHERTZ
    if not clocks[0] <= hertz <= clocks[-1]:
        raise InvalidValueError(
            f"clock {hertz / HERTZ_PER_MEGAHERTZ:g} MHz is outside what {name} accepts",
            remedy=f"give {low:g} to {high:g} MHz",
        )


def attempt(ask: Callable[[], _T]) -> _T | None:
    """The answer, or None on any failure: for finding out what works."""
    try:
        return ask()
    except JouleryError:
        return None


def working_capabilities(device: Any) -> frozenset[Capability]:
    """Capabilities of a device, by what a first call of each answers; not all lock clocks."""
    limits = attempt(device.power_limits)
    answers = {
        Capability.ENERGY: attempt(device.read_energy) is not None,
        Capability.POWER: attempt(device.read_power) is not None,
        Capability.POWER_LIMIT: limits is not None and limits.min_watts < limits.max_watts,
        Capability.CLOCK_LOCK: isinstance(device, ClockLock)
        and bool(attempt(device.supported_clocks)),
        Capability.TELEMETRY: attempt(device.telemetry) not in (None, Telemetry()),
    }
    return frozenset(capability for capability, works in answers.items() if works)


def require(device: Device, capability: Capability) -> None:
    """Raise ``UnsupportedError`` unless ``device`` has ``capability``."""
    if capability not in device.capabilities:
        raise UnsupportedError(
            f"{device.info.name} ({device.info.id}) offers no {capability.value.replace('_', ' ')}",
            remedy="see `joulery doctor` for what each device can do",
        )


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Reason why something that is present cannot be used.

    Attributes:
        subject: Device, meter or plug-in.
        reason: Fault, in one line.
        remedy: Advice to the user, in one line.
    """

    subject: str
    reason: str
    remedy: str

    @classmethod
    def from_error(cls, subject: str, error: JouleryError) -> Self:
        """The obstacle that an error describes."""
        return cls(subject, error.message.removeprefix(f"{subject} "), error.remedy)

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason} ({self.remedy})"


@dataclass(frozen=True, slots=True)
class Survey:
    """Devices found and obstacles met, each in the order of discovery."""

    devices: tuple[Device, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()

    def __add__(self, addition: Survey) -> Survey:
        return Survey(self.devices + addition.devices, self.obstacles + addition.obstacles)
