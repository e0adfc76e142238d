"""Every way to do a training that divides and fits into memory, as columns.

Device types, counts, parallel plans, micro-batches, batch sizes and power limits; times, energies,
money and carbon of all of them are columns, so that tens of thousands take seconds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.prediction._assumptions import embodied_grams, host_watts, waiting_share
from joulery.prediction._bayes import NINETY_BELOW, Belief, interval_scale
from joulery.prediction._calibrate import predict_times
from joulery.prediction._limits import power_limits
from joulery.prediction._memory import MEMORY_SHARE, plan_memory
from joulery.prediction._plan import Plan
from joulery.prediction._power import WAITING_SHARE, busy_seconds, plan_demand, response
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
        tokens: Tokens to train on at the batch size ``global_batch``.
        global_batch: Sequences per step.
        precision: Precision of the matrix products; devices that lack it use ``bf16``.
        deadline_seconds: Time that the training may take, kept with 90 % confidence.
        convergence: Growth of the tokens to the same loss with the batch size; where given, batch
            sizes from a quarter to four times the given one are candidates too.
    """

    tokens: float
    global_batch: int = 1024
    precision: str = "bf16"
    deadline_seconds: float | None = None
    convergence: Convergence | None = None

    def batch_sizes(self) -> list[int]:
        """Batch sizes to look at."""
        if self.convergence is None:
            return [self.global_batch]
        return sorted({max(1, round(factor * self.global_batch)) for factor in _BATCH_FACTORS})

    def steps(self, sequence: int, batch: int) -> float:
        """Number of optimizer steps to the same loss at a batch size."""
        tokens = self.tokens
        if self.convergence is not None:
            tokens *= self.convergence.factor(batch, self.global_batch)
        return tokens / (batch * sequence)


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """Candidates of one device type as columns."""

    device: Accelerator
    plans: list[Plan]
    parts: Array  # parts of a step of each plan
    plan: Rows  # index of each candidate's plan
    limit: Array  # power limit of each candidate in watts
    costs: dict[str, Array]  # column per objective: joules, seconds, dollars, grams
    memory: Array  # bytes that each candidate reserves
    deviation: Array  # standard deviation of the logarithm of each candidate's time
    power_deviation: float  # likewise, of the power

    def late_seconds(self) -> Array:
        """Time that each candidate keeps with 90 % confidence."""
        return np.asarray(self.costs["time"] * np.exp(NINETY_BELOW * self.deviation))

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
    plans = list(candidate_plans(model, work, board, max_devices))
    if not plans:
        return None
    times = predict_times(model, plans, board, calibration)
    parts, total = times.parts, times.seconds
    factor, power_deviation = calibration.power(board.name)
    limits = power_limits(board, _LIMITS)
    slowdown, watts = response(board, plan_demand(factor), limits)
    steps = np.array([work.steps(model.sequence, plan.global_batch) for plan in plans])[:, None]
    busy = busy_seconds(parts, total)
    working, waiting = steps * busy[:, None] * slowdown, steps * (total - busy)[:, None]
    seconds = working + waiting
    count = np.array([plan.devices for plan in plans], float)[:, None]
    idle, host = np.minimum(WAITING_SHARE * board.limit_watts, watts), host_watts(board)
    # Fans slow down while devices wait; the rest of a host does not.
    idle_host = host * (0.5 + 0.5 * waiting_share())
    joules = assumed.overhead() * count * (working * (watts + host) + waiting * (idle + idle_host))
    device_seconds = count * seconds
    costs = {
        "energy": joules,
        "time": seconds,
        "money": device_seconds / 3600 * assumed.rent(board)[0],
        "carbon": grams_co2(1.0, assumed.grid()) * joules
        + embodied_grams(board, 1.0) * device_seconds,
    }
    rows = np.repeat(np.arange(len(plans)), len(limits))
    memory = np.array([plan_memory(model, plan).reserved for plan in plans])
    return CandidateTable(
        board,
        plans,
        parts,
        rows,
        np.tile(limits, len(plans)),
        {name: column.ravel() for name, column in costs.items()},
        memory[rows],
        np.hypot(times.deviation, _convergence_error(work, plans))[rows],
        power_deviation,
    )


def _convergence_error(work: Work, plans: list[Plan]) -> Array:
    error = _CONVERGENCE_DEVIATION * interval_scale("samples to converge, other batches")
    return np.array([error * (plan.global_batch != work.global_batch) for plan in plans])


def candidate_plans(
    model: Transformer, work: Work, board: Accelerator, max_devices: int
) -> Iterator[Plan]:
    """Plans that divide, fit into memory and are worth a look."""
    precision = work.precision if work.precision in board.peaks else "bf16"
    for batch, count, tensor, pipeline, context in itertools.product(
        work.batch_sizes(),
        _powers(max_devices),
        _divisors(model.heads, min(8, board.link_domain)),
        _stages(model.layers),
        _powers(max(1, min(16, model.sequence // 8192))),
    ):
        inside = tensor * pipeline * context
        if count % inside or batch % (count // inside):
            continue
        copies = count // inside
        per_copy = batch // copies
        experts = _expert_sizes(model, copies * tensor * context, board)
        for micro, expert, chunks, (shard, recompute) in itertools.product(
            (size for size in _powers(_LARGEST_MICRO_BATCH) if per_copy % size == 0),
            experts,
            (1, 4) if pipeline > 1 and model.layers % (4 * pipeline) == 0 else (1,),
            _MEMORY_CHOICES if pipeline == 1 else _PIPELINE_CHOICES,
        ):
            plan = Plan(
                data=copies,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                expert=expert,
                chunks=chunks,
                micro_batch=micro,
                global_batch=batch,
                shard=shard,
                recompute=recompute,
                precision=precision,
            )
            if plan_memory(model, plan).reserved <= MEMORY_SHARE * board.memory_bytes:
                yield plan
                if shard == 1 and not recompute:
                    break  # what saves memory costs time: not needed here


# Sharding and recomputation, what costs least time first.
_MEMORY_CHOICES = ((1, False), (3, False), (1, True), (3, True))
_PIPELINE_CHOICES = ((1, False), (1, True))


def _expert_sizes(model: Transformer, group: int, board: Accelerator) -> list[int]:
    if not model.experts:
        return [1]
    sizes = [size for size in _powers(min(group, 64)) if model.experts % size == 0]
    return [size for size in sizes if size == sizes[-1] or size in (8, board.link_domain)]


def _powers(largest: int) -> list[int]:
    return [2**power for power in range(int(math.log2(max(largest, 1))) + 1)]


def _divisors(total: int, largest: int) -> list[int]:
    return [size for size in _powers(largest) if total % size == 0]


def _stages(layers: int) -> list[int]:
    """Numbers of pipeline stages: divisors, and powers of two that leave a short last stage."""
    odd = [size for size in (3, 5, 6, 7, 9, 10) if layers % size == 0]
    powers = [size for size in _powers(64) if (size - 1) * math.ceil(layers / size) < layers]
    return powers + odd
