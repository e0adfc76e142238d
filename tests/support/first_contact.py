"""Boards for self-tests that do not what they state, and a load that counts its steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.hardware import SimulatedGpu, catalog

if TYPE_CHECKING:
    from joulery.clock import VirtualClock
    from joulery.hardware import Board, EnergyReading, PowerLimitRange


class SimulatedLoad:
    """Steps of a reference workload on a simulated board."""

    def __init__(self, gpu: SimulatedGpu, workload: str = "resnet50") -> None:
        self._gpu, self._workload = gpu, catalog.workload(workload, gpu.board)
        self._steps, self._since, self._busy = 0.0, gpu.clock.now(), False

    def set_busy(self, busy: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Start or stop to work."""
        self.steps()
        self._busy = busy
        self._gpu.set_load(self._workload if busy else None)

    def steps(self) -> float:
        """Steps since the start, under the limit in force at each call."""
        now, seconds = self._gpu.clock.now(), self._gpu.steady().seconds
        if self._busy and seconds > 0:
            self._steps += (now - self._since) / seconds
        self._since = now
        return self._steps


class OddBoard(SimulatedGpu):
    """A simulated board that does something else than its driver states.

    Args:
        board: Constants of its type.
        clock: Clock of the board.
        counter_gain: Joules counted per true joule.
        limit_gain: Watts that the board keeps to per watt of its limit.
        limit_seconds: Time after which a limit acts.
        offset_watts: Watts by which a limit reads back otherwise.
        locks: Whether a locked clock is obeyed.
        restored_share: Share of its default limit that the board takes after a lower one.
        **options: Other options of a simulated board.
    """

    def __init__(
        self,
        board: Board,
        clock: VirtualClock,
        *,
        counter_gain: float = 1.0,
        limit_gain: float = 1.0,
        limit_seconds: float = 0.0,
        offset_watts: float = 0.0,
        locks: bool = True,
        restored_share: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(board, clock, **options)
        self._counter_gain, self._locks = counter_gain, locks
        self._limit_gain, self._limit_seconds = limit_gain, limit_seconds
        self._offset_watts, self._restored_share = offset_watts, restored_share
        self._stated_watts = board.default_limit_watts

    def read_energy(self) -> EnergyReading:
        """Counter of a gain of its own."""
        reading = super().read_energy()
        return replace(reading, joules=self._counter_gain * reading.joules)

    def power_limits(self) -> PowerLimitRange:
        """Range of limits, and the limit that the driver states."""
        return replace(super().power_limits(), current_watts=self._stated_watts)

    def set_power_limit(self, watts: float) -> None:
        """Set another limit than the one stated, or later."""
        default = self.board.default_limit_watts
        if watts == default > self._stated_watts:
            watts *= self._restored_share
        self._stated_watts = watts - self._offset_watts * (watts < default)
        obeyed = min(self._limit_gain * watts, self.board.max_limit_watts)
        act = partial(super().set_power_limit, obeyed)
        self.clock.call_at(self.clock.now() + self._limit_seconds, act)

    def lock_clock(self, hertz: float) -> None:
        """Accept the clock."""
        if self._locks:
            super().lock_clock(hertz)
