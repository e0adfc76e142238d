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
from joulery.pipeline._instructions import OPTIMIZER, REDUCE, Instruction
from joulery.pipeline.profiles._read import full_clock
from joulery.pipeline.schedules._check import dependencies
from joulery.pipeline.schedules._schedule import Schedule, check_instructions
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from joulery.pipeline.profiles._read import Profiles


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Costs of an iteration besides its instructions, and the number of devices of the plan.

    Attributes:
        communication_seconds: Time from the end of an instruction to the start, on another rank,
            of the one that needs its result. One figure, or one per link: the first between ranks
            0 and 1, the last, if there are as many links as ranks, back from the last rank to 0; by
            default what the profile states.
        reduction_seconds: Time that each rank reduces gradients between replicas at the end of
            an iteration, as far as backward passes do not hide it; one figure, or one per rank; by
            default what the profile states.
        blocking_watts: Power of one device while it waits; by default what the profile states.
        devices_per_rank: Devices that work in step on a stage (tensor-parallel group); the
            profile states the energy of one.
        replicas: Data-parallel copies of the pipeline that follow the same plan.
        microbatch_factors: Work of each microbatch relative to the profile; empty means equal.
        optimizer: Whether each stage ends with an optimizer step, which the profile must hold.
        board_watts: Power limit of one device, which counts as an upper clock; None without.
    """

    communication_seconds: float | tuple[float, ...] | None = None
    reduction_seconds: float | tuple[float, ...] | None = None
    blocking_watts: float | None = None
    devices_per_rank: int = 1
    replicas: int = 1
    microbatch_factors: tuple[float, ...] = ()
    optimizer: bool = False
    board_watts: float | None = None

    def __post_init__(self) -> None:
        for name in ("communication_seconds", "reduction_seconds"):
            value = getattr(self, name) or 0.0
            for seconds in value if isinstance(value, tuple) else (value,):
                finite(seconds, name.replace("_", " "), minimum=0.0)
        for name in ("blocking_watts", "board_watts"):
            if getattr(self, name) is not None:
                finite(getattr(self, name), name.replace("_", " "), minimum=0.0)
        for number, name in (
            (self.devices_per_rank, "devices per rank"),
            (self.replicas, "replicas"),
        ):
            if number < 1:
                raise InvalidValueError(f"cannot plan {number} {name}", remedy="give at least 1")
        for factor in self.microbatch_factors:
            if not finite(factor, "factor of a microbatch", minimum=0.0):
                raise InvalidValueError("a microbatch has no work", remedy="leave it out")

    @property
    def devices(self) -> int:
        """Devices of one rank over all replicas."""
        return self.devices_per_rank * self.replicas

    def hop_seconds(self, ranks: int) -> NDArray[np.float64]:
        """(ranks, ranks), the communication time from one rank to another."""
        links = self.communication_seconds or 0.0
        if not isinstance(links, tuple):
            return np.full((ranks, ranks), links)
        if len(links) not in (ranks - 1, ranks):
            raise InvalidValueError(
                f"{len(links)} communication times for {ranks} ranks",
                remedy=f"give one, or {ranks - 1} (one per link), or {ranks} (with the way back)",
            )
        at = np.concatenate([[0.0], np.cumsum(links[: ranks - 1])])
        hops: NDArray[np.float64] = np.abs(at[:, None] - at[None, :])
        if len(links) == ranks > 2:
            hops[0, -1] = hops[-1, 0] = links[-1]
        return hops

    def reductions(self, ranks: int) -> tuple[float, ...]:
        """The reduction time of each rank."""
        return _one_each(self.reduction_seconds or 0.0, ranks, "reduction times", "ranks")


@dataclass(frozen=True, slots=True)
class ClockChoices:
    """The operating points that one piece of work may run at, by increasing time.

    Unlike on a frontier, slower points may need *more* energy: a device draws power while it
    waits, too, so a clock below the one of least energy still pays where its extra joules are
    fewer than those of waiting.

    Attributes:
        points: Choices, fastest first.
        others: Measured points that are no choice, such as the highest clock of a device that
            throttles and runs faster below it.
    """

    points: tuple[OperatingPoint, ...]
    others: tuple[OperatingPoint, ...] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidValueError(
                "the clock choices of a piece of work are missing",
                remedy="measure it at one clock or more",
            )
        for a, b in itertools.pairwise(self.points):
            if a.seconds >= b.seconds:
                raise InvalidValueError(
                    f"the clock choices of a piece of work are out of order: {b.seconds:g} s at "
                    f"{b.setting} comes after {a.seconds:g} s at {a.setting}",
                    remedy="give each time once, the fastest first; "
                    "put points that must not be chosen into `others`",
                )

    @property
    def full_clock(self) -> OperatingPoint:
        """The point at the highest clock that does not throttle; it need not be a choice."""
        return full_clock((*self.points, *self.others))

    def scaled(self, factor: float) -> ClockChoices:
        """The choices of ``factor`` times the work."""
        points = [point.scaled(factor) for point in self.points]
        # Times that differ in the last digit may become equal.
        choices = [p for k, p in enumerate(points) if not k or p.seconds > points[k - 1].seconds]
        dominated = [point.scaled(factor) for point in self.others]
        return ClockChoices(tuple(choices), (*dominated, *(p for p in points if p not in choices)))


# Times that differ by less, as on the flat end of a fitted curve, are equal: no energy should be
# spent on the difference, and slopes in between would be beyond any precision; by hand.
_SAME_TIME = 1e-7

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

    def rescaled(self, factors: Mapping[tuple[int, str], float]) -> PipelineProblem:
        """The same pipeline with the time of some work (stage, kind) changed, not its power."""
        profiles = list(self.profiles)
        for position, item in self._work_of().items():
            factor = factors.get((item.stage, item.kind), 1.0)
            if factor != 1.0:
                profiles[position] = profiles[position].scaled(factor)
        return replace(self, profiles=tuple(profiles))

    def limited(self, watts: float) -> PipelineProblem:
        """The same pipeline on devices that are limited to ``watts`` each.

        A limit counts as an upper clock: work may run at clocks at which it draws no more. Work
        that draws more at every clock keeps its lowest.
        """
        limit = finite(watts, "power limit of a device", minimum=0.0) * self.config.devices
        profiles = list(self.profiles)
        for position, item in self._work_of().items():
            blocking = float(self.blocking_watts[item.rank])
            profiles[position] = _limited(profiles[position], limit, blocking)
        return replace(self, profiles=tuple(profiles))

    def _work_of(self) -> dict[int, Instruction]:
        """An instruction of each profile; its stage, rank and kind are those of all of them."""
        return dict(zip(self.profile_of.tolist(), self.instructions, strict=True))

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
                    "others": [point.to_dict() for point in profile.others],
                }
                for profile in self.profiles
            ],
            **{name: getattr(self, name).tolist() for name in _ARRAYS},
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PipelineProblem:
        """The inverse of ``to_dict``.

        Raises:
            KeyError, TypeError, ValueError: The document is of another kind.
        """
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in dict(document["config"]).items()
        }
        return cls(
            instructions=tuple(Instruction(*item) for item in document["instructions"]),
            profiles=tuple(
                ClockChoices(
                    *(
                        tuple(OperatingPoint.from_dict(point) for point in profile[name])
                        for name in ("points", "others")
                    )
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
        InvalidValueError: The order is cyclic or incomplete, a profile is missing, settings do not
            fit the pipeline, or boards are limited to less than the lowest clocks draw.
    """
    check_instructions(sum(map(len, schedule.ranks)))
    config = _resolve(config or PipelineConfig(), profiles, len(schedule.ranks))
    schedule = _with_endings(schedule, config)
    edges = dependencies(schedule)
    instructions = schedule.instructions()
    ranks = np.array([item.rank for item in instructions])
    factors = _one_each(
        config.microbatch_factors or 1.0, schedule.microbatches, "factors", "microbatches"
    )
    reductions = config.reductions(len(schedule.ranks))
    waiting = _blocking_watts(schedule, profiles, config)
    choices: list[ClockChoices] = []
    number: dict[tuple[int, str, float], int] = {}
    profile_of = np.empty(len(instructions), dtype=np.int64)
    for position, item in enumerate(instructions):
        factor = factors[item.microbatch] if item.microbatch >= 0 else 1.0
        key = (item.stage, item.kind, factor)
        if key not in number:
            number[key] = len(choices)
            if item.kind == REDUCE and not profiles.measured(item.stage, REDUCE, schedule.stages):
                choices.append(_reduction(reductions[item.rank], waiting[item.rank]))
            else:
                points = profiles.points(item.stage, item.kind, schedule.stages)
                all_devices = _for_devices(points, config.devices, factor)
                choices.append(_choices(all_devices, waiting[item.rank]))
        profile_of[position] = number[key]
    hops = config.hop_seconds(len(schedule.ranks))
    hop = hops[ranks[edges.edge_from], ranks[edges.edge_to]]
    problem = PipelineProblem(
        instructions=instructions,
        profiles=tuple(choices),
        profile_of=profile_of,
        edge_from=edges.edge_from,
        edge_to=edges.edge_to,
        edge_seconds=np.where(edges.crosses, hop, 0.0),
        blocking_watts=np.array(waiting),
        schedule=schedule.name,
        source=profiles.source,
        config=config,
    )
    if config.board_watts is None:
        return problem
    check_limit(problem, config.board_watts)
    return problem.limited(config.board_watts)


def check_limit(problem: PipelineProblem, watts: float) -> None:
    """Refuse a limit of boards that even the lowest clock of some work exceeds.

    A board would throttle below what was profiled then, and its times are not known.

    Raises:
        InvalidValueError: Some work draws more at its lowest profiled clock.
    """
    finite(watts, "power limit of a device", minimum=0.0)
    lowest = max(
        (
            min(point.watts for point in (*profile.points, *profile.others))
            for profile in problem.profiles
            if profile.full_clock.setting.clock_hertz is not None
        ),
        default=0.0,
    )
    if lowest > watts * problem.config.devices:
        raise InvalidValueError(
            f"some work draws {lowest / problem.config.devices:.4g} W per device at its lowest "
            f"profiled clock, more than the board limit of {watts:g} W",
            remedy="raise the limit, or profile lower clocks",
        )


def _resolve(config: PipelineConfig, profiles: Profiles, ranks: int) -> PipelineConfig:
    """The settings with what the profile states where they do not; waiting draws less than work."""
    stated = max(profiles.waiting_watts, default=0.0)
    watts = stated if config.blocking_watts is None else config.blocking_watts
    highest = max(p.watts for profile in profiles.instructions.values() for p in profile.points)
    if watts > highest:
        raise InvalidValueError(
            f"a device cannot draw {watts:g} W while it waits if it draws {highest:.4g} W at most "
            "while it works",
            remedy="give the power of one waiting device, as nvidia-smi shows it",
        )
    if config.reduction_seconds is None:
        config = replace(config, reduction_seconds=profiles.reduction_seconds)
    if config.communication_seconds is None:
        links = profiles.communication_seconds
        # Of other links than the profile's the quickest counts: too long ones would slow plans.
        seconds = links if len(links) == ranks - 1 else min(links, default=0.0)
        config = replace(config, communication_seconds=seconds)
    return config


def _blocking_watts(
    schedule: Schedule, profiles: Profiles, config: PipelineConfig
) -> tuple[float, ...]:
    """The power of all devices of each rank while they wait."""
    if config.blocking_watts is not None:
        return (config.blocking_watts * config.devices,) * len(schedule.ranks)
    watts = []
    for order in schedule.ranks:
        stages = {item.stage for item in order}
        total = math.fsum(profiles.waiting(stage, schedule.stages) for stage in stages)
        watts.append(total / max(1, len(stages)) * config.devices)
    return tuple(watts)


def _with_endings(schedule: Schedule, config: PipelineConfig) -> Schedule:
    """The same order, with the reduction of gradients and the optimizer steps that it lacks."""
    reductions = config.reductions(len(schedule.ranks))
    ranks = []
    for rank, order in enumerate(schedule.ranks):
        steps = list(order)
        kinds = {(item.stage, item.kind) for item in steps}
        stages = sorted({item.stage for item in steps})
        if reductions[rank] and stages and not any(kind == REDUCE for _, kind in kinds):
            last = max(k for k, item in enumerate(steps) if item.kind != OPTIMIZER)
            steps.insert(last + 1, Instruction(stages[0], rank, REDUCE, -1))
        if config.optimizer:
            missing = [stage for stage in stages if (stage, OPTIMIZER) not in kinds]
            steps += [Instruction(stage, rank, OPTIMIZER, -1) for stage in missing]
        ranks.append(tuple(steps))
    return Schedule(schedule.name, tuple(ranks))


def _reduction(seconds: float, blocking_watts: float) -> ClockChoices:
    """A reduction of gradients: the device waits for its links, at whatever clock."""
    if not seconds:
        raise InvalidValueError(
            "the order has a reduction of gradients that takes no time",
            remedy="give reduction_seconds, or rows `reduce` in the profile",
        )
    return ClockChoices((OperatingPoint(seconds, blocking_watts * seconds),))


def _one_each(
    figure: float | tuple[float, ...], count: int, figures: str, owners: str
) -> tuple[float, ...]:
    """One figure for each of ``count``, where one is given for all or one for each."""
    figures_by_owner = figure if isinstance(figure, tuple) else (figure,) * count
    if len(figures_by_owner) != count:
        raise InvalidValueError(
            f"{len(figures_by_owner)} {figures} for {count} {owners}",
            remedy=f"give one for each of the {count} {owners}",
        )
    return figures_by_owner


def _for_devices(
    points: Sequence[OperatingPoint], devices: int, factor: float
) -> list[OperatingPoint]:
    """The points for all devices of a rank and ``factor`` times the work."""
    scale = factor * devices
    return [replace(p, seconds=p.seconds * factor, joules=p.joules * scale) for p in points]


def _choices(points: Sequence[OperatingPoint], blocking_watts: float) -> ClockChoices:
    """The points that are a choice: they need less than every faster one with the wait for it."""
    choices: list[OperatingPoint] = []
    dominated: list[OperatingPoint] = []
    least = math.inf
    for point in sorted(points, key=lambda point: (point.seconds, point.joules)):
        above_waiting = point.joules - blocking_watts * point.seconds
        if above_waiting >= least:
            dominated.append(point)
            continue
        least = above_waiting
        if choices and point.seconds <= choices[-1].seconds * (1 + _SAME_TIME):
            faster = choices.pop()
            dominated.append(faster)
            point = replace(point, seconds=faster.seconds)  # noqa: PLW2901 - as good as equal
        choices.append(point)
    return ClockChoices(tuple(choices), tuple(dominated))


def _limited(profile: ClockChoices, limit_watts: float, blocking_watts: float) -> ClockChoices:
    """The choices that draw at most so much; the lowest clock where none does."""
    points = [*profile.points, *profile.others]
    clocked = [point for point in points if point.setting.clock_hertz is not None]
    if not clocked:
        return profile
    fitting = [point for point in clocked if point.watts <= limit_watts]
    return _choices(fitting or [min(clocked, key=clock_hertz)], blocking_watts)


def clock_hertz(point: OperatingPoint) -> float:
    """The clock of a point; NaN where it names none."""
    return math.nan if point.setting.clock_hertz is None else point.setting.clock_hertz
