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
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from joulery.background import DriverThread, driver_result
from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import DeviceError, FileError, InvalidValueError, JouleryError
from joulery.fail_open import fail_open
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance
from joulery.hardware import Capability, PowerLimit, Throttle, check_devices
from joulery.objectives import Cost, check_objective, gains
from joulery.power._knobs import LimitKnob, check_knob
from joulery.power._profiles import PowerProfile, ProfileFile
from joulery.power._ranks import RankMachine, check_process_group
from joulery.power._state_machine import PROBING_SECONDS, PROBING_STEPS
from joulery.power._step_profiler import (
    NOT_USED,
    Command,
    Reading,
    SettingUsage,
    TunerConfig,
    TunerState,
    TuningEvent,
)
from joulery.power._unequal import MOST_RANKS, UnequalBoards
from joulery.tables import Tabular
from joulery.units import per_cent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from typing import Self

    from joulery.frontier import Setting
    from joulery.hardware import Device
    from joulery.metering import Measurement, Meter, Window
    from joulery.objectives import Objective
    from joulery.power._knobs import Knob
    from joulery.power._ranks import ProcessGroup
    from joulery.power._state_machine import Machine, TuningChoice
    from joulery.power._step_profiler import Estimate

_log = logging.getLogger("joulery")
_NEVER = sys.maxsize
# Longest wait for the driver at the end; by hand: users wait for it.
RELEASE_SECONDS = 2.0
_TELLING_ERROR = 0.01  # relative, from which on a result states it; by hand
# Relative difference of values up to which a setting is nearly the choice, which is refined by a
# watt or two; and visits to settings that are remembered; by hand.
_NEARLY, _MOST_VISITS = 0.02, 1000
# Predicted points are listed this many apart at most; all of them would only be noise to a reader.
_MOST_PREDICTED = 60


class RunGains(NamedTuple):
    """What a run saves and takes longer, as fractions of the original setting; one sigma each."""

    energy: float
    energy_error: float
    slowdown: float
    slowdown_error: float


@dataclass(frozen=True, slots=True, repr=False)
class TuningResult(Tabular):
    """Seconds and joules of one step at every setting that was measured or predicted.

    Attributes:
        points: All points, slowest setting first, each with its provenance.
        chosen: Point that the objective prefers.
        reference: Point of the original setting.
        held: Whether the choice is in force, or was to the end; not in a dry run, without rights,
            or while other settings are tried most of the time.
        ended: Whether tuning is over.
        regret: Expected relative excess of the choice's score over the best possible.
        profiling_steps: Steps that profiling took, all of them part of the training.
        profiling_seconds: Time that they took.
        extra_seconds: Extra time against the same steps at the chosen setting, without stalls.
        extra_joules: Extra energy against the same steps at the chosen setting.
        shares: Share of the chosen limit that each rank has; empty where all have the same.
        comparing: Whether the choice is not held because other settings are tried most of the
            time, or were to the end.
        whole_run: Saving and slowdown of the run so far, trials included, with their errors; None
            where they are not known, or the job has changed meanwhile.
        max_slowdown: Largest slowdown that the objective allows a choice; None for any.
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
    shares: tuple[float, ...] = ()
    comparing: bool = False
    whole_run: RunGains | None = None
    max_slowdown: float | None = None

    @property
    def frontier(self) -> Frontier:
        """The Pareto set of all points, per step."""
        return Frontier.from_points(self.points, "one step")

    def rows(self) -> list[dict[str, Any]]:
        """A row per point of the frontier: seconds, joules, setting and origin."""
        return self.frontier.rows()

    @property
    def energy_saving(self) -> float:
        """Share of the energy that the choice saves against the reference."""
        return gains(self.chosen, self.reference).energy / 100

    @property
    def slowdown(self) -> float:
        """Extra time of the choice against the reference, as a fraction."""
        return gains(self.chosen, self.reference).time / 100

    @property
    def knows_slowdown(self) -> bool:
        """Whether the slowdown is larger than the error of the figures, or both are small."""
        return not abs(self.slowdown) <= self._error > _TELLING_ERROR

    def __str__(self) -> str:
        texts = [self._choice_text()]
        if self.comparing:
            when = "were tried to the end" if self.ended else "are being tried"
            texts.append(f"other settings {when}")
        if self.comparing or (self.ended and not self.held and self.whole_run):
            texts.append(self._whole_text())
        return "; ".join(texts)

    @property
    def summary(self) -> str:
        """The answer in short: the choice, or what all steps saved while settings were tried."""
        if not self.comparing or self.whole_run is None:
            return str(self)
        best = "best setting" if self.ended else "best setting so far"
        return f"{self._whole_text()}; {best} {self.chosen.setting}"

    def _whole_text(self) -> str:
        run, original = self.whole_run, self.reference.setting
        if run is None:
            return "what all steps together save is not known, since the job changed meanwhile"
        energy = _difference_text("energy", -run.energy, run.energy_error)
        time = _difference_text("time", run.slowdown, run.slowdown_error)
        return f"over all steps: {energy}, {time}, against {original}"

    def _choice_text(self) -> str:
        saves = "would save"
        if self.held:
            saves = "saved" if self.ended else "saves"
        subject = f"{self.chosen.setting}{self._shares_text()}"
        saving, error = self.energy_saving, self._error
        if self.chosen == self.reference:
            return f"{subject}: the original setting, since no other is known to be better"
        if not self.profiling_steps:
            return (
                f"{subject}: an earlier run found {per_cent(saving)} less energy"
                f"{self._time_text()} than {self.reference.setting}; not measured in this run"
            )
        is_within_error = abs(saving) <= error
        if is_within_error and error > _TELLING_ERROR:
            return (
                f"{subject}: what it {saves} against {self.reference.setting} is not known yet "
                f"(± {per_cent(error)})"
            )
        amount = f"0 % (± {per_cent(error)})" if is_within_error else per_cent(saving)
        text = f"{subject}: {saves} {amount} of the energy"
        if not self.knows_slowdown:
            return (
                f"{text}{self._error_text()} against {self.reference.setting}; {self._bound_text()}"
            )
        return f"{text}{self._time_text()}{self._error_text()} than {self.reference.setting}"

    def _bound_text(self) -> str:
        """The time of a choice where it is not known better than its error."""
        bound = self.max_slowdown
        if self.held and bound is not None and self.slowdown <= bound:
            return f"at most {per_cent(bound)} more time"  # what is not known counts as slower
        return "the change in time is not known yet"

    def _time_text(self) -> str:
        slowdown = self.slowdown
        return f" at {per_cent(slowdown)} more time" if slowdown > 0 else ", no slower"

    def _shares_text(self) -> str:
        if not self.shares:
            return ""
        return f" (of it {per_cent(min(self.shares))} or more by rank, as boards differ)"

    def _error_text(self) -> str:
        """One sigma of the figures, where it is worth a word."""
        return f" (± {per_cent(self._error)})" if self._error > _TELLING_ERROR else ""

    @property
    def _error(self) -> float:
        errors = [point.provenance.relative_error for point in (self.chosen, self.reference)]
        return math.hypot(*(value for value in errors if value is not None))

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON document."""
        return {
            "points": [point.to_dict() for point in self.points],
            "chosen": self.chosen.to_dict(),
            "reference": self.reference.to_dict(),
            "held": self.held,
            "comparing": self.comparing,
            "ended": self.ended,
            "regret": self.regret,
            "shares": list(self.shares),
            "whole_run": None if self.whole_run is None else self.whole_run._asdict(),
            "profiling": {
                "steps": self.profiling_steps,
                "seconds": self.profiling_seconds,
                "extra_seconds": self.extra_seconds,
                "extra_joules": self.extra_joules,
            },
        }


def _difference_text(quantity: str, difference: float, error: float) -> str:
    """A difference in words, unless it is within its error."""
    if abs(difference) <= error:
        if error <= _TELLING_ERROR:
            return f"the same {quantity} (± {per_cent(error)})"
        return f"the change in {quantity} is not known yet (± {per_cent(error)})"
    direction = "more" if difference > 0 else "less"
    return f"{per_cent(abs(difference))} (± {per_cent(error)}) {direction} {quantity}"


def tuning_result(
    choice: TuningChoice,
    knob: Knob,
    reference: int,
    origin: Provenance,
    in_force: InForce | None,
    *,
    ended: bool,
) -> TuningResult:
    """The choice of a machine as points of a frontier; see ``TuningResult``.

    ``in_force`` is None where choices are not acted on.
    """
    held = in_force is not None and in_force.is_held(choice, knob.values, reference)
    estimates = {**_predict_points(choice), **choice.measured, choice.position: choice.chosen}
    points = {at: _point(estimates[at], knob.setting_at(at), origin) for at in sorted(estimates)}
    choice_point = points[choice.position]
    # By what settings are known to take: the time that passed has stalls of the job in it.
    probes = [(points[at], n) for at, n in choice.probed_steps.items() if at in points]
    return TuningResult(
        tuple(points.values()),
        choice_point,
        points[reference],
        held,
        ended,
        choice.regret,
        choice.profiling_steps,
        choice.profiling_seconds,
        sum(steps * (point.seconds - choice_point.seconds) for point, steps in probes),
        sum(steps * (point.joules - choice_point.joules) for point, steps in probes),
        choice.shares,
        comparing=in_force is not None and not held,
        whole_run=_whole_run(choice),
    )


def _whole_run(choice: TuningChoice) -> RunGains | None:
    usage_at = dict(choice.usage_at)
    if choice.posterior is None or not usage_at:
        return None
    if set(usage_at) == {choice.posterior.log_seconds.shape[1] - 1}:
        return None  # nothing but the original setting, the last, has run
    energy, slowdown = choice.posterior.run_gains(usage_at)
    return RunGains(
        *(float(f) for f in (energy.mean(), energy.std(), slowdown.mean(), slowdown.std()))
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


class InForce:
    """Settings that were in force since the tuner began to hold."""

    def __init__(self) -> None:
        self._visits: deque[tuple[int, int]] = deque(maxlen=_MOST_VISITS)

    def add(self, command: Command, steps: int) -> None:
        """Note steps under a command."""
        if command.state is TunerState.HOLDING and steps > 0:
            self._visits.append((command.position, steps))
        elif command.state is not TunerState.HOLDING and command.state is not TunerState.STOPPED:
            self._visits.clear()

    def is_held(self, choice: TuningChoice, values: Sequence[float], reference: int) -> bool:
        """Whether the choice, or nearly that, was in force for most of the latter half of steps.

        What the choice is compared with, the reference, does not count; other settings that are
        tried do.
        """
        value, near, trials = values[choice.position], 0, 0
        left = sum(steps for _, steps in self._visits) / 2
        for position, steps in reversed(self._visits):
            if abs(values[position] / value - 1) <= _NEARLY:
                near += steps
            elif position not in (reference, len(values) - 1):  # of either knob
                trials += steps
            left -= steps
            if left <= 0:
                break
        return near >= trials


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

    def read(self, window: Window | None = None) -> tuple[float, float, bool]:
        """Joules since the counter was made, one sigma of where the counters stand, and heat.

        The last says whether heat or the hardware slowed a device in the window.

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
        hot = not measured.throttles.isdisjoint({Throttle.THERMAL, Throttle.HARDWARE})
        return self._joules, _edge_sigma(measured), hot

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
        InvalidValueError: An argument is something else.
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
        check_process_group(process_group)
        check_parts(meter=meter, clock=clock, config=config, profile=profile, earlier=earlier)
        (config or TunerConfig()).check_length(objective)
        self.failure: BaseException | None = None
        self._knob = LimitKnob(devices) if knob is None else knob
        check_knob(self._knob)
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
        self._position, self._share = -1, 1.0
        self._state = TunerState.WARMUP
        self._steps = 0
        self._due = self._left = 1
        self._pending: Future[Command | None] | None = None
        self._paused = False
        self._held = False
        self._saved = False
        self._in_force = InForce()
        self._began_seconds = math.nan
        self._answered = Reading(0.0, 0.0, 0.0, 0)
        self._last: tuple[float, float] | None = None  # seconds and joules at the end

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
        self._note_steps()
        self._left = _NEVER
        self._held = self._holds and self.failure is None
        self._state = TunerState.STOPPED
        last = self._elapsed(), None if self._paused or self._group else self._mark()
        self._driver.close(partial(self._release, *last), RELEASE_SECONDS)

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
        in_force = self._in_force if self._holds else None
        choice = self._with_latest(machine.choice)
        result = tuning_result(choice, self._knob, self._reference, origin, in_force, ended=ended)
        return replace(result, max_slowdown=self._objective.bounds.max_slowdown)

    def _with_latest(self, choice: TuningChoice) -> TuningChoice:
        """The choice with the steps since the latest reading, as they are known to be."""
        answered = self._answered
        steps = self._steps + max(0, self._due - self._left) - answered.steps
        if self.failure is not None:
            return replace(choice, usage_at={})  # of the steps since then nothing is known
        if choice.posterior is None or not choice.usage_at or steps <= 0:
            return choice
        step = choice.posterior.predict(self._position)
        before = choice.usage_at.get(self._position, NOT_USED)
        seconds, joules = steps * step.seconds, steps * step.seconds * step.watts
        if self._last is not None:
            seconds, joules = (
                self._last[0] - answered.now_seconds,
                self._last[1] - answered.joules,
            )
        usage = SettingUsage(before.seconds + seconds, before.joules + joules, before.steps + steps)
        return replace(choice, usage_at={**choice.usage_at, self._position: usage})

    @property
    def profile(self) -> PowerProfile | None:
        """The profile for a later part of this run; None before the choice is made."""
        choice = None if self._machine is None else self._machine.choice
        if choice is None or choice.shares or self._state is not TunerState.HOLDING:
            return None
        return PowerProfile.of(choice, self._knob.values)

    @property
    def _holds(self) -> bool:
        """Whether a choice is made and acted on, or was when tuning ended."""
        if self._state is TunerState.STOPPED:
            return self._held
        return self._state is TunerState.HOLDING and not self._config.dry_run

    def _note_steps(self) -> None:
        """Note the steps since the latest boundary, and what was in force in them."""
        steps = max(0, self._due - self._left)
        self._steps += steps
        self._due = self._left
        self._in_force.add(Command(self._position, 0, self._state), steps)

    @fail_open(None)
    def _boundary(self, event: TuningEvent) -> None:
        """Take the answer to an earlier reading once it is there, or have a reading answered."""
        self._note_steps()
        self._due = self._left = 1
        if math.isnan(self._began_seconds):
            self._began_seconds = self._clock.now()
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
        moment = event, self._elapsed(), self._steps, self._mark()

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
            count = len(group.all_gather(None))
            self._machine = RankMachine(self._equalising(self._machine, count), group)
        self.failure = self.failure or self._driver.failure
        command = self._answer(event, self._elapsed(), self._steps, self._mark())
        # All ranks report after the same number of steps, whether the knob is set by then or not.
        self._driver.submit(partial(self._set_knob, command))
        return command

    def _equalising(self, machine: Machine | None, ranks: int) -> Machine | None:
        """The machine, followed by a search for the shares of ranks whose boards differ."""
        limits, config = self._knob.limits, self._config
        if machine is None or limits is None or config.dry_run or not 1 < ranks <= MOST_RANKS:
            return machine
        return UnequalBoards(machine, limits, self._objective, config, ranks)

    def _prepare(self) -> None:
        from joulery.metering import Meter

        if self._meter is None:
            self._meter = Meter(self._devices, clock=self._clock)
        machine = self._knob.machine(self._objective, self._config, self._earlier_profile())
        self._counter = JouleCounter(self._meter)
        self._machine = machine
        _log.info(
            "power tuning begins: the first choice takes about %.0f s or %d steps, whichever is "
            "longer, more where steps scatter, and is refined after that",
            PROBING_SECONDS,
            PROBING_STEPS,
        )

    def _elapsed(self) -> float:
        return self._clock.now() - self._began_seconds

    def _mark(self) -> Window | None:
        return None if self._counter is None else self._counter.mark()

    def _answer(self, event: TuningEvent, now: float, steps: int, window: Window | None) -> Command:
        machine = self._machine
        assert machine is not None  # noqa: S101 - prepared
        joules, sigma, hot = self._read(window)
        reading = Reading(now, joules, sigma, steps, event, hot)
        if self.failure is not None:
            reading = Reading(now, 0.0, 0.0, steps, TuningEvent.FAILED)
        if self._reference < 0:
            command = machine.start(reading)
            self._reference = self._position = command.position
        else:
            command = machine.send(reading)
        self._answered = Reading(now, joules, sigma, steps)
        holding = command.state is TunerState.HOLDING
        if holding and not self._saved:
            self._save_profile()
        self._saved = holding
        return command

    def _read(self, window: Window | None) -> tuple[float, float, bool]:
        """See ``JouleCounter.read``; in a group, errors are only noted."""
        nothing = 0.0, 0.0, False
        try:
            return nothing if self._counter is None else self._counter.read(window)
        except JouleryError as error:
            if self._group is None:
                raise
            self.failure = error
            return nothing

    def _set_knob(self, command: Command) -> None:
        share = command.shares[self._group.rank] if command.shares and self._group else 1.0
        if command.state is TunerState.STOPPED:
            return
        if (command.position, share) == (self._position, self._share):
            self._knob.follow()
            return
        self._position, self._share = command.position, share
        self._knob.set_position(command.position, share)

    def _obey(self, command: Command) -> None:
        self._state = command.state
        self._due = self._left = command.steps
        if command.state is TunerState.STOPPED:
            self.close()

    def _release(self, seconds: float, window: Window | None) -> None:
        """Release what is held, once, and note where the job stood in the last window."""
        counter, self._counter = self._counter, None
        if counter is not None and window is not None and self.failure is None:
            with suppress(JouleryError):
                self._last = seconds, counter.read(window)[0]
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
        if self._objective.bounds.of_whole_work:
            return None  # chosen for what was left of another work
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
        if choice.shares:  # of these boards; the next run may have others
            return
        try:
            self._profile_file.save(PowerProfile.of(choice, self._knob.values))
        except FileError as error:
            _log.warning("power tuning: %s", error)


def check_parts(**parts: object) -> None:
    """Refuse parts of a tuner that are something else; None stands for the usual one, or for none.

    Raises:
        InvalidValueError: A part is of another type.
    """
    from joulery.metering import Meter

    kinds = {
        "meter": (Meter, "joulery.Meter(devices)"),
        "clock": (Clock, "joulery.clock.VirtualClock()"),
        "config": (TunerConfig, "TunerConfig()"),
        "profile": (ProfileFile, "a ProfileFile"),
        "earlier": (PowerProfile, "the profile of a tuner"),
    }
    for name, part in parts.items():
        kind, remedy = kinds[name]
        if not (isinstance(part, kind) or (part is None and kind is not Clock)):
            raise InvalidValueError(
                f"{name}={part!r} is not a {kind.__name__}",
                remedy=f"give {remedy}, or leave it out",
            )


def weighed_cost(eta: float, devices: Sequence[Device]) -> Cost:
    """The cost eta·joules + (1 - eta)·watts·seconds, watts being the most all devices draw.

    Args:
        eta: Weight of the energy: 1 counts energy only, 0 time only.
        devices: Boards of the job, over all its processes.
    """
    watts = 0.0
    for device in check_devices(devices):
        if Capability.POWER_LIMIT in device.capabilities and isinstance(device, PowerLimit):
            watts += device.power_limits().max_watts
        else:
            watts += device.info.max_watts or math.nan
    return Cost(eta, watts)
