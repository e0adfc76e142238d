"""Set the clock of a rank's devices through leases, or the power limit that leads to it."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, cast

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, JouleryError, UnsupportedError
from joulery.governor import Lease, held
from joulery.hardware import Capability, ClockLock, PowerLimit, TelemetrySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.clock import Clock
    from joulery.governor import Held, Hold
    from joulery.hardware import Device

    # What to set for a clock in hertz and the watts drawn there; nothing means full clocks.
    Values = Callable[[float | None, float | None], dict[str, float]]

# A board dithers at its limit; a little more keeps it from falling below the planned clock; by
# hand.
_LIMIT_MARGIN = 1.005
# Changes whose median is believed; by hand.
_SAMPLES = 9
# The first few changes are watched until the board shows the new clock, for a second at most, which
# is longer than any known board takes; by hand.
_WATCHED, _WATCH_SECONDS, _POLL_SECONDS = 5, 1.0, 0.001
# Watches that may end without having seen the new clock; by hand.
_FRUITLESS = 50
# Boards show clocks rounded to their steps of 7.5 or 15 MHz.
_SAME_CLOCK = 0.005


class ClockSetter:
    """Sets the clocks of the devices that share a rank; for use by one thread.

    Where a clock cannot be locked, the power that the instruction draws at that clock becomes the
    power limit, which leads the board to it.

    Args:
        devices: Devices that work on the rank's stages in this process.
        hold: Function that leases a device; that of the governor unless given.
        clock: Real or virtual clock.
        set_seconds: Time of a change, until it is measured.

    Attributes:
        uses_limits: Whether any device is led by its power limit; known once it is leased.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        hold: Hold | None = None,
        clock: Clock = REAL_CLOCK,
        set_seconds: float = 0.010,
    ) -> None:
        self.uses_limits = False
        self._devices = tuple(devices)
        self._hold = hold
        self._clock = clock
        self._assumed_seconds = set_seconds
        self._measured: deque[float] = deque(maxlen=_SAMPLES)
        self._calls: deque[float] = deque(maxlen=_SAMPLES)
        self._watches = _WATCHED * _FRUITLESS
        self._stack = ExitStack()
        self._knobs: list[tuple[Held, Values]] = []

    @property
    def set_seconds(self) -> float:
        """Time of a change until the clock is in force."""
        seconds = statistics.median(self._measured) if self._measured else self._assumed_seconds
        # A governor that is called too often makes its callers wait.
        return max(seconds, statistics.median(self._calls)) if self._calls else seconds

    def set(
        self,
        hertz: float | None,
        watts: float | None = None,
        *,
        watch: Callable[[], bool] | None = None,
    ) -> None:
        """Set the clock of the devices; on first use they are leased.

        Args:
            hertz: Clock to lock; None for full clocks.
            watts: Power limit where none can be locked; None for the one found.
            watch: Function that says whether there is time to wait for the change to show, as the
                first few are watched to measure their time; None for none.
        """
        self._lease()
        began = self._clock.now()
        for handle, values_for in self._knobs:
            values = values_for(hertz, watts)
            if values:
                handle.set(**values)
            else:
                handle.reset()
        self._calls.append(self._clock.now() - began)
        if watch is not None and self._watches > 0 and hertz is not None:
            self._watch(hertz, began, watch)

    def reset(self) -> None:
        """Set full clocks, and keep the leases."""
        for handle, _ in self._knobs:
            handle.reset()

    def share_watts(self) -> float | None:
        """Lowest power that others, such as a cluster's agent, leave a device; None without."""
        shares = [handle.share_watts for handle, _ in self._knobs if isinstance(handle, Lease)]
        return min((watts for watts in shares if watts is not None), default=None)

    def promise(self, watts: float | None) -> None:
        """Promise others a mean power of each device; None takes it back."""
        if watts is not None:
            self._lease()
        for handle, _ in self._knobs:
            if isinstance(handle, Lease):
                handle.promise(watts)

    def release(self) -> None:
        """Set full clocks and end all leases; a governor that is gone restores by itself."""
        for restore in (self.reset, self._stack.close):
            with suppress(JouleryError, OSError):
                restore()
        self._knobs = []

    def _lease(self) -> None:
        if self._knobs:
            return
        values = [_values_of(device) for device in self._devices]
        self.uses_limits = any(
            Capability.CLOCK_LOCK not in device.capabilities for device in self._devices
        )
        handles = self._stack.enter_context(held(self._devices, hold=self._hold))
        self._knobs = list(zip(handles, values, strict=True))

    def _watch(self, hertz: float, began: float, has_time: Callable[[], bool]) -> None:
        device = self._devices[0]
        if self.uses_limits or Capability.TELEMETRY not in device.capabilities:
            return
        telemetry = cast("TelemetrySource", device)
        while (elapsed := self._clock.now() - began) < _WATCH_SECONDS and has_time():
            current = telemetry.telemetry().clock_hertz
            if current is not None and abs(current / hertz - 1) < _SAME_CLOCK:
                self._measured.append(elapsed)
                self._watches -= _FRUITLESS
                return
            self._clock.sleep(_POLL_SECONDS)
        self._watches -= 1
        if not self._measured:
            # It takes longer than was thought, if not yet how long.
            self._assumed_seconds = max(self._assumed_seconds, elapsed)


def _values_of(device: Device) -> Values:
    if Capability.CLOCK_LOCK in device.capabilities:
        return _clock_values(device)
    if Capability.POWER_LIMIT in device.capabilities:
        return _limit_values(device)
    raise UnsupportedError(
        f"{device.info.name} ({device.info.id}) has neither a clock to lock nor a power limit",
        remedy="see `joulery doctor` for what each device can do",
    )


def _clock_values(device: Device) -> Values:
    """The planned clock, or the next above it that the board has."""
    clocks = sorted(cast("ClockLock", device).supported_clocks())

    def values(hertz: float | None, _: float | None) -> dict[str, float]:
        if hertz is None or not clocks:
            return {}
        lowest, highest = clocks[0] * (1 - _SAME_CLOCK), clocks[-1] * (1 + _SAME_CLOCK)
        if not lowest <= hertz <= highest:
            raise InvalidValueError(
                f"the plan has a clock of {hertz / 1e6:.4g} MHz, but {device.info.name} has "
                f"{clocks[0] / 1e6:.0f} to {clocks[-1] / 1e6:.0f} MHz",
                remedy="plan with a profile of this board",
            )
        # Less a little: clocks that went through files in megahertz are still the same.
        position = bisect_left(clocks, hertz * (1 - 1e-6))
        return {"clock_hertz": clocks[min(position, len(clocks) - 1)]}

    return values


def _limit_values(device: Device) -> Values:
    """The power of the planned clock, within what the board allows."""
    limits = cast("PowerLimit", device).power_limits()

    def values(_: float | None, watts: float | None) -> dict[str, float]:
        if watts is None or watts * _LIMIT_MARGIN >= limits.current_watts:
            return {}
        return {"watts": max(limits.min_watts, watts * _LIMIT_MARGIN)}

    return values
