"""A schedule and the profile of its stages become a problem to plan."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, lower_hull
from joulery.pipeline.problem import Instruction, Problem
from joulery.pipeline.schedules import Schedule
from joulery.pipeline.schedules_check import dependencies
from joulery.pipeline.schedules_words import OPTIMIZER
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.pipeline.profiles import Profiles


@dataclass(frozen=True, slots=True)
class Choices(Frontier):
    """Operating points by increasing time, of which slower ones may need *more* energy.

    A device draws power while it waits, too. So a clock below the one of least energy still pays
    where its extra joules are fewer than those of waiting: what falls with time is the energy
    above that of waiting.
    """

    def __post_init__(self) -> None:
        if any(a.seconds >= b.seconds for a, b in itertools.pairwise(self.points)):
            raise InvalidValueError("choices out of order", remedy="sort them by time")

    def hull(self) -> Choices:
        """The lower convex hull, the rising end included."""
        return Choices(tuple(lower_hull(self.points)), self.work)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an iteration costs besides its instructions, and how many devices share the plan.

    Attributes:
        communication_seconds: From the end of an instruction to the start, on another rank, of
            the one that needs its result.
        blocking_watts: What one device draws while it waits.
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


def build(
    schedule: Schedule, profiles: Profiles, surroundings: Surroundings | None = None
) -> Problem:
    """The problem of running ``schedule`` with stages that cost what ``profiles`` say.

    The problem's instructions are numbered rank after rank, in the order of the schedule.

    Raises:
        InvalidValueError: The order is cyclic or incomplete, or a profile is missing.
    """
    around = surroundings or Surroundings()
    if around.optimizer:
        schedule = with_optimizer(schedule)
    edges = dependencies(schedule)
    instructions = schedule.instructions()
    factors = _factors(around, schedule.microbatches)
    found: list[Frontier] = []
    number: dict[tuple[int, str, float], int] = {}
    profile_of = np.empty(len(instructions), dtype=np.int64)
    for position, item in enumerate(instructions):
        factor = factors[item.microbatch] if item.microbatch >= 0 else 1.0
        key = (item.stage, item.kind, factor)
        if key not in number:
            number[key] = len(found)
            points = profiles.points(item.stage, item.kind, schedule.stages)
            work = f"{item.kind} of stage {item.stage}"
            found.append(worthwhile(points, around, work, factor))
        profile_of[position] = number[key]
    return Problem(
        instructions=instructions,
        profiles=tuple(found),
        profile_of=profile_of,
        edge_from=edges.edge_from,
        edge_to=edges.edge_to,
        edge_seconds=np.where(edges.crosses, around.communication_seconds, 0.0),
        blocking_watts=np.full(len(schedule.ranks), around.blocking_watts * around.devices),
    )


def with_optimizer(schedule: Schedule) -> Schedule:
    """The same order, each rank ending with the optimizer step of its stages."""
    ranks = tuple(
        (*steps, *(Instruction(stage, rank, OPTIMIZER, -1) for stage in _stages_of(steps)))
        for rank, steps in enumerate(schedule.ranks)
    )
    return Schedule(schedule.name, ranks)


def _stages_of(steps: tuple[Instruction, ...]) -> list[int]:
    done = {item.stage for item in steps if item.kind == OPTIMIZER}
    return sorted({item.stage for item in steps} - done)


def _factors(around: Surroundings, microbatches: int) -> tuple[float, ...]:
    factors = around.microbatch_factors or (1.0,) * microbatches
    if len(factors) != microbatches:
        raise InvalidValueError(
            f"{len(factors)} factors for {microbatches} microbatches",
            remedy="give one factor per microbatch",
        )
    return factors


def worthwhile(
    points: Sequence[OperatingPoint], around: Surroundings, work: str = "", factor: float = 1.0
) -> Choices:
    """The points that pay for their time, for all devices of a rank and ``factor`` times the work.

    A point stays if it needs less than every faster one with the wait for it.
    """
    kept: list[OperatingPoint] = []
    least = math.inf
    for point in sorted(points, key=lambda point: (point.seconds, point.joules)):
        above_waiting = point.joules - around.blocking_watts * point.seconds
        if above_waiting < least and (not kept or point.seconds > kept[-1].seconds):
            least = above_waiting
            kept.append(point)
    scale = factor * around.devices
    return Choices(
        tuple(
            OperatingPoint(p.seconds * factor, p.joules * scale, p.setting, p.provenance)
            for p in kept
        ),
        work,
    )


def at_full_clock(
    problem: Problem, profiles: Profiles, surroundings: Surroundings | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """What every instruction takes at its highest clock: seconds, joules, hertz.

    That is what happens where nobody plans. It need not be the fastest: a device that throttles
    may run faster below its highest clock.
    """
    around = surroundings or Surroundings()
    stages = 1 + max(item.stage for item in problem.instructions)
    factors = _factors(around, 1 + max(item.microbatch for item in problem.instructions))
    found = np.empty((len(problem), 3))
    highest: dict[tuple[int, str], OperatingPoint] = {}
    for position, item in enumerate(problem.instructions):
        key = (item.stage, item.kind)
        if key not in highest:
            points = profiles.points(item.stage, item.kind, stages)
            highest[key] = max(points, key=lambda point: point.setting.clock_hertz or 0.0)
        point = highest[key]
        factor = factors[item.microbatch] if item.microbatch >= 0 else 1.0
        joules = point.joules * factor * around.devices
        found[position] = point.seconds * factor, joules, point.setting.clock_hertz or 0.0
    return found[:, 0], found[:, 1], found[:, 2]
