"""A simulated board that tiny models of real frameworks load, and what to expect of a callback."""

import math
from dataclasses import dataclass, field

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.training import Run

BOARD = catalog.board("V100")
STEP = catalog.workload("resnet50", BOARD)


@dataclass
class World:
    """A board on a virtual clock, its meter, and a sink that remembers."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    written: list = field(default_factory=list)

    def __post_init__(self):
        self.gpu = SimulatedGpu(BOARD, self.clock)
        self.meter = Meter([self.gpu], clock=self.clock)

    def load(self, share=1.0):
        """The board's part of a training step."""
        self.gpu.run(STEP.scaled(share))

    def run(self, **options):
        """A run on the board."""
        return Run("tiny", devices=[self.gpu], objective="least-energy:slowdown=10%", **options)

    def write(self, figures, step):
        """Be a sink."""
        self.written.append((step, figures))

    def close(self):
        """Be a sink."""
        self.written.append("closed")

    def check(self, measurement, steps):
        """The contract of a callback: all energy found, all steps counted, nothing left behind."""
        assert math.isfinite(measurement.joules)
        assert measurement.joules == pytest.approx(self.gpu.true_joules(), rel=0.03)
        assert self.written[-1] == "closed"
        last_step, figures = self.written[-2]
        assert last_step == steps
        assert figures["joulery/joules"] == pytest.approx(measurement.joules, rel=0.03)
        assert self.gpu.power_limits().current_watts == BOARD.default_limit_watts


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A board of its own for each test."""
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("JOULERY_STORE", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return World()
