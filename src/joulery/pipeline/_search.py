"""Plan a pipeline, and choose its schedule and the partition of its layers together with clocks.

A schedule with a smaller bubble is done sooner at full clocks, and can give that time back at lower
clocks. What it costs is charged: every hop between ranks takes its communication time, and the
activations that each rank must hold are counted, so that a schedule which does not fit the memory
is not chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.arguments import check_type, check_whole
from joulery.errors import InfeasibleError, InvalidValueError
from joulery.pipeline._instructions import BACKWARD, BACKWARD_WEIGHT, FORWARD, RECOMPUTE
from joulery.pipeline.planning._planner import PipelinePlan
from joulery.pipeline.planning._problem import PipelineConfig, build_problem
from joulery.pipeline.profiles._read import (
    Profiles,
    balanced_layers,
    read_profiles,
    repartitioned,
)
from joulery.pipeline.schedules._custom import read_schedule
from joulery.pipeline.schedules._schedule import (
    MOST_COMPARED,
    SCHEDULES,
    Schedule,
    check_instructions,
    make_schedule,
)
from joulery.units import human

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.pipeline.planning._planner import ClockPlan

# Schedules are compared at its pace and with its memory by default, as most pipelines run it.
_REFERENCE = "1f1b"
# Sums that differ by less are equal.
_SAME = 1e-9
# Energies this close are the same: plans lie up to that far above their bound anyway.
_ALIKE = 1e-3
# Smaller numbers of microbatches to compare at, per rank; by hand.
_PER_RANK = (1, 2, 4, 8)
# Another partition must save more than this share to be worth moving layers; by hand.
_WORTH_MOVING = 1e-3


_PROFILES = "give the path of a profile, or profiles_from_rows(…)"
_ORDER = "give auto, 1f1b, or the path of a custom order"


def plan_pipeline(
    profiles: Profiles | Path | str,
    *,
    schedule: str | Path | Schedule = _REFERENCE,
    microbatches: int | None = None,
    ranks: int | None = None,
    chunks: int = 2,
    config: PipelineConfig | None = None,
) -> PipelinePlan:
    """Plan the clock of every instruction of a pipeline-parallel iteration.

    Args:
        profiles: Measured stages, or the file that holds them.
        schedule: Name of a schedule, ``auto`` for the one of least energy, the path of a file with
            a custom order, or a schedule object.
        microbatches: Number of microbatches per iteration; needed for schedules by name.
        ranks: Number of ranks; by default the number of profiled stages.
        chunks: Stages per rank of ``interleaved``.
        config: Communication, waiting, and devices that share the plan.

    Raises:
        InvalidValueError: Schedule, profiles and numbers do not fit each other.

    Examples:
        >>> plan = plan_pipeline("gpt3.csv", schedule="1f1b", microbatches=32)     # doctest: +SKIP
        >>> plan.at(1.1 * plan.fastest_seconds).clocks_hertz                       # doctest: +SKIP
        >>> plan.save("plan.json")                                                 # doctest: +SKIP
    """
    check_type(profiles, Profiles | Path | str, "profiles must be a file or Profiles", _PROFILES)
    check_type(schedule, str | Path | Schedule, "schedule must be a name, path or order", _ORDER)
    check_type(config, PipelineConfig | None, "config must be a PipelineConfig", "leave it out")
    if ranks is not None:
        check_whole(ranks, "ranks")
    if not isinstance(profiles, Profiles):
        profiles = read_profiles(Path(profiles))
    if schedule == "auto":
        count = _require(microbatches)
        return search_schedules(profiles, count, ranks=ranks, config=config).best.plan
    if not isinstance(schedule, Schedule):
        stages = profiles.stages if ranks is None else ranks
        schedule = _schedule(str(schedule), microbatches, stages, chunks)
    for request, actual, noun in (
        (microbatches, schedule.microbatches, "microbatches"),
        (ranks, len(schedule.ranks), "ranks"),
    ):
        if request not in (None, actual):
            raise InvalidValueError(
                f"asked for {request} {noun}, but {schedule.name} has {actual}",
                remedy="give what the order has",
            )
    return PipelinePlan(build_problem(schedule, profiles, config))


def _schedule(name: str, microbatches: int | None, ranks: int, chunks: int) -> Schedule:
    if name in SCHEDULES or not _exists(Path(name)):
        return make_schedule(name, ranks, _require(microbatches), chunks=chunks)
    return read_schedule(Path(name))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for a file
        return False


def _require(microbatches: int | None) -> int:
    if microbatches is None:
        raise InvalidValueError(
            f"a schedule by name needs the number of microbatches, not {microbatches!r}",
            remedy="give microbatches=16, say",
        )
    return check_whole(microbatches, "microbatches")


@dataclass(frozen=True, slots=True)
class ScheduleCandidate:
    """A schedule with its plans, and what it needs besides energy.

    Attributes:
        schedule: Order of the instructions.
        plan: Plans of the pipeline under that schedule.
        activations: Largest number of microbatches of activations that a rank holds at once.
        activation_bytes: Most memory that activations take on a device; None where the profile
            does not say what they take.
        transfers: Messages between ranks per iteration.
        best: Plan of least energy within the deadline of the comparison; None if even the
            fastest takes longer.
    """

    schedule: Schedule
    plan: PipelinePlan
    activations: float
    activation_bytes: float | None
    transfers: int
    best: ClockPlan | None

    @property
    def joules(self) -> float | None:
        """Energy of the best plan."""
        return None if self.best is None else self.best.joules


@dataclass(frozen=True, slots=True)
class ScheduleComparison:
    """All schedules for one number of microbatches.

    Attributes:
        microbatches: Number of microbatches.
        pace_seconds: Time of an iteration of 1F1B at full clocks.
        deadline_seconds: Time that every schedule may take.
        full_clocks_joules: Energy of 1F1B at full clocks.
        max_activations: Microbatches of activations that fit a rank: what 1F1B holds.
        memory_bytes: Memory for activations on a device; None for ``max_activations``.
        candidates: Schedules that can run, in the order of ``SCHEDULES``.
        refused: Reasons why the others cannot, by name.
    """

    microbatches: int
    pace_seconds: float
    deadline_seconds: float
    full_clocks_joules: float
    max_activations: float
    memory_bytes: float | None
    candidates: tuple[ScheduleCandidate, ...]
    refused: dict[str, str]

    def fits(self, candidate: ScheduleCandidate) -> bool:
        """Whether a candidate's activations fit the memory."""
        if self.memory_bytes is not None:
            return (candidate.activation_bytes or 0.0) <= self.memory_bytes * (1 + _SAME)
        return candidate.activations <= self.max_activations * (1 + _SAME)

    def best(self, *, any_memory: bool = False) -> ScheduleCandidate | None:
        """The candidate of least energy that meets the deadline and fits the memory, if any.

        Of those that need practically the same, the one with the least memory, then with the
        fewest messages: where time is ample, many reach the least energy there is.
        """
        fitting = [
            (candidate.joules, candidate)
            for candidate in self.candidates
            if candidate.joules is not None and (any_memory or self.fits(candidate))
        ]
        if not fitting:
            return None
        least_joules = min(joules for joules, _ in fitting)
        alike = [
            candidate for joules, candidate in fitting if joules <= least_joules * (1 + _ALIKE)
        ]
        # Sums differ in their last digits, which must not decide.
        return min(
            alike, key=lambda candidate: (round(candidate.activations, 6), candidate.transfers)
        )

    def infeasible(self) -> InfeasibleError:
        """The reason why there is no best candidate."""
        in_time = [c for c in self.candidates if c.best is not None]
        if not in_time:
            fastest = min(c.plan.fastest_seconds for c in self.candidates)
            return InfeasibleError(
                f"no schedule ends within {self.deadline_seconds:g} s",
                remedy=f"the fastest takes {fastest:.6g} s; allow at least that",
            )
        if self.memory_bytes is None:
            capacity = f"{self.max_activations:g} microbatches of activations"
            requirement = f"{min(c.activations for c in in_time):g} microbatches"
        else:
            capacity = human(self.memory_bytes, "B")
            requirement = human(min(c.activation_bytes or 0.0 for c in in_time), "B")
        return InfeasibleError(
            f"no schedule gets by with {capacity} in {self.deadline_seconds:g} s",
            remedy=f"make room for {requirement}, or recompute activations",
        )


@dataclass(frozen=True, slots=True)
class ScheduleSearch:
    """The result of a search over schedules and partitions.

    Attributes:
        comparisons: Comparisons at growing numbers of microbatches, the wanted one last.
        best: Candidate of least energy.
        layers: Layers of each stage as profiled; empty if not given.
        moved_layers: Other partition that was tried; empty if none was.
        moved_best: Best candidate of the other partition; None if there is none.
    """

    comparisons: tuple[ScheduleComparison, ...]
    best: ScheduleCandidate
    layers: tuple[int, ...] = ()
    moved_layers: tuple[int, ...] = ()
    moved_best: ScheduleCandidate | None = None

    @property
    def wanted(self) -> ScheduleComparison:
        """The comparison for the wanted number of microbatches."""
        return self.comparisons[-1]


def search_schedules(  # noqa: PLR0913 - each is an option of the command line, too
    profiles: Profiles,
    microbatches: int,
    *,
    ranks: int | None = None,
    config: PipelineConfig | None = None,
    deadline_seconds: float | None = None,
    memory_bytes: float | None = None,
    layers: Sequence[int] = (),
) -> ScheduleSearch:
    """Compare all schedules, and another partition if the layers are known.

    Args:
        profiles: Measured stages.
        microbatches: Number of microbatches per iteration.
        ranks: Number of ranks; by default the number of profiled stages.
        config: Communication, waiting, and devices that share the plan.
        deadline_seconds: Time that an iteration may take; by default that of 1F1B at full clocks.
        memory_bytes: Memory for activations on a device; by default what 1F1B needs. The profile
            must say what the activations of each stage take.
        layers: Layers of each profiled stage, to try the partition whose slowest stage is fastest.

    Raises:
        InfeasibleError: No schedule meets the deadline and fits the memory.
    """
    if memory_bytes is not None and not profiles.activation_bytes:
        raise InvalidValueError(
            "the profile does not say how much memory activations take",
            remedy="add a column activation_bytes: bytes of one microbatch in the stage",
        )
    ranks = profiles.stages if ranks is None else ranks
    compare = partial(compare_schedules, ranks=ranks, config=config, memory_bytes=memory_bytes)
    comparison = compare(profiles, microbatches, deadline_seconds=deadline_seconds)
    counts = [ranks * factor for factor in _PER_RANK if ranks * factor < microbatches]
    smaller = [compare(profiles, count) for count in counts]
    plain = comparison.best()
    if plain is None:
        raise comparison.infeasible()
    search = ScheduleSearch((*smaller, comparison), plain, tuple(layers))
    balanced = balanced_layers(profiles, layers) if layers else ()
    if balanced == search.layers:
        return search
    rearranged = compare(
        repartitioned(profiles, layers, balanced),
        microbatches,
        deadline_seconds=comparison.deadline_seconds,
    )
    # What 1F1B holds as profiled is the memory that is there.
    winner = replace(rearranged, max_activations=comparison.max_activations).best()
    search = replace(search, moved_layers=balanced, moved_best=winner)
    least = (plain.joules or 0.0) * (1 - _WORTH_MOVING)
    if winner is None or (winner.joules or 0.0) >= least:
        return search
    return replace(search, best=winner)


def compare_schedules(
    profiles: Profiles,
    microbatches: int,
    *,
    ranks: int | None = None,
    config: PipelineConfig | None = None,
    deadline_seconds: float | None = None,
    memory_bytes: float | None = None,
) -> ScheduleComparison:
    """Plan every schedule for one number of microbatches; arguments as in the search."""
    ranks = profiles.stages if ranks is None else ranks
    check_instructions(2 * ranks * microbatches, MOST_COMPARED)
    plans: dict[str, tuple[Schedule, PipelinePlan]] = {}
    refused = {}
    for name in SCHEDULES:
        try:
            order = make_schedule(name, ranks, microbatches)
        except InvalidValueError as error:
            refused[name] = error.message
            continue
        plans[name] = order, PipelinePlan(build_problem(order, profiles, config))
    reference, plan = plans[_REFERENCE]
    full = plan.full_clocks
    deadline = full.seconds if deadline_seconds is None else deadline_seconds
    return ScheduleComparison(
        microbatches,
        full.seconds,
        deadline,
        full.joules,
        max(activations_in_flight(reference, profiles.sizes)),
        memory_bytes,
        tuple(_candidate(order, plan, profiles, deadline) for order, plan in plans.values()),
        refused,
    )


def _candidate(
    order: Schedule, plan: PipelinePlan, profiles: Profiles, deadline: float
) -> ScheduleCandidate:
    problem = plan.problem
    ranks = [item.rank for item in problem.instructions]
    edges = zip(problem.edge_from.tolist(), problem.edge_to.tolist(), strict=True)
    sizes = profiles.activation_bytes
    try:
        best = plan.best_by(deadline)
    except InfeasibleError:
        best = None
    return ScheduleCandidate(
        schedule=order,
        plan=plan,
        activations=max(activations_in_flight(order, profiles.sizes)),
        activation_bytes=max(activations_in_flight(order, sizes)) if sizes else None,
        transfers=sum(ranks[before] != ranks[after] for before, after in edges),
        best=best,
    )


def activations_in_flight(order: Schedule, sizes: Sequence[float] = ()) -> tuple[float, ...]:
    """The most that each rank holds at once, in microbatches of a whole rank or in ``sizes``.

    Activations live from the forward (or the recomputation) to the end of the backward, the
    gradient of the weights included. A rank with several stages holds a fraction per stage.

    Args:
        order: Schedule.
        sizes: Activations of one microbatch in each profiled stage, relative or in bytes.
    """
    recomputing = {item.stage for rank in order.ranks for item in rank if item.kind == RECOMPUTE}
    peaks = []
    for rank in order.ranks:
        in_flight = peak = 0.0
        for item in rank:
            size = sizes[item.stage * len(sizes) // order.stages] if sizes else 1.0
            if item.kind == (RECOMPUTE if item.stage in recomputing else FORWARD):
                in_flight += size
                peak = max(peak, in_flight)
            elif item.kind in (BACKWARD, BACKWARD_WEIGHT):
                in_flight -= size
        peaks.append(peak / order.chunks)
    return tuple(peaks)
