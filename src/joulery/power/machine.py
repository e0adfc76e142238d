"""The just-in-time tuner as a state machine without I/O.

Warmup → Probing → Holding, and back over Drifted when the job changes. It is told the time, the
joules so far and the steps done, and answers with where the knob should be and after how many
steps it wants to hear again. So the same code runs on real boards, virtual clocks and by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from joulery.errors import DeviceError
from joulery.power.drift import DriftDetector
from joulery.power.planner import Plan, Planner, SliceForecast
from joulery.power.scoring import Judge
from joulery.power.slices import Estimate, Stretch, Tally, step_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import numpy as np
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power.model import Belief, CurveModel
    from joulery.power.prior import Curves
    from joulery.power.scoring import Verdict

    Talk = Generator["Command", "Reading", None]

_AGREEING = 0.05
_WARMUP_STRETCHES = 20
_LEAST_STRETCHES = 3
_LEAST_STEPS = 4
_FEW_STEPS = 64.0
_LEAST_DRIFT = 0.04
_DRIFT_SIGMAS = 4.0
_MOST_TRIMS = 6
_MOST_STAYS = 3


class State(StrEnum):
    """What the tuner is doing."""

    WARMUP = "warmup"
    PROBING = "probing"
    HOLDING = "holding"
    DRIFTED = "drifted"
    STOPPED = "stopped"


class Event(StrEnum):
    """Why a reading was taken."""

    STEP = "step"
    PAUSED = "paused"
    RESUMED = "resumed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the machine is told.

    Attributes:
        now_seconds: On a monotonic clock.
        joules: Used so far by all devices of the job.
        sigma_joules: One sigma of where exactly the counter stands now.
        steps: Done so far.
        event: Why now.
    """

    now_seconds: float
    joules: float
    sigma_joules: float
    steps: int
    event: Event = Event.STEP


@dataclass(frozen=True, slots=True)
class Command:
    """What the machine wants.

    Attributes:
        position: Where the knob should be.
        steps: Steps until the next reading.
        state: What it is doing.
    """

    position: int
    steps: int
    state: State


@dataclass(frozen=True, slots=True)
class Range:
    """The values of a knob.

    Attributes:
        values: Ascending; the last one is the reference, as found.
        curves: What to expect over them, given the watts at the reference.
    """

    values: NDArray[np.float64]
    curves: Callable[[float], Curves]


@dataclass(frozen=True, slots=True)
class Rules:
    """How the tuner goes about it.

    Attributes:
        horizon_seconds: How long the job will run at least, as far as one can guess.
        horizon_steps: How many steps it will do at least.
        tolerance: Expected relative regret that is good enough.
        settle_seconds: Time after a change of the knob that is not measured.
        stretch_seconds: Shortest stretch worth an energy reading; several counter refreshes.
        hold_seconds: Length of a stretch while holding.
        most_slices: Slices after which the best guess must do.
        longest_slice_seconds: No slice is longer, unless it has few steps.
        observe_only: Go back to the reference when done.
        watch_drift: Profile again when the job changes.
        work_steps: Steps of the work that deadlines and budgets refer to.
    """

    horizon_seconds: float = 1800.0
    horizon_steps: int = 10_000
    tolerance: float = 0.0005
    settle_seconds: float = 0.1
    stretch_seconds: float = 0.15
    hold_seconds: float = 4.0
    most_slices: int = 60
    longest_slice_seconds: float = 20.0
    observe_only: bool = False
    watch_drift: bool = True
    work_steps: float = 1.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What profiling found.

    Attributes:
        position: The choice.
        regret: Expected relative excess of its score over the best possible.
        chosen: What to expect there: measured, or foretold (then with 0 steps behind it).
        measured: Estimates by knob position.
        belief: Samples of the curves; None when an earlier profile was trusted.
        profiling_steps: Steps that profiling took.
        profiling_seconds: Time that they took.
        profiling_joules: Energy that they used.
    """

    position: int
    regret: float
    chosen: Estimate
    measured: dict[int, Estimate]
    belief: Belief | None
    profiling_steps: int
    profiling_seconds: float
    profiling_joules: float


class TuningMachine:
    """Profiles and holds one knob; :meth:`start` it, then :meth:`send` it readings.

    Args:
        knob: The values to choose from.
        objective: What to minimise.
        rules: How to go about it.
        known: An earlier profile's choice, to hold at once and check.
    """

    def __init__(
        self, knob: Range, objective: Objective, rules: Rules, known: Known | None = None
    ) -> None:
        self.state = State.WARMUP
        self.settled: Settled | None = None
        self.reprofiled = 0
        self._knob = knob
        self._rules = rules
        self._known = known
        self._judge = Judge(objective, rules.work_steps)
        self._planner = Planner(self._judge, rules.horizon_seconds, rules.tolerance)
        self._reference = len(knob.values) - 1
        self._position = self._reference
        self._tallies: dict[int, Tally] = {}
        self._model: CurveModel | None = None
        self._pace = math.nan
        self._began: Reading | None = None
        self._reading: Reading | None = None
        self._talk: Talk = self._run()

    def start(self, reading: Reading) -> Command:
        """The first command."""
        self._reading = self._began = reading
        return next(self._talk)

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        return self._talk.send(reading)

    def estimates(self) -> dict[int, Estimate]:
        """What was measured, by knob position."""
        noise = step_noise(self._tallies.values())
        return {
            position: tally.estimate(noise)
            for position, tally in self._tallies.items()
            if tally.stretches
        }

    def _run(self) -> Talk:
        yield from self._warm_up()
        if self._known is not None:
            yield from self._hold_known(self._known)
        while True:
            yield from self._probe()
            yield from self._hold()
            self.state = State.DRIFTED
            self.reprofiled += 1
            self._tallies, self._model = {}, None
            yield from self._move(self._reference)

    # Talking: every helper below yields commands and takes readings.

    def _wait(self, steps: int) -> Generator[Command, Reading, Reading]:
        reading = yield Command(self._position, max(1, steps), self.state)
        if reading.event is Event.FAILED:
            raise DeviceError(
                "time and energy of the steps are not known any more",
                remedy="see the log for what failed first",
            )
        self._reading = reading
        return reading

    def _stretch(self, seconds: float) -> Generator[Command, Reading, Stretch | None]:
        """Measure about ``seconds`` of steps; None when nothing was measured."""
        begin = self._reading
        assert begin is not None  # noqa: S101 - start() gave one
        if begin.event is Event.PAUSED:
            yield from self._wait(1)  # until resumed
            # The first step after a pause waits for loaders and caches.
            begin = yield from self._wait(1)
        steps = 1 if math.isnan(self._pace) else math.ceil(seconds / self._pace)
        end = yield from self._wait(steps)
        done, elapsed = end.steps - begin.steps, end.now_seconds - begin.now_seconds
        if done <= 0 or elapsed <= 0:
            return None
        self._pace = elapsed / done
        sigma = math.hypot(begin.sigma_joules, end.sigma_joules)
        return Stretch(done, elapsed, max(0.0, end.joules - begin.joules), sigma)

    def _move(self, position: int) -> Generator[Command, Reading, None]:
        """Change the knob, and let a step and some time pass."""
        if position == self._position:
            return
        self._position = position
        settle = self._rules.settle_seconds / self._pace if self._pace > 0 else 1.0
        yield from self._wait(max(1, math.ceil(settle)))

    def _warm_up(self) -> Talk:
        """Wait until steps have found their pace; the first ones compile, cache and load."""
        before: Stretch | None = None
        for _ in range(_WARMUP_STRETCHES):
            seen = yield from self._stretch(self._rules.stretch_seconds)
            if seen is None:
                continue
            if before is not None and abs(seen.log_pace - before.log_pace) < _AGREEING:
                self._tally().add(seen)
                return
            before = seen

    def _slice(self, steps: int) -> Talk:
        """Measure at least ``steps`` steps where the knob is."""
        tally, done = self._tally(), 0
        count = 0
        while done < steps or count < _LEAST_STRETCHES:
            # Few long stretches tell as much as many short ones, at fewer energy readings.
            length = max(self._rules.stretch_seconds, (steps - done) * self._pace / 4)
            seen = yield from self._stretch(length)
            if seen is not None:
                tally.add(seen)
                done += seen.steps
                count += 1

    def _tally(self) -> Tally:
        return self._tallies.setdefault(self._position, Tally())

    # Probing.

    def _probe(self) -> Talk:
        self.state = State.PROBING
        began = self._reading
        assert began is not None  # noqa: S101 - start() gave one
        yield from self._slice(self._slice_steps(self._reference, self._pace))
        horizon = max(self._rules.horizon_seconds, self._rules.horizon_steps * self._pace)
        self._planner.horizon_seconds = horizon
        model = self._model = self._new_model()
        plan = self._plan(model, began)
        stays = 0
        for _ in range(self._rules.most_slices):
            # Measuring on at the choice itself is what holding does anyway.
            at_choice = plan.probe == self._position == plan.verdict.position
            stays = stays + 1 if at_choice else 0
            if plan.probe is None or stays > _MOST_STAYS:
                break
            yield from self._move(plan.probe)
            yield from self._slice(self._slice_steps(plan.probe, self._pace))
            plan = self._plan(model, began)

    def _new_model(self) -> CurveModel:
        from joulery.power.model import CurveModel

        reference = self.estimates()[self._reference]
        curves = self._knob.curves(reference.watts)
        return CurveModel(self._knob.values, curves, reference.seconds, reference.watts)

    def _believe(self, model: CurveModel) -> Belief:
        from joulery.power.model import Observation

        return model.believe(
            [
                Observation(
                    position, seen.seconds, seen.watts, seen.seconds_error, seen.watts_error
                )
                for position, seen in self.estimates().items()
            ]
        )

    def _plan(self, model: CurveModel, began: Reading) -> Plan:
        """The next probe; what is known by now counts as settled until something better is."""
        noise = step_noise(self._tallies.values())

        def forecast(position: int, seconds_per_step: float) -> SliceForecast:
            steps = self._slice_steps(position, seconds_per_step)
            tally = self._tallies.get(position)
            known_steps = tally.steps if tally else 0
            span = steps * seconds_per_step
            moving = 0.0 if position == self._position else self._rules.settle_seconds
            total = span + (tally.seconds if tally else 0.0)
            return SliceForecast(
                span + (moving + seconds_per_step if moving else 0.0),
                max(2e-4, noise / math.sqrt(known_steps + steps)),
                max(1e-3, 2e-3 / total),
            )

        belief = self._believe(model)
        plan = self._planner.plan(belief, tuple(self._tallies), self._position, forecast)
        self._settle(plan.verdict, belief, began)
        return plan

    def _slice_steps(self, position: int, seconds_per_step: float) -> int:
        """Steps of the next slice at a position: as many as are there already, within reason."""
        least = _LEAST_STRETCHES * self._rules.stretch_seconds / seconds_per_step
        tally = self._tallies.get(position)
        most = max(_FEW_STEPS, self._rules.longest_slice_seconds / seconds_per_step)
        wanted = max(least, min(float(tally.steps) if tally else 0.0, most))
        return max(_LEAST_STEPS, math.ceil(wanted))

    def _settle(self, verdict: Verdict, belief: Belief, began: Reading) -> None:
        end = self._reading
        assert end is not None  # noqa: S101 - start() gave one
        measured = self.estimates()
        self.settled = Settled(
            verdict.position,
            verdict.regret,
            measured.get(verdict.position) or foretold(belief, verdict.position),
            measured,
            belief,
            end.steps - began.steps,
            end.now_seconds - began.now_seconds,
            end.joules - began.joules,
        )

    # Holding.

    def _hold(self) -> Talk:
        """Stay at the choice until the job changes; measuring there costs nothing."""
        settled = self.settled
        assert settled is not None  # noqa: S101 - probing settled it
        self.state = State.HOLDING
        yield from self._move(self._reference if self._rules.observe_only else settled.position)
        if not self._rules.observe_only:
            yield from self._trim(settled)
        yield from self._watch(self._tally())

    def _trim(self, settled: Settled) -> Talk:
        """Follow the choice by a watt or two as it becomes clearer; no more detours."""
        assert self._model is not None  # noqa: S101 - probing made it
        for _ in range(_MOST_TRIMS):
            yield from self._slice(self._slice_steps(self._position, self._pace))
            belief = self._believe(self._model)
            verdict = self._judge.judge(belief)
            here = float(verdict.excess[self._position])
            moved = verdict.position != self._position
            if moved and here > verdict.regret + self._rules.tolerance / 4:
                yield from self._move(verdict.position)
            measured = self.estimates()
            settled = replace(
                settled,
                position=self._position,
                regret=verdict.regret,
                chosen=measured.get(self._position) or foretold(belief, self._position),
                measured=measured,
                belief=belief,
            )
            self.settled = settled

    def _watch(self, tally: Tally) -> Talk:
        """Return once the job has changed."""
        while tally.steps < _LEAST_STEPS or len(tally.stretches) < _LEAST_STRETCHES:
            yield from self._slice(_LEAST_STEPS)
        usual = self.estimates()[self._position]
        yield from self._watch_against(usual.seconds, usual.watts)

    def _watch_against(self, seconds: float, watts: float) -> Talk:
        noise = step_noise(self._tallies.values())
        per_stretch = noise / math.sqrt(max(1.0, self._rules.hold_seconds / seconds))
        change = max(_LEAST_DRIFT, _DRIFT_SIGMAS * per_stretch)
        pace = DriftDetector(math.log(seconds), change)
        power = DriftDetector(math.log(max(watts, 1e-3)), change)
        while True:
            seen = yield from self._stretch(self._rules.hold_seconds)
            if seen is None or not self._rules.watch_drift:
                continue
            drifted = pace.changed(seen.log_pace)
            if seen.joules > 3 * seen.sigma_joules:
                drifted |= power.changed(math.log(seen.joules / seen.seconds))
            if drifted:
                return

    def _hold_known(self, known: Known) -> Talk:
        """Trust an earlier profile as long as the job behaves like it."""
        self.state = State.HOLDING
        self.settled = Settled(
            known.position, known.regret, known.chosen, known.measured, None, 0, 0.0, 0.0
        )
        self._tallies = {}
        yield from self._move(self._reference if self._rules.observe_only else known.position)
        expected = known.expected(self._position)
        yield from self._watch_against(expected.seconds, expected.watts)
        self.state = State.DRIFTED
        self.reprofiled += 1
        self._tallies = {}
        yield from self._move(self._reference)


@dataclass(frozen=True, slots=True)
class Known:
    """An earlier profile of the same job.

    Attributes:
        position: Its choice.
        regret: What it left to gain.
        chosen: What to expect there.
        measured: Estimates by knob position.
    """

    position: int
    regret: float
    chosen: Estimate
    measured: dict[int, Estimate]

    def expected(self, position: int) -> Estimate:
        """What was found there; asked for the choice and for the reference, always measured."""
        return self.chosen if position == self.position else self.measured[position]


def foretold(belief: Belief, position: int) -> Estimate:
    """What a belief expects at a position, with no steps behind it."""
    import numpy as np

    log_seconds, log_watts = belief.log_seconds[:, position], belief.log_watts[:, position]
    return Estimate(
        float(np.exp(np.median(log_seconds))),
        float(np.exp(np.median(log_watts))),
        float(log_seconds.std()),
        float(log_watts.std()),
        0,
        0.0,
    )
