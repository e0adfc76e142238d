"""The knob that is turned: power limits or locked clocks of all devices of a job together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, cast

from joulery.errors import InvalidValueError, UnsupportedError
from joulery.frontier import Setting
from joulery.hardware.device import Capability, ClockLock, PowerLimit, require
from joulery.power.state_machine import Range, TuningMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from joulery.hardware.device import Device
    from joulery.objectives import Objective
    from joulery.power.choice import TuningChoice
    from joulery.power.messages import Command, Reading
    from joulery.power.profiles import PowerProfile
    from joulery.power.rules import Rules

    Hold = Callable[[Device], AbstractContextManager["Held"]]

# One watt where the range allows; more values than this would only cost time.
_MOST_VALUES = 301


class Held(Protocol):
    """A device in our hands, given back when its block ends."""

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        """Change the knobs that are given."""
        ...

    def reset(self) -> None:
        """Back to what was found, and keep holding."""
        ...


class SettlingMachine(Protocol):
    """A machine that comes to a choice, such as ``TuningMachine``."""

    @property
    def settled(self) -> TuningChoice | None:
        """The choice, once made."""
        ...

    def start(self, reading: Reading) -> Command:
        """The first command."""
        ...

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        ...


class Knob(Protocol):
    """What the tuner asks of a knob."""

    def machine(
        self, objective: Objective, rules: Rules, profile: PowerProfile | None = None
    ) -> SettlingMachine:
        """The machine that chooses among its values, as the devices are now."""
        ...

    def positions(self) -> int:
        """How many positions it has, once it made a machine."""
        ...

    def value_at(self, position: int) -> float:
        """The value behind a position, in watts or hertz."""
        ...

    def setting_at(self, position: int) -> Setting:
        """The setting behind a position."""
        ...

    def turn(self, position: int) -> None:
        """Go there; the last position is what was found."""
        ...

    def release(self) -> None:
        """Give everything back."""
        ...


def governed(device: Device) -> AbstractContextManager[Held]:
    """Hold a device through the governor; see :func:`joulery.governor.lease`."""
    from joulery.governor import lease

    return lease(device)


@contextmanager
def held_here(device: Device) -> Iterator[Held]:
    """Hold a device from this process alone, for simulated boards and owners of the machine."""
    held = _HeldHere(device)
    try:
        yield held
    finally:
        held.reset()


class _HeldHere:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._found_watts: float | None = None
        self._locked = False

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        if watts is not None:
            limit = cast("PowerLimit", self._device)
            if self._found_watts is None:
                self._found_watts = limit.power_limits().current_watts
            limit.set_power_limit(watts)
        if clock_hertz is not None:
            self._locked = True
            cast("ClockLock", self._device).lock_clock(clock_hertz)

    def reset(self) -> None:
        if self._found_watts is not None:
            cast("PowerLimit", self._device).set_power_limit(self._found_watts)
        if self._locked:
            cast("ClockLock", self._device).unlock_clock()
            self._locked = False


class _Grip:
    """Holds devices from the first change on; before that, nothing needs rights."""

    def __init__(self, devices: Sequence[Device], hold: Hold) -> None:
        self.devices = tuple(devices)
        self._hold = hold
        self._stack = ExitStack()
        self._held: list[Held] = []

    def held(self) -> list[Held]:
        if not self._held:
            with ExitStack() as taking:
                held = [taking.enter_context(self._hold(device)) for device in self.devices]
                # Only once all are ours; else those taken go back at once.
                self._stack = taking.pop_all()
            self._held = held
        return self._held

    def reset(self) -> None:
        for held in self._held:
            held.reset()

    def release(self) -> None:
        self._held = []
        self._stack.close()


class _SameOnAll(ABC):
    """One value on all devices; what limits and clocks have in common.

    Args:
        devices: All with this knob.
        hold: How to get hold of a device.
    """

    def __init__(self, devices: Sequence[Device], hold: Hold = governed) -> None:
        self._grip = _Grip(devices, hold)
        self._values: tuple[float, ...] = ()

    @abstractmethod
    def range(self) -> Range:
        """The values that all devices allow now, noted in ``_values``; the last was found."""

    @abstractmethod
    def setting_at(self, position: int) -> Setting:
        """The setting behind a position."""

    @abstractmethod
    def _set(self, device: int, held: Held, value: float) -> None:
        """Turn the knob of one device."""

    def machine(
        self, objective: Objective, rules: Rules, profile: PowerProfile | None = None
    ) -> TuningMachine:
        """The machine that chooses among its values, as the devices are now."""
        span = self.range()
        known = None if profile is None else profile.known(self._values)
        return TuningMachine(span, objective, rules, known)

    def positions(self) -> int:
        """How many values there are."""
        return len(self._values)

    def value_at(self, position: int) -> float:
        """The watts or hertz behind a position."""
        return self._values[position]

    def turn(self, position: int) -> None:
        """Set the value on every device; the last position is what was found."""
        if position == len(self._values) - 1:
            self._grip.reset()
            return
        for device, held in enumerate(self._grip.held()):
            self._set(device, held, self._values[position])

    def release(self) -> None:
        """Give everything back."""
        self._grip.release()


class LimitKnob(_SameOnAll):
    """The same power limit on all devices; where a device had a lower one, that stays."""

    _found: tuple[tuple[float, float], ...] = ()

    def range(self) -> Range:
        """Whole watts from the lowest limit up to the one found."""
        import numpy as np

        from joulery.power.prior import limit_curves

        found = []
        for device in self._grip.devices:
            require(device, Capability.POWER_LIMIT)
            limits = cast("PowerLimit", device).power_limits()
            found.append((limits.min_watts, limits.current_watts))
        self._found = tuple(found)
        lowest, highest = max(low for low, _ in found), max(high for _, high in found)
        if not lowest < highest:
            raise UnsupportedError(
                f"the power limit stands at its lowest, {lowest:g} W: nothing to choose from",
                remedy="raise the limit first, as the administrator",
            )
        step = max(1.0, np.ceil((highest - lowest) / (_MOST_VALUES - 1)))
        values = highest - step * np.arange(int((highest - lowest) / step) + 1)[::-1]
        self._values = tuple(float(value) for value in values)
        count = len(self._grip.devices)
        return Range(values, lambda watts: limit_curves(values, watts / count))

    def setting_at(self, position: int) -> Setting:
        """The limit behind a position."""
        return Setting(
            power_limit_watts=self._values[position],
            device=self._grip.devices[0].info.name,
            devices=len(self._grip.devices),
        )

    def _set(self, device: int, held: Held, value: float) -> None:
        low, high = self._found[device]
        held.set(watts=min(high, max(low, value)))


class ClockKnob(_SameOnAll):
    """The same locked core clock on all devices."""

    def range(self) -> Range:
        """Clocks that every device supports; the highest stands for no lock at all."""
        import numpy as np

        from joulery.power.prior import clock_curves

        common: set[float] | None = None
        for device in self._grip.devices:
            require(device, Capability.CLOCK_LOCK)
            clocks = set(cast("ClockLock", device).supported_clocks())
            common = clocks if common is None else common & clocks
        clocks = common or set()
        if len(clocks) < 2:
            raise InvalidValueError(
                "the devices have no two clocks in common", remedy="tune their power limit instead"
            )
        self._values = tuple(sorted(clocks))
        values = np.array(self._values)
        return Range(values, lambda _: clock_curves(values))

    def setting_at(self, position: int) -> Setting:
        """The clock behind a position."""
        return Setting(
            clock_hertz=self._values[position],
            device=self._grip.devices[0].info.name,
            devices=len(self._grip.devices),
        )

    def _set(self, device: int, held: Held, value: float) -> None:  # noqa: ARG002 - all alike
        held.set(clock_hertz=value)
