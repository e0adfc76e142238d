"""A load for self-tests of simulated boards, which counts its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.hardware import catalog

if TYPE_CHECKING:
    from joulery.hardware import SimulatedGpu


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
