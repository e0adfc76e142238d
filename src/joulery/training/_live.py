"""Heartbeats of a run, with the live state of its devices where a dashboard shows that."""

from __future__ import annotations

import logging
import math
from collections import Counter
from concurrent.futures import wait
from typing import TYPE_CHECKING, NamedTuple

from joulery.background import DriverThread, PeriodicTask
from joulery.hardware import Capability, PowerLimit, TelemetrySource
from joulery.jobs import MOST_LIVE_DEVICES, LiveDevice, LiveState, Outcome
from joulery.jobs.policies import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from joulery.client import ResilientClient
    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.jobs import Decision
    from joulery.metering import Measurement
    from joulery.training._energy import EnergyAccount
    from joulery.training._tuning import RunPower

_log = logging.getLogger("joulery")

_HEARTBEATS_PER_LEASE = 5.0  # by hand: a few may be lost
_HEARTBEAT_SECONDS = 1.0, 60.0  # by hand: shortest and longest time between two
_WATCHED_SECONDS = 12.0  # by hand: longest time between two that people watch on a dashboard
# Longest wait for clocks and limits, by hand. A heartbeat has none while the driver hangs.
_WAIT_SECONDS = 2.0
_LONGEST_NAME = 150  # leaves room for an index in the 200 characters of a text


class DecisionHeartbeat:
    """Reports in the background that a decision is being worked on, and how far.

    Args:
        client: Client of the store or server.
        decision: Decision that is run.
        account: Its energy.
        power: Power tuner of the run, which counts its steps.
        processes: Number of processes that train together.
    """

    def __init__(
        self,
        client: ResilientClient,
        decision: Decision,
        account: EnergyAccount,
        power: RunPower,
        processes: int = 1,
    ) -> None:
        self._client = client
        self._decision = decision
        self._account = account
        self._power = power
        self._processes = processes
        self._task: PeriodicTask | None = None
        self._live: LiveReader | None = None

    def start(self, clock: Clock) -> None:
        """Send heartbeats often enough that a few may be lost, and that people can watch."""
        shortest, longest = _HEARTBEAT_SECONDS
        lease_seconds = self._decision.expires_wall_seconds - clock.wall()
        seconds = min(max(lease_seconds / _HEARTBEATS_PER_LEASE, shortest), longest)
        if self._client.watched:
            seconds = min(seconds, _WATCHED_SECONDS)
            measured, steps = self._account.measurement(), self._power.steps
            devices = self._account.devices
            self._live = LiveReader(devices, clock, measured, steps, self._processes)
        task = PeriodicTask(self._beat, seconds=seconds, clock=clock, name="joulery-heartbeat")
        try:
            task.start()
        except RuntimeError as error:  # no more threads: the lease will expire
            _log.debug("joulery: no heartbeat: %s", error)
            return
        self._task = task

    def stop(self) -> None:
        """Send no more; one that is under way may still end."""
        if self._task is not None:
            self._task.stop(timeout_seconds=0.0)
        if self._live is not None:
            self._live.close()

    def _beat(self) -> None:
        try:
            usage = self._account.latest()
            if usage.known:
                probe = self._decision.kind == ActionKind.PROBE
                epochs = 0.0 if probe else float(self._account.epochs)
                progress = Outcome(RunEnd.ABANDONED, epochs, *usage)
                self._client.heartbeat(self._decision, progress, self._live_state())
        except Exception as error:  # noqa: BLE001 - a later one may succeed, training continues
            _log.debug("joulery: a heartbeat failed: %s", error)

    def _live_state(self) -> LiveState | None:
        """The live state for the dashboard; None without a server, or where it cannot be read."""
        if self._live is None:
            return None
        try:
            account, power = self._account, self._power
            phase = "validating" if account.is_validating else power.phase()
            seconds = account.here().seconds
            return self._live.read(account.measurement(), power.steps, seconds, phase).checked()
        except Exception as error:  # noqa: BLE001 - the lease matters more
            _log.debug("joulery: no live state: %r", error)
            return None


class _Knobs(NamedTuple):
    """Clock and power limit of a device; None where they are unknown."""

    clock_hertz: float | None = None
    limit_watts: float | None = None


def unique_names(devices: Iterable[Device]) -> dict[str, str]:
    """Names of devices by their ids; those of one model have their number."""
    infos = [device.info for device in devices][:MOST_LIVE_DEVICES]
    counts = Counter(info.name for info in infos)
    return {
        info.id: info.name[:_LONGEST_NAME] + f" {info.index}" * (counts[info.name] > 1)
        for info in infos
    }


class LiveReader:
    """Makes the live state of a run from its meter, its steps, and the clocks of its devices.

    The driver is called in a thread of its own, and not again before it has answered.

    Attributes:
        names: Names of the devices by their ids, each unique.
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
        self.names = unique_names(self._devices)

    def read(self, measured: Measurement, steps: int, seconds: float, phase: str) -> LiveState:
        """The state now; means are those since the last one."""
        (before, steps_before), self._before = self._before, (measured, steps)
        elapsed = measured.seconds - before.seconds
        joules_before = {device.info.id: device.joules for device in before.devices}
        knobs = self._knobs()

        def rate(amount: float) -> float | None:
            is_rate = elapsed > 0 and math.isfinite(amount) and amount >= 0
            return round(amount / elapsed, 3) if is_rate else None

        devices = tuple(
            LiveDevice(
                self.names[device.info.id],
                rate(device.joules - joules_before.get(device.info.id, math.nan)),
                *knobs.get(device.info.id, _Knobs()),
            )
            for device in measured.devices
            if device.info.id in self.names
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
    except Exception:  # noqa: BLE001 - a heartbeat is sent without what cannot be read
        return _Knobs(clock, limit)
    return _Knobs(clock, limit)
