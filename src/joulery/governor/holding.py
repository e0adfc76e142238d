"""Hold a knob for the length of a block, and be sure that it comes back."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from joulery.errors import DeviceError, JouleryError, NotPossibleHereError
from joulery.governor.places import default_socket
from joulery.hardware.device import Capability, PowerLimit
from joulery.hardware.obstacle import Obstacle
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.governor.client import Connection
    from joulery.hardware.device import Device


class Holder(Protocol):
    """Who writes the knobs for us: the daemon, or this process."""

    def acquire(self, wish: dict[str, float | None]) -> None:
        """Take the device and set what is wished for."""
        ...

    def change(self, wish: dict[str, float | None]) -> None:
        """Set other values."""
        ...

    def state(self) -> dict[str, Any]:
        """What is in force."""
        ...

    def release(self) -> None:
        """Give the device back."""
        ...


class Lease:
    """A device in our hands; made by :func:`lease`."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._process = os.getpid()

    @property
    def watts(self) -> float | None:
        """The power limit in force; None where the device has none."""
        return cast("float | None", self._holder.state()["watts"])

    @property
    def clock_hertz(self) -> float | None:
        """The clock that this lease pins; None when it is free."""
        return cast("float | None", self._holder.state()["hertz"])

    @property
    def baseline_watts(self) -> float | None:
        """The limit that will be given back."""
        return cast("float | None", self._holder.state()["baseline_watts"])

    @property
    def ceiling_watts(self) -> float | None:
        """The highest limit that may be asked for."""
        return cast("float | None", self._holder.state()["ceiling_watts"])

    @property
    def overridden(self) -> bool:
        """Whether somebody else set the limit since; their value stands until we set another."""
        return bool(self._holder.state()["foreign_change"])

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        """Change the knobs that are given; the others stay.

        Raises:
            InvalidValueError: Outside the device's range, or above the cap found in force.
            MissingRightsError: The policy does not allow it.
        """
        self._change(_wish(watts, clock_hertz))

    def reset(self) -> None:
        """Put the values found before back in force, and keep the lease."""
        self._change({"watts": None, "hertz": None})

    def release(self) -> None:
        """Give the device back early; the end of the block does it anyway."""
        self._holder.release()

    def _change(self, wish: dict[str, float | None]) -> None:
        if self._process != os.getpid():
            raise NotPossibleHereError(
                f"the lease is process {self._process}'s, not its forked child's",
                remedy="change the limit in the process that took the lease",
            )
        self._holder.change(wish)


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
    from joulery.governor.client import RemoteHolder
    from joulery.governor.local import LocalHolder

    finite(ttl_seconds, "time to live in seconds", minimum=0.0)
    wish = _wish(watts, clock_hertz)
    connection = _daemon(device)
    holder: Holder
    if connection is None:
        holder = LocalHolder(device, ttl_seconds)
    else:
        holder = RemoteHolder(connection, device.info.id, ttl_seconds)
    holder.acquire(wish)
    try:
        yield Lease(holder)
    finally:
        holder.release()


def may_lease(device: Device) -> bool:
    """Whether :func:`lease` would work now."""
    return lease_obstacle(device) is None


def lease_obstacle(device: Device) -> Obstacle | None:
    """What stands in the way of a lease; None when nothing does."""
    name = device.info.name
    if not device.capabilities & {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}:
        return Obstacle(name, "it has no power limit and no lockable clock", "advise instead")
    try:
        connection = _daemon(device)
        if connection is not None:
            with closing(connection):
                connection.ask("may", device=device.info.id)
        elif Capability.POWER_LIMIT in device.capabilities:
            # What is in force is set once more: only trying tells whether the driver lets us.
            limit = cast("PowerLimit", device)
            limit.set_power_limit(limit.power_limits().current_watts)
    except JouleryError as error:
        return Obstacle.from_error(name, error)
    return None


def _daemon(device: Device) -> Connection | None:
    """A connection to the daemon; None where there is none, or for simulated boards."""
    from joulery.governor.client import Connection
    from joulery.governor.local import SIMULATED

    if device.info.vendor == SIMULATED:
        return None
    path = default_socket()
    try:
        return Connection(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise DeviceError(
            f"the governor at {path} does not answer: {error}", remedy="restart it"
        ) from None


def _wish(watts: float | None, clock_hertz: float | None) -> dict[str, float | None]:
    named = {"watts": watts, "hertz": clock_hertz}
    return {
        knob: finite(value, f"{knob} to hold", minimum=0.0)
        for knob, value in named.items()
        if value is not None
    }
