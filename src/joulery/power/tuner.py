"""Tune the power of a training loop while it runs: one call per step, and nothing ever raised.

>>> tuner = PowerTuner(devices, LeastEnergy(max_slowdown=0.05))   # doctest: +SKIP
>>> with tuner:                                                  # doctest: +SKIP
...     for batch in loader:
...         train(batch)
...         tuner.step()
>>> print(tuner.result)                                          # doctest: +SKIP
"""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError
from joulery.frontier import Provenance
from joulery.hardware.device import Capability, PowerLimit
from joulery.objectives import Cost
from joulery.power.closing import ClosedAtTheEnd
from joulery.power.gauge import MeterGauge
from joulery.power.knob import LimitKnob
from joulery.power.messages import Reading, State, TuningEvent
from joulery.power.profiles import PowerProfile
from joulery.power.result import result_of
from joulery.power.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.metering.meter import Meter
    from joulery.objectives import Objective
    from joulery.power.gauge import EnergyGauge
    from joulery.power.knob import Knob, SettlingMachine
    from joulery.power.messages import Command
    from joulery.power.profiles import ProfileKey, ProfileStore
    from joulery.power.result import TuningResult

_log = logging.getLogger("joulery")
_NEVER = sys.maxsize


class Agreement(Protocol):
    """Makes several processes follow one machine; see :mod:`joulery.power.ranks`."""

    def joined(self, machine: SettlingMachine | None) -> SettlingMachine:
        """The machine as this process sees it; None where it could not make one."""
        ...


@dataclass(frozen=True, slots=True)
class Memory:
    """Where profiles are kept, and under which key."""

    store: ProfileStore
    key: ProfileKey


class PowerTuner(ClosedAtTheEnd):
    """Finds the best power limit for a running job, holds it, and gives back what it found.

    Args:
        devices: The boards of this job.
        objective: What to minimise; anything of :mod:`joulery.objectives`.
        knob: What to turn; the devices' power limits through the governor unless given.
        meter: Measures these devices; one of its own unless given.
        clock: Real or virtual.
        rules: How to go about it.
        memory: Where to look for a profile of an earlier run, and leave this one.
        group: Other processes of the same job, which decide together.

    Attributes:
        failure: Why tuning stopped; None while all is well.
    """

    def __init__(  # noqa: PLR0913 - all but two are for special cases, by keyword only
        self,
        devices: Sequence[Device],
        objective: Objective,
        *,
        knob: Knob | None = None,
        meter: Meter | None = None,
        clock: Clock = REAL_CLOCK,
        rules: Rules | None = None,
        memory: Memory | None = None,
        group: Agreement | None = None,
    ) -> None:
        self.failure: Exception | None = None
        self._devices = tuple(devices)
        self._objective = objective
        self._knob = knob or LimitKnob(self._devices)
        self._meter = meter
        self._own_meter = meter is None
        self._clock = clock
        self._rules = rules or Rules()
        self._memory = memory
        self._group = group
        self._gauge: EnergyGauge | None = None
        self._machine: SettlingMachine | None = None
        self._reference = -1
        self._position = -1
        self._state = State.WARMUP
        self._steps = 0
        self._due = self._left = 1
        self._paused = False
        self._broken = False
        self._held = False
        self._saved = False

    def step(self) -> None:
        """Say that a training step has ended. Costs well under a microsecond mostly."""
        left = self._left - 1
        self._left = left
        if left <= 0:
            self._boundary(TuningEvent.STEP)

    def pause(self) -> None:
        """Say that no steps follow for now: evaluation, checkpoint, end of an epoch."""
        if self._machine is not None and not self._paused and self._state is not State.STOPPED:
            self._boundary(TuningEvent.PAUSED)
            self._paused = True
            self._left = _NEVER

    def resume(self) -> None:
        """Say that steps go on."""
        if self._paused and self._state is not State.STOPPED:
            self._paused = False
            self._left = self._due
            self._boundary(TuningEvent.RESUMED)

    def close(self) -> None:
        """Stop tuning and give back what was found. May be called twice."""
        self._left = _NEVER
        self._held = self._holds and self.failure is None
        self._state = State.STOPPED
        for release in self._releases():
            try:
                release()
            except JouleryError as error:
                _log.warning("power tuning: %s", error)

    @property
    def state(self) -> State:
        """What the tuner is doing."""
        return self._state

    @property
    def result(self) -> TuningResult | None:
        """What was found so far; a forecast until the state is holding, None before the first."""
        machine = self._machine
        if machine is None or machine.settled is None:
            return None
        origin = Provenance.combined([(device.provenance, 1.0) for device in self._devices])
        return result_of(
            machine.settled,
            self._knob.setting_at,
            self._reference,
            origin,
            held=self._holds,
            ended=self._state is State.STOPPED,
        )

    @property
    def _holds(self) -> bool:
        """Whether the choice is in force, or was when tuning ended."""
        if self._state is State.STOPPED:
            return self._held
        return self._state is State.HOLDING and not self._rules.observe_only

    def _boundary(self, event: TuningEvent) -> None:
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            self._advance(event)
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self._fail(error)

    def _advance(self, event: TuningEvent) -> None:
        if self._machine is None:
            self._begin()
            return
        self._steps += self._due - self._left
        self._obey(self._machine.send(self._read(event)))
        holding = self._state is State.HOLDING
        if holding and not self._saved:
            self._remember()
        self._saved = holding

    def _begin(self) -> None:
        """On the first step, when the devices surely are in use."""
        from joulery.metering.meter import Meter

        machine: SettlingMachine | None = None
        try:
            if self._meter is None:
                self._meter = Meter(self._devices, clock=self._clock)
            machine = self._knob.machine(self._objective, self._rules, self._recalled())
            self._gauge = MeterGauge(self._meter)
        except JouleryError as error:
            if self._group is None:
                raise
            # The others of the group wait for this process, so it must say that it cannot.
            self.failure = error
        if self._group is not None:
            machine = self._group.joined(machine)
        assert machine is not None  # noqa: S101 - made above, or raised
        command = machine.start(self._read(TuningEvent.STEP))
        self._machine = machine
        self._reference = self._position = command.position
        self._obey(command)

    def _read(self, event: TuningEvent) -> Reading:
        now = self._clock.now()
        if self._broken or self._gauge is None:
            return Reading(now, 0.0, 0.0, self._steps, TuningEvent.FAILED)
        try:
            energy = self._gauge.read()
        except JouleryError as error:
            # The others of a group wait for this reading, so it must come.
            self.failure = error
            return Reading(now, 0.0, 0.0, self._steps, TuningEvent.FAILED)
        return Reading(now, energy.joules, energy.sigma_joules, self._steps, event)

    def _obey(self, command: Command) -> None:
        self._state = command.state
        self._due = self._left = command.steps
        if command.state is State.STOPPED:
            self.close()
        elif command.position != self._position:
            try:
                self._knob.turn(command.position)
            except JouleryError as error:
                if self._group is None:
                    raise
                # Say so at the next boundary, so that the group stops together.
                self.failure, self._broken = error, True
            self._position = command.position

    def _recalled(self) -> PowerProfile | None:
        if self._memory is None:
            return None
        try:
            return self._memory.store.load(self._memory.key)
        except FileError as error:
            _log.warning("power tuning starts afresh: %s", error)
            return None

    def _remember(self) -> None:
        settled = None if self._machine is None else self._machine.settled
        if self._memory is None or settled is None or settled.profiling_steps == 0:
            return
        try:
            self._memory.store.save(self._memory.key, PowerProfile.of(settled, self._knob.value_at))
        except FileError as error:
            _log.warning("power tuning: %s", error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        _log.warning("power tuning stopped, training goes on as found: %s", self.failure)
        self.close()

    def _releases(self) -> list[Callable[[], None]]:
        """What to give back, once."""
        found = [self._knob.release]
        if self._gauge is not None:
            found.append(self._gauge.close)
            self._gauge = None
        if self._own_meter and self._meter is not None:
            found.append(self._meter.close)
            self._meter = None
        return found


def weighed_cost(eta: float, devices: Sequence[Device]) -> Cost:
    """The cost eta·joules + (1 - eta)·watts·seconds, watts being the most all devices draw.

    Args:
        eta: 1 counts energy only, 0 time only.
        devices: All boards of the job, over all its processes.
    """
    watts = 0.0
    for device in devices:
        if Capability.POWER_LIMIT in device.capabilities and isinstance(device, PowerLimit):
            watts += device.power_limits().max_watts
        else:
            watts += device.info.max_watts or math.nan
    return Cost(eta, watts)
