"""One training iteration as a graph of instructions, each with a choice of clocks.

What schedules and profiles become, and what the planner solves. It is a time-cost problem with
convex costs: every instruction may run faster for more energy, edges say what must end before what
starts, and while a device waits it draws its blocking power. With T the time of the iteration

    joules = sum over instructions of (joules_i - blocking_i * seconds_i) + (sum of blocking) * T

and the planner minimises the first sum for each T (Chung et al., "Perseus", SOSP'24, §4.2).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.frontier import OperatingPoint
from joulery.pipeline._instructions import OPTIMIZER, Instruction
from joulery.pipeline.schedules._check import dependencies
from joulery.pipeline.schedules._schedule import Schedule
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from joulery.pipeline.profiles._read import Profiles


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """What an iteration costs besides its instructions, and how many devices share the plan.

    Attributes:
        communication_seconds: Time from the end of an instruction to the start, on another rank,
            of the one that needs its result.
        blocking_watts: Power of one device while it waits.
        devices_per_rank: Devices that work in step on a stage (tensor-parallel group); the
            profile states the energy of one.
        replicas: Data-parallel copies of the pipeline that follow the same plan.
        microbatch_factors: Work of each microbatch relative to the profile; empty means equal.
        optimizer: Whether each stage ends with an optimizer step, which the profile must hold.
    """

    communication_seconds: float = 0.0
    blocking_watts: float = 0.0
    devices_per_rank: int = 1
    replicas: int = 1
    microbatch_factors: tuple[float, ...] = ()
    optimizer: bool = False

    def __post_init__(self) -> None:
        finite(self.communication_seconds, "communication seconds", minimum=0.0)
        finite(self.blocking_watts, "blocking watts", minimum=0.0)
        for number, name in (
            (self.devices_per_rank, "devices per rank"),
            (self.replicas, "replicas"),
        ):
            if number < 1:
                raise InvalidValueError(f"{number} {name} make no sense", remedy="give at least 1")
        for factor in self.microbatch_factors:
            if not finite(factor, "factor of a microbatch", minimum=0.0):
                raise InvalidValueError(
                    "a microbatch of no work makes no sense", remedy="leave it out"
                )

    @property
    def devices(self) -> int:
        """Devices of one rank over all replicas."""
        return self.devices_per_rank * self.replicas


@dataclass(frozen=True, slots=True)
class ClockChoices:
    """The operating points that one piece of work may run at, by increasing time.

    Unlike on a frontier, slower points may need *more* energy: a device draws power while it
    waits, too, so a clock below the one of least energy still pays where its extra joules are
    fewer than those of waiting.

    Attributes:
        points: Choices, fastest first.
        full_clock: What happens at the highest clock, which need not be a choice: a device that
            throttles may run faster below it.
    """

    points: tuple[OperatingPoint, ...]
    full_clock: OperatingPoint

    def __post_init__(self) -> None:
        if not self.points or any(
            a.seconds >= b.seconds for a, b in itertools.pairwise(self.points)
        ):
            raise InvalidValueError(
                "clock choices are missing or out of order", remedy="sort them by time"
            )

    @classmethod
    def from_points(cls, points: Iterable[OperatingPoint]) -> ClockChoices:
        """Choices that include the highest clock."""
        kept = tuple(points)
        return cls(kept, _highest_clock(kept))

    def scaled(self, factor: float) -> ClockChoices:
        """The choices of ``factor`` times the work."""
        points = tuple(point.scaled(factor) for point in self.points)
        return ClockChoices(points, self.full_clock.scaled(factor))


_ARRAYS: dict[str, Any] = {
    "profile_of": np.int64,
    "edge_from": np.int64,
    "edge_to": np.int64,
    "edge_seconds": np.float64,
    "blocking_watts": np.float64,
}


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """An iteration to plan. Instructions are numbered; arrays refer to these numbers.

    Attributes:
        instructions: Instructions; their order carries no meaning.
        profiles: Clock choices, one entry per distinct piece of work.
        profile_of: (instructions,), position in ``profiles``.
        edge_from: (edges,), instruction that must end before the other starts.
        edge_to: (edges,), instruction that waits.
        edge_seconds: (edges,), time that must pass in between: communication.
        blocking_watts: (ranks,), power of all devices of a rank together while they wait.
        schedule: Name of the schedule.
        source: Name of the profiles.
        config: Settings that the problem was built with.
    """

    instructions: tuple[Instruction, ...]
    profiles: tuple[ClockChoices, ...]
    profile_of: NDArray[np.int64]
    edge_from: NDArray[np.int64]
    edge_to: NDArray[np.int64]
    edge_seconds: NDArray[np.float64]
    blocking_watts: NDArray[np.float64]
    schedule: str = ""
    source: str = ""
    config: PipelineConfig = PipelineConfig()

    def __len__(self) -> int:
        return len(self.instructions)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.blocking_watts)

    @property
    def stages(self) -> int:
        """Number of stages; several may share a rank."""
        return 1 + max(item.stage for item in self.instructions)

    @property
    def microbatches(self) -> int:
        """Number of microbatches per iteration."""
        return 1 + max(item.microbatch for item in self.instructions)

    def waiting_joules(self, durations: NDArray[np.float64], seconds: float) -> float:
        """The energy of waiting in an iteration of ``seconds`` with these durations."""
        busy = np.zeros(self.ranks)
        np.add.at(busy, [item.rank for item in self.instructions], durations)
        return float(self.blocking_watts @ (seconds - busy))

    def to_dict(self) -> dict[str, Any]:
        """The problem as a JSON document."""
        return {
            "schedule": self.schedule,
            "source": self.source,
            "config": asdict(self.config),
            "instructions": [[i.stage, i.rank, i.kind, i.microbatch] for i in self.instructions],
            "profiles": [
                {
                    "points": [point.to_dict() for point in profile.points],
                    "full_clock": profile.full_clock.to_dict(),
                }
                for profile in self.profiles
            ],
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PipelineProblem:
        """The inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: The document is of another kind.
        """
        config = dict(document["config"])
        config["microbatch_factors"] = tuple(config["microbatch_factors"])
        return cls(
            instructions=tuple(Instruction(*item) for item in document["instructions"]),
            profiles=tuple(
                ClockChoices(
                    tuple(OperatingPoint.from_dict(point) for point in profile["points"]),
                    OperatingPoint.from_dict(profile["full_clock"]),
                )
                for profile in document["profiles"]
            ),
            **{name: np.array(document[name], dtype) for name, dtype in _ARRAYS.items()},
            schedule=document["schedule"],
            source=document["source"],
            config=PipelineConfig(**config),
        )


def build_problem(
    schedule: Schedule, profiles: Profiles, config: PipelineConfig | None = None
) -> PipelineProblem:
    """The problem of running ``schedule`` with stages that cost what ``profiles`` say.

    The problem's instructions are numbered rank after rank, in the order of the schedule.

    Raises:
        InvalidValueError: The order is cyclic or incomplete, or a profile is missing.
    """
    config = config or PipelineConfig()
    if config.optimizer:
        schedule = _with_optimizer(schedule)
    edges = dependencies(schedule)
    instructions = schedule.instructions()
    factors = _factors(config, schedule.microbatches)
    found: list[ClockChoices] = []
    number: dict[tuple[int, str, float], int] = {}
    profile_of = np.empty(len(instructions), dtype=np.int64)
    for position, item in enumerate(instructions):
        factor = factors[item.microbatch] if item.microbatch >= 0 else 1.0
        key = (item.stage, item.kind, factor)
        if key not in number:
            number[key] = len(found)
            points = profiles.points(item.stage, item.kind, schedule.stages)
            found.append(_worthwhile(points, config, factor))
        profile_of[position] = number[key]
    return PipelineProblem(
        instructions=instructions,
        profiles=tuple(found),
        profile_of=profile_of,
        edge_from=edges.edge_from,
        edge_to=edges.edge_to,
        edge_seconds=np.where(edges.crosses, config.communication_seconds, 0.0),
        blocking_watts=np.full(len(schedule.ranks), config.blocking_watts * config.devices),
        schedule=schedule.name,
        source=profiles.source,
        config=config,
    )


def _with_optimizer(schedule: Schedule) -> Schedule:
    """The same order, each rank ending with the optimizer step of its stages."""
    ranks = tuple(
        (*steps, *(Instruction(stage, rank, OPTIMIZER, -1) for stage in _unoptimized(steps)))
        for rank, steps in enumerate(schedule.ranks)
    )
    return Schedule(schedule.name, ranks)


def _unoptimized(steps: tuple[Instruction, ...]) -> list[int]:
    done = {item.stage for item in steps if item.kind == OPTIMIZER}
    return sorted({item.stage for item in steps} - done)


def _factors(config: PipelineConfig, microbatches: int) -> tuple[float, ...]:
    factors = config.microbatch_factors or (1.0,) * microbatches
    if len(factors) != microbatches:
        raise InvalidValueError(
            f"{len(factors)} factors for {microbatches} microbatches",
            remedy="give one factor per microbatch",
        )
    return factors


def _worthwhile(
    points: Sequence[OperatingPoint], config: PipelineConfig, factor: float
) -> ClockChoices:
    """The points that pay for their time, for all devices of a rank and ``factor`` times the work.

    A point stays if it needs less than every faster one with the wait for it.
    """
    kept: list[OperatingPoint] = []
    least = math.inf
    for point in sorted(points, key=lambda point: (point.seconds, point.joules)):
        above_waiting = point.joules - config.blocking_watts * point.seconds
        if above_waiting < least and (not kept or point.seconds > kept[-1].seconds):
            least = above_waiting
            kept.append(point)
    scale = factor * config.devices
    full_clock, *choices = (
        replace(p, seconds=p.seconds * factor, joules=p.joules * scale)
        for p in (_highest_clock(points), *kept)
    )
    return ClockChoices(tuple(choices), full_clock)


def clock_hertz(point: OperatingPoint) -> float:
    """The clock of a point; NaN where it names none."""
    return math.nan if point.setting.clock_hertz is None else point.setting.clock_hertz


def _highest_clock(points: Iterable[OperatingPoint]) -> OperatingPoint:
    return max(points, key=lambda point: point.setting.clock_hertz or 0.0)
