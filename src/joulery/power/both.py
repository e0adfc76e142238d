"""Try two knobs one after the other, and hold the one that turned out better."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from joulery.frontier import OperatingPoint
from joulery.objectives import score
from joulery.power.messages import State

if TYPE_CHECKING:
    from joulery.frontier import Setting
    from joulery.objectives import Objective
    from joulery.power.choice import TuningChoice
    from joulery.power.knob import Knob, SettlingMachine
    from joulery.power.messages import Command, Reading
    from joulery.power.profiles import PowerProfile
    from joulery.power.rules import Rules
    from joulery.power.slices import Estimate

# The second knob must be this much better, relative, and beyond doubt, to be worth being different.
_CLEARLY = 0.005


class BothKnobs:
    """Two knobs as one; positions of the second follow those of the first.

    Args:
        first: Preferred when both do as well; power limits, as a rule.
        second: The alternative; locked clocks, as a rule.
    """

    def __init__(self, first: Knob, second: Knob) -> None:
        self._knobs = (first, second)
        self._start = 0

    def machine(
        self, objective: Objective, rules: Rules, profile: PowerProfile | None = None
    ) -> SettlingMachine:
        """A machine that tunes one knob after the other, or holds what an earlier run chose."""
        machines = [knob.machine(objective, rules) for knob in self._knobs]
        self._start = self._knobs[0].positions()
        trusted = None
        for index, knob in enumerate(self._knobs):
            values = [knob.value_at(position) for position in range(knob.positions())]
            part = None if profile is None else profile.among(values)
            if part is not None and part.known(values) is not None:
                machines[index] = knob.machine(objective, rules, part)
                trusted = index
        return BetterOfTwo((machines[0], machines[1]), self._start, objective, trusted)

    def positions(self) -> int:
        """How many positions both have together."""
        return self._knobs[0].positions() + self._knobs[1].positions()

    def value_at(self, position: int) -> float:
        """The value behind a position, in watts or hertz."""
        knob, own = self._own(position)
        return knob.value_at(own)

    def setting_at(self, position: int) -> Setting:
        """The setting behind a position."""
        knob, own = self._own(position)
        return knob.setting_at(own)

    def turn(self, position: int) -> None:
        """Turn the knob that the position belongs to; the other goes back to what was found."""
        knob, own = self._own(position)
        other = self._knobs[1] if knob is self._knobs[0] else self._knobs[0]
        other.release()
        knob.turn(own)

    def release(self) -> None:
        """Give everything back."""
        for knob in self._knobs:
            knob.release()

    def _own(self, position: int) -> tuple[Knob, int]:
        if position < self._start:
            return self._knobs[0], position
        return self._knobs[1], position - self._start


class BetterOfTwo:
    """Lets two machines settle one after the other, then follows the better one.

    Args:
        machines: Both start at the same setting, the one found.
        start: Where the positions of the second begin.
        objective: Judges between their choices.
        trusted: Which of them has an earlier profile, if any; then the other is left alone.
    """

    def __init__(
        self,
        machines: tuple[SettlingMachine, SettlingMachine],
        start: int,
        objective: Objective,
        trusted: int | None = None,
    ) -> None:
        self._machines = machines
        self._start = start
        self._objective = objective
        self._active = trusted or 0
        self._tried = 0 if trusted is None else 2
        self.settled: TuningChoice | None = None

    def start(self, reading: Reading) -> Command:
        """The first command."""
        return self._named(self._machines[self._active].start(reading))

    def send(self, reading: Reading) -> Command:
        """The answer to a reading, from the machine whose turn it is."""
        command = self._machines[self._active].send(reading)
        if command.state is State.HOLDING and self._tried < 2:
            self._tried += 1
            if self._tried == 1:
                self._active = 1
                command = self._machines[1].start(reading)
            else:
                self._active = self._better()
                command = self._resumed(command)
        if self._tried == 2:
            self.settled = self._shifted()
        return self._named(command)

    def _resumed(self, command: Command) -> Command:
        """Back to the first machine's choice, where it left off, if that is the better one."""
        if self._active == 1:
            return command
        settled = self._machines[0].settled
        assert settled is not None  # noqa: S101 - it held before the second one started
        return replace(command, position=settled.position, steps=1)

    def _named(self, command: Command) -> Command:
        if self._active == 0:
            return command
        return replace(command, position=command.position + self._start)

    def _better(self) -> int:
        first, second = (machine.settled for machine in self._machines)
        assert first is not None  # noqa: S101 - both hold
        assert second is not None  # noqa: S101 - both hold
        # Both started from the same setting; the first had it measured earlier and longer.
        reference = _point(first.measured[max(first.measured)])
        scores = [
            score(self._objective, point.seconds, point.joules, reference)
            for point in (_point(settled.chosen) for settled in (first, second))
        ]
        errors = [
            math.hypot(settled.chosen.seconds_error, settled.chosen.watts_error)
            for settled in (first, second)
        ]
        doubt = 2 * math.hypot(*errors)
        return 1 if scores[1] < scores[0] * (1 - _CLEARLY - doubt) else 0

    def _shifted(self) -> TuningChoice | None:
        """The active machine's choice with what was measured by both."""
        chosen = self._machines[self._active].settled
        if chosen is None:
            return None
        measured: dict[int, Estimate] = {}
        costs = [0, 0.0, 0.0]
        for shift, machine in zip((0, self._start), self._machines, strict=True):
            if (found := machine.settled) is not None:
                measured |= {shift + at: seen for at, seen in found.measured.items()}
                costs[0] += found.profiling_steps
                costs[1] += found.profiling_seconds
                costs[2] += found.profiling_joules
        return replace(
            chosen,
            position=chosen.position + (0, self._start)[self._active],
            measured=measured,
            belief=None,
            profiling_steps=int(costs[0]),
            profiling_seconds=costs[1],
            profiling_joules=costs[2],
        )


def _point(seen: Estimate) -> OperatingPoint:
    return OperatingPoint(seen.seconds, seen.seconds * seen.watts)
