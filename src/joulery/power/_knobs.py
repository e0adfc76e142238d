"""Knobs that a tuner sets: power limits or locked clocks, the same on all devices of a job."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from joulery.errors import InvalidValueError, UnsupportedError
from joulery.frontier import OperatingPoint, Setting
from joulery.governor import held
from joulery.hardware import Capability, ClockLock, PowerLimit, require
from joulery.objectives import score
from joulery.power._state_machine import KnobRange, PlannedMachine, TuningMachine
from joulery.power._step_profiler import TunerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.governor import Held, Hold
    from joulery.hardware import Device
    from joulery.objectives import Objective
    from joulery.power._profiles import PowerProfile
    from joulery.power._state_machine import Machine, ProfilingMachine, TuningChoice
    from joulery.power._step_profiler import Command, Estimate, Reading, TunerConfig

# One watt where the range allows; more values than this would only cost time.
_MOST_VALUES = 301
# The second of two knobs must be this much better, relative, and beyond doubt, to be chosen.
_CLEARLY = 0.005


class Knob(Protocol):
    """What the tuner needs of a knob; positions count from 0 once it made a machine."""

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> Machine:
        """A machine that chooses among the values that the devices have now."""
        ...

    def positions(self) -> int:
        """Number of positions; the last one is the value found."""
        ...

    def value_at(self, position: int) -> float:
        """The value at a position, in watts or hertz."""
        ...

    def setting_at(self, position: int) -> Setting:
        """The setting at a position."""
        ...

    def set_position(self, position: int) -> None:
        """Apply the value of a position to all devices."""
        ...

    def release(self) -> None:
        """Restore what was found."""
        ...


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """Power limits that a decision lists, and what to do with them.

    Attributes:
        listed_watts: Limits that may be set, ascending.
        hold_watts: Limit to hold; None leaves the choice to profiling.
        measure_watts: Limits to measure for seconds each before that.
        probed: Called when all of them are measured, where measuring is the only purpose; the
            limit found is held then.
    """

    listed_watts: tuple[float, ...]
    hold_watts: float | None = None
    measure_watts: tuple[float, ...] = ()
    probed: Callable[[], None] | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it says what to do, rather than to find out what is best."""
        return bool(self.hold_watts is not None or self.measure_watts or self.probed)


class _SameOnAll(ABC):
    """One value on all devices, which are held from the first change on; needs no rights before.

    Args:
        devices: Devices that all have this knob.
        hold: Function that takes hold of a device; :func:`joulery.governor.lease` unless given.
    """

    def __init__(self, devices: Sequence[Device], hold: Hold | None = None) -> None:
        self._devices = tuple(devices)
        self._hold = hold
        self._stack = ExitStack()
        self._held: list[Held] = []
        self._values: tuple[float, ...] = ()

    @abstractmethod
    def range(self) -> KnobRange:
        """The values that all devices allow now, noted in ``_values``; the last was found."""

    def setting_at(self, position: int) -> Setting:
        """The setting at a position."""
        count = len(self._devices)
        return replace(
            self._setting(self._values[position]),
            device=self._devices[0].info.name,
            devices=count if count > 1 else None,
        )

    @abstractmethod
    def _setting(self, value: float) -> Setting:
        """A setting with one value of this knob."""

    @abstractmethod
    def _set(self, device: int, held: Held, value: float) -> None:
        """Set the value of one device."""

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> ProfilingMachine:
        """A machine that chooses among the values that the devices have now."""
        span = self.range()
        known = None if profile is None else profile.choice_on(self._values)
        return TuningMachine(span, objective, config, known)

    def positions(self) -> int:
        """Number of values."""
        return len(self._values)

    def value_at(self, position: int) -> float:
        """The watts or hertz at a position."""
        return self._values[position]

    def set_position(self, position: int) -> None:
        """Set the value on every device; the last position is what was found."""
        if position == len(self._values) - 1:
            for each in self._held:
                each.reset()
            return
        if not self._held:
            self._held = self._stack.enter_context(held(self._devices, hold=self._hold))
        for device, each in enumerate(self._held):
            self._set(device, each, self._values[position])

    def release(self) -> None:
        """Restore what was found."""
        self._held = []
        self._stack.close()


class LimitKnob(_SameOnAll):
    """The same power limit on all devices; where a device had a lower one, that stays.

    Args:
        devices: Devices with a power limit.
        hold: Function that takes hold of a device.
        plan: Limits to keep to; None for any whole watt.

    Attributes:
        changes: Number of times that the limit was set.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        hold: Hold | None = None,
        plan: LimitPlan | None = None,
    ) -> None:
        super().__init__(devices, hold)
        self._plan = plan
        self._found: tuple[tuple[float, float], ...] = ()
        self._machine: ProfilingMachine | None = None
        self._position = -1
        self.changes = 0

    def range(self) -> KnobRange:
        """Whole watts, or those of the plan, from the lowest limit up to the one found."""
        import numpy as np

        from joulery.power._model import limit_curves

        found = []
        for device in self._devices:
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
        if self._plan is not None:
            listed = [w for w in self._plan.listed_watts if values[0] <= w < values[-1]]
            nearest = {int(np.abs(values - watts).argmin()) for watts in listed}
            values = values[sorted(nearest | {len(values) - 1})]
        self._values = tuple(float(value) for value in values)
        count = len(self._devices)
        return KnobRange(values, lambda watts: limit_curves(values, watts / count))

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> ProfilingMachine:
        """A machine that follows the plan, or chooses where the plan leaves that open."""
        machine: ProfilingMachine = super().machine(objective, config, profile)
        plan, last = self._plan, len(self._values) - 1
        if plan is not None and not (plan.hold_watts is None and plan.probed is None):
            free = plan.hold_watts is None or config.dry_run
            hold = last if free else self._nearest(cast("float", plan.hold_watts))
            measured = sorted({self._nearest(watts) for watts in plan.measure_watts})
            machine = PlannedMachine(config, last, measured[::-1], hold, plan.probed)
        self._position, self._machine = last, machine
        return machine

    def set_position(self, position: int) -> None:
        """Set the limit on every device; the last position is what was found."""
        super().set_position(position)
        self._position = position
        self.changes += 1

    def estimates(self) -> dict[float, Estimate]:
        """Estimates so far, by limit in watts."""
        found = {} if self._machine is None else self._machine.estimates()
        return {self.value_at(position): estimate for position, estimate in found.items()}

    @property
    def watts(self) -> float | None:
        """The limit in force; None before it is known."""
        return self.value_at(self._position) if self._values else None

    def _setting(self, value: float) -> Setting:
        return Setting(power_limit_watts=value)

    def _nearest(self, watts: float) -> int:
        return min(range(len(self._values)), key=lambda at: abs(self._values[at] - watts))

    def _set(self, device: int, held: Held, value: float) -> None:
        low, high = self._found[device]
        held.set(watts=min(high, max(low, value)))


class ClockKnob(_SameOnAll):
    """The same locked core clock on all devices."""

    def range(self) -> KnobRange:
        """Clocks that every device supports; the highest stands for no lock at all."""
        import numpy as np

        from joulery.power._model import clock_curves

        common: set[float] | None = None
        for device in self._devices:
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
        return KnobRange(values, lambda _: clock_curves(values))

    def _setting(self, value: float) -> Setting:
        return Setting(clock_hertz=value)

    def _set(self, device: int, held: Held, value: float) -> None:  # noqa: ARG002 - all alike
        held.set(clock_hertz=value)


class BothKnobs:
    """Two knobs as one; positions of the second follow those of the first.

    Args:
        first: Knob that is preferred when both do as well; power limits, as a rule.
        second: Alternative knob; locked clocks, as a rule.
    """

    def __init__(self, first: Knob, second: Knob) -> None:
        self._knobs = (first, second)
        self._start = 0

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> Machine:
        """A machine that tunes one knob after the other, or holds what an earlier run chose."""
        machines = [knob.machine(objective, config) for knob in self._knobs]
        self._start = self._knobs[0].positions()
        trusted = None
        for index, knob in enumerate(self._knobs):
            values = [knob.value_at(position) for position in range(knob.positions())]
            part = None if profile is None else profile.among(values)
            if part is not None and part.choice_on(values) is not None:
                machines[index] = knob.machine(objective, config, part)
                trusted = index
        return BetterOfTwo((machines[0], machines[1]), self._start, objective, trusted)

    def positions(self) -> int:
        """Number of positions of both."""
        return self._knobs[0].positions() + self._knobs[1].positions()

    def value_at(self, position: int) -> float:
        """The value at a position, in watts or hertz."""
        knob, own = self._own(position)
        return knob.value_at(own)

    def setting_at(self, position: int) -> Setting:
        """The setting at a position."""
        knob, own = self._own(position)
        return knob.setting_at(own)

    def set_position(self, position: int) -> None:
        """Set the knob that the position belongs to; the other is released."""
        knob, own = self._own(position)
        other = self._knobs[1] if knob is self._knobs[0] else self._knobs[0]
        other.release()
        knob.set_position(own)

    def release(self) -> None:
        """Restore what was found."""
        for knob in self._knobs:
            knob.release()

    def _own(self, position: int) -> tuple[Knob, int]:
        if position < self._start:
            return self._knobs[0], position
        return self._knobs[1], position - self._start


class BetterOfTwo:
    """Lets two machines choose one after the other, then follows the better one.

    Args:
        machines: Machines that both start at the setting found.
        start: First position of the second machine.
        objective: Objective that compares their choices.
        trusted: Index of the one with an earlier profile, if any; the other is not run then.
    """

    def __init__(
        self,
        machines: tuple[Machine, Machine],
        start: int,
        objective: Objective,
        trusted: int | None = None,
    ) -> None:
        self._machines = machines
        self._start = start
        self._objective = objective
        self._active = trusted or 0
        self._tried = 0 if trusted is None else 2
        self.choice: TuningChoice | None = None

    def start(self, reading: Reading) -> Command:
        """The first command."""
        return self._shifted(self._machines[self._active].start(reading))

    def send(self, reading: Reading) -> Command:
        """The answer to a reading, from the machine whose turn it is."""
        command = self._machines[self._active].send(reading)
        if command.state is TunerState.HOLDING and self._tried < 2:
            self._tried += 1
            if self._tried == 1:
                self._active = 1
                command = self._machines[1].start(reading)
            else:
                self._active = self._better()
                command = self._resumed(command)
        if self._tried == 2:
            self.choice = self._combined()
        return self._shifted(command)

    def _resumed(self, command: Command) -> Command:
        """Return to the choice of the first machine, if that is the better one."""
        if self._active == 1:
            return command
        choice = self._machines[0].choice
        assert choice is not None  # noqa: S101 - it held before the second one started
        return replace(command, position=choice.position, steps=1)

    def _shifted(self, command: Command) -> Command:
        if self._active == 0:
            return command
        return replace(command, position=command.position + self._start)

    def _better(self) -> int:
        first, second = (machine.choice for machine in self._machines)
        assert first is not None  # noqa: S101 - both hold
        assert second is not None  # noqa: S101 - both hold
        # Both started from the same setting; the first had it measured earlier and longer.
        reference = _point(first.measured[max(first.measured)])
        scores = [
            score(self._objective, point.seconds, point.joules, reference)
            for point in (_point(choice.chosen) for choice in (first, second))
        ]
        errors = [
            math.hypot(choice.chosen.seconds_error, choice.chosen.watts_error)
            for choice in (first, second)
        ]
        doubt = 2 * math.hypot(*errors)
        return 1 if scores[1] < scores[0] * (1 - _CLEARLY - doubt) else 0

    def _combined(self) -> TuningChoice | None:
        """The active machine's choice with what was measured by both."""
        chosen = self._machines[self._active].choice
        if chosen is None:
            return None
        measured: dict[int, Estimate] = {}
        costs = [0, 0.0, 0.0]
        for shift, machine in zip((0, self._start), self._machines, strict=True):
            if (found := machine.choice) is not None:
                measured |= {shift + at: seen for at, seen in found.measured.items()}
                costs[0] += found.profiling_steps
                costs[1] += found.profiling_seconds
                costs[2] += found.profiling_joules
        return replace(
            chosen,
            position=chosen.position + (0, self._start)[self._active],
            measured=measured,
            posterior=None,
            profiling_steps=int(costs[0]),
            profiling_seconds=costs[1],
            profiling_joules=costs[2],
        )


def _point(seen: Estimate) -> OperatingPoint:
    return OperatingPoint(seen.seconds, seen.seconds * seen.watts)
