"""A setting for each phase of a job that alternates between kinds of work.

Reinforcement learning generates, which waits for memory, and updates, which computes: one setting
cannot suit both. Each phase has a machine of its own, which sees only the time, the joules and the
steps of that phase, and its setting is in force from the moment the phase is entered. A bound on
the slowdown is one of all phases together: time is spent where a joule saved costs least of it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from joulery.background import DriverThread, driver_result
from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import InvalidValueError, JouleryError
from joulery.fail_open import fail_open
from joulery.frontier import Provenance
from joulery.hardware import check_devices
from joulery.metering import Meter
from joulery.objectives import Bounds, check_objective
from joulery.power._knobs import check_knob
from joulery.power._model import RISK
from joulery.power._ranks import RankMachine, check_process_group
from joulery.power._step_profiler import Command, Reading, TunerConfig, TunerState, TuningEvent
from joulery.power._tuner import RELEASE_SECONDS, InForce, JouleCounter, check_parts, tuning_result
from joulery.units import human

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.hardware import Device
    from joulery.metering import Window
    from joulery.objectives import Objective, Quantity, Reference
    from joulery.power._knobs import Knob
    from joulery.power._model import Curves
    from joulery.power._ranks import ProcessGroup
    from joulery.power._state_machine import Machine
    from joulery.power._tuner import TuningResult

    Array = NDArray[np.float64]

_log = logging.getLogger("joulery")

# Watts at which phases trade time for energy, cheapest time first: no board of ours draws a tenth
# of the first per step saved, nor the last; in steps of 0.6 %, since where a phase saves nearly as
# much per second at any clock, a step of 6 % is one of 3 % of its time.
_PRICES = np.geomspace(1.0, 1e5, 2000)
# Sigmas of its own by which the time of a setting is taken for longer, so that a setting that is
# known well is preferred; the best of these is taken; by hand.
_CAUTIONS = (0.0, 1.0, 2.0, 4.0)


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


@dataclass(frozen=True, slots=True)
class _Together:
    """Bound of a phase: that on the slowdown of all phases together.

    Attributes:
        max_slowdown: Largest slowdown of all.
        others_late: Samples of the time of the other phases beyond that, per step of this one; a
            column.
    """

    of_whole_work: ClassVar[bool] = False
    max_joules: ClassVar[float | None] = None
    max_slowdown: float
    others_late: Array

    def kept(self, seconds: Quantity, _joules: Quantity, reference: Reference) -> Any:
        """Whether samples of the phase keep it."""
        late = seconds - (1 + self.max_slowdown) * reference.seconds + self.others_late
        return late <= 0


def bound_together(
    bounds: Bounds, steps: Sequence[float], posteriors: Sequence[Curves]
) -> list[_Together]:
    """Bounds for each phase, with the slowdown at which all trade time for energy at one rate.

    All of them together keep the bound as surely as one job would have to, so each stays less below
    it than it would have to alone.

    Args:
        bounds: Bounds of the job, of which one is on its slowdown.
        steps: Steps of each phase.
        posteriors: Samples of the curves of each.
    """
    slowdown = bounds.max_slowdown or 0.0
    chance = np.random.default_rng(0)
    late: list[Array] = []
    joules: list[Array] = []
    for count, curves in zip(steps, posteriors, strict=True):
        seconds = count * np.exp(curves.log_seconds)
        joules.append((seconds * np.exp(curves.log_watts)).mean(axis=0))
        # In another order for each, since the samples of all come from the same draws.
        late.append(chance.permutation(seconds - (1 + slowdown) * seconds[:, -1:]))
    positions = _cheapest_together(late, joules)
    together = _sum_at(positions, late)
    # What is spared, because a knob has steps, belongs to all of them alike.
    spare = max(0.0, -float(np.quantile(together, 1 - RISK))) * (1 - 1 / len(steps))
    return [
        _Together(slowdown, (together - part[:, at] + spare)[:, None] / count)
        for count, part, at in zip(steps, late, positions, strict=True)
    ]


def _cheapest_together(late: Sequence[Array], joules: Sequence[Array]) -> Sequence[int]:
    """Position of each phase, so that all of them keep the slowdown with the least energy.

    Args:
        late: Samples of the time of each phase beyond the slowdown, by position.
        joules: Expected energy of each phase, by position.
    """
    best: Sequence[int] = [-1] * len(late)
    for caution in _CAUTIONS:
        costs = [part.mean(axis=0) + caution * part.std(axis=0) for part in late]
        targets = [
            (energy + _PRICES[:, None] * cost).argmin(axis=1).tolist()
            for energy, cost in zip(joules, costs, strict=True)
        ]
        for positions in dict.fromkeys(zip(*targets, strict=True)):
            if (_sum_at(positions, late) <= 0).mean() >= 1 - RISK:
                best = min(best, positions, key=lambda some: float(_sum_at(some, joules)))
                break
    return best


def _sum_at(positions: Sequence[int], parts: Sequence[Array]) -> Array:
    """Sum over phases, each at its position."""
    at_positions = [part[..., at] for part, at in zip(parts, positions, strict=True)]
    total: Array = np.sum(at_positions, axis=0)
    return total


class _Share:
    """An objective with its own part of the slowdown that all phases may have together."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.bounds: Any = objective.bounds  # or those of all phases together

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
    hot: bool = False
    visits: int = 0
    steps: int = 0
    due: int = 0
    command: Command | None = None
    reference: int = -1
    in_force: InForce = field(default_factory=InForce)


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
        InvalidValueError: An argument is something else.
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
        check_objective(objective)
        check_knob(knob)
        check_process_group(process_group)
        check_parts(clock=clock, config=config)
        if objective.bounds.of_whole_work:
            raise InvalidValueError(
                "a deadline or a budget of joules cannot be shared among phases",
                remedy="give slowdown=5% instead, or leave the phases out",
            )
        self.failure: BaseException | None = None
        self._devices = check_devices(devices)
        self._objective = objective
        self._knob = knob
        self._clock = clock
        self._config = config or TunerConfig()
        self._group = process_group
        self._driver = DriverThread(clock)
        self._meter = Meter(self._devices, clock=clock)
        self._counter = JouleCounter(self._meter)
        self._phases: dict[str, _Phase] = {}
        self._active: list[_Phase] = []  # the innermost is the last
        self._began_seconds = self._joules = 0.0
        self._position = -1
        self._shared: list[Curves] = []  # that shares of the slowdown are by
        self._closed = False

    @fail_open(None)
    def enter(self, name: str) -> None:
        """Begin a phase: its setting is put in force beside the caller.

        A phase around it continues when this one ends, without the time and energy of this one.
        """
        if self._closed:
            return
        if self._driver.failure is not None and self._group is None:
            raise self._driver.failure
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = driver_result(self._new_phase, self._clock)
        if self._active:
            self._interrupt(self._active[-1], steps=0)
        self._active.append(phase)
        self._begin(phase)

    def _begin(self, phase: _Phase) -> None:
        if phase.command is not None:
            self._driver.submit(partial(self._set_knob, phase.command.position))
        self._counter.mark()  # what was used between phases belongs to none
        self._began_seconds = self._clock.now()

    @fail_open(None)
    def leave(self, steps: int = 1) -> None:
        """End the phase.

        Args:
            steps: Amount of work that was done in it; the same work takes the same number.
        """
        if self._closed or not self._active:
            return
        self._interrupt(self._active.pop(), max(1, steps))
        if self._active:
            self._begin(self._active[-1])

    def _interrupt(self, phase: _Phase, steps: int) -> None:
        """Account for what the phase took since it began; 0 steps where it continues later."""
        window, seconds = self._counter.mark(), self._clock.now() - self._began_seconds
        account = partial(self._account, phase, seconds, window, steps)
        if self._group is None:
            self._driver.submit(account)
            return
        try:
            driver_result(account, self._clock)
        except JouleryError as error:
            self.failure = self.failure or error
        if steps and (phase.steps >= phase.due or self.failure is not None):
            self._answer(phase)

    def _new_phase(self) -> _Phase:
        objective = _Share(self._objective)
        machine: Machine = self._knob.machine(objective, self._config)
        return _Phase(
            machine if self._group is None else RankMachine(machine, self._group), objective
        )

    def _account(self, phase: _Phase, seconds: float, window: Window, steps: int) -> None:
        before = self._joules
        self._joules, phase.sigma_joules, hot = self._counter.read(window)
        phase.hot |= hot
        phase.seconds += seconds
        phase.joules += self._joules - before
        phase.visits += steps > 0
        phase.steps += steps
        if phase.command is not None:
            phase.in_force.add(phase.command, steps)
        if steps and self._group is None and phase.steps >= phase.due:
            self._answer(phase)

    def _answer(self, phase: _Phase) -> None:
        """Let the phase's machine say what its setting is from the next time on."""
        event = TuningEvent.STEP if self.failure is None else TuningEvent.FAILED
        reading = Reading(
            phase.seconds, phase.joules, phase.sigma_joules, phase.steps, event, phase.hot
        )
        phase.hot = False
        if phase.command is None:
            command = phase.machine.start(reading)
            phase.reference = command.position
        else:
            command = phase.machine.send(reading)
        phase.command, phase.due = command, phase.steps + command.steps
        if command.state is TunerState.STOPPED:
            self.close()
        self._share_slowdown()

    def _share_slowdown(self) -> None:
        """Give each phase the slowdown at which all trade time for energy at the same rate.

        What is not known yet stays at the original setting, and needs nothing of it.
        """
        known = [
            (phase, choice.posterior)
            for phase in self._phases.values()
            if (choice := phase.machine.choice) is not None and choice.posterior is not None
        ]
        posteriors, bounds = [curves for _, curves in known], self._objective.bounds
        if bounds.max_slowdown is None or list(map(id, posteriors)) == list(map(id, self._shared)):
            return
        self._shared = posteriors
        shares = bound_together(bounds, [phase.steps for phase, _ in known], posteriors)
        for (phase, _), share in zip(known, shares, strict=True):
            phase.objective.bounds = share

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
        in_force = phase.in_force if holding else None
        return tuning_result(
            choice, self._knob, phase.reference, origin, in_force, ended=self._closed
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
