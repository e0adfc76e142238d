"""Measure steps at knob positions, by talking to whoever drives the loop.

Whatever takes time here is a generator that yields commands and takes readings.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.errors import DeviceError
from joulery.power.messages import Command, Reading, State, TuningEvent
from joulery.power.slices import Stretch, Tally, step_noise

if TYPE_CHECKING:
    from collections.abc import Generator

    from joulery.power.rules import Rules
    from joulery.power.slices import Estimate

    Talk = Generator[Command, Reading, None]

_AGREEING = 0.05
_WARMUP_STRETCHES = 20
LEAST_STRETCHES = 3
LEAST_STEPS = 4
_FEW_STEPS = 64.0


class StepProfiler:
    """Where the knob is, how fast steps go, and what was measured so far.

    Args:
        rules: How to go about it.
        position: Where the knob is at first.

    Attributes:
        state: What all this is done for.
        position: Where the knob is.
        pace_seconds: Of a step, lately; NaN before the first.
        tallies: Everything measured, by knob position.
    """

    def __init__(self, rules: Rules, position: int) -> None:
        self.state = State.WARMUP
        self.position = position
        self.pace_seconds = math.nan
        self.tallies: dict[int, Tally] = {}
        self._rules = rules
        self._reading: Reading | None = None

    @property
    def reading(self) -> Reading:
        """The latest one."""
        assert self._reading is not None  # noqa: S101 - a machine starts with one
        return self._reading

    @reading.setter
    def reading(self, reading: Reading) -> None:
        self._reading = reading

    def noise(self) -> float:
        """Relative standard deviation of one step."""
        return step_noise(self.tallies.values())

    def estimates(self) -> dict[int, Estimate]:
        """What was measured, by knob position."""
        noise = self.noise()
        return {
            position: tally.estimate(noise)
            for position, tally in self.tallies.items()
            if tally.stretches
        }

    def tally(self) -> Tally:
        """What was measured where the knob is."""
        return self.tallies.setdefault(self.position, Tally())

    def slice_steps(self, pace_seconds: float, noise: float, spread: float) -> int:
        """Steps of a slice that tells as much as is known already, within reason.

        Args:
            pace_seconds: Of a step.
            noise: Relative standard deviation of one step.
            spread: What the step time is known to, relative.
        """
        least = LEAST_STRETCHES * self._rules.stretch_seconds / pace_seconds
        most = max(_FEW_STEPS, self._rules.longest_slice_seconds / pace_seconds)
        telling = (noise / spread) ** 2 if spread > 0 else most
        return max(LEAST_STEPS, math.ceil(max(least, min(telling, most))))

    def stretch(self, seconds: float) -> Generator[Command, Reading, Stretch | None]:
        """Measure about ``seconds`` of steps; None when nothing was measured."""
        begin = self.reading
        if begin.event is TuningEvent.PAUSED:
            yield from self._wait(1)  # until resumed
            # The first step after a pause waits for loaders and caches.
            begin = yield from self._wait(1)
        pace = self.pace_seconds
        end = yield from self._wait(1 if math.isnan(pace) else math.ceil(seconds / pace))
        done, elapsed = end.steps - begin.steps, end.now_seconds - begin.now_seconds
        if done <= 0 or elapsed <= 0:
            return None
        self.pace_seconds = elapsed / done
        sigma = math.hypot(begin.sigma_joules, end.sigma_joules)
        return Stretch(done, elapsed, max(0.0, end.joules - begin.joules), sigma)

    def move(self, position: int) -> Talk:
        """Change the knob, and let a step and some time pass."""
        if position == self.position:
            return
        self.position = position
        pace = self.pace_seconds
        settle = self._rules.settle_seconds / pace if pace > 0 else 1.0
        yield from self._wait(math.ceil(settle))

    def measure(self, steps: int) -> Talk:
        """Measure a slice of at least ``steps`` steps where the knob is."""
        tally, done = self.tally(), 0
        tally.visits += 1
        count = 0
        while done < steps or count < LEAST_STRETCHES:
            # Few long stretches tell as much as many short ones, at fewer energy readings.
            length = max(self._rules.stretch_seconds, (steps - done) * self.pace_seconds / 4)
            seen = yield from self.stretch(length)
            if seen is not None:
                tally.add(seen)
                done += seen.steps
                count += 1

    def warm_up(self) -> Talk:
        """Wait until steps have found their pace; the first ones compile, cache and load."""
        before: Stretch | None = None
        for _ in range(_WARMUP_STRETCHES):
            seen = yield from self.stretch(self._rules.stretch_seconds)
            if seen is None:
                continue
            if before is not None and abs(seen.log_pace - before.log_pace) < _AGREEING:
                self.tally().add(seen)
                return
            before = seen

    def _wait(self, steps: int) -> Generator[Command, Reading, Reading]:
        reading = yield Command(self.position, max(1, steps), self.state)
        if reading.event is TuningEvent.FAILED:
            raise DeviceError(
                "time and energy of the steps are not known any more",
                remedy="see the log for what failed first",
            )
        self.reading = reading
        return reading
