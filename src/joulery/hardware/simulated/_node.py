"""A simulated server: boards, host, wattmeter and a job to run on it.

The boards are ``SimulatedGpu``. The host draws a constant power, the power of its fans (the
cube of the air flow, by the fans' affinity law, with the flow in proportion to the boards' heat)
and, while a job runs, the energy of the host's own share of the work.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, DeviceInfo, DeviceKind, EnergyReading
from joulery.hardware.simulated import catalog
from joulery.hardware.simulated._board import SimulatedGpu
from joulery.hardware.simulated._physics import Workload

if TYPE_CHECKING:
    from joulery.clock import Clock


@dataclass(frozen=True, slots=True)
class NodePreset:
    """A server to simulate, and the training run that any number of its boards can share.

    Attributes:
        name: Name for ``joulery sweep --simulate``.
        board: Type of its boards, by its name in the catalog.
        boards: Number of boards.
        constant_watts: Power of idle processors, memory, disks, slowest fans and conversion losses.
        fan_watts: Additional power of the fans when every board draws its highest limit.
        host_joules: Energy of the host's own share of one run, of any length.
        work: Work of the whole run on one board as one step; its host time is the serial part,
            which more boards do not shorten.
        communication_share: Compute and memory time added to each board by exchanging gradients,
            as a share of the whole run's, approached as the number of boards grows.
        noise: Relative standard deviation of the time between runs.
        source: Source of the numbers.
    """

    name: str
    board: str
    boards: int
    constant_watts: float
    fan_watts: float
    host_joules: float
    work: Workload
    communication_share: float
    noise: float
    source: str

    def work_on(self, gpus: int) -> Workload:
        """Work of each of ``gpus`` boards."""
        share = 1.0 / gpus + self.communication_share * (1.0 - 1.0 / gpus)
        return replace(
            self.work,
            compute_seconds=self.work.compute_seconds * share,
            memory_seconds=self.work.memory_seconds * share,
        )


PRESETS = (
    NodePreset(
        name="rtx6000x8",
        board="RTX6000",
        boards=8,
        constant_watts=330.0,
        fan_watts=500.0,
        host_joules=20e3,
        work=Workload(
            "Xception transfer learning",
            compute_seconds=280.0,
            memory_seconds=355.0,
            host_seconds=12.0,
            activity=0.87,
        ),
        communication_share=0.06,
        noise=0.001,
        source="host and job fitted to Koszczał et al. (Euro-Par 2023 workshops), Table 1 and "
        "Fig. 7; 8 × Quadro RTX 6000, 2 × Xeon Silver 4210",
    ),
)


def preset(name: str) -> NodePreset:
    """The preset of that name.

    Raises:
        InvalidValueError: There is none.
    """
    for candidate in PRESETS:
        if candidate.name == name.lower():
            return candidate
    raise InvalidValueError(
        f"no simulated node {name!r}",
        remedy=f"one of {', '.join(candidate.name for candidate in PRESETS)}",
    )


class SimulatedNode:
    """A preset server on a clock, and the wattmeter at its plug.

    The meter is exact as long as limits change while the boards are idle, as a sweep changes them.

    Args:
        preset: Boards, host and work.
        clock: Clock of the node; on a virtual clock a run takes no real time.
        seed: Seed of the noise between runs and of the boards' counters.

    Attributes:
        gpus: Boards of the node.
    """

    capabilities = frozenset((Capability.ENERGY, Capability.POWER))

    def __init__(self, preset: NodePreset, clock: Clock, *, seed: int = 0) -> None:
        self.preset = preset
        self.clock = clock
        board = catalog.board(preset.board)
        self.gpus = tuple(
            SimulatedGpu(board, clock, index=index, seed=seed) for index in range(preset.boards)
        )
        highest = preset.boards * board.max_limit_watts
        self.info = DeviceInfo(
            id=f"simulated:{preset.name}",
            name=f"{preset.name} at the plug",
            kind=DeviceKind.NODE,
            vendor="simulated",
            max_watts=highest + preset.constant_watts + preset.fan_watts,
        )
        self.provenance = Provenance(Origin.SIMULATED, f"node model: {preset.source}", 0.0)
        self._seed = seed
        self._job_watts = self._host_joules = 0.0
        self._updated_at, self._host_watts = clock.now(), self.host_watts()
        self._lock = threading.Lock()

    def run(self, gpus: int, occasion: int = 0) -> float:
        """Run the job once on the first ``gpus`` boards; the others stay idle.

        Args:
            gpus: Number of boards.
            occasion: Number of the run under the same limit, which seeds its noise.

        Returns:
            The seconds that it took on the clock.
        """
        if not 1 <= gpus <= len(self.gpus):
            raise InvalidValueError(
                f"cannot run on {gpus} boards", remedy=f"give 1 to {len(self.gpus)}"
            )
        active = self.gpus[:gpus]
        watts = active[0].power_limits().current_watts
        # One seed per run, so that a run's noise does not depend on those before it.
        seed = f"{self._seed}/{gpus}/{watts}/{occasion}"
        factor = random.Random(seed).gauss(1.0, self.preset.noise)  # noqa: S311 - noise
        work = self.preset.work_on(gpus).scaled(max(0.5, factor))
        self._update()
        for board in active:
            board.set_load(work)
        # Boards under different limits wait for the slowest.
        seconds = max(board.steady().seconds for board in active)
        self._job_watts = self.preset.host_joules / seconds
        self._update()
        try:
            self.clock.sleep(seconds)
        finally:
            self._update()
            for board in active:
                board.set_load(None)
            self._job_watts = 0.0
            self._update()
        return seconds

    def host_watts(self) -> float:
        """Present power of everything but the boards."""
        highest = sum(gpu.board.max_limit_watts for gpu in self.gpus)
        # Air flow in proportion to heat, and the fans' power to the cube of the flow.
        heat = sum(gpu.steady().watts for gpu in self.gpus) / highest
        fans = self.preset.fan_watts * heat * heat * heat
        return self.preset.constant_watts + fans + self._job_watts

    def _update(self) -> None:
        """Add up the host's energy; called before and after each change of load."""
        with self._lock:
            now = self.clock.now()
            self._host_joules += self._host_watts * (now - self._updated_at)
            self._updated_at, self._host_watts = now, self.host_watts()

    def read_energy(self) -> EnergyReading:
        """Energy at the plug since the node was made."""
        self._update()
        now = self.clock.now()
        boards = sum(gpu.true_joules() for gpu in self.gpus)
        return EnergyReading(self._host_joules + boards, now, now, self.read_power())

    def read_power(self) -> float:
        """Watts at the plug now."""
        return self.host_watts() + sum(gpu.steady().watts for gpu in self.gpus)
