"""Power limits as a decision names them: some to be measured for seconds each, one to be held."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from joulery.jobs.policies.base import ActionKind
from joulery.power.choice import TuningChoice
from joulery.power.messages import State
from joulery.power.state_machine import Range, TuningMachine
from joulery.power.step_profiler import LEAST_STEPS, StepProfiler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.frontier import Setting
    from joulery.hardware.device import Device, PowerLimit
    from joulery.jobs.job import Job
    from joulery.jobs.models import Decision
    from joulery.objectives import Objective
    from joulery.power.knob import LimitKnob
    from joulery.power.messages import Command, Reading
    from joulery.power.profiles import PowerProfile
    from joulery.power.rules import Rules
    from joulery.power.slices import Estimate
    from joulery.power.step_profiler import Talk

SLICE_SECONDS = 5.0  # enough for stable figures (You et al., NSDI'23, section 5)
_MOST_LIMITS = 10
_STEP_WATTS = 25.0
_TELLING_STRETCHES = 6
_LONG_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """What a decision asks of the power limit.

    Attributes:
        listed_watts: Limits that the job knows, ascending.
        hold_watts: To hold; None leaves it to just-in-time profiling.
        measure_watts: To measure for seconds each.
        probe: Whether to say when that is done, and hold nothing.
    """

    listed_watts: tuple[float, ...]
    hold_watts: float | None = None
    measure_watts: tuple[float, ...] = ()
    probe: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether it says what to do, rather than to find out what is best."""
        return self.hold_watts is not None or bool(self.measure_watts) or self.probe


def plan_of(decision: Decision, job: Job, *, observe: bool) -> LimitPlan | None:
    """What a decision asks of the power limit; None leaves it to the run itself."""
    if not job.limits_watts:
        return None
    if observe:
        return LimitPlan(job.limits_watts)
    probe = decision.kind == ActionKind.PROBE
    hold = None if probe else decision.power_limit_watts
    return LimitPlan(job.limits_watts, hold, decision.probe_limits_watts, probe)


def listed_limits(boards: Sequence[Device]) -> tuple[float, ...]:
    """A handful of limits that every board accepts, down from what they have by default."""
    ranges = [cast("PowerLimit", board).power_limits() for board in boards]
    if not ranges:
        return ()
    low, high = max(one.min_watts for one in ranges), max(one.default_watts for one in ranges)
    step = max(_STEP_WATTS, 5.0 * math.ceil((high - low) / (_MOST_LIMITS - 1) / 5.0))
    count = max(0, math.floor((high - low) / step))
    return tuple(high - step * place for place in range(count, -1, -1))


class ListedKnob:
    """The power limits of all boards, as far as a job lists them.

    Args:
        inner: Turns the limits.
        plan: What to do with them.
        boards: How many there are.
        done: Called when a probe has measured all it should.
    """

    def __init__(
        self, inner: LimitKnob, plan: LimitPlan, boards: int, done: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._boards = boards
        self._done = done
        self._places: tuple[int, ...] = ()
        self._machine: TuningMachine | PlannedMachine | None = None
        self._position = -1

    def machine(
        self, objective: Objective, rules: Rules, profile: PowerProfile | None = None
    ) -> TuningMachine | PlannedMachine:
        """The machine that follows the plan, or chooses where the plan leaves it open."""
        import numpy as np

        from joulery.power.prior import limit_curves

        found = self._inner.range().values
        wanted = [watts for watts in self._plan.listed_watts if found[0] <= watts < found[-1]]
        nearest = {int(np.abs(found - watts).argmin()) for watts in wanted}
        self._places = tuple(sorted(nearest | {len(found) - 1}))
        values = found[list(self._places)]
        self._position = len(values) - 1
        plan = self._plan
        if plan.hold_watts is None and not plan.probe:
            span = Range(values, lambda watts: limit_curves(values, watts / self._boards))
            known = None if profile is None else profile.known(tuple(map(float, values)))
            self._machine = TuningMachine(span, objective, rules, known)
        else:
            hold = None if plan.hold_watts is None else self._nearest(plan.hold_watts)
            if rules.observe_only:
                hold = len(values) - 1
            measured = sorted({self._nearest(watts) for watts in plan.measure_watts})
            self._machine = PlannedMachine(
                rules, len(values) - 1, measured[::-1], hold, self._done if plan.probe else None
            )
        return self._machine

    def estimates(self) -> dict[float, Estimate]:
        """What was measured, by the limit in watts."""
        if self._machine is None:
            return {}
        found = self._machine.estimates()
        return {self.value_at(position): estimate for position, estimate in found.items()}

    @property
    def watts(self) -> float | None:
        """The limit in force; None before anything is known."""
        return None if self._machine is None else self.value_at(self._position)

    def positions(self) -> int:
        """How many limits there are."""
        return len(self._places)

    def value_at(self, position: int) -> float:
        """The watts behind a position."""
        return self._inner.value_at(self._places[position])

    def setting_at(self, position: int) -> Setting:
        """The setting behind a position."""
        return self._inner.setting_at(self._places[position])

    def turn(self, position: int) -> None:
        """Go there; the last position is what was found."""
        self._inner.turn(self._places[position])
        self._position = position

    def release(self) -> None:
        """Give everything back."""
        self._inner.release()

    def _nearest(self, watts: float) -> int:
        away = [abs(self.value_at(position) - watts) for position in range(len(self._places))]
        return min(range(len(away)), key=away.__getitem__)


class PlannedMachine:
    """Measures limits for seconds each, then holds one; without I/O, as the tuner's machine.

    Args:
        rules: How long stretches are.
        reference: Position of the limit found.
        measured: Positions to measure, in this order.
        hold: Position to hold; None stays at the reference.
        done: Called once all is measured.
    """

    def __init__(
        self,
        rules: Rules,
        reference: int,
        measured: Sequence[int],
        hold: int | None,
        done: Callable[[], None] | None,
    ) -> None:
        self._rules = rules
        self._bench = StepProfiler(rules, reference)
        self._reference = reference
        self._measured = measured
        self._hold = reference if hold is None else hold
        self._done = done
        self._settled: TuningChoice | None = None
        self._talk: Talk = self._run()

    @property
    def settled(self) -> TuningChoice | None:
        """What was found, once all was measured."""
        return self._settled

    def estimates(self) -> dict[int, Estimate]:
        """What was measured, by position."""
        return self._bench.estimates()

    def start(self, reading: Reading) -> Command:
        """The first command."""
        self._bench.reading = reading
        return next(self._talk)

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        return self._talk.send(reading)

    def _run(self) -> Talk:
        bench = self._bench
        yield from bench.warm_up()
        bench.state = State.PROBING
        began = bench.reading
        # Briefly, so that what is saved can be told against what was found.
        yield from bench.measure(LEAST_STEPS)
        for position in self._measured:
            yield from bench.move(position)
            yield from bench.measure(max(LEAST_STEPS, self._slice_steps()))
        if self._done is not None:
            self._done()
        bench.state = State.HOLDING
        yield from bench.move(self._hold)
        for _ in range(_TELLING_STRETCHES):
            seen = yield from bench.stretch(self._rules.hold_seconds)
            if seen is not None:
                bench.tally().add(seen)
                self._settle(began)
        while True:
            yield from bench.stretch(_LONG_STEPS * bench.pace_seconds)

    def _slice_steps(self) -> int:
        pace = self._bench.pace_seconds
        return math.ceil(SLICE_SECONDS / pace) if pace > 0 else LEAST_STEPS

    def _settle(self, began: Reading) -> None:
        found, end = self.estimates(), self._bench.reading
        self._settled = TuningChoice(
            position=self._hold,
            regret=0.0,  # whoever asked for the limit answers for it
            chosen=found[self._hold],
            measured=found,
            belief=None,
            profiling_steps=end.steps - began.steps,
            profiling_seconds=end.now_seconds - began.now_seconds,
            profiling_joules=end.joules - began.joules,
        )
