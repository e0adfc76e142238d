"""A setting for each phase of a job that alternates between kinds of work.

Reinforcement learning generates, which waits for memory, and updates, which computes: one setting
cannot suit both. Each phase has a machine of its own, which sees only the time, the joules and the
steps of that phase, and its setting is in force from the moment the phase is entered. A bound on
the slowdown is one of all phases together: time is spent where a joule saved costs least of it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.background import DriverThread, driver_result
from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import JouleryError
from joulery.fail_open import fail_open
from joulery.frontier import Provenance
from joulery.metering import Meter
from joulery.power._ranks import RankMachine
from joulery.power._step_profiler import Command, Reading, TunerConfig, TunerState, TuningEvent
from joulery.power._tuner import RELEASE_SECONDS, JouleCounter, tuning_result
from joulery.units import human

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.hardware import Device
    from joulery.metering import Window
    from joulery.objectives import Objective, Quantity, Reference
    from joulery.power._knobs import Knob
    from joulery.power._ranks import ProcessGroup
    from joulery.power._state_machine import Machine
    from joulery.power._tuner import TuningResult

_log = logging.getLogger("joulery")

# Watts at which phases trade time for energy, cheapest time first: no board of ours draws a tenth
# of the first per step saved, nor the last.
_PRICES = np.geomspace(1.0, 1e5, 200)


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """The time and energy of a phase, and what its setting saves.

    Attributes:
        seconds: Time in the phase.
        joules: Energy of this process's boards in it.
        visits: Number of times that it was entered.
        result: Result of tuning it; None before its setting is chosen.
    """

    seconds: float
    joules: float
    visits: int
    result: TuningResult | None

    def __str__(self) -> str:
        times = f"{self.visits} time{'s' * (self.visits != 1)}"
        parts = [f"{human(self.seconds, 's')}, {human(self.joules, 'J')}, {times}"]
        return "; ".join([*parts, *([str(self.result)] if self.result else [])])

    def to_dict(self) -> dict[str, Any]:
        """The phase as a JSON document."""
        return {
            "seconds": self.seconds,
            "joules": self.joules,
            "visits": self.visits,
            "tuning": None if self.result is None else self.result.to_dict(),
        }


class _Share:
    """An objective with its own part of the slowdown that all phases may have together."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.bounds = objective.bounds

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:
        """The score, as the objective has it."""
        return self._objective.value(seconds, joules, reference)


@dataclass(slots=True)
class _Phase:
    """A phase, by its own time; ``due`` is the number of steps at which its machine wants to know.

    ``reference`` is the position before tuning; -1 before the machine started.
    """

    machine: Machine
    objective: _Share
    seconds: float = 0.0
    joules: float = 0.0
    sigma_joules: float = 0.0
    visits: int = 0
    steps: int = 0
    due: int = 0
    command: Command | None = None
    reference: int = -1


class PhaseTuner:
    """Finds and holds the best setting of each phase. Nothing is raised once it is made.

    Args:
        devices: Boards of this job.
        objective: Objective to minimise in each phase; a bound on the slowdown is one of all.
        knob: Knob to set.
        clock: Real or virtual clock.
        config: Settings of the tuner.
        process_group: Processes of the same job, which enter the same phases and decide together.

    Attributes:
        failure: Error that stopped tuning; None while all is well.

    Raises:
        JouleryError: The knob has nothing to choose from, or energy cannot be measured.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        objective: Objective,
        knob: Knob,
        *,
        clock: Clock = REAL_CLOCK,
        config: TunerConfig | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.failure: BaseException | None = None
        self._devices = tuple(devices)
        self._objective = objective
        self._knob = knob
        self._clock = clock
        self._config = config or TunerConfig()
        self._group = process_group
        self._driver = DriverThread(clock)
        self._meter = Meter(self._devices, clock=clock)
        self._counter = JouleCounter(self._meter)
        self._phases: dict[str, _Phase] = {}
        self._active: _Phase | None = None
        self._began_seconds = self._joules = 0.0
        self._position = -1
        self._shared = False  # whether the phases that hold have their parts of the slowdown
        self._closed = False

    @fail_open(None)
    def enter(self, name: str) -> None:
        """Begin a phase: its setting is put in force beside the caller."""
        if self._closed:
            return
        if self._driver.failure is not None and self._group is None:
            raise self._driver.failure
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = driver_result(self._new_phase, self._clock)
        if phase.command is not None:
            self._driver.submit(partial(self._set_knob, phase.command.position))
        self._counter.mark()  # what was used between phases belongs to none
        self._active, self._began_seconds = phase, self._clock.now()

    @fail_open(None)
    def leave(self, steps: int = 1) -> None:
        """End the phase.

        Args:
            steps: Amount of work that was done in it; the same work takes the same number.
        """
        phase, self._active = self._active, None
        if phase is None or self._closed:
            return
        window, seconds = self._counter.mark(), self._clock.now() - self._began_seconds
        account = partial(self._account, phase, seconds, window, max(1, steps))
        if self._group is None:
            self._driver.submit(account)
            return
        try:
            driver_result(account, self._clock)
        except JouleryError as error:
            self.failure = self.failure or error
        if phase.steps >= phase.due or self.failure is not None:
            self._answer(phase)

    def _new_phase(self) -> _Phase:
        objective = _Share(self._objective)
        machine: Machine = self._knob.machine(objective, self._config)
        return _Phase(
            machine if self._group is None else RankMachine(machine, self._group), objective
        )

    def _account(self, phase: _Phase, seconds: float, window: Window, steps: int) -> None:
        before = self._joules
        self._joules, phase.sigma_joules = self._counter.read(window)
        phase.seconds += seconds
        phase.joules += self._joules - before
        phase.visits += 1
        phase.steps += steps
        if self._group is None and phase.steps >= phase.due:
            self._answer(phase)

    def _answer(self, phase: _Phase) -> None:
        """Let the phase's machine say what its setting is from the next time on."""
        event = TuningEvent.STEP if self.failure is None else TuningEvent.FAILED
        reading = Reading(phase.seconds, phase.joules, phase.sigma_joules, phase.steps, event)
        if phase.command is None:
            command = phase.machine.start(reading)
            phase.reference = command.position
        else:
            command = phase.machine.send(reading)
        phase.command, phase.due = command, phase.steps + command.steps
        if command.state is TunerState.STOPPED:
            self.close()
        holding = all(
            other.command is not None and other.command.state is TunerState.HOLDING
            for other in self._phases.values()
        )
        if holding and not self._shared and self._objective.bounds.max_slowdown is not None:
            self._share_slowdown(self._objective.bounds.max_slowdown)
        self._shared = holding

    def _share_slowdown(self, slowdown: float) -> None:
        """Give each phase the slowdown at which all trade time for energy at the same rate."""
        phases = [phase for phase in self._phases.values() if phase.steps]
        choices = [phase.machine.choice for phase in phases]
        curves = [choice.posterior for choice in choices if choice is not None]
        posteriors = [curve for curve in curves if curve is not None]
        if len(posteriors) < len(phases):
            return
        seconds = [
            phase.steps * np.exp(curve.log_seconds).mean(axis=0)
            for phase, curve in zip(phases, posteriors, strict=True)
        ]
        joules = [
            phase.steps * np.exp(curve.log_seconds + curve.log_watts).mean(axis=0)
            for phase, curve in zip(phases, posteriors, strict=True)
        ]
        originals = [float(values[-1]) for values in seconds]
        allowed = (1 + slowdown) * sum(originals)
        for watts in _PRICES:
            costs = [e + watts * t for t, e in zip(seconds, joules, strict=True)]
            spent = [float(t[c.argmin()]) for t, c in zip(seconds, costs, strict=True)]
            if sum(spent) <= allowed:
                break
        else:
            spent = originals
        spare = (allowed - sum(spent)) / sum(originals)
        for phase, now, original in zip(phases, spent, originals, strict=True):
            share = max(0.0, now / original - 1 + spare)
            phase.objective.bounds = replace(self._objective.bounds, max_slowdown=share)

    def _set_knob(self, position: int) -> None:
        if position != self._position:
            self._position = position
            self._knob.set_position(position)

    @property
    def phases(self) -> dict[str, PhaseUse]:
        """Each phase, in the order in which they were first entered."""
        return {
            name: PhaseUse(phase.seconds, phase.joules, phase.visits, self._result(phase))
            for name, phase in tuple(self._phases.items())
        }

    def _result(self, phase: _Phase) -> TuningResult | None:
        choice, command = phase.machine.choice, phase.command
        if choice is None or command is None:
            return None
        origin = Provenance.combined([(device.provenance, 1.0) for device in self._devices])
        holding = command.state is TunerState.HOLDING and not self._config.dry_run
        return tuning_result(
            choice, self._knob, phase.reference, origin, held=holding, ended=self._closed
        )

    def fail(self, error: Exception) -> None:
        """Stop tuning because of an error; see ``joulery.fail_open``."""
        self.failure = self.failure or error
        _log.warning("phases are no longer tuned, training continues: %s", self.failure)
        self.close()

    def close(self) -> None:
        """Restore the original setting. May be called twice."""
        if not self._closed:
            self._closed = True
            self._driver.close(self._release, RELEASE_SECONDS)

    def _release(self) -> None:
        for release in (self._knob.release, self._counter.close, self._meter.close):
            with suppress(JouleryError):
                release()
