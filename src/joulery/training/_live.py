"""Live state of a run and its devices, read in the background and shown on the dashboard."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import wait
from typing import TYPE_CHECKING, NamedTuple

from joulery.background import DriverThread
from joulery.hardware import Capability, PowerLimit, TelemetrySource
from joulery.jobs import MOST_LIVE_DEVICES, LiveDevice, LiveState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.metering import Measurement

# Longest wait for clocks and limits. A heartbeat goes without them while the driver hangs.
_WAIT_SECONDS = 2.0
_LONGEST_NAME = 150


class _Knobs(NamedTuple):
    """Clock and power limit of a device; None where they are unknown."""

    clock_hertz: float | None = None
    limit_watts: float | None = None


class LiveReader:
    """Makes the live state of a run from its meter, its steps, and the clocks of its devices.

    The driver is called in a thread of its own, and not again before it has answered.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        clock: Clock,
        measured: Measurement,
        steps: int,
        processes: int = 1,
    ) -> None:
        self._devices = tuple(devices)[:MOST_LIVE_DEVICES]
        self._driver = DriverThread(clock)
        self._pending: Future[dict[str, _Knobs]] | None = None
        self._before = measured, steps
        self._processes = processes
        often = Counter(device.info.name for device in self._devices)
        self._names = {
            info.id: info.name[:_LONGEST_NAME] + f" {info.index}" * (often[info.name] > 1)
            for info in (device.info for device in self._devices)
        }

    def read(self, measured: Measurement, steps: int, seconds: float, phase: str) -> LiveState:
        """The state now; means are those since the last one."""
        (before, steps_before), self._before = self._before, (measured, steps)
        elapsed = measured.seconds - before.seconds
        joules_before = {one.info.id: one.joules for one in before.devices}
        knobs = self._knobs()

        def rate(amount: float) -> float | None:
            known = elapsed > 0 and math.isfinite(amount) and amount >= 0
            return round(amount / elapsed, 3) if known else None

        devices = tuple(
            LiveDevice(
                self._names[one.info.id],
                rate(one.joules - joules_before.get(one.info.id, math.nan)),
                *knobs.get(one.info.id, _Knobs()),
            )
            for one in measured.devices
            if one.info.id in self._names
        )
        return LiveState(seconds, phase, rate(steps - steps_before), devices, self._processes)

    def close(self) -> None:
        """Call the driver no more."""
        self._driver.close()

    def _knobs(self) -> dict[str, _Knobs]:
        """Clocks and limits by device id; nothing while the driver does not answer."""
        if not self._driver.is_busy:
            self._pending = self._driver.submit(self._read_knobs)
            wait([self._pending], _WAIT_SECONDS)
        pending = self._pending
        return pending.result() if pending is not None and pending.done() else {}

    def _read_knobs(self) -> dict[str, _Knobs]:
        return {device.info.id: _knobs_of(device) for device in self._devices}


def _knobs_of(device: Device) -> _Knobs:
    clock = limit = None
    try:
        if Capability.TELEMETRY in device.capabilities and isinstance(device, TelemetrySource):
            clock = device.telemetry().clock_hertz
        if Capability.POWER_LIMIT in device.capabilities and isinstance(device, PowerLimit):
            limit = device.power_limits().current_watts
    except Exception:  # noqa: BLE001 - a heartbeat goes on without what cannot be read
        return _Knobs(clock, limit)
    return _Knobs(clock, limit)
