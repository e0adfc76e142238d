"""A training loop on simulated boards and a virtual clock, with noisy steps and known truth.

Examples:
    >>> loop = TrainingLoop(["V100"], step_seconds=0.1)
    >>> tuner = loop.tuner(LeastEnergy(max_slowdown=0.05))      # doctest: +SKIP
    >>> loop.run(tuner.step, until=lambda: tuner.state is TunerState.HOLDING)      # doctest: +SKIP
"""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from joulery.clock import VirtualClock
from joulery.frontier import OperatingPoint
from joulery.hardware import SimulatedGpu, catalog, settle
from joulery.metering import Meter
from joulery.objectives import score
from joulery.power import LimitKnob, PowerTuner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.hardware import ClockLock, Device, PowerLimit
    from joulery.objectives import Objective


class TrainingLoop:
    """Steps on one or more boards of a kind, all under the same load.

    Args:
        boards: Names from the catalog; all the same.
        step_seconds: Length of a step under the limit found.
        workload: Name from the catalog.
        noise: Relative standard deviation of a step's time.
        seed: Decides noise and counter phases.

    Attributes:
        slower: Factor on every step's time, to let the job drift.
        stall_every: Every so many steps one takes ten times as long; None for never.
    """

    def __init__(
        self,
        boards: Sequence[str] = ("V100",),
        step_seconds: float = 0.1,
        *,
        workload: str = "resnet50",
        noise: float = 0.005,
        seed: int = 0,
    ) -> None:
        self.clock = VirtualClock()
        self.board = catalog.board(boards[0])
        work = catalog.workload(workload, self.board)
        reference = settle(self.board, work, self.board.default_limit_watts)
        self.workload = work.scaled(step_seconds / reference.seconds)
        self.gpus = tuple(
            SimulatedGpu(self.board, self.clock, index=index, seed=seed)
            for index in range(len(boards))
        )
        for gpu in self.gpus:
            gpu.set_load(self.workload)
        self.meter = Meter(self.gpus, clock=self.clock)
        self.steps = 0
        self.slower = 1.0
        self.stall_every: int | None = None
        self._noise = noise
        self._chance = random.Random(seed)  # noqa: S311 - not a secret

    @property
    def limit_watts(self) -> float:
        """The limit in force on the first board."""
        return self.gpus[0].power_limits().current_watts

    def tuner(self, objective: Objective, **options: Any) -> PowerTuner:
        """A tuner of these boards."""
        options.setdefault("knob", LimitKnob(self.gpus, held_here))
        return PowerTuner(self.gpus, objective, meter=self.meter, clock=self.clock, **options)

    def run(
        self,
        at_boundary: Callable[[], None],
        *,
        steps: int = 20_000,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Do ``steps`` steps, or fewer once ``until`` holds."""
        for _ in range(steps):
            if until():
                return
            pace = max(gpu.steady().seconds for gpu in self.gpus) * self.slower
            factor = max(0.5, 1 + self._noise * self._chance.gauss(0, 1))
            self.steps += 1
            if self.stall_every and self.steps % self.stall_every == 0:
                factor *= 10
            self.clock.sleep(pace * factor)
            at_boundary()

    def point(self, limit_watts: float) -> OperatingPoint:
        """What a step really costs under a limit, all boards together."""
        steady = settle(self.board, self.workload, limit_watts)
        return OperatingPoint(steady.seconds, steady.seconds * steady.watts * len(self.gpus))

    def regret(self, objective: Objective, limit_watts: float) -> float:
        """Relative excess of a limit's score over the best whole watt; infinite if not allowed."""
        reference = self.point(self.board.default_limit_watts)
        limits = range(
            math.ceil(self.board.min_limit_watts), math.floor(self.board.default_limit_watts) + 1
        )

        def scored(watts: float) -> float:
            point = self.point(watts)
            return float(score(objective, point.seconds, point.joules, reference))

        return scored(limit_watts) / min(scored(watts) for watts in limits) - 1


@contextmanager
def held_here(device: Device) -> Iterator[_HeldHere]:
    """Hold a simulated or emulated device without a lease, from this process alone."""
    handle = _HeldHere(device)
    try:
        yield handle
    finally:
        handle.reset()


class _HeldHere:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._found_watts: float | None = None
        self._locked = False

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        if watts is not None:
            limit = cast("PowerLimit", self._device)
            if self._found_watts is None:
                self._found_watts = limit.power_limits().current_watts
            limit.set_power_limit(watts)
        if clock_hertz is not None:
            self._locked = True
            cast("ClockLock", self._device).lock_clock(clock_hertz)

    def reset(self) -> None:
        if self._found_watts is not None:
            cast("PowerLimit", self._device).set_power_limit(self._found_watts)
        if self._locked:
            cast("ClockLock", self._device).unlock_clock()
            self._locked = False
