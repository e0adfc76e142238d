"""Boards of one model differ: a share of the limit for each rank, so that none waits for another.

Ranks of a data-parallel job wait for the slowest in every step, so their own speed does not show in
the time of a step. Once a limit is held for all, each rank in turn is lowered until all wait for
it, which does show. A curve of the whole job says which limit would make up for the difference; all
but the slowest get a share of the limit, and the job is tuned again with these shares in force.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.objectives import Totals, score
from joulery.power._state_machine import TuningMachine
from joulery.power._step_profiler import StepProfiler, TunerState, TuningEvent

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.power._model import Curves
    from joulery.power._state_machine import KnobRange, Machine, TuningChoice
    from joulery.power._step_profiler import Command, Procedure, Reading, TunerConfig

    Shares = tuple[float, ...]

# Logarithm by which a lowered rank should be slower, more than boards of one model differ, and the
# least that shows; by hand.
_LOWERED, _LEAST_LOWERED = 0.12, 0.04
# Error of a rank's pace that a slice aims for; by hand.
_ERROR = 0.002
# Ranks measured from one slice of the common limit to the next; by hand.
_EVERY = 2
# Mean share of the limit that must be left over to be worth it, and ranks up to which it is looked
# for, since each takes a slice; by hand.
_LEAST_SPARED, MOST_RANKS = 0.01, 64
# Code of the common limit among what is measured; others are of a rank that is lowered.
_COMMON = 0


class UnequalBoards:
    """A machine that tunes all ranks alike, then finds their shares and tunes again.

    Args:
        machine: Machine that tunes all ranks alike.
        span: Power limits that it chooses from, at the same positions.
        objective: Objective to minimise.
        config: Settings of the tuner.
        ranks: Number of ranks.
    """

    def __init__(
        self,
        machine: Machine,
        span: KnobRange,
        objective: Objective,
        config: TunerConfig,
        ranks: int,
    ) -> None:
        self.choice: TuningChoice | None = None
        self._machine = machine
        self._span = span
        self._objective = objective
        self._config = config
        self._ranks = ranks
        self._shares: Shares = ()
        self._searched = False
        self._procedure: Procedure = self._run()
        self._reading: Reading | None = None

    def start(self, reading: Reading) -> Command:
        """The first command."""
        self._reading = reading
        return next(self._procedure)

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        self._reading = reading
        return self._procedure.send(reading)

    def _run(self) -> Procedure:
        alike = self._machine
        yield from self._tune(alike, alike.start(self._latest()), until_compared=True)
        alike.send(replace(self._latest(), event=TuningEvent.PAUSED))
        self._searched = True
        self._shares = yield from self._find_shares()
        if self._shares:
            machine = TuningMachine(self._span, self._objective, self._config)
            yield from self._tune(machine, machine.start(self._latest()), until_compared=True)
            if self._is_better(machine.choice, alike.choice):
                yield from self._tune(machine, machine.send(self._latest()))
        self._shares = ()
        resumed = replace(self._latest(), event=TuningEvent.RESUMED)
        yield from self._tune(alike, alike.send(resumed))

    def _tune(
        self, machine: Machine, command: Command, *, until_compared: bool = False
    ) -> Procedure:
        """Let a machine tune: for good, or until its choice was compared with the reference."""
        first_choice: TuningChoice | None = None
        while True:
            if machine.choice is not None:
                # The time in which single ranks were lowered is in no machine's account.
                times = {} if self._searched else machine.choice.usage_at
                self.choice = replace(machine.choice, shares=self._shares, usage_at=times)
            reading = yield self._share(command)
            if until_compared and command.state is TunerState.HOLDING:
                first_choice = first_choice or machine.choice
                stepped = reading.event is TuningEvent.STEP
                if stepped and first_choice is not machine.choice:
                    return
            command = machine.send(reading)

    def _is_better(self, choice: TuningChoice | None, other: TuningChoice | None) -> bool:
        if choice is None or other is None:
            return False
        reference = len(self._span.values) - 1
        scores = []
        for candidate in (choice, other):
            original, chosen = candidate.measured[reference], candidate.chosen
            totals = Totals(original.seconds, original.seconds * original.watts)
            joules = chosen.seconds * chosen.watts
            scores.append(score(self._objective, chosen.seconds, joules, totals))
        return bool(scores[0] < scores[1])

    def _latest(self) -> Reading:
        assert self._reading is not None  # noqa: S101 - started
        return self._reading

    def _share(self, command: Command) -> Command:
        """The command with the shares; at the reference all have their original limit."""
        at_reference = command.position == len(self._span.values) - 1
        return command if at_reference else replace(command, shares=self._shares)

    def _find_shares(self) -> Generator[Command, Reading, Shares]:
        """The share of each rank; none where boards hardly differ."""
        choice, values = self.choice, self._span.values
        if choice is None or choice.posterior is None or choice.position >= len(values):
            return ()
        at, curve = choice.position, _pace_curve(choice.posterior)
        lowered = int(np.flatnonzero(curve >= min(curve[0], curve[at] + _LOWERED)).max())
        if curve[lowered] - curve[at] < _LEAST_LOWERED:
            return ()
        profiler = StepProfiler(_COMMON)
        profiler.state, profiler.reading = TunerState.HOLDING, self._latest()
        profiler.pace_seconds = choice.chosen.seconds
        positions = np.full(self._ranks, lowered)
        # The second time corrects what is left, since every board has a curve of its own.
        for attempt in range(2):
            shares = values[positions] / values[at]
            alone = {
                attempt * self._ranks + rank + 1: _alone(rank, shares)
                for rank in range(self._ranks)
            }
            yield from self._measure(profiler, at, alone)
            behind = np.array([_slowdown(profiler, code) for code in alone])
            enough = [
                int(np.flatnonzero(curve <= pace).min(initial=at))
                for pace in curve[positions] - np.maximum(0.0, behind)
            ]
            positions = np.minimum(enough, at)
        shares = values[positions] / values[positions].max()
        if 1 - shares.mean() < _LEAST_SPARED:
            return ()
        return tuple(shares.tolist())

    def _measure(self, profiler: StepProfiler, at: int, kinds: dict[int, Shares]) -> Procedure:
        """Measure some shares, between slices of the common limit."""

        def shared(procedure: Procedure) -> Procedure:
            command = next(procedure, None)
            while command is not None:
                shares = kinds.get(command.position, ())
                reading = yield replace(command, position=at, shares=shares)
                try:
                    command = procedure.send(reading)
                except StopIteration:
                    return

        def visit(code: int) -> Procedure:
            yield from profiler.move(code)
            steps = profiler.slice_steps(profiler.pace_seconds, profiler.noise(), _ERROR)
            yield from profiler.measure(int(steps))

        for number, code in enumerate(kinds):
            if number % _EVERY == 0:
                yield from shared(visit(_COMMON))
            yield from shared(visit(code))
        yield from shared(visit(_COMMON))


def _alone(rank: int, shares: NDArray[np.float64]) -> Shares:
    """A rank's own share, with all others at the common limit."""
    return tuple(float(share) if at == rank else 1.0 for at, share in enumerate(shares))


def _slowdown(profiler: StepProfiler, code: int) -> float:
    """Logarithm by which the job may be slower than at the common limit, by one sigma."""
    estimates = profiler.estimates()
    ratio = estimates[code].seconds / estimates[_COMMON].seconds
    return math.log(ratio) + estimates[code].seconds_error


def _pace_curve(posterior: Curves) -> NDArray[np.float64]:
    """Logarithm of the step time at each position, never rising with the limit."""
    median = np.median(posterior.log_seconds, axis=0)
    return np.maximum.accumulate(median[::-1])[::-1]
