"""Knobs that a tuner sets: power limits or locked clocks, the same on all devices of a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from joulery.errors import InvalidValueError, NotPossibleHereError, UnsupportedError
from joulery.frontier import OperatingPoint, Setting
from joulery.governor import Lease, held
from joulery.hardware import Capability, ClockLock, PowerLimit, check_devices, require
from joulery.objectives import score
from joulery.power._model import clock_curves, limit_curves
from joulery.power._state_machine import KnobRange, PlannedMachine, TuningMachine
from joulery.power._step_profiler import TunerState
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.governor import Held, Hold
    from joulery.hardware import Device
    from joulery.objectives import Objective
    from joulery.power._profiles import PowerProfile
    from joulery.power._state_machine import Machine, ProfilingMachine, TuningChoice
    from joulery.power._step_profiler import Command, Estimate, Reading, TunerConfig

# One watt where the range allows (most boards of the catalog); more values would only cost time.
_MOST_VALUES = 301
# A choice this close to the lowest value, as a share of all, or that lowers the power by less than
# the other, leaves the second knob something to find; by hand.
_LOWEST, _LEAST_LOWERED = 0.03, 0.02
# The second of two knobs must be this much better, relative, to be chosen; by hand: half of what a
# user would notice. It is compared with the reference again while it is held.
_CLEARLY = 0.005
_SAME_WATTS = 1.0  # drivers round limits; by hand


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """Power limits that a decision lists, and what to do with them.

    Attributes:
        listed_watts: Limits that may be set, ascending.
        hold_watts: Limit to hold; None leaves the choice to profiling.
        measure_watts: Limits to measure for seconds each before that.
        probed: Function to call when all of them are measured, where measuring is the only
            purpose; the original limit is held then.

    Raises:
        InvalidValueError: A limit is not a number of watts.
    """

    listed_watts: tuple[float, ...]
    hold_watts: float | None = None
    measure_watts: tuple[float, ...] = ()
    probed: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        for name in ("listed_watts", "measure_watts"):
            limits = getattr(self, name)
            if not isinstance(limits, Iterable) or isinstance(limits, str):
                raise InvalidValueError(
                    f"{name}={limits!r} are no limits", remedy="give watts such as (150.0, 200.0)"
                )
            for watts in limits:
                finite(watts, f"limit in {name}", minimum=0.0)
        if self.hold_watts is not None:
            finite(self.hold_watts, "limit to hold in watts", minimum=0.0)

    @property
    def is_decided(self) -> bool:
        """Whether the limits are decided, rather than left to profiling."""
        return bool(self.hold_watts is not None or self.measure_watts or self.probed)


class _SameOnAll(ABC):
    """One value on all devices, which are held from the first change on; needs no rights before.

    ``hold`` takes hold of a device; ``joulery.governor.lease`` unless given.
    """

    def __init__(self, devices: Sequence[Device], hold: Hold | None = None) -> None:
        self._devices = check_devices(devices)
        if not (hold is None or callable(hold)):
            raise InvalidValueError(
                f"hold={hold!r} is not a function",
                remedy="leave it out for joulery.governor.lease",
            )
        self._hold = hold
        self._stack = ExitStack()
        self._held: list[Held] = []
        self.values: tuple[float, ...] = ()
        self.limits: KnobRange | None = None

    @abstractmethod
    def range(self) -> KnobRange:
        """The values that all devices allow now, noted in ``values``, the original one last."""

    def setting_at(self, position: int) -> Setting:
        """The setting at a position."""
        count = len(self._devices)
        return replace(
            self._setting(self.values[position]),
            device=self._devices[0].info.name,
            devices=count if count > 1 else None,
        )

    @abstractmethod
    def _setting(self, value: float) -> Setting:
        """A setting with one value of this knob."""

    @abstractmethod
    def _set(self, device: int, handle: Held, value: float) -> None:
        """Set the value of one device."""

    def _reset(self, handle: Held) -> None:
        """Set the original value of one device."""
        handle.reset()

    def follow(self) -> None:
        """Keep to the power that a cluster's agent leaves the devices now, and promise that."""
        for handle in self._held:
            if isinstance(handle, Lease):
                handle.follow()

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> ProfilingMachine:
        """A machine that chooses among the values that the devices have now."""
        span = self.range()
        choice = None if profile is None else profile.choice_on(self.values)
        return TuningMachine(span, objective, config, choice)

    def set_position(self, position: int, share: float = 1.0) -> None:
        """Set a share of the value on every device; the last position is the original value."""
        if position == len(self.values) - 1 and share == 1:
            for handle in self._held:
                self._reset(handle)
            return
        if not self._held:
            self._held = self._stack.enter_context(held(self._devices, hold=self._hold))
        for device, handle in enumerate(self._held):
            self._set(device, handle, share * self.values[position])

    def release(self) -> None:
        """Restore the original value."""
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
        limits: Limits to choose from once a machine was made; None with a plan.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        hold: Hold | None = None,
        plan: LimitPlan | None = None,
    ) -> None:
        super().__init__(devices, hold)
        if not (plan is None or isinstance(plan, LimitPlan)):
            raise InvalidValueError(
                f"plan={plan!r} is not a LimitPlan",
                remedy="give LimitPlan((150.0, 200.0)), or leave it out for any whole watt",
            )
        self._plan = plan
        self._found: tuple[tuple[float, float], ...] = ()
        self._machine: ProfilingMachine | None = None
        self._position, self._share = -1, 1.0
        self.changes = 0

    def range(self) -> KnobRange:
        """Whole watts, or those of the plan, from the lowest limit up to the one found."""
        bounds = []
        for device in self._devices:
            require(device, Capability.POWER_LIMIT)
            limits = cast("PowerLimit", device).power_limits()
            bounds.append((limits.min_watts, limits.current_watts))
        self._found = tuple(bounds)
        lowest, highest = max(low for low, _ in bounds), max(high for _, high in bounds)
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
        self.values = tuple(float(value) for value in values)
        count = len(self._devices)
        span = KnobRange(values, lambda watts: limit_curves(values, watts / count))
        self.limits = span if self._plan is None else None
        return span

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> ProfilingMachine:
        """A machine that follows the plan, or chooses where the plan leaves that open."""
        machine: ProfilingMachine = super().machine(objective, config, profile)
        plan, last = self._plan, len(self.values) - 1
        if plan is not None and not (plan.hold_watts is None and plan.probed is None):
            free = plan.hold_watts is None or config.dry_run
            hold = last if free else self._nearest(cast("float", plan.hold_watts))
            measured = sorted({self._nearest(watts) for watts in plan.measure_watts})
            machine = PlannedMachine(config, last, measured[::-1], hold, plan.probed)
        self._position, self._machine = last, machine
        return machine

    def set_position(self, position: int, share: float = 1.0) -> None:
        """Set a share of the limit on every device; the last position is the original value."""
        super().set_position(position, share)
        self._position, self._share = position, share
        self.changes += 1

    def follow(self) -> None:
        """Keep to the power that a cluster's agent leaves the devices now, and promise that."""
        if self._held:
            super().set_position(self._position, self._share)

    def estimates(self) -> dict[float, Estimate]:
        """Estimates so far, by limit in watts."""
        estimates = {} if self._machine is None else self._machine.estimates()
        return {self.values[position]: estimate for position, estimate in estimates.items()}

    @property
    def watts(self) -> float | None:
        """The limit in force; None before it is known."""
        return self.values[self._position] if self.values else None

    def _setting(self, value: float) -> Setting:
        return Setting(power_limit_watts=value)

    def _nearest(self, watts: float) -> int:
        return min(range(len(self.values)), key=lambda at: abs(self.values[at] - watts))

    def _set(self, device: int, handle: Held, value: float) -> None:
        low, high = self._found[device]
        watts = min(high, max(low, value))
        if not isinstance(handle, Lease):
            handle.set(watts=watts)
            return
        handle.follow(watts)
        ceiling = handle.ceiling_watts
        if ceiling is not None and ceiling < high - _SAME_WATTS:
            raise NotPossibleHereError(
                f"another program has lowered the power limit to {ceiling:g} W, which stays",
                remedy="begin another run once it is back",
            )

    def _reset(self, handle: Held) -> None:
        if isinstance(handle, Lease):
            handle.follow()
        else:
            handle.reset()


class ClockKnob(_SameOnAll):
    """The same locked core clock on all devices."""

    def range(self) -> KnobRange:
        """Clocks that every device supports; the highest stands for no lock at all."""
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
        self.values = tuple(sorted(clocks))
        values = np.array(self.values)
        return KnobRange(values, lambda _: clock_curves(values))

    def set_position(self, position: int, share: float = 1.0) -> None:
        """Lock a clock on every device; the last position is no lock."""
        super().set_position(position, share)
        self.follow()

    def _setting(self, value: float) -> Setting:
        return Setting(clock_hertz=value)

    def _set(self, device: int, handle: Held, value: float) -> None:  # noqa: ARG002 - all alike
        handle.set(clock_hertz=value)


class BothKnobs:
    """Two knobs as one; positions of the second follow those of the first.

    The second is tried where the first cannot save more: its choice is at the lowest value, or does
    not lower the power, as on a board that draws less than its lowest limit.

    Args:
        first: Knob that is preferred when both do as well; power limits, as a rule.
        second: Alternative knob; locked clocks, as a rule.
    """

    def __init__(self, first: Knob, second: Knob) -> None:
        check_knob(first, "first")
        check_knob(second, "second")
        self._knobs = (first, second)

    def machine(
        self, objective: Objective, config: TunerConfig, profile: PowerProfile | None = None
    ) -> Machine:
        """A machine that tunes one knob, then the other, or holds what an earlier run chose."""
        machines = [knob.machine(objective, config, profile) for knob in self._knobs]
        trusted = None
        for index, knob in enumerate(self._knobs):
            if profile is not None and profile.choice_on(knob.values) is not None:
                trusted = index
        start = len(self._knobs[0].values)
        both = (machines[0], machines[1])
        return BetterOfTwo(both, start, objective, trusted, dry_run=config.dry_run)

    @property
    def limits(self) -> KnobRange | None:
        """Power limits to choose from, if the first knob has any."""
        return self._knobs[0].limits

    @property
    def values(self) -> tuple[float, ...]:
        """Values of the first, then of the second, in watts or hertz."""
        return self._knobs[0].values + self._knobs[1].values

    def setting_at(self, position: int) -> Setting:
        """The setting at a position."""
        knob, index = self._locate(position)
        return knob.setting_at(index)

    def set_position(self, position: int, share: float = 1.0) -> None:
        """Set the knob that the position belongs to; the other is released."""
        target, index = self._locate(position)
        for knob in self._knobs:
            if knob is not target:
                knob.release()
        target.set_position(index, share)

    def follow(self) -> None:
        """Keep to the power that a cluster's agent leaves the devices now."""
        for knob in self._knobs:
            knob.follow()

    def release(self) -> None:
        """Restore the original value."""
        for knob in self._knobs:
            knob.release()

    def _locate(self, position: int) -> tuple[Knob, int]:
        start = len(self._knobs[0].values)
        if position < start:
            return self._knobs[0], position
        return self._knobs[1], position - start


class BetterOfTwo:
    """Lets one machine choose, then another where that may gain, and follows the better one.

    Args:
        machines: Machines that both start at the setting found.
        start: First position of the second machine.
        objective: Objective that compares their choices.
        trusted: Index of the one with an earlier profile, if any; the other is not run then.
        dry_run: Whether choices are not held, and so not compared again.
    """

    def __init__(
        self,
        machines: tuple[Machine, Machine],
        start: int,
        objective: Objective,
        trusted: int | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        self._machines = machines
        self._start = start
        self._objective = objective
        self._active = trusted or 0
        self._tried = 0 if trusted is None else 2
        self._dry_run = dry_run
        self._first_choice: TuningChoice | None = None
        self.choice: TuningChoice | None = None

    def start(self, reading: Reading) -> Command:
        """The first command."""
        return self._shift(self._machines[self._active].start(reading))

    def send(self, reading: Reading) -> Command:
        """The answer to a reading, from the machine whose turn it is."""
        machine = self._machines[self._active]
        command = machine.send(reading)
        if self._tried < 2 and self._has_chosen(machine, command.state):
            command = self._turn(reading, command)
        self.choice = self._combine() or self.choice  # a forecast until both have chosen
        if self._tried < 2 and command.state is TunerState.HOLDING:
            command = replace(command, state=TunerState.PROBING)
        return self._shift(command)

    def _has_chosen(self, machine: Machine, state: TunerState) -> bool:
        """Whether a machine holds its choice, and has compared it with the reference again."""
        if state is not TunerState.HOLDING:
            return False
        first_choice, self._first_choice = self._first_choice, machine.choice
        compared = first_choice is not None and first_choice is not machine.choice
        return self._dry_run or compared

    def _turn(self, reading: Reading, command: Command) -> Command:
        """Let the other machine choose, or follow the better one."""
        self._tried, self._first_choice = self._tried + 1, None
        first, second = (machine.choice for machine in self._machines)
        if first is None or not self._leaves_more(first):
            self._tried = 2
        elif second is None:
            self._active = 1
            command = self._machines[1].start(reading)
        elif not self._is_clearly_better(second, first):
            self._active = 0
            command = replace(command, position=first.position, steps=1)
        return command

    def _shift(self, command: Command) -> Command:
        if self._active == 0:
            return command
        return replace(command, position=command.position + self._start)

    def _leaves_more(self, first: TuningChoice) -> bool:
        """Whether the second knob may do better than the choice of the first."""
        lowered = 1 - first.chosen.watts / max(_reference(first).watts, 1e-9)
        return first.position <= _LOWEST * self._start or lowered < _LEAST_LOWERED

    def _is_clearly_better(self, second: TuningChoice, first: TuningChoice) -> bool:
        reference = _reference(second)
        earlier = _carry_over(first.chosen, first, reference)
        scores = [
            score(self._objective, point.seconds, point.joules, _point(reference))
            for point in (_point(earlier), _point(second.chosen))
        ]
        return bool(scores[0] - scores[1] > _CLEARLY * abs(scores[0]))

    def _combine(self) -> TuningChoice | None:
        """The active machine's choice with what was measured by both, as the job is now."""
        active = self._machines[self._active].choice
        if active is None:
            return None
        shifts, reference = (0, self._start), _reference(active)
        choices = [
            (shift, machine.choice)
            for shift, machine in zip(shifts, self._machines, strict=True)
            if machine.choice is not None
        ]
        return replace(
            active,
            position=active.position + shifts[self._active],
            measured={
                shift + at: _carry_over(estimate, choice, reference)
                for shift, choice in choices
                for at, estimate in choice.measured.items()
            },
            posterior=active.posterior if self._active == 0 else None,
            probed_steps={
                shift + at: steps
                for shift, choice in choices
                for at, steps in choice.probed_steps.items()
            },
            profiling_seconds=sum(choice.profiling_seconds for _, choice in choices),
            usage_at=active.usage_at if len(choices) == 1 else {},
        )


def _reference(choice: TuningChoice) -> Estimate:
    """The estimate of the setting found, as the machine of the choice has it."""
    return choice.measured[max(choice.measured)]


def _carry_over(estimate: Estimate, choice: TuningChoice, reference: Estimate) -> Estimate:
    """An estimate of a choice for the job as it is when its reference is the given one.

    Both machines start from the same setting, but the job may have become faster or slower between
    them; what a setting does against the reference stays.
    """
    earlier = _reference(choice)
    if estimate is earlier:
        return reference
    pace = reference.seconds / earlier.seconds
    power = reference.watts / earlier.watts if earlier.watts > 0 else 1.0
    return replace(estimate, seconds=estimate.seconds * pace, watts=estimate.watts * power)


def _point(estimate: Estimate) -> OperatingPoint:
    return OperatingPoint(estimate.seconds, estimate.seconds * estimate.watts)


# What a tuner sets. Positions are those of ``values``, in watts or hertz, once the knob made a
# machine; the last one is the value found.
Knob: TypeAlias = LimitKnob | ClockKnob | BothKnobs


def check_knob(knob: object, name: str = "knob") -> None:
    """Refuse what is not a knob.

    Raises:
        InvalidValueError: It is something else.
    """
    if not isinstance(knob, LimitKnob | ClockKnob | BothKnobs):
        raise InvalidValueError(
            f"{name}={knob!r} is not a knob", remedy="give LimitKnob(devices) or ClockKnob(devices)"
        )
