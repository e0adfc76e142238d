"""Measure the same work under one power limit after another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.errors import DeviceError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.governor import lease
from joulery.hardware.device import Capability, PowerLimit, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulery.hardware.device import Device, PowerLimitRange
    from joulery.metering.meter import Meter

# Distances between limits that people would pick by hand, in watts.
_ROUND_STEPS_WATTS = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 200.0, 250.0, 500.0)


def sweep_power_limits(
    device: Device,
    limits_watts: Iterable[float],
    work: Callable[[], None],
    meter: Meter,
    *,
    on_point: Callable[[OperatingPoint], None] | None = None,
) -> list[OperatingPoint]:
    """Run ``work`` once under each limit, and measure each run.

    Every limit is checked before the first run. The limit found before is back in force after
    each run, however it ends.

    Args:
        device: Whose limit to set.
        limits_watts: The limits, in the order to try them; a repeated one is measured once.
        work: The same amount of work at every call.
        meter: Measures each run; may watch more devices than the one that is limited.
        on_point: Called with each point as soon as it is known.

    Returns:
        One point per limit, in the order given, dominated ones included.

    Raises:
        UnsupportedError: The device has no power limit.
        MissingRightsError: This user may not set it.
        InvalidValueError: No limit given, or one outside the board's range.
        DeviceError: The meter could not read any energy.
    """
    points = []
    for watts in accepted_limits(device, limits_watts):
        with lease(device, watts=watts), meter.window(f"{watts:g} W") as window:
            work()
        measured = window.settle()
        if math.isnan(measured.joules):
            raise DeviceError(
                f"no energy could be read while {device.info.name} was limited to {watts:g} W",
                remedy="see `joulery doctor` for what can be measured here",
            )
        point = OperatingPoint(
            measured.seconds,
            measured.joules,
            Setting(power_limit_watts=watts, device=device.info.name),
            measured.provenance,
        )
        points.append(point)
        if on_point is not None:
            on_point(point)
    return points


def frontier_of_power_limits(
    device: Device,
    limits_watts: Iterable[float],
    work: Callable[[], None],
    meter: Meter,
    *,
    name: str = "",
) -> Frontier:
    """The frontier of ``work`` over power limits; see :func:`sweep_power_limits`.

    Args:
        device: Whose limit to set.
        limits_watts: The limits to try.
        work: The same amount of work at every call.
        meter: Measures each run.
        name: What the work is, for people.
    """
    return Frontier.from_points(sweep_power_limits(device, limits_watts, work, meter), name)


def accepted_limits(device: Device, limits_watts: Iterable[float]) -> tuple[float, ...]:
    """The limits without repetitions, once all of them are known to be within the board's range."""
    limits = tuple(dict.fromkeys(limits_watts))
    if not limits:
        raise InvalidValueError("no power limit to try", remedy="give at least one limit in watts")
    allowed = limit_range(device)
    for watts in limits:
        if not allowed.min_watts <= watts <= allowed.max_watts:
            raise InvalidValueError(
                f"power limit {watts:g} W is outside what {device.info.name} accepts",
                remedy=f"give {allowed.min_watts:g} to {allowed.max_watts:g} W",
            )
    return limits


def limit_range(device: Device) -> PowerLimitRange:
    """The limits that ``device`` accepts; UnsupportedError where it has none."""
    require(device, Capability.POWER_LIMIT)
    assert isinstance(device, PowerLimit)  # noqa: S101 - what the capability promises
    return device.power_limits()


def spread_limits(allowed: PowerLimitRange, most: int = 12) -> tuple[float, ...]:
    """At most ``most`` limits at round distances, from the highest down to the lowest.

    The range's ends and its default are among them, so that savings can be told against the
    default.
    """
    span = allowed.max_watts - allowed.min_watts
    # Two of the points may be the ends, off the round grid, and one the default.
    enough = (step for step in _ROUND_STEPS_WATTS if span / step <= max(1, most - 3))
    step = next(enough, span)
    limits = {allowed.min_watts, allowed.max_watts, allowed.default_watts}
    if step > 0:
        first = math.ceil(allowed.min_watts / step)
        last = math.floor(allowed.max_watts / step)
        limits.update(count * step for count in range(first, last + 1))
    return tuple(sorted(limits, reverse=True))
