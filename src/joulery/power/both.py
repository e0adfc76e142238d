"""Try two knobs one after the other, and hold the one that turned out better."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulery.frontier import OperatingPoint
from joulery.power.machine import State

if TYPE_CHECKING:
    from joulery.frontier import Setting
    from joulery.objectives import Objective
    from joulery.power.knob import Knob, SettlingMachine
    from joulery.power.machine import Command, Reading, Rules, Settled
    from joulery.power.profiles import Profile
    from joulery.power.slices import Estimate

# The second knob must be this much better, relative, to be worth being different.
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
        self,
        objective: Objective,
        rules: Rules,
        profile: Profile | None = None,  # noqa: ARG002 - a profile is of one knob
    ) -> SettlingMachine:
        """A machine that tunes one knob after the other."""
        machines = (
            self._knobs[0].machine(objective, rules),
            self._knobs[1].machine(objective, rules),
        )
        self._start = self._knobs[0].positions()
        return BetterOfTwo(machines, self._start, objective)

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
    """

    def __init__(
        self, machines: tuple[SettlingMachine, SettlingMachine], start: int, objective: Objective
    ) -> None:
        self._machines = machines
        self._start = start
        self._objective = objective
        self._active = 0
        self._tried = 0
        self._reference: int | None = None
        self.settled: Settled | None = None

    def start(self, reading: Reading) -> Command:
        """The first command."""
        command = self._machines[0].start(reading)
        self._reference = command.position
        return command

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
            self._objective.score(_point(settled.chosen), reference) for settled in (first, second)
        ]
        return 1 if scores[1] < scores[0] * (1 - _CLEARLY) else 0

    def _shifted(self) -> Settled | None:
        """The active machine's choice with the measurements of both."""
        first, second = (machine.settled for machine in self._machines)
        if first is None or second is None:
            return first or second
        measured = dict(first.measured)
        measured.update({self._start + at: seen for at, seen in second.measured.items()})
        chosen = first if self._active == 0 else second
        shift = 0 if self._active == 0 else self._start
        return replace(
            chosen,
            position=chosen.position + shift,
            measured=measured,
            belief=None,
            profiling_steps=first.profiling_steps + second.profiling_steps,
            profiling_seconds=first.profiling_seconds + second.profiling_seconds,
            profiling_joules=first.profiling_joules + second.profiling_joules,
        )


def _point(seen: Estimate) -> OperatingPoint:
    return OperatingPoint(seen.seconds, seen.seconds * seen.watts)
