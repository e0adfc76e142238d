"""A machine for journeys: emulated boards whose assumptions are drawn, and commands run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.clock import VirtualClock
from joulery.hardware import Sensor, SimulatedGpu, Workload, catalog, settle
from joulery.testing.emulator import BoardSpec

if TYPE_CHECKING:
    import random

    from joulery.testing.emulator import EmulatedNode

_TESTS = Path(__file__).parents[1]
_SOURCES = _TESTS.parent / "src"
BOARDS = ("V100", "A100", "A40")


@dataclass(frozen=True)
class Assumptions:
    """What a journey may not rely on.

    Attributes:
        board: Name of the boards in the catalog.
        noise: Largest relative error of the power sensor.
        lag_seconds: Delay of the power sensor.
        phase_seconds: Time of the counter's first refresh.
        stamped: Whether readings state when the counter was refreshed.
        step_seconds: Time of a usual step at the default limit.
        first_steps: Number of slow steps at the start, as compilation and caches make them.
        first_factor: Length of those, in usual steps.
        period: Every so many steps one is long, as logging and checkpoints make it.
        period_factor: Length of that, in usual steps.
    """

    board: str
    noise: float
    lag_seconds: float
    phase_seconds: float
    stamped: bool
    step_seconds: float
    first_steps: int
    first_factor: float
    period: int
    period_factor: float

    @classmethod
    def drawn(cls, draw: random.Random) -> Assumptions:
        """Assumptions within what real boards and trainings show."""
        return cls(
            board=draw.choice(BOARDS),
            noise=draw.uniform(0.0, 0.02),
            lag_seconds=draw.uniform(0.0, 0.05),
            phase_seconds=draw.uniform(0.0, 0.1),
            stamped=draw.random() < 0.5,
            step_seconds=draw.uniform(0.020, 0.030),
            first_steps=draw.randrange(0, 6),
            first_factor=draw.uniform(1.5, 4.0),
            period=draw.randrange(20, 60),
            period_factor=draw.uniform(1.0, 2.0),
        )

    def step_factor(self, number: int) -> float:
        """Length of a step, in usual steps."""
        if number < self.first_steps:
            return self.first_factor
        return self.period_factor if number % self.period == 0 else 1.0

    @property
    def sensor(self) -> Sensor:
        """Sensor of simulated boards."""
        return Sensor(stamped=self.stamped, noise=self.noise / 2, lag_seconds=self.lag_seconds)

    @property
    def spec(self) -> BoardSpec:
        """Specification of the emulated boards."""
        return BoardSpec(
            catalog.board(self.board),
            stamped=self.stamped,
            noise=self.noise,
            sensor_lag_seconds=self.lag_seconds,
            refresh_phase_seconds=self.phase_seconds,
        )


class World:
    """A machine with emulated boards, a folder of its own, and ways to run commands on it.

    Args:
        node: The boards.
        assumptions: What was drawn for them.
        folder: Working folder; stores and journals are below it.
        draw: Source of further draws of the journey.
    """

    def __init__(
        self, node: EmulatedNode, assumptions: Assumptions, folder: Path, draw: random.Random
    ) -> None:
        self.node, self.assumptions, self.folder, self.draw = node, assumptions, folder, draw
        self.board = node.specs[0].board
        work = catalog.workload("resnet50", self.board)
        usual = settle(self.board, work, self.board.default_limit_watts).seconds
        self.step: Workload = work.scaled(assumptions.step_seconds / usual)
        homes = {
            f"XDG_{name}_HOME": str(folder / f"{name.lower()}-home") for name in ("DATA", "STATE")
        }
        self.env = {
            **node.env,
            **homes,
            "JOULERY_GOVERNOR": "",
            "JOULERY_GOVERNOR_STATE": str(folder / "governor"),
            "JOURNEY_ASSUMPTIONS": json.dumps(asdict(assumptions)),
            "JOURNEY_STEP": json.dumps(asdict(self.step)),
            "PYTHONPATH": os.pathsep.join(map(str, (_TESTS, _SOURCES))),
            "OPENBLAS_NUM_THREADS": "1",
        }

    def virtual_board(self, index: int = 0) -> SimulatedGpu:
        """A board of the same kind on a virtual clock, for journeys that take hours."""
        seed = self.draw.randrange(10**6)
        sensor = self.assumptions.sensor
        return SimulatedGpu(self.board, VirtualClock(), index=index, seed=seed, sensor=sensor)

    def true_point(self, limit_watts: float) -> tuple[float, float]:
        """True seconds and joules of a usual step under a limit."""
        steady = settle(self.board, self.step, limit_watts)
        return steady.seconds, steady.seconds * steady.watts

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start `joulery` with these arguments."""
        return self.popen([sys.executable, "-m", "joulery", *arguments], **environment)

    def run(self, command: list[str], **environment: str) -> str:
        """Run a program that must succeed; what it prints."""
        with self.popen(command, **environment) as process:
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return output

    def popen(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        """Start a program on this machine."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.env | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def joulery(self, *arguments: str, **environment: str) -> dict[str, Any]:
        """Run a command that must succeed; the document that it prints."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        words = (*arguments[:end], "--json", *arguments[end:])
        document: dict[str, Any] = json.loads(
            self.run([sys.executable, "-m", "joulery", *words], **environment)
        )
        return document

    def script(self, name: str, text: str) -> list[str]:
        """Write a training script; the command that runs it."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return [sys.executable, name]


# First lines of a training script: the boards, their load, and steps of uneven length.
TRAINING = """
import json, os, sys, time
import joulery
from joulery.hardware import Workload
from joulery.testing.emulator import EmulatedNode
from support.journeys import Assumptions

assumptions = Assumptions(**json.loads(os.environ["JOURNEY_ASSUMPTIONS"]))
work = Workload(**json.loads(os.environ["JOURNEY_STEP"]))
node = EmulatedNode.attached()


def train(number):
    node.wait_steps(0, assumptions.step_factor(number))
"""
