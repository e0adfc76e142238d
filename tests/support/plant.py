"""A power plant of boards for the agent: hours of a cluster in seconds, on a virtual clock.

Boards draw up to 10 % more or less than their caps and hosts up to 20 % more or less than stated,
by shares that the agent does not know; jobs arrive, load, vary and end. The truth is the power of
the whole, sampled twice in each tick: once just after caps were set, once before the next.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulery.clock import VirtualClock
from joulery.cluster import (
    Agent,
    AgentSettings,
    DeviceState,
    EngineJob,
    MeterReading,
    NodeUnreachableError,
    PowerCurve,
)

if TYPE_CHECKING:
    from pathlib import Path

CURVES = {
    "compute": PowerCurve.from_points([(100, 25), (200, 60), (300, 85), (400, 100)]),
    "memory": PowerCurve.from_points([(100, 60), (160, 95), (400, 100)]),
    "mixed": PowerCurve.from_points([(100, 40), (200, 75), (400, 100)]),
}
LEAST, MOST = 100.0, 400.0
# The budget binds while a job runs below this share of its speed.
_FULL = 0.99


@dataclass(slots=True)
class PlantBoard:
    """A board with a bias of its own.

    Attributes:
        share: Share of its cap that it draws under a full load.
        rest_watts: Power without a running job.
        noise: Relative standard deviation of its power.
        settle_seconds: Time constant with which it follows a cap.
    """

    share: float
    rest_watts: float
    noise: float
    settle_seconds: float
    cap_watts: float = 150.0
    watts: float = 55.0
    demand: float = 0.0  # share of its load, 0 to 1
    wobble: float = 0.0

    def move(self, seconds: float, chance: random.Random) -> None:
        """Let time pass."""
        keep = math.exp(-seconds / 2.0)
        self.wobble = keep * self.wobble + math.sqrt(1 - keep**2) * chance.gauss(0.0, self.noise)
        target = self.rest_watts
        if self.demand:
            target = max(target, self.demand * self.share * self.cap_watts) * (1 + self.wobble)
        left = math.exp(-seconds / self.settle_seconds)
        self.watts = target + (self.watts - target) * left


@dataclass
class PlantNode:
    """A node as the agent's client of it."""

    name: str
    boards: list[PlantBoard]
    sensor_error: float = 0.0
    is_cut: bool = False
    epoch: int = 0
    leader: tuple[int, float] = (0, math.inf)

    def status(self) -> list[DeviceState]:
        """Its boards."""
        if self.is_cut:
            raise NodeUnreachableError(f"{self.name} is cut off", remedy="wait")
        return [
            DeviceState(
                f"{self.name}-{number}",
                LEAST,
                MOST,
                board.cap_watts,
                board.watts * (1 + self.sensor_error),
                1e9 * math.sqrt(max(board.watts, 1.0) / MOST),
            )
            for number, board in enumerate(self.boards)
        ]

    def set_caps(self, caps: dict[str, float], *_: object) -> list[DeviceState]:
        """Put them in force."""
        states = self.status()
        for state, board in zip(states, self.boards, strict=True):
            board.cap_watts = caps.get(state.id, board.cap_watts)
        return self.status()


@dataclass
class PlantJob:
    """A job with what it asks for over time."""

    job: EngineJob
    starts_at: float
    ends_at: float
    demand: float


@dataclass
class Plant:
    """A cluster of 4-GPU nodes under an agent.

    Args:
        folder: State folder of the agent.
        seed: Seed of biases and arrivals.
        nodes: Number of nodes.
        budget: Share of the most power of all boards and stated hosts.
        host_watts: Stated power of one host.
        metered: Whether there is a meter of the whole.
    """

    folder: Path
    seed: int
    nodes: int = 8
    budget: float = 0.7
    host_watts: float = 300.0
    metered: bool = True
    comment: str = ""
    churn_seconds: float = 600.0
    tick_seconds: float = 1.0
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"plant {self.seed}")  # noqa: S311 - not a secret
        self.clock = VirtualClock()
        draw = self.chance.uniform
        self.parts = {
            f"n{n}": PlantNode(
                f"n{n}",
                [
                    PlantBoard(draw(0.9, 1.1), draw(45, 65), draw(0.0, 0.02), draw(0.05, 0.5))
                    for _ in range(4)
                ],
                sensor_error=draw(-0.02, 0.02) if self.metered else 0.0,
            )
            for n in range(self.nodes)
        }
        self.hosts = [self.host_watts * draw(0.8, 1.2) for _ in range(self.nodes)]
        if not self.metered:
            self.hosts = [self.host_watts] * self.nodes
        overhead = self.host_watts * self.nodes
        self.budget_watts = self.budget * (MOST * 4 * self.nodes + overhead)
        settings = AgentSettings(
            self.budget_watts,
            dict.fromkeys(self.parts, "127.0.0.1:1"),
            self.folder,
            overhead_watts=overhead,
            frontiers=CURVES,
            tick_seconds=self.tick_seconds,
            **self.options,
        )
        meters = {"cluster": self} if self.metered else {}
        self.agent = Agent(settings, self, self.parts, self.clock, meters=meters)
        self.waiting: dict[str, PlantJob] = {}
        self.suspended: set[str] = set()
        self.switches: list[tuple[float, str, str]] = []
        self.power_record: list[tuple[float, float, float, bool]] = []
        self._budget_before = 0.0
        self._number = 0

    # The engine.
    def jobs(self) -> list[EngineJob]:
        """Jobs that hold boards."""
        return [
            replace(entry.job, is_suspended=name in self.suspended)
            for name, entry in self.waiting.items()
        ]

    def suspend(self, job: str) -> None:
        """Stop a job."""
        self.switches.append((self.clock.now(), "suspend", job))
        self.suspended.add(job)

    def resume(self, job: str) -> None:
        """Let it continue."""
        self.switches.append((self.clock.now(), "resume", job))
        self.suspended.discard(job)

    def signal(self, job: str, name: str) -> None:
        """Ignore a signal."""

    # The meter.
    def read(self) -> MeterReading:
        """Power of the whole, as a feeder's meter has it."""
        return MeterReading(
            round(self.power() * (1 + self.chance.gauss(0, 5e-4))), self.clock.wall()
        )

    def power(self) -> float:
        """True power of the whole."""
        return sum(self.hosts) + sum(b.watts for node in self.parts.values() for b in node.boards)

    def submit(self, name: str, gpus: dict[str, tuple[int, ...]], seconds: float) -> None:
        """Start a job on boards; it loads for up to 5 seconds."""
        self._number += 1
        now = self.clock.now()
        demand = 1.0
        job = EngineJob(str(self._number), name, self.comment, gpus)
        begins = now + self.chance.uniform(2.0, 5.0)
        self.waiting[job.id] = PlantJob(job, begins, now + seconds, demand)

    def fill(self) -> None:
        """Start jobs on free nodes, now and then."""
        busy = {node for entry in self.waiting.values() for node in entry.job.gpus}
        for name in self.parts.keys() - busy:
            if self.chance.random() < self.tick_seconds / 60.0:
                seconds = self.chance.expovariate(1.0 / self.churn_seconds / self.nodes) + 30.0
                self.submit(self.chance.choice(list(CURVES)), {name: (0, 1, 2, 3)}, seconds)

    def move(self, seconds: float) -> None:
        """Let boards follow their caps and jobs for a while."""
        now = self.clock.now()
        for name in [n for n, entry in self.waiting.items() if entry.ends_at <= now]:
            del self.waiting[name]
            self.suspended.discard(name)
        demands: dict[tuple[str, int], float] = {}
        for name, entry in self.waiting.items():
            if name in self.suspended or now < entry.starts_at:
                continue
            for node, numbers in entry.job.gpus.items():
                demands |= {(node, number): entry.demand for number in numbers}
        for node in self.parts.values():
            for number, board in enumerate(node.boards):
                board.demand = demands.get((node.name, number), 0.0)
                board.move(seconds, self.chance)
        for number, host in enumerate(self.hosts):
            drift = host * (1 + self.chance.gauss(0, 1e-3))
            if self.metered:
                self.hosts[number] = min(1.2 * self.host_watts, max(0.8 * self.host_watts, drift))
        self.clock.sleep(seconds)

    def run(self, seconds: float, *, churn: bool = True) -> None:
        """Run the agent for a while of virtual time."""
        for _ in range(int(seconds / self.tick_seconds)):
            if churn:
                self.fill()
            report = self.agent.tick()
            # Boards follow a lower cap within half a second, which an event's lead allows for.
            budget = max(report["budget_watts"], self._budget_before)
            self._budget_before = report["budget_watts"]
            binds = any(job["performance"] < _FULL for job in report["jobs"])
            for _ in range(int(2 * self.tick_seconds)):
                self.move(0.5)
                self.power_record.append((self.clock.now(), self.power(), budget, binds))
                budget = report["budget_watts"]

    def over_share(self, since: float = 0.0) -> float:
        """Share of the time in which the true power was above the budget by more than 0.1 %."""
        rows = [row for row in self.power_record if row[0] >= since]
        return sum(power > 1.001 * budget for _, power, budget, _ in rows) / len(rows)

    def unused_share(self, since: float = 0.0) -> float:
        """Mean share of the budget that is not drawn while it binds."""
        rows = [row for row in self.power_record if row[0] >= since and row[3]]
        gaps = [max(0.0, 1 - power / budget) for _, power, budget, _ in rows]
        return sum(gaps) / max(1, len(gaps))
