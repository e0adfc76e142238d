"""Set the clock of a rank's devices through leases, or the power limit that leads to it."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, cast

from joulery.clock import REAL_CLOCK
from joulery.errors import UnsupportedError
from joulery.hardware.device import Capability, ClockLock, PowerLimit, TelemetrySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.pipeline.rank_plan import Step

    Hold = Callable[[Device], AbstractContextManager["Held"]]

# A board dithers at its limit; a hair more keeps it from falling below the clock that was planned.
_LIMIT_MARGIN = 1.005
_SAMPLES = 9
# The first few changes are watched until the board shows the new clock, this long at most.
_WATCHED, _WATCH_SECONDS, _LOOK_SECONDS = 5, 0.06, 0.001
_SAME_CLOCK = 0.005


class Held(Protocol):
    """A device in our hands; :class:`joulery.governor.Lease` for one."""

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        """Change the knobs that are given."""
        ...

    def reset(self) -> None:
        """Back to what was found, and keep holding."""
        ...


def governed(device: Device) -> AbstractContextManager[Held]:
    """Hold a device through the governor; see :func:`joulery.governor.lease`."""
    from joulery.governor import lease

    return lease(device)


class ClockSetter:
    """Turns the knobs of the devices that share a rank; one thread uses it.

    Where a clock cannot be locked, the power that the instruction draws at that clock becomes the
    power limit, which leads the board to it.

    Args:
        devices: All that work on the rank's stages in this process.
        hold: How to get hold of a device.
        clock: Real or virtual.
        set_seconds: What a change takes until measured.

    Attributes:
        uses_limits: Whether any device is led by its power limit; known once it is held.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        hold: Hold = governed,
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
        self._watched = 0
        self._stack = ExitStack()
        self._knobs: list[_Knob] = []

    @property
    def set_seconds(self) -> float:
        """How long a change takes until the clock is in force."""
        shown = statistics.median(self._measured) if self._measured else self._assumed_seconds
        # A governor that is asked too often makes its callers wait.
        return max(shown, statistics.median(self._calls)) if self._calls else shown

    def set(self, step: Step, *, watch: bool = False) -> None:
        """Make the devices ready for a step; on first use they are leased.

        Args:
            step: What comes.
            watch: Wait for the first few changes to show, to learn how long they take.
        """
        knobs = self._held()
        began = self._clock.now()
        for knob in knobs:
            knob.set(step)
        self._calls.append(self._clock.now() - began)
        if watch and self._watched < _WATCHED and step.hertz is not None:
            self._watched += 1
            self._watch(step.hertz, began)

    def reset(self) -> None:
        """Full clocks, and keep holding."""
        for knob in self._knobs:
            knob.held.reset()

    def release(self) -> None:
        """Give everything back."""
        self._knobs = []
        self._stack.close()

    def _held(self) -> list[_Knob]:
        if not self._knobs:
            with ExitStack() as taking:
                knobs = [_knob(device, taking, self._hold) for device in self._devices]
                # Only once all are ours; else those taken go back at once.
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
            self._clock.sleep(_LOOK_SECONDS)


class _Knob(Protocol):
    @property
    def held(self) -> Held: ...

    def set(self, step: Step) -> None: ...


class _ClockKnob:
    def __init__(self, held: Held, clocks: tuple[float, ...]) -> None:
        self.held = held
        self._clocks = clocks

    def set(self, step: Step) -> None:
        """The planned clock, or the next above it that the board has."""
        if step.hertz is None or not self._clocks:
            self.held.reset()
            return
        # Less a hair: clocks that went through files in megahertz are still the same.
        place = bisect_left(self._clocks, step.hertz * (1 - 1e-6))
        self.held.set(clock_hertz=self._clocks[min(place, len(self._clocks) - 1)])


class _LimitKnob:
    def __init__(self, held: Held, limit: PowerLimit) -> None:
        self.held = held
        found = limit.power_limits()
        self._least, self._most = found.min_watts, found.current_watts

    def set(self, step: Step) -> None:
        """The power of the planned clock, within what the board allows."""
        if step.watts is None or step.watts * _LIMIT_MARGIN >= self._most:
            self.held.reset()
            return
        self.held.set(watts=max(self._least, step.watts * _LIMIT_MARGIN))


def _knob(device: Device, stack: ExitStack, hold: Hold) -> _Knob:
    if Capability.CLOCK_LOCK in device.capabilities:
        clocks = tuple(sorted(cast("ClockLock", device).supported_clocks()))
        return _ClockKnob(stack.enter_context(hold(device)), clocks)
    if Capability.POWER_LIMIT in device.capabilities:
        return _LimitKnob(stack.enter_context(hold(device)), cast("PowerLimit", device))
    raise UnsupportedError(
        f"{device.info.name} ({device.info.id}) has neither a clock to lock nor a power limit",
        remedy="see `joulery doctor` for what each device can do",
    )
