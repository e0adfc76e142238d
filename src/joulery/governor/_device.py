"""One governed device: its baseline, its ceiling, and the thread that calls its driver."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from joulery.background import DriverThread
from joulery.errors import DeviceError, InvalidValueError, JouleryError
from joulery.governor._commands import with_commands
from joulery.governor._journal import Intent
from joulery.hardware import Capability, ClockLock, PowerLimit, PowerLimitRange, require

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from joulery.governor._journal import LeaseJournal
    from joulery.hardware import Device, PowerMeter, TelemetrySource

    Undo = Callable[[Future[Any]], object]

T = TypeVar("T")

KNOBS = {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
# Drivers count milliwatts.
_SAME_WATTS = 5e-4
# Some boards keep whole watts, as reading back shows.
_ROUNDING_WATTS = 1.0


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Values that a holder requests; None leaves that knob alone.

    The target sets nothing: it is the mean power that an agent has for the board, or that another
    holder promises to keep to, for each to read of the other.
    """

    watts: float | None = None
    hertz: float | None = None
    target_watts: float | None = None


def governable_devices() -> dict[str, Device]:
    """The devices of this machine that have a power limit or a lockable clock, by id."""
    from joulery.hardware import discover

    # No environment: node meters have no knobs, and reading one may take seconds.
    devices = discover(environ={})
    return {
        device.info.id: with_commands(device) for device in devices if device.capabilities & KNOBS
    }


@dataclass(slots=True, eq=False)
class GovernedDevice:
    """A device whose knobs are written here and nowhere else.

    A limit that another program sets becomes the new baseline: it is neither overwritten nor
    exceeded, and it is the limit that stays in the end.

    Attributes:
        device: Hardware to govern.
        journal: Journal that is locked while the device is held, and written before each change.
        on_foreign: Callback for a foreign change, with ``expected_watts`` and ``found_watts``.
        capped: Whether the limit in force when the device is first held is a ceiling.
        held: Whether there is something to restore.
        overridden: Whether another program has set the limit since the governor did.
        baseline_watts: Limit to restore.
        hertz: Clock that the governor pins.
        pinned_hertz: Clock that the administrator keeps pinned, which drivers do not report.
        readings: Power, clock and utilisation as last observed.
    """

    device: Device
    journal: LeaseJournal
    on_foreign: Callable[..., object] = lambda **_: None
    capped: bool = True
    held: bool = False
    overridden: bool = False
    baseline_watts: float | None = None
    hertz: float | None = None
    pinned_hertz: float | None = None
    readings: dict[str, float | None] = field(default_factory=dict)
    _limits: PowerLimitRange | None = None
    _expected: tuple[float, ...] = ()
    _unconfirmed: float | None = None
    _dirty: bool = False

    @property
    def ceiling_watts(self) -> float | None:
        """Highest limit that may be requested; None where there is no limit to set."""
        if self._limits is None or self.capped:
            return self.baseline_watts
        return self._limits.max_watts

    def state(self) -> dict[str, float | None]:
        """Values last seen in force, and those that will be restored."""
        return {
            "watts": None if self._limits is None else self._limits.current_watts,
            "hertz": self.hertz,
            "baseline_watts": self.baseline_watts,
            "ceiling_watts": self.ceiling_watts,
            "min_watts": None if self._limits is None else self._limits.min_watts,
            "default_watts": None if self._limits is None else self._limits.default_watts,
            "foreign_change": self.overridden,
        }

    def hold(self) -> None:
        """Take the device; its baseline is the limit in force, or that in a pending journal."""
        self.journal.lock()
        try:
            intent = self.journal.pending()
            if intent is None:
                self.baseline_watts = self.refresh()
                self._expected = () if self.baseline_watts is None else (self.baseline_watts,)
            else:
                self._dirty, self.baseline_watts = True, intent.baseline_watts
                self.hertz, self.pinned_hertz = intent.hertz, intent.pinned_hertz
                if intent.baseline_watts is not None:
                    self._expected = (intent.baseline_watts, *intent.expected_watts)
                    self._unconfirmed = self._expected[-1]
        except BaseException:
            self.journal.unlock()
            raise
        self.held = True

    def refresh(self) -> float | None:
        """Read the limit in force, in watts, and detect foreign changes."""
        if Capability.POWER_LIMIT not in self.device.capabilities:
            return None
        self._limits = None  # unknown, should the driver fail or hang
        self._limits = cast("PowerLimit", self.device).power_limits()
        current = self._limits.current_watts
        if self.held and self.baseline_watts is not None and not self._is_ours(current):
            expected = self._expected[-1]
            self.capped |= current < max(expected, self.baseline_watts)
            self.baseline_watts, self.overridden = current, True
            self._expected, self._unconfirmed = (current,), None
            self.on_foreign(expected_watts=expected, found_watts=current)
        return current

    def observe(self) -> None:
        """Read the limit in force and what the device does under it."""
        self.refresh()
        device, readings = self.device, dict[str, float | None]()
        with suppress(JouleryError):
            if Capability.POWER in device.capabilities:
                readings["power_watts"] = cast("PowerMeter", device).read_power()
            if Capability.TELEMETRY in device.capabilities:
                telemetry = cast("TelemetrySource", device).telemetry()
                readings |= {
                    "utilisation": telemetry.utilisation,
                    "clock_hertz": telemetry.clock_hertz,
                }
        self.readings = readings

    def check(self, request: LeaseRequest) -> None:
        """Raise unless the device has the knobs and the values are in range, as last seen."""
        if request.watts is not None:
            require(self.device, Capability.POWER_LIMIT)
            least = self._limits.min_watts if self._limits else 0.0
            self._check_range("power limit", request.watts, least, self.ceiling_watts or 0.0, "W")
        if request.hertz is not None:
            require(self.device, Capability.CLOCK_LOCK)
            clocks = [hertz / 1e6 for hertz in cast("ClockLock", self.device).supported_clocks()]
            highest = clocks[-1] if self.pinned_hertz is None else self.pinned_hertz / 1e6
            self._check_range(
                "clock", request.hertz / 1e6, clocks[0], min(highest, clocks[-1]), "MHz"
            )

    def _check_range(
        self, knob: str, value: float, lowest: float, highest: float, unit: str
    ) -> None:
        if not lowest <= value <= highest:
            raise InvalidValueError(
                f"{knob} {value:g} {unit} is outside what {self.device.info.name} may get",
                remedy=f"give {lowest:g} {unit} to {highest:g} {unit}, the cap found in force",
            )

    def apply(self, request: LeaseRequest) -> None:
        """Set the knobs to ``request``, never above the ceiling."""
        if self.baseline_watts is not None and self._limits is not None:
            target = self.baseline_watts if request.watts is None else request.watts
            target = max(target, min(self._limits.min_watts, self.baseline_watts))
            if self.capped:
                target = min(target, self.baseline_watts)
            if abs(target - self._limits.current_watts) > _SAME_WATTS:
                self._write_watts(self._limits.current_watts, target)
            self.overridden = False
        if request.hertz != self.hertz:
            self._write_hertz(request.hertz)

    def restore(self) -> None:
        """Restore the values found; until that succeeds the device stays held."""
        self.refresh()
        self.apply(LeaseRequest())
        if self._dirty:
            self.journal.clear()
        self.held = self._dirty = self.overridden = False
        self.baseline_watts = None
        self.journal.unlock()

    def _is_ours(self, watts: float) -> bool:
        if self._unconfirmed is not None and abs(watts - self._unconfirmed) <= _ROUNDING_WATTS:
            return True
        return any(abs(watts - value) <= _SAME_WATTS for value in self._expected)

    def _write_watts(self, current: float, target: float) -> None:
        if target != self.baseline_watts:
            self._record((current, target), self.hertz)
        self._expected, self._unconfirmed = (current, target), target
        knob = cast("PowerLimit", self.device)
        knob.set_power_limit(target)
        self._limits = knob.power_limits()
        self._expected, self._unconfirmed = (self._limits.current_watts,), None

    def _write_hertz(self, hertz: float | None) -> None:
        knob = cast("ClockLock", self.device)
        if hertz is not None:
            self._record(self._expected, hertz)
            # Set before the call: if it fails half way, the clock still has to be restored.
            self.hertz = hertz
        target = self.pinned_hertz if hertz is None else hertz
        if target is None:
            knob.unlock_clock()
        else:
            knob.lock_clock(target)
        self.hertz = hertz

    def _record(self, expected_watts: tuple[float, ...], hertz: float | None) -> None:
        """Record a change away from the baseline.

        Restoring needs no record, since the last one has the baseline: so a full disk cannot
        prevent it.
        """
        intent = Intent(self.baseline_watts, expected_watts, self.pinned_hertz, hertz)
        self.journal.record(intent)
        self._dirty = True


class DeviceWorker(DriverThread):
    """Thread that makes the driver calls of one device; one that hangs delays only its own device.

    An error that is none of Joulery's is a bug and ends the process: its successor restores.
    """

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call."""
        return super().submit(partial(_result_or_exit, call))

    async def run(self, call: Callable[[], T], undo: Undo = lambda _: None) -> T:
        """Result of a call, which is refused while the driver hangs.

        A call that has not begun in time is dropped; ``undo`` gets a finished one that was not
        waited for.
        """
        import asyncio  # 20 ms that a client of the governor need not spend

        if self.hangs:
            raise _no_answer()
        future = self.submit(call)
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await asyncio.wrap_future(future)
        except (TimeoutError, asyncio.CancelledError) as error:
            future.add_done_callback(undo)
            raise _no_answer() if isinstance(error, TimeoutError) else error from None


def _result_or_exit(call: Callable[[], T]) -> T:
    try:
        return call()
    except JouleryError:
        raise
    except BaseException:  # noqa: BLE001 - a bug
        sys.excepthook(*sys.exc_info())
        os._exit(70)  # EX_SOFTWARE of sysexits.h


def _no_answer() -> DeviceError:
    remedy = "try again later; what was changed is restored once it does"
    return DeviceError("the device's driver does not answer", remedy=remedy)
