"""The just-in-time tuner as a state machine without I/O.

Warmup → Probing → Holding, and back over Drifted when the job changes. It is told the time, the
joules so far and the steps done, and answers with where the knob should be and after how many
steps it wants to hear again. So the same code runs on real boards, virtual clocks and by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import stdev
from typing import TYPE_CHECKING

from joulery.power.choice import TuningChoice, foretold
from joulery.power.drift import DriftDetector
from joulery.power.messages import State
from joulery.power.planner import Planner, SliceForecast
from joulery.power.scoring import ObjectiveScorer
from joulery.power.step_profiler import LEAST_STEPS, StepProfiler

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import numpy as np
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power.choice import Known
    from joulery.power.messages import Command, Reading
    from joulery.power.model import CurveModel
    from joulery.power.planner import ProbePlan
    from joulery.power.prior import Curves
    from joulery.power.rules import Rules
    from joulery.power.slices import Estimate, Stretch
    from joulery.power.step_profiler import Talk

_LEAST_DRIFT = 0.04
_DRIFT_SPREADS = 2.0
_USUAL_STRETCHES = 6
_MOST_TRIMS = 6
_MOST_STAYS = 3
# A slice this far off, against what the others foretell, is measured again, so often at most.
_DOUBTFUL_SIGMAS, _MOST_VISITS = 2.0, 3


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
class Usual:
    """How a job goes at one setting.

    Attributes:
        seconds: Per step.
        watts: Mean power.
        spread: By how much stretches differ, relative.
    """

    seconds: float
    watts: float
    spread: float = 0.0


class TuningMachine:
    """Profiles and holds one knob; :meth:`start` it, then :meth:`send` it readings.

    Args:
        knob: The values to choose from.
        objective: What to minimise.
        rules: How to go about it.
        known: An earlier profile's choice, to hold at once and check.

    Attributes:
        settled: What was found so far; None before the first guess.
        reprofiled: How often the job had changed.
    """

    def __init__(
        self, knob: Range, objective: Objective, rules: Rules, known: Known | None = None
    ) -> None:
        self.settled: TuningChoice | None = None
        self.reprofiled = 0
        self._knob = knob
        self._rules = rules
        self._known = known
        self._judge = ObjectiveScorer(objective, rules.work_steps)
        self._reference = len(knob.values) - 1
        self._bench = StepProfiler(rules, self._reference)
        self._model: CurveModel | None = None
        self._talk: Talk = self._run()

    @property
    def state(self) -> State:
        """What it is doing."""
        return self._bench.state

    def start(self, reading: Reading) -> Command:
        """The first command."""
        self._bench.reading = reading
        return next(self._talk)

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        return self._talk.send(reading)

    def estimates(self) -> dict[int, Estimate]:
        """What was measured, by knob position."""
        return self._bench.estimates()

    def _run(self) -> Talk:
        yield from self._bench.warm_up()
        if self._known is not None:
            yield from self._hold_known(self._known)
            yield from self._drifted()
        while True:
            yield from self._probe()
            yield from self._hold()
            yield from self._drifted()

    def _drifted(self) -> Talk:
        """Start afresh from where everything is compared with."""
        self._bench.state = State.DRIFTED
        self.reprofiled += 1
        self._bench.tallies = {}
        yield from self._bench.move(self._reference)

    # Probing.

    def _probe(self) -> Talk:
        bench = self._bench
        bench.state = State.PROBING
        began = bench.reading
        yield from bench.measure(LEAST_STEPS)
        model = self._model = self._new_model()
        horizon = max(self._rules.horizon_seconds, self._rules.horizon_steps * bench.pace_seconds)
        planner = Planner(self._judge, horizon, self._rules.tolerance)
        plan = self._plan(planner, model, began)
        stays = 0
        for _ in range(self._rules.most_slices):
            # Measuring on at the choice itself is what holding does anyway.
            at_choice = plan.probe == bench.position == plan.verdict.position
            stays = stays + 1 if at_choice else 0
            probe, steps = plan.probe, plan.steps
            if probe is None or stays > _MOST_STAYS:
                probe, steps = self._doubtful(model), LEAST_STEPS
            if probe is None:
                break
            yield from bench.move(probe)
            yield from bench.measure(steps)
            plan = self._plan(planner, model, began)

    def _doubtful(self, model: CurveModel) -> int | None:
        """Where all of a slice may have been disturbed, and another one would tell."""
        doubts = {
            position: sigmas
            for position, sigmas in model.slower_than_foretold(self.estimates()).items()
            if sigmas > _DOUBTFUL_SIGMAS and self._bench.tallies[position].visits < _MOST_VISITS
        }
        return max(doubts, key=doubts.__getitem__) if doubts else None

    def _new_model(self) -> CurveModel:
        from joulery.power.model import CurveModel

        reference = self.estimates()[self._reference]
        curves = self._knob.curves(reference.watts)
        return CurveModel(self._knob.values, curves, reference.seconds, reference.watts)

    def _plan(self, planner: Planner, model: CurveModel, began: Reading) -> ProbePlan:
        """The next probe; what is known by now counts as settled until something better is."""
        measured, noise = self.estimates(), self._bench.noise()
        belief = model.believe(measured)
        plan = planner.plan(
            belief, tuple(measured), self._bench.position, partial(self._forecast, noise)
        )
        position, end = plan.verdict.position, self._bench.reading
        self.settled = TuningChoice(
            position,
            plan.verdict.regret,
            measured.get(position) or foretold(belief, position),
            measured,
            belief,
            end.steps - began.steps,
            end.now_seconds - began.now_seconds,
            end.joules - began.joules,
        )
        return plan

    def _forecast(
        self, noise: float, position: int, pace_seconds: float, spread: float
    ) -> SliceForecast:
        """What a slice would take and tell."""
        bench = self._bench
        steps = bench.slice_steps(pace_seconds, noise, spread)
        span = steps * pace_seconds
        moving = 0.0 if position == bench.position else self._rules.settle_seconds + pace_seconds
        return SliceForecast(
            steps,
            span + moving,
            max(2e-4, noise / math.sqrt(steps)),
            max(1e-3, 2e-3 / span),
        )

    # Holding.

    def _hold(self) -> Talk:
        """Stay at the choice until the job changes; measuring there costs nothing."""
        bench, settled = self._bench, self.settled
        assert settled is not None  # noqa: S101 - probing settled it
        bench.state = State.HOLDING
        if self._rules.observe_only:
            yield from bench.move(self._reference)
        else:
            yield from bench.move(settled.position)
            yield from self._trim(settled)
        yield from self._watch((yield from self._usual()))

    def _usual(self) -> Generator[Command, Reading, Usual]:
        """How the job goes where the knob is, with all that disturbs it time and again."""
        seen: list[Stretch] = []
        while len(seen) < _USUAL_STRETCHES:
            stretch = yield from self._bench.stretch(self._rules.hold_seconds)
            if stretch is not None:
                seen.append(stretch)
        paces = [stretch.log_pace for stretch in seen]
        total = sum(stretch.seconds for stretch in seen)
        return Usual(
            total / sum(stretch.steps for stretch in seen),
            sum(stretch.joules for stretch in seen) / total,
            stdev(paces),
        )

    def _trim(self, settled: TuningChoice) -> Talk:
        """Follow the choice by a watt or two as it becomes clearer; no more detours."""
        bench, belief = self._bench, settled.belief
        assert self._model is not None  # noqa: S101 - probing made it
        assert belief is not None  # noqa: S101 - probing has one
        for _ in range(_MOST_TRIMS):
            spread = float(belief.log_seconds[:, bench.position].std())
            steps = bench.slice_steps(bench.pace_seconds, bench.noise(), spread)
            yield from bench.measure(steps)
            measured = self.estimates()
            belief = self._model.believe(measured)
            verdict = self._judge.judge(belief)
            here = float(verdict.excess[bench.position])
            if here > verdict.regret + self._rules.tolerance / 4:
                yield from bench.move(verdict.position)
            self.settled = settled = replace(
                settled,
                position=bench.position,
                regret=verdict.regret,
                chosen=measured.get(bench.position) or foretold(belief, bench.position),
                measured=measured,
                belief=belief,
            )

    def _watch(self, usual: Usual) -> Talk:
        """Return once the job behaves differently."""
        bench = self._bench
        steps = max(1.0, self._rules.hold_seconds / usual.seconds)
        spread = max(usual.spread, 2 * bench.noise() / math.sqrt(steps))
        change = max(_LEAST_DRIFT, _DRIFT_SPREADS * spread)
        pace = DriftDetector(math.log(usual.seconds), change)
        power = DriftDetector(math.log(max(usual.watts, 1e-3)), change)
        while True:
            seen = yield from bench.stretch(self._rules.hold_seconds)
            if seen is None or not self._rules.watch_drift:
                continue
            drifted = pace.changed(seen.log_pace)
            if seen.joules > 3 * seen.sigma_joules:
                drifted |= power.changed(math.log(seen.joules / seen.seconds))
            if drifted:
                return

    def _hold_known(self, known: Known) -> Talk:
        """Trust an earlier profile as long as the job behaves like it."""
        bench = self._bench
        bench.state = State.HOLDING
        bench.tallies = {}
        self.settled = known.settled()
        yield from bench.move(self._reference if self._rules.observe_only else known.position)
        expected = known.expected(bench.position)
        yield from self._watch(Usual(expected.seconds, expected.watts))
