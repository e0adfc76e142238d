"""Measure time and energy of a rank's instructions clock by clock, inside a few iterations.

From the highest clock down, until the energy of one instruction of each kind rises. Every rank
counts the same iterations, so mostly all run at the same clock; where they do not, some wait
longer. Whatever goes wrong, the clock is given back and training goes on.
"""

from __future__ import annotations

import logging
import math
import statistics
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, JouleryError
from joulery.hardware.device import Capability, ClockLock, require
from joulery.metering.sampler import Sampler
from joulery.metering.track import EnergyTrack
from joulery.pipeline.clock_setter import ClockSetter, governed
from joulery.pipeline.problem import Instruction
from joulery.pipeline.profiler_fit import Work, powers
from joulery.pipeline.profiler_rows import ProfileRow
from joulery.pipeline.rank_plan import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.metering.track import Knot
    from joulery.pipeline.clock_setter import Hold
    from joulery.pipeline.profiler_fit import Powers

_log = logging.getLogger("joulery")

_MOST_CLOCKS = 24
# Until a new clock and the power that follows it have settled.
_SETTLE_SECONDS = 0.1
# Energy must have risen so much, at so many clocks in a row, before lower ones are given up.
_RISE, _RISES = 0.005, 2
_SAMPLE_HERTZ = 200.0
# A clock is left once energies are known this well, or after so many times the iterations.
_SURE, _MOST_PATIENCE = 0.01, 8


class ClockProfiler:
    """Sweeps the clock of one device while it trains; hears the same calls as the controller.

    Args:
        device: One device of the rank, with an energy counter and a clock to lock.
        clocks_hertz: What to try; some two dozen that the device supports unless given.
        iterations_per_clock: Iterations at each clock; more where they tell too little.
        hold: How to get hold of the device.
        clock: Real or virtual.

    Attributes:
        done: Whether the sweep has ended and the clock is free again.
        failure: What ended it early; None if nothing did.
        rows: What was found so far.
    """

    def __init__(
        self,
        device: Device,
        clocks_hertz: Sequence[float] = (),
        *,
        iterations_per_clock: int = 4,
        hold: Hold = governed,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        if iterations_per_clock < 1:
            raise InvalidValueError(
                f"{iterations_per_clock} iterations measure nothing", remedy="give 1 or more"
            )
        self.done = False
        self.failure: Exception | None = None
        self.rows: list[ProfileRow] = []
        self._device = device
        self._wanted = tuple(clocks_hertz)
        self._per_clock = iterations_per_clock
        self._setter = ClockSetter([device], hold=hold, clock=clock)
        self._clock = clock
        self._clocks: list[float] = []
        self._at = -1
        self._iterations = 0
        self._settled_at = math.inf
        self._began: tuple[int, str, float] | None = None
        self._works: list[tuple[int, str, float, float]] = []
        self._knots: list[tuple[float, float]] = []
        self._sampler: Sampler | None = None
        self._least = math.inf
        self._rises = 0

    def begin_iteration(self, reached: Callable[[], object] | None = None) -> None:
        """Say that an iteration begins; the clock changes here. Never raises."""
        self._reached(reached)
        self._guarded(self._next_iteration)

    def before(
        self,
        stage: int,
        kind: str,
        microbatch: int,  # noqa: ARG002 - heard by the controller, too
        reached: Callable[[], object] | None = None,
    ) -> None:
        """Say that an instruction begins. Never raises, but waits for the device to get there."""
        if not self.done:
            self._began = (stage, kind, self._reached(reached))

    def after(
        self,
        stage: int,
        kind: str,
        microbatch: int,  # noqa: ARG002 - heard by the controller, too
        reached: Callable[[], object] | None = None,
    ) -> None:
        """Say that an instruction has ended. Never raises, but waits for it."""
        begun, self._began = self._began, None
        if not self.done and begun is not None and begun[:2] == (stage, kind):
            self._works.append((*begun, self._reached(reached)))

    def close(self) -> None:
        """Give the clock back. May be called twice."""
        self.done = True
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        for give_back in (self._setter.reset, self._setter.release):
            # A governor that is gone gives back by itself.
            with suppress(JouleryError, OSError):
                give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reached(self, reached: Callable[[], object] | None) -> float:
        if reached is not None:
            self._guarded(reached)
        return self._clock.now()

    def _guarded(self, act: Callable[[], object]) -> None:
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            if not self.done:
                act()
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self.failure = error
            _log.warning("pipeline profiling ended, training goes on: %s", error)
            self.close()

    def _next_iteration(self) -> None:
        if self._sampler is None:
            self._start()
        self._iterations += 1
        if self._iterations < self._per_clock or (self._at >= 0 and not self._conclude()):
            return
        self._iterations = 0
        self._at += 1
        if self._at >= len(self._clocks) or self._rises >= _RISES:
            self.close()
            return
        self._setter.set(_step(self._clocks[self._at]))
        self._settled_at = self._clock.now() + _SETTLE_SECONDS
        self._works.clear()
        self._knots = self._knots[-1:]

    def _start(self) -> None:
        for capability in (Capability.ENERGY, Capability.CLOCK_LOCK):
            require(self._device, capability)
        supported = sorted(cast("ClockLock", self._device).supported_clocks(), reverse=True)
        self._clocks = _chosen(supported, self._wanted)
        self._iterations = self._per_clock - 1
        track = EnergyTrack(self._device, self._clock.now())
        self._sampler = Sampler([track], self._clock, _SAMPLE_HERTZ, self._see)
        self._sampler.start()

    def _see(self, _: int, knot: Knot) -> None:
        self._knots.append((knot.at_seconds, knot.joules))

    def _conclude(self) -> bool:
        """Turn what was seen at a clock into rows; False if more must be seen first."""
        if self._sampler is not None:
            self._sampler.catch_up(self._clock.now(), 0.005)
        works = [work for work in self._works if work[2] >= self._settled_at]
        number = {name: n for n, name in enumerate(sorted({work[:2] for work in works}))}
        found = self._powers(number)
        last_chance = self._iterations >= _MOST_PATIENCE * self._per_clock
        if not last_chance and (found is None or not (found.relative_errors < _SURE).all()):
            return False
        if found is None:
            raise InvalidValueError(
                "the energy counter did not refresh within the iterations at one clock",
                remedy="give more iterations_per_clock",
            )
        total = 0.0
        for name, position in number.items():
            times = [end - begin for *who, begin, end in works if tuple(who) == name]
            hertz = self._clocks[self._at]
            self.rows.append(_row(name, hertz, times, position, found, self._device))
            total += self.rows[-1].joules
        self._rises = self._rises + 1 if total > self._least * (1 + _RISE) else 0
        self._least = min(self._least, total)
        return True

    def _powers(self, number: dict[tuple[int, str], int]) -> Powers | None:
        knots = [knot for knot in self._knots if knot[0] >= self._settled_at]
        # Unsettled instructions still fill their time, so that it does not pass for waiting.
        known = [
            Work(number[work[:2]], work[2], work[3]) for work in self._works if work[:2] in number
        ]
        return powers(knots, known, len(number))


def _row(
    name: tuple[int, str],
    hertz: float,
    times: list[float],
    position: int,
    found: Powers,
    device: Device,
) -> ProfileRow:
    seconds = statistics.median(times)
    source = (
        f"{device.provenance.origin} by {device.info.name}; time shares between {found.spans} "
        f"counter refreshes {1e3 * found.span_seconds:.0f} ms apart"
    )
    return ProfileRow(
        *name,
        hertz,
        seconds,
        float(found.watts[position]) * seconds,
        len(times),
        float(found.relative_errors[position]),
        found.waiting_watts,
        source,
    )


def _chosen(supported: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """What to try, highest first."""
    if wanted:
        return sorted(wanted, reverse=True)
    stride = max(1, math.ceil(len(supported) / _MOST_CLOCKS))
    return list(supported[::stride])


def _step(hertz: float) -> Step:
    return Step(Instruction(-1, -1, "profiling", -1), hertz, 0.0)
