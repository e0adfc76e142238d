"""Tune the power of a training loop while it runs: one call per step, and nothing is ever raised.

Examples:
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
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.background import DriverThread, driver_result
from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError, FileError, JouleryError
from joulery.fail_open import fail_open
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance
from joulery.hardware import Capability, PowerLimit, check_devices
from joulery.objectives import Cost, check_objective, gains
from joulery.power._knobs import LimitKnob
from joulery.power._profiles import PowerProfile
from joulery.power._ranks import RankMachine
from joulery.power._step_profiler import Reading, TunerConfig, TunerState, TuningEvent
from joulery.units import per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from typing import Self

    from joulery.clock import Clock
    from joulery.frontier import Setting
    from joulery.hardware import Device
    from joulery.metering import Measurement, Meter, Window
    from joulery.objectives import Objective
    from joulery.power._knobs import Knob
    from joulery.power._profiles import ProfileFile
    from joulery.power._ranks import ProcessGroup
    from joulery.power._state_machine import Machine, TuningChoice
    from joulery.power._step_profiler import Command, Estimate

_log = logging.getLogger("joulery")
_NEVER = sys.maxsize
# Longest wait for the driver at the end; by hand: users wait for it.
RELEASE_SECONDS = 2.0
_TELLING_ERROR = 0.01  # relative, from which on a result states it; by hand
# Predicted points are listed this many apart at most; all of them would only be noise to a reader.
_MOST_PREDICTED = 60


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Seconds and joules of one step at every setting that was measured or predicted.

    Attributes:
        points: All points, slowest setting first, each with its provenance.
        chosen: Point that the objective prefers.
        reference: Point of the original setting.
        held: Whether the choice is in force, or was to the end; not in a dry run or without
            rights.
        ended: Whether tuning is over.
        regret: Expected relative excess of the choice's score over the best possible.
        profiling_steps: Steps that profiling took, all of them part of the training.
        profiling_seconds: Time that they took.
        extra_seconds: Extra time against the same steps at the chosen setting.
        extra_joules: Extra energy against the same steps at the chosen setting.
    """

    points: tuple[OperatingPoint, ...]
    chosen: OperatingPoint
    reference: OperatingPoint
    held: bool
    ended: bool
    regret: float
    profiling_steps: int
    profiling_seconds: float
    extra_seconds: float
    extra_joules: float

    @property
    def frontier(self) -> Frontier:
        """The Pareto set of all points, per step."""
        return Frontier.from_points(self.points, "one step")

    @property
    def energy_saving(self) -> float:
        """Share of the energy that the choice saves against the reference."""
        return gains(self.chosen, self.reference).energy / 100

    @property
    def slowdown(self) -> float:
        """Extra time of the choice against the reference, as a fraction."""
        return gains(self.chosen, self.reference).time / 100

    def __str__(self) -> str:
        saves = "would save"
        if self.held:
            saves = "saved" if self.ended else "saves"
        return (
            f"{self.chosen.setting}: {saves} {per_cent(self.energy_saving)} of the energy "
            f"at {per_cent(max(0.0, self.slowdown))} more time{self._error_text()} "
            f"than {self.reference.setting}"
        )

    def _error_text(self) -> str:
        """One sigma of the figures, where it is worth a word."""
        errors = [point.provenance.relative_error for point in (self.chosen, self.reference)]
        error = math.hypot(*(value for value in errors if value is not None))
        return f" (± {per_cent(error)})" if error > _TELLING_ERROR else ""

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON document."""
        return {
            "points": [point.to_dict() for point in self.points],
            "chosen": self.chosen.to_dict(),
            "reference": self.reference.to_dict(),
            "held": self.held,
            "ended": self.ended,
            "regret": self.regret,
            "profiling": {
                "steps": self.profiling_steps,
                "seconds": self.profiling_seconds,
                "extra_seconds": self.extra_seconds,
                "extra_joules": self.extra_joules,
            },
        }


def tuning_result(
    choice: TuningChoice, knob: Knob, reference: int, origin: Provenance, *, held: bool, ended: bool
) -> TuningResult:
    """The choice of a machine as points of a frontier; see ``TuningResult``."""
    estimates = {**_predict_points(choice), choice.position: choice.chosen, **choice.measured}
    points = {at: _point(estimates[at], knob.setting_at(at), origin) for at in sorted(estimates)}
    choice_point, steps = points[choice.position], choice.profiling_steps
    return TuningResult(
        tuple(points.values()),
        choice_point,
        points[reference],
        held,
        ended,
        choice.regret,
        steps,
        choice.profiling_seconds,
        choice.profiling_seconds - steps * choice_point.seconds,
        choice.profiling_joules - steps * choice_point.joules,
    )


def _point(estimate: Estimate, setting: Setting, origin: Provenance) -> OperatingPoint:
    error = math.hypot(estimate.seconds_error, estimate.watts_error)
    if estimate.steps == 0:
        provenance = Provenance(Origin.PREDICTED, "fit to the probes", error)
    else:
        source = (
            f"{estimate.steps} steps, {origin.source}"
            if origin.source
            else f"{estimate.steps} steps"
        )
        provenance = Provenance(origin.origin, source, error)
    return OperatingPoint(estimate.seconds, estimate.seconds * estimate.watts, setting, provenance)


def _predict_points(choice: TuningChoice) -> dict[int, Estimate]:
    """Predictions of the posterior at evenly spaced positions."""
    if choice.posterior is None:
        return {}
    count = choice.posterior.log_seconds.shape[1]
    spacing = max(1, math.ceil(count / _MOST_PREDICTED))
    return {at: choice.posterior.predict(at) for at in range(0, count, spacing)}


class JouleCounter:
    """Joules of a job so far, read at step boundaries from a meter that stays open."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._window = meter.begin("tuner")
        self._joules = 0.0

    def mark(self) -> Window:
        """End a window here and begin the next; reads no hardware."""
        window, self._window = self._meter.end(self._window), self._meter.begin("tuner")
        return window

    def read(self, window: Window | None = None) -> tuple[float, float]:
        """Joules since the counter was made, and one sigma of where the devices' counters stand.

        Args:
            window: Latest window of ``mark``; one that ends now unless given.

        Raises:
            DeviceError: No device could be read.
        """
        measured = (window or self.mark()).measurement
        if math.isnan(measured.joules):
            raise DeviceError(
                "the energy of the job's devices cannot be read",
                remedy="see `joulery doctor` for what each device can do",
            )
        self._joules += measured.joules
        return self._joules, _edge_sigma(measured)

    def close(self) -> None:
        """Close the last window."""
        self._meter.end(self._window)


def _edge_sigma(measured: Measurement) -> float:
    """One sigma of the joules at one edge of a window.

    The calibration of a sensor does not matter for comparing settings on the same board, so it is
    taken out; the rest belongs to two edges.
    """
    variance = 0.0
    for device in measured.counted:
        if math.isnan(device.joules):
            continue
        sigma = device.standard_error_joules
        variance += (0.1 * device.joules) ** 2 if math.isnan(sigma) else sigma**2
    return math.sqrt(variance / 2)


class PowerTuner:
    """Finds the best power limit for a running job, holds it, and restores what it found.

    Drivers are called, and probes planned, in a thread beside the loop; steps go on meanwhile.
    Ranks of a group wait for the plan at the same step instead, since they must agree on it.

    Args:
        devices: Boards of this job.
        objective: Objective to minimise; any of ``joulery.objectives``.
        knob: Knob to set; the devices' power limits through the governor unless given.
        meter: Meter of these devices; one of its own unless given.
        clock: Real or virtual clock.
        config: Settings of the tuner.
        profile: File that may have the profile of an earlier run, and that this one is saved to.
        earlier: Profile of an earlier part of this run; goes before that of the file.
        process_group: Processes of the same job, which decide together.

    Attributes:
        failure: Error that stopped tuning; None while all is well.

    Raises:
        InvalidValueError: The devices or the objective are something else.
    """

    def __init__(  # noqa: PLR0913 - all but two are for special cases, by keyword only
        self,
        devices: Sequence[Device],
        objective: Objective,
        *,
        knob: Knob | None = None,
        meter: Meter | None = None,
        clock: Clock = REAL_CLOCK,
        config: TunerConfig | None = None,
        profile: ProfileFile | None = None,
        earlier: PowerProfile | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        check_objective(objective)
        self.failure: BaseException | None = None
        self._knob = knob or LimitKnob(devices)
        self._meter = meter
        self._own_meter = meter is None
        self._clock = clock
        self._driver = DriverThread(clock)
        self._counter: JouleCounter | None = None
        self._devices = check_devices(devices)
        self._objective = objective
        self._config = config or TunerConfig()
        self._profile_file = profile
        self._earlier = earlier
        self._group = process_group
        self._machine: Machine | None = None
        self._reference = -1
        self._position = -1
        self._state = TunerState.WARMUP
        self._steps = 0
        self._due = self._left = 1
        self._pending: Future[Command | None] | None = None
        self._paused = False
        self._held = False
        self._saved = False

    def step(self) -> None:
        """Report the end of a training step. Mostly costs well under a microsecond."""
        remaining = self._left - 1
        self._left = remaining
        if remaining <= 0:
            self._boundary(TuningEvent.STEP)

    def pause(self) -> None:
        """Report that no steps follow for now: evaluation, checkpoint, end of an epoch."""
        if self._machine is not None and not self._paused and self._state is not TunerState.STOPPED:
            self._boundary(TuningEvent.PAUSED)
            self._paused = True
            self._left = _NEVER

    def resume(self) -> None:
        """Report that steps follow again."""
        if self._paused and self._state is not TunerState.STOPPED:
            self._paused = False
            self._left = self._due
            self._boundary(TuningEvent.RESUMED)

    def close(self) -> None:
        """Stop tuning and restore the original value. May be called twice."""
        self._left = _NEVER
        self._held = self._holds and self.failure is None
        self._state = TunerState.STOPPED
        self._driver.close(self._release, RELEASE_SECONDS)

    def fail(self, error: Exception) -> None:
        """Stop tuning because of an error; see ``joulery.fail_open``."""
        self.failure = self.failure or error
        _log.warning(
            "power tuning stopped, training continues at the original setting: %s", self.failure
        )
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> TunerState:
        """State of the tuner."""
        return self._state

    @property
    def setting(self) -> Setting | None:
        """The setting in force; None before it is known."""
        return None if self._position < 0 else self._knob.setting_at(self._position)

    @property
    def result(self) -> TuningResult | None:
        """The result so far: a forecast until the state is holding, None before the first."""
        machine = self._machine
        if machine is None or machine.choice is None:
            return None
        origin = Provenance.combined([(device.provenance, 1.0) for device in self._devices])
        ended = self._state is TunerState.STOPPED
        reference, in_force = self._reference, self._holds
        return tuning_result(
            machine.choice, self._knob, reference, origin, held=in_force, ended=ended
        )

    @property
    def profile(self) -> PowerProfile | None:
        """The profile for a later part of this run; None before the choice is made."""
        choice = None if self._machine is None else self._machine.choice
        if choice is None or self._state is not TunerState.HOLDING:
            return None
        return PowerProfile.of(choice, self._knob.values)

    @property
    def _holds(self) -> bool:
        """Whether the choice is in force, or was when tuning ended."""
        if self._state is TunerState.STOPPED:
            return self._held
        return self._state is TunerState.HOLDING and not self._config.dry_run

    @fail_open(None)
    def _boundary(self, event: TuningEvent) -> None:
        """Take the answer to an earlier reading once it is there, or have a reading answered."""
        self._steps += self._due - self._left
        self._due = self._left = 1
        if self._group is not None:
            self._obey(self._agree(event, self._group))
            return
        if self._pending is None or event is not TuningEvent.STEP:
            self._pending = self._ask(event)
        while self._pending is not None and self._pending.done():
            command = self._pending.result()
            self._pending = self._ask(event) if command is None else None
            if command is not None:
                self._obey(command)
        if self._pending is not None and (failure := self._driver.failure) is not None:
            raise failure

    def _ask(self, event: TuningEvent) -> Future[Command | None]:
        """Have the devices prepared at the first step, when they surely are in use; then answers.

        An answer comes when the knob is where it wants it.
        """
        if self._machine is None:
            return self._driver.submit(self._prepare)
        moment = event, self._clock.now(), self._steps, self._mark()

        def answer() -> Command:
            try:
                command = self._answer(*moment)
                self._set_knob(command)
            except Exception as error:
                self.failure = self.failure or error  # an answer that waits must not hide it
                raise
            return command

        return self._driver.submit(answer)

    def _agree(self, event: TuningEvent, group: ProcessGroup) -> Command:
        """The answer of rank 0; the others wait for every reading, so it must come."""
        if self._machine is None:
            try:
                driver_result(self._prepare, self._clock)
            except JouleryError as error:
                self.failure = error
            self._machine = RankMachine(self._machine, group)
        self.failure = self.failure or self._driver.failure
        command = self._answer(event, self._clock.now(), self._steps, self._mark())
        # All ranks report after the same number of steps, whether the knob is set by then or not.
        self._driver.submit(partial(self._set_knob, command))
        return command

    def _prepare(self) -> None:
        from joulery.metering import Meter

        if self._meter is None:
            self._meter = Meter(self._devices, clock=self._clock)
        machine = self._knob.machine(self._objective, self._config, self._earlier_profile())
        self._counter = JouleCounter(self._meter)
        self._machine = machine

    def _mark(self) -> Window | None:
        return None if self._counter is None else self._counter.mark()

    def _answer(self, event: TuningEvent, now: float, steps: int, window: Window | None) -> Command:
        machine = self._machine
        assert machine is not None  # noqa: S101 - prepared
        reading = Reading(now, *self._read(window), steps, event)
        if self.failure is not None:
            reading = Reading(now, 0.0, 0.0, steps, TuningEvent.FAILED)
        if self._reference < 0:
            command = machine.start(reading)
            self._reference = self._position = command.position
        else:
            command = machine.send(reading)
        holding = command.state is TunerState.HOLDING
        if holding and not self._saved:
            self._save_profile()
        self._saved = holding
        return command

    def _read(self, window: Window | None) -> tuple[float, float]:
        """Joules so far and their sigma; in a group, errors are only noted."""
        try:
            return (0.0, 0.0) if self._counter is None else self._counter.read(window)
        except JouleryError as error:
            if self._group is None:
                raise
            self.failure = error
            return 0.0, 0.0

    def _set_knob(self, command: Command) -> None:
        if command.position != self._position and command.state is not TunerState.STOPPED:
            self._position = command.position
            self._knob.set_position(command.position)

    def _obey(self, command: Command) -> None:
        self._state = command.state
        self._due = self._left = command.steps
        if command.state is TunerState.STOPPED:
            self.close()

    def _release(self) -> None:
        """Release what is held, once."""
        counter, self._counter = self._counter, None
        releases = [self._knob.release] if counter is None else [self._knob.release, counter.close]
        if self._own_meter and self._meter is not None:
            releases.append(self._meter.close)
            self._meter = None
        for release in releases:
            try:
                release()
            except JouleryError as error:
                _log.warning("power tuning: %s", error)

    def _earlier_profile(self) -> PowerProfile | None:
        if self._earlier is not None or self._profile_file is None:
            return self._earlier
        try:
            return self._profile_file.load()
        except FileError as error:
            _log.warning("power tuning starts from scratch: %s", error)
            return None

    def _save_profile(self) -> None:
        choice = None if self._machine is None else self._machine.choice
        if self._profile_file is None or choice is None or choice.profiling_steps == 0:
            return
        try:
            self._profile_file.save(PowerProfile.of(choice, self._knob.values))
        except FileError as error:
            _log.warning("power tuning: %s", error)


def weighed_cost(eta: float, devices: Sequence[Device]) -> Cost:
    """The cost eta·joules + (1 - eta)·watts·seconds, watts being the most all devices draw.

    Args:
        eta: Weight of the energy: 1 counts energy only, 0 time only.
        devices: Boards of the job, over all its processes.
    """
    watts = 0.0
    for device in devices:
        if Capability.POWER_LIMIT in device.capabilities and isinstance(device, PowerLimit):
            watts += device.power_limits().max_watts
        else:
            watts += device.info.max_watts or math.nan
    return Cost(eta, watts)
