"""Set the clock of a rank's devices through leases, or the power limit that leads to it."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from joulery.clock import REAL_CLOCK
from joulery.errors import UnsupportedError
from joulery.governor import lease
from joulery.hardware import Capability, ClockLock, PowerLimit, TelemetrySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from joulery.clock import Clock
    from joulery.governor import Lease
    from joulery.hardware import Device
    from joulery.pipeline.planning._rank_plan import RankStep

    Hold = Callable[[Device], AbstractContextManager[Lease]]

# A board dithers at its limit; a little more keeps it from falling below the planned clock.
_LIMIT_MARGIN = 1.005
_SAMPLES = 9
# The first few changes are watched until the board shows the new clock, this long at most.
_WATCHED, _WATCH_SECONDS, _POLL_SECONDS = 5, 0.06, 0.001
_SAME_CLOCK = 0.005


class ClockSetter:
    """Sets the clocks of the devices that share a rank; for use by one thread.

    Where a clock cannot be locked, the power that the instruction draws at that clock becomes the
    power limit, which leads the board to it.

    Args:
        devices: Devices that work on the rank's stages in this process.
        hold: Function that leases a device.
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
        self._hold = lease if hold is None else hold
        self._clock = clock
        self._assumed_seconds = set_seconds
        self._measured: deque[float] = deque(maxlen=_SAMPLES)
        self._calls: deque[float] = deque(maxlen=_SAMPLES)
        self._watched = 0
        self._stack = ExitStack()
        self._knobs: list[_ClockKnob | _LimitKnob] = []

    @property
    def set_seconds(self) -> float:
        """Time of a change until the clock is in force."""
        shown = statistics.median(self._measured) if self._measured else self._assumed_seconds
        # A governor that is called too often makes its callers wait.
        return max(shown, statistics.median(self._calls)) if self._calls else shown

    def set(self, step: RankStep, *, watch: bool = False) -> None:
        """Make the devices ready for a step; on first use they are leased.

        Args:
            step: Step that comes next.
            watch: Whether to wait for the first few changes to show, to measure their time.
        """
        knobs = self._leased()
        began = self._clock.now()
        for knob in knobs:
            knob.set(step)
        self._calls.append(self._clock.now() - began)
        if watch and self._watched < _WATCHED and step.hertz is not None:
            self._watched += 1
            self._watch(step.hertz, began)

    def reset(self) -> None:
        """Set full clocks, and keep the leases."""
        for knob in self._knobs:
            knob.lease.reset()

    def release(self) -> None:
        """End all leases."""
        self._knobs = []
        self._stack.close()

    def _leased(self) -> list[_ClockKnob | _LimitKnob]:
        if not self._knobs:
            with ExitStack() as taking:
                knobs = [_knob(device, taking, self._hold) for device in self._devices]
                # Only once all are leased; else those taken are released at once.
                self._stack = taking.pop_all()
            self._knobs = knobs
            self.uses_limits = any(isinstance(knob, _LimitKnob) for knob in knobs)
        return self._knobs

    def _watch(self, hertz: float, began: float) -> None:
        device = self._devices[0]
        if self.uses_limits or Capability.TELEMETRY not in device.capabilities:
            return
        telemetry = cast("TelemetrySource", device)
        while (now := self._clock.now()) - began < _WATCH_SECONDS:
            shown = telemetry.telemetry().clock_hertz
            if shown is not None and abs(shown / hertz - 1) < _SAME_CLOCK:
                self._measured.append(now - began)
                return
            self._clock.sleep(_POLL_SECONDS)


class _ClockKnob:
    def __init__(self, held: Lease, clocks: tuple[float, ...]) -> None:
        self.lease = held
        self._clocks = clocks

    def set(self, step: RankStep) -> None:
        """The planned clock, or the next above it that the board has."""
        if step.hertz is None or not self._clocks:
            self.lease.reset()
            return
        # Less a little: clocks that went through files in megahertz are still the same.
        place = bisect_left(self._clocks, step.hertz * (1 - 1e-6))
        self.lease.set(clock_hertz=self._clocks[min(place, len(self._clocks) - 1)])


class _LimitKnob:
    def __init__(self, held: Lease, limit: PowerLimit) -> None:
        self.lease = held
        found = limit.power_limits()
        self._least, self._most = found.min_watts, found.current_watts

    def set(self, step: RankStep) -> None:
        """The power of the planned clock, within what the board allows."""
        if step.watts is None or step.watts * _LIMIT_MARGIN >= self._most:
            self.lease.reset()
            return
        self.lease.set(watts=max(self._least, step.watts * _LIMIT_MARGIN))


def _knob(device: Device, stack: ExitStack, hold: Hold) -> _ClockKnob | _LimitKnob:
    if Capability.CLOCK_LOCK in device.capabilities:
        clocks = tuple(sorted(cast("ClockLock", device).supported_clocks()))
        return _ClockKnob(stack.enter_context(hold(device)), clocks)
    if Capability.POWER_LIMIT in device.capabilities:
        return _LimitKnob(stack.enter_context(hold(device)), cast("PowerLimit", device))
    raise UnsupportedError(
        f"{device.info.name} ({device.info.id}) has neither a clock to lock nor a power limit",
        remedy="see `joulery doctor` for what each device can do",
    )
