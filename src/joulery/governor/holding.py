"""Hold a knob for the length of a block, and be sure that it comes back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

from joulery.errors import DeviceError, JouleryError, NotPossibleHereError, UnknownDeviceError
from joulery.frontier import Origin
from joulery.governor.board import KNOBS
from joulery.governor.places import default_socket
from joulery.hardware.device import Capability, Obstacle, PowerLimit
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.governor.client import Connection
    from joulery.hardware.device import Device

_SIMULATED = "simulated"


class Lease(ABC):
    """A device in our hands; made by :func:`lease`."""

    def __init__(self) -> None:
        self._wish: dict[str, float | None] = {}
        self._process = os.getpid()

    @property
    def watts(self) -> float | None:
        """The power limit in force; None where the device has none."""
        return self._state()["watts"]

    @property
    def clock_hertz(self) -> float | None:
        """The clock that this lease pins; None when it is free."""
        return self._state()["hertz"]

    @property
    def baseline_watts(self) -> float | None:
        """The limit that will be given back."""
        return self._state()["baseline_watts"]

    @property
    def ceiling_watts(self) -> float | None:
        """The highest limit that may be asked for."""
        return self._state()["ceiling_watts"]

    @property
    def overridden(self) -> bool:
        """Whether somebody else set the limit since; their value stands until we set another."""
        return bool(self._state()["foreign_change"])

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        """Change the knobs that are given; the others stay.

        Raises:
            InvalidValueError: Outside the device's range, or above the cap found in force.
            MissingRightsError: The policy does not allow it.
        """
        self._change_here(_wish(watts, clock_hertz))

    def reset(self) -> None:
        """Put the values found before back in force, and keep the lease."""
        self._change_here({"watts": None, "hertz": None})

    @abstractmethod
    def release(self) -> None:
        """Give the device back early; the end of the block does it anyway."""

    @abstractmethod
    def _state(self) -> dict[str, float | None]:
        """What is in force."""

    @abstractmethod
    def _change(self, wish: dict[str, float | None]) -> None:
        """Set other values."""

    def _is_mine(self) -> bool:
        """Whether this process holds it; a forked child does not."""
        return self._process == os.getpid()

    def _change_here(self, wish: dict[str, float | None]) -> None:
        if not self._is_mine():
            flaw = f"the lease is process {self._process}'s, not its forked child's"
            raise NotPossibleHereError(flaw, remedy="change the limit in that process")
        self._change(wish)


@contextmanager
def lease(
    device: Device,
    *,
    watts: float | None = None,
    clock_hertz: float | None = None,
    ttl_seconds: float = 30.0,
) -> Iterator[Lease]:
    """Hold a device, with its knobs set, until the block or the process ends in any way.

    Goes through the daemon where one runs. Otherwise this process needs the rights to set the
    knobs, and a watchdog child gives back what it found should the process be killed.

    Args:
        device: What to hold.
        watts: The power limit; None leaves it for now.
        clock_hertz: The clock to pin; None leaves it for now.
        ttl_seconds: After how long without a sign of life, as when it is stopped or its container
            paused, the device is taken back from this process.

    Raises:
        UnsupportedError: The device has no such knob.
        MissingRightsError: This user may not set it.
        NotPossibleHereError: Somebody else holds the device.
        InvalidValueError: Outside the device's range, or above the cap found in force.
    """
    finite(ttl_seconds, "time to live in seconds", minimum=0.0)
    held = _acquired(device, _wish(watts, clock_hertz), ttl_seconds)
    try:
        yield held
    finally:
        held.release()


def may_lease(device: Device) -> bool:
    """Whether :func:`lease` would work now."""
    return lease_obstacle(device) is None


def lease_obstacle(device: Device) -> Obstacle | None:
    """What stands in the way of a lease; None when nothing does."""
    name = device.info.name
    if not device.capabilities & KNOBS:
        return Obstacle(name, "it has no power limit and no lockable clock", "advise instead")
    try:
        daemon = None if device.info.vendor == _SIMULATED else _daemon()
        if daemon is not None:
            with closing(daemon):
                daemon.ask("may", device=device.info.id)
        elif Capability.POWER_LIMIT in device.capabilities:
            # What is in force is set once more: only trying tells whether the driver lets us.
            limit = cast("PowerLimit", device)
            limit.set_power_limit(limit.power_limits().current_watts)
    except JouleryError as error:
        return Obstacle.from_error(name, error)
    return None


def _acquired(device: Device, wish: dict[str, float | None], ttl_seconds: float) -> Lease:
    """A lease from whoever can give one."""
    from joulery.governor.client import GovernorLease
    from joulery.governor.local import DirectLease, watchdog

    def direct() -> Lease:
        # A simulated board has no administrator whose cap would be a ceiling.
        made = DirectLease(device, capped=device.info.vendor != _SIMULATED)
        made.acquire(wish)
        return made

    if device.info.vendor == _SIMULATED:
        return direct()
    held = GovernorLease(lambda: _daemon() or watchdog(), device.info.id, ttl_seconds)
    try:
        held.acquire(wish)
    except UnknownDeviceError:
        # An emulated board ends with its test, so nothing can be left behind on it.
        if device.provenance.origin != Origin.SIMULATED:
            raise
        return direct()
    return held


def _daemon() -> Connection | None:
    """A connection to the daemon; None where there is none."""
    from joulery.governor.client import Connection

    path = default_socket()
    try:
        return Connection(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ConnectionRefusedError):
        return None
    except OSError as error:
        flaw = f"the governor at {path} does not answer: {error}"
        raise DeviceError(flaw, remedy="restart it") from None


def _wish(watts: float | None, clock_hertz: float | None) -> dict[str, float | None]:
    named = {"watts": watts, "hertz": clock_hertz}
    return {
        knob: finite(value, f"{knob} to hold", minimum=0.0)
        for knob, value in named.items()
        if value is not None
    }
