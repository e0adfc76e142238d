"""Every way to do a training that divides and fits into memory, as columns.

Device types, counts, parallel plans, micro-batches, batch sizes and power limits; times, energies,
money and carbon of all of them are columns, so that tens of thousands take seconds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.objectives import Totals, parse_objective, score
from joulery.prediction._assumptions import embodied_grams, lost_time, waiting_share
from joulery.prediction._bayes import NINETY_BELOW, Belief, interval_scale
from joulery.prediction._calibrate import predict_times
from joulery.prediction._limits import power_limits
from joulery.prediction._memory import FITS_SHARE, plan_memory
from joulery.prediction._plan import Plan
from joulery.prediction._power import (
    LEAST_POWER_DEVIATION,
    Load,
    plan_load,
    response,
    step_totals,
)
from joulery.prediction._task import Task
from joulery.units import finite, grams_co2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from joulery.prediction._assumptions import Assumptions
    from joulery.prediction._bayes import Array
    from joulery.prediction._calibrate import Calibration
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer

    Rows = NDArray[np.intp]

OBJECTIVES = ("energy", "time", "money", "carbon")
# Power limits to look at, evenly spaced, and the largest micro-batch; by hand.
_LIMITS, _LARGEST_MICRO_BATCH = 7, 8
# Batch sizes to look at around the given one where the critical batch size is known; by hand.
_BATCH_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# Sequences per step where none are given. Pre-training: 8 M tokens of 8,192, as Llama 3 had on
# average. Fine-tuning: between QLoRA's 16 and the 128 of Alpaca and Tulu 3.
_TRAINING_BATCH, _TUNING_BATCH = 1024, 64
# Deviation of samples to the target at another batch size than the given one; by hand.
_CONVERGENCE_DEVIATION = 0.1
# Relative to the smallest batch and its samples; chosen on MLPerf's reference points, leaving
# each batch size out in turn.
_CONVERGENCE_START = Belief.independent(np.array([0.0, 1.0]), np.array([1.0, 1.5]))
_CONVERGENCE_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Convergence:
    """Samples to the target: ``least * (1 + batch / critical)``.

    Below the critical batch size more samples per step cost no more samples in all; above it they
    buy nothing.

    Attributes:
        critical_batch: Critical batch size, in samples (sequences, for language models).
    """

    critical_batch: float

    def __post_init__(self) -> None:
        finite(self.critical_batch, "critical batch size", minimum=1e-9)

    def factor(self, batch: float, reference: float) -> float:
        """Samples to the target at a batch size, relative to those at the reference."""
        return (1 + batch / self.critical_batch) / (1 + reference / self.critical_batch)

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float]]) -> Convergence:
        """Convergence through measured pairs of batch size and samples to the target."""
        if len({batch for batch, _ in points}) < 2:
            raise InvalidValueError(
                "a critical batch size needs two batch sizes",
                remedy="give the samples to the target at two batch sizes or more",
            )
        batch, samples = np.array(sorted(points), float).T

        def model(constants: Array) -> Array:
            return np.asarray(constants[0] + np.log1p(batch / batch[0] / np.exp(constants[1])))

        after = _CONVERGENCE_START.update(model, np.log(samples / samples[0]), _CONVERGENCE_NOISE)
        return cls(float(np.exp(after.mean[1]) * batch[0]))


@dataclass(frozen=True, slots=True)
class Work:
    """The training to be done.

    Attributes:
        tokens: Tokens to train on, at the batch size given.
        batch_size: Sequences per step; where None 1024, and 64 for a fine-tuning.
        precision: Precision of the matrix products; devices that lack it use ``bf16``, or ``fp16``
            where they lack that too.
        deadline_seconds: Time that the training may take, kept with 90 % confidence.
        convergence: Growth of the tokens to the same loss with the batch size; where given, batch
            sizes from a quarter to four times the given one are candidates too.
        framework: Framework of the training, as in a plan.
        task: What a step computes.
    """

    tokens: float
    batch_size: int | None = None
    precision: str = "bf16"
    deadline_seconds: float | None = None
    convergence: Convergence | None = None
    framework: str = "megatron"
    task: Task = field(default_factory=Task)

    @property
    def sequences_per_step(self) -> int:
        """The batch size, or the usual one of the task."""
        if self.batch_size is not None:
            return self.batch_size
        return _TUNING_BATCH if self.task.is_tuning else _TRAINING_BATCH

    def batch_sizes(self) -> list[int]:
        """Batch sizes to look at."""
        if self.convergence is None:
            return [self.sequences_per_step]
        return sorted(
            {max(1, round(factor * self.sequences_per_step)) for factor in _BATCH_FACTORS}
        )

    def steps(self, sequence: int, batch: int) -> float:
        """Number of optimizer steps to the same loss at a batch size."""
        tokens = self.tokens
        if self.convergence is not None:
            tokens *= self.convergence.factor(batch, self.sequences_per_step)
        return tokens / (batch * sequence * self.task.useful_share(sequence))


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """Candidates of one device type as columns."""

    device: Accelerator
    plans: list[Plan]
    plan: Rows  # index of each candidate's plan
    limit: Array  # power limit of each candidate in watts
    costs: dict[str, Array]  # column per objective: joules, seconds, dollars, grams
    memory: Array  # bytes that each candidate reserves
    deviation: Array  # standard deviation of the logarithm of each candidate's time of steps
    power_deviation: Array  # likewise, of the power
    rent_guessed: bool = False

    def late_seconds(self) -> Array:
        """Time that each candidate keeps with 90 % confidence."""
        deviation = np.hypot(self.deviation, lost_time().deviation)
        return np.asarray(self.costs["time"] * np.exp(NINETY_BELOW * deviation))

    def cost(self, objective: str) -> Array:
        """Column of a cost, by name or by the text of an objective of time and energy."""
        if objective in self.costs:
            return self.costs[objective]
        seconds, joules = self.costs["time"], self.costs["energy"]
        goal = parse_objective(objective, float((joules / seconds).max()))
        fastest = int(seconds.argmin())
        reference = Totals(float(seconds[fastest]), float(joules[fastest]))
        return np.asarray(score(goal, seconds, joules, reference), float)

    def within(self, deadline: float | None) -> Rows:
        """Candidates that keep the deadline with 90 % confidence."""
        if deadline is None:
            return np.arange(len(self.plan))
        return np.flatnonzero(self.late_seconds() <= deadline)


def tabulate(
    model: Transformer,
    work: Work,
    board: Accelerator,
    max_devices: int,
    assumed: Assumptions,
    calibration: Calibration,
) -> CandidateTable | None:
    """Candidates of one device type; None where nothing fits."""
    pairs = list(candidate_plans(model, work, board, max_devices))
    if not pairs:
        return None
    plans = [plan for plan, _ in pairs]
    times = predict_times(model, plans, board, calibration)
    factor, power_deviation = calibration.power(board)
    limits = power_limits(board, _LIMITS)
    constants = calibration.belief(board).mean
    loads = [
        plan_load(constants, parts, float(total), factor)
        for parts, total in zip(times.parts, times.seconds, strict=True)
    ]
    steps = np.array([work.steps(model.sequence, plan.batch_size) for plan in plans])[:, None]
    responses = [_rounded_response(board, load, limits) for load in loads]
    totals = [
        step_totals(board, load, *answer) for load, answer in zip(loads, responses, strict=True)
    ]
    seconds = steps * np.array([duration for duration, _ in totals])
    drawn = steps * np.array([energy for _, energy in totals])
    busy = np.array([load.busy_seconds for load in loads])[:, None]
    working = steps * busy * np.array([slowdown for slowdown, _ in responses])
    # A lower limit stretches kernels, not restarts, checkpoints and slow links.
    lost = lost_time().seconds(seconds[:, -1:])
    drawn = drawn + lost * np.minimum(loads[0].waiting_watts(board), limits)
    seconds = seconds + lost
    count = np.array([plan.devices for plan in plans], float)[:, None]
    host = assumed.host_share(board, count)
    # Fans slow down while devices wait; the rest of a host does not.
    idle_host = host * (0.5 + 0.5 * waiting_share())
    hosts = working * host + (seconds - working) * idle_host
    joules = assumed.overhead() * count * (drawn + hosts)
    device_seconds = count * seconds
    costs = {
        "energy": joules,
        "time": seconds,
        "money": device_seconds / 3600 * assumed.rent(board).dollars,
        "carbon": grams_co2(1.0, assumed.grid()) * joules
        + embodied_grams(board, 1.0) * device_seconds,
    }
    rows = np.repeat(np.arange(len(plans)), len(limits))
    memory = np.array([reserved for _, reserved in pairs])
    return CandidateTable(
        board,
        plans,
        rows,
        np.tile(limits, len(plans)),
        {name: column.ravel() for name, column in costs.items()},
        memory[rows],
        np.hypot(times.deviation, _convergence_error(work, plans))[rows],
        _power_deviations(board, loads, limits, power_deviation),
        assumed.rent(board).guessed,
    )


def _power_deviations(
    board: Accelerator, loads: list[Load], limits: Array, deviation: float
) -> Array:
    """Deviation of the power of every plan at every limit: a limit that binds leaves little."""
    demand = np.array([load.demand * load.power_factor for load in loads]) * board.limit_watts
    ends = [
        np.minimum(demand[:, None] * factor, limits) for factor in np.exp([deviation, -deviation])
    ]
    claimed = np.log(ends[0] / ends[1]) / 2
    return np.asarray(np.maximum(claimed, LEAST_POWER_DEVIATION).ravel(), float)


def _rounded_response(board: Accelerator, load: Load, limits: Array) -> tuple[Array, Array]:
    """Response of the kernels, the same for loads that hardly differ."""
    demand, ratio = round(load.demand, 2), round(math.log(load.memory_ratio), 1)
    key = board, demand, ratio, load.power_factor, tuple(limits.tolist())
    if key not in _RESPONSES:
        if len(_RESPONSES) > _MOST_RESPONSES:
            _RESPONSES.clear()
        alike = replace(load, demand=demand, memory_ratio=math.exp(ratio))
        _RESPONSES[key] = response(board, alike, limits)
    return _RESPONSES[key]


_RESPONSES: dict[tuple[object, ...], tuple[Array, Array]] = {}
_MOST_RESPONSES = 10_000  # by hand: some tens of megabytes


def _convergence_error(work: Work, plans: list[Plan]) -> Array:
    error = _CONVERGENCE_DEVIATION * interval_scale("samples to converge, other batches")
    return np.array([error * (plan.batch_size != work.sequences_per_step) for plan in plans])


def candidate_plans(
    model: Transformer, work: Work, board: Accelerator, max_devices: int
) -> Iterator[tuple[Plan, float]]:
    """Plans that divide, fit into memory and are worth a look, with the bytes they reserve."""
    room = FITS_SHARE * board.memory_bytes
    plans = list(_divided_plans(model, work, board, max_devices))
    # Logits a part at a time need other software, and an optimizer on the host much of its memory,
    # so they are for where nothing else fits.
    for offload, chunked in itertools.product((False, True), repeat=2):
        fitting = [
            pair
            for plan in plans
            for pair in _least_saving(
                model, replace(plan, chunked_loss=chunked, offload=offload), room
            )
        ]
        yield from fitting
        if fitting:
            return


def least_memory(model: Transformer, work: Work, board: Accelerator, max_devices: int) -> float:
    """Bytes that the plan of least memory reserves on the fullest device."""
    return min(
        plan_memory(model, _leanest(replace(plan, chunked_loss=True, offload=True))).reserved
        for plan in _divided_plans(model, work, board, max_devices)
    )


def leanest_plan(model: Transformer, work: Work, board: Accelerator, max_devices: int) -> Plan:
    """The plan of least memory with an optimizer of fewer bits, which trains otherwise."""
    plans = (
        replace(
            _leanest(plan),
            batch_size=plan.data * plan.micro_batch,
            chunked_loss=True,
            state_bits=8,
            master=False,
            fused_backward=True,
        )
        for plan in _divided_plans(model, work, board, max_devices)
        if plan.pipeline == 1
    )
    return min(plans, key=lambda plan: plan_memory(model, plan).reserved)


def _divided_plans(
    model: Transformer, work: Work, board: Accelerator, max_devices: int
) -> Iterator[Plan]:
    """Plans that divide model and batch, with nothing that saves memory."""
    precision = work.precision if work.precision in board.peaks else board.sixteen_bits
    for batch, count, tensor, pipeline, context in itertools.product(
        work.batch_sizes(),
        _counts(max_devices, board.host_devices),
        _divisors(model.heads, min(8, board.link_domain)),
        [1] if work.framework in _WITHOUT_PIPELINES else _stages(model.layers),
        _powers(max(1, min(16, model.sequence // 8192))),
    ):
        inside = tensor * pipeline * context
        copies, uneven = divmod(count, inside)
        rounded = _rounded_batch(batch, copies)
        if uneven or not rounded or pipeline * context > count // tensor:
            continue
        experts = _expert_sizes(model, copies * tensor * context, board)
        per_copy = rounded // copies
        for micro, expert, chunks in itertools.product(
            (size for size in _powers(_LARGEST_MICRO_BATCH) if per_copy % size == 0),
            experts,
            _chunks(model.layers, pipeline),
        ):
            yield Plan(
                data=copies,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                expert=expert,
                chunks=chunks,
                micro_batch=micro,
                batch_size=rounded,
                precision=precision,
                framework=work.framework,
                task=work.task,
            )


def _leanest(plan: Plan) -> Plan:
    """The most sharded and recomputed variant of a plan; one copy has nothing to shard over."""
    shard = 3 if plan.data * plan.context > 1 else plan.shard
    return replace(plan, shard=shard, recompute="full")


def _least_saving(model: Transformer, plan: Plan, room: float) -> Iterator[tuple[Plan, float]]:
    """The plan with as little that saves memory as fits, and with the next more."""
    # What saves memory costs time: not needed where plenty is left.
    if (memory := plan_memory(model, plan).reserved) <= room:
        yield plan, memory
        return
    if plan_memory(model, _leanest(plan)).reserved > room:
        return
    fits = 0
    for shard, recompute in _MEMORY_CHOICES:
        if plan.data * plan.context == 1 and shard > 1:
            continue
        trial = replace(plan, shard=shard, recompute=recompute)
        if (memory := plan_memory(model, trial).reserved) <= room:
            yield trial, memory
            fits += 1
            if fits > 1:
                return


_WITHOUT_PIPELINES = ("transformers",)  # the Trainer shards and splits matrices, but has no stages
# Sharding and recomputation, what costs least time first.
_MEMORY_CHOICES = (
    (1, "selective"),
    (2, "selective"),
    (3, "none"),
    (1, "full"),
    (3, "selective"),
    (3, "full"),
)
# Batches may differ from the one asked for by this much, so that any number of devices divides it;
# by hand.
_BATCH_ROUNDING = 0.05


def _rounded_batch(batch: int, copies: int) -> int:
    """The multiple of ``copies`` nearest to a batch size; 0 where none is near."""
    if not copies:
        return 0
    nearest = max(1, round(batch / copies)) * copies
    return nearest if abs(nearest - batch) <= _BATCH_ROUNDING * batch else 0


def _counts(largest: int, unit: int) -> list[int]:
    """Numbers of devices: parts of a node, then whole nodes, by factors of 2, 3 and 5."""
    parts = [size for size in _powers(min(unit, largest)) if size < unit]
    nodes = [number for number in range(1, largest // unit + 1) if _is_smooth(number)]
    spread: list[int] = []
    for number in reversed(nodes):  # the largest first: powers of two are kept to the end
        if number <= _MANY_NODES or not spread or 1.2 * number <= spread[-1]:
            spread.append(number)
    return sorted(
        {*parts, *(unit * number for number in spread), largest // unit * unit or largest}
    )


# Beyond so many nodes candidates are a fifth apart; by hand.
_MANY_NODES = 12


def _is_smooth(number: int) -> bool:
    for factor in (2, 3, 5):
        while number % factor == 0:
            number //= factor
    return number == 1


def _chunks(layers: int, pipeline: int) -> list[int]:
    """Chunks per stage that leave at least one layer each, but for embedding and head."""
    if pipeline == 1:
        return [1]
    sizes = [size for size in _powers(8) if pipeline * size <= layers + 2]
    return sorted({1, *sizes[1:2], *sizes[-1:]})


def _expert_sizes(model: Transformer, group: int, board: Accelerator) -> list[int]:
    if not model.experts:
        return [1]
    sizes = [size for size in _powers(min(group, 64)) if model.experts % size == group % size == 0]
    return [size for size in sizes if size == sizes[-1] or size in (8, board.link_domain)]


def _powers(largest: int) -> list[int]:
    return [2**power for power in range(int(math.log2(max(largest, 1))) + 1)]


def _divisors(total: int, largest: int) -> list[int]:
    return [size for size in _powers(largest) if total % size == 0]


def _stages(layers: int) -> list[int]:
    """Numbers of pipeline stages: powers of two, and small divisors."""
    odd = [size for size in (3, 5, 6, 7, 9, 10) if layers % size == 0]
    return [size for size in _powers(64) if 2 * size <= layers + 2] + odd
