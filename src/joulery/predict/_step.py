"""Time, power and energy of a training step on a device, over its power limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.predict._devices import Accelerator, accelerator
from joulery.predict._fitted import belief, deviation
from joulery.predict._graph import Graph
from joulery.predict._kernels import kernel_times, wanted_power
from joulery.predict._limits import JOB_CONSTANTS, job_curve
from joulery.predict._memory import Memory, plan_memory
from joulery.predict._model import Transformer, transformer
from joulery.predict._plan import PARTS, Plan, plan_parts, plan_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from joulery.predict._bayes import Array, Belief

# Power of a board that waits for others or for its host, as a share of its default limit.
WAITING_SHARE = 0.38
# Share of the device's memory that a plan may reserve.
MEMORY_SHARE = 0.95
_LIMITS = 9


@dataclass(frozen=True, slots=True)
class Load:
    """What one step asks of one device under its default limit.

    Attributes:
        busy_seconds: Time in kernels.
        waiting_seconds: Time in collectives, bubbles and on the host.
        memory_ratio: Time of the kernels' traffic relative to that of their arithmetic.
        demand: Power of the kernels if no limit cut it, as a share of the default limit.
    """

    busy_seconds: float
    waiting_seconds: float
    memory_ratio: float
    demand: float


def response(device: Accelerator, load: Load, limits: Array) -> tuple[Array, Array]:
    """Slowdown of the kernels and watts while they run, at each power limit."""
    constants = belief("limits").mean.copy()
    constants[:JOB_CONSTANTS] = np.log([1.0, load.memory_ratio, 1e-6, 1e-6, 1e-6, 1e6, 1.0])
    ones = np.ones(1)
    # The activity at which the board at its highest clock draws what the kernels want.
    static, dynamic = (
        job_curve(_with_activity(constants, value), device, ones, 1e9 * ones)[1][0]
        for value in (1e-9, 1.0)
    )
    activity = max((load.demand * device.limit_watts - static) / (dynamic - static), 1e-3)
    constants = _with_activity(constants, activity)
    every = np.append(limits, device.limit_watts)
    seconds, watts = job_curve(constants, device, np.ones(len(every)), every)
    return seconds[:-1] / seconds[-1], watts[:-1]


def _with_activity(constants: Array, activity: float) -> Array:
    changed = constants.copy()
    changed[JOB_CONSTANTS - 1] = np.log(activity)
    return changed


def power_limits(device: Accelerator, count: int = _LIMITS) -> Array:
    """Power limits from the lowest to the default one."""
    return np.linspace(device.min_limit_watts, device.limit_watts, count)


def graph_load(graph: Graph, device: Accelerator, precision: str | None = None) -> Load:
    """Load of a captured step."""
    kernels = graph.kernels(device, precision)
    constants = belief("kernels").mean
    seconds, compute, traffic = kernel_times(constants, device, kernels)
    times = kernels.count
    busy = float((seconds * times).sum())
    host = float(times.sum()) * _HOST_SECONDS
    demand = wanted_power(belief("kernel power").mean, device, kernels, seconds)
    return Load(
        busy,
        float((busy**4 + host**4) ** 0.25 - busy),
        _ratio(float((traffic * times).sum()), float((compute * times).sum())),
        float((demand * seconds * times).sum() / busy),
    )


# A launch from Python, PyTorch in eager mode; runs ahead of the device where kernels are longer.
_HOST_SECONDS = 8e-6


def plan_load(
    model: Transformer, plan: Plan, device: Accelerator, constants: Belief | None = None
) -> Load:
    """Load of a step under a parallel plan."""
    parts = plan_parts(model, plan, device)
    total = plan_seconds((constants or belief("plans")).mean, parts)
    return load_of(dict(zip(PARTS, parts, strict=True)), float(total[0]))


# Traffic beside arithmetic in a transformer's kernels, and what they want of the power limit:
# H100 nodes of MLPerf Training draw 0.85 to 0.9 of their boards' limits.
_PLAN_MEMORY_RATIO, _PLAN_DEMAND = 0.45, 0.95


def load_of(part: dict[str, float], total: float) -> Load:
    """Load from the parts of a plan and its time."""
    kernels = part["dense"] + part["attention"] + part["experts"] + part["recompute"]
    busy = min(_KERNEL_FACTOR * kernels, 0.98 * total)
    return Load(busy, total - busy, _PLAN_MEMORY_RATIO, _PLAN_DEMAND)


_KERNEL_FACTOR = 1.2


def _ratio(traffic: float, compute: float) -> float:
    return min(max(traffic / max(compute, 1e-12), 1e-3), 1e3)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step under a parallel plan at several power limits.

    Attributes:
        device: Accelerator type.
        plan: Parallel plan.
        points: Time and energy of the step at each power limit, lowest limit first.
        memory: Peak memory of the fullest device.
        memory_bytes: Memory that the device has.
        relative_error: Standard deviation of the time, relative.
        advice: What the power limits do to this step, in a sentence.
    """

    device: str
    plan: Plan
    points: tuple[OperatingPoint, ...]
    memory: Memory
    memory_bytes: float
    relative_error: float
    advice: str

    def frontier(self, work: str = "") -> Frontier:
        """The points that no other beats."""
        return Frontier.from_points(self.points, work)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "device": self.device,
            "devices": self.plan.devices,
            "plan": str(self.plan),
            "precision": self.plan.precision,
            "batch_size": self.plan.global_batch,
            "memory_allocated_bytes": self.memory.allocated,
            "memory_reserved_bytes": self.memory.reserved,
            "memory_bytes": self.memory_bytes,
            "relative_error_time": self.relative_error,
            "points": [point.to_dict() for point in self.points],
            "advice": self.advice,
        }


def prediction(
    model: Transformer,
    device: str | Accelerator,
    plan: Plan,
    *,
    limits: Sequence[float] | None = None,
    constants: Belief | None = None,
) -> Prediction:
    """A step of a described model under a plan, at several power limits.

    Args:
        model: Description of a transformer.
        device: Name in the catalog, such as ``h100``.
        plan: Parallel plan.
        limits: Power limits in watts; from the lowest to the default one where None.
        constants: Constants of plans sharpened by measured steps; the fitted ones where None.

    Raises:
        UnknownDeviceError: No such device in the catalog.
        InvalidValueError: The plan does not divide, or the device lacks the precision.
        InfeasibleError: The step does not fit into the device's memory.
    """
    board = _device(device)
    plan.check(model)
    board.peak(plan.precision)
    memory = plan_memory(model, plan)
    _fits(memory.reserved, board)
    load = plan_load(model, plan, board, constants)
    wanted = power_limits(board) if limits is None else _checked(limits, board)
    error = deviation("plan, specs" if constants is None else "plan, measured")
    setting = Setting(
        device=board.name,
        devices=plan.devices,
        parallel=str(plan),
        batch_size=plan.global_batch,
    )
    points = _points(load, board, wanted, setting, error)
    return Prediction(
        board.name, plan, tuple(points), memory, board.memory_bytes, error, _advice(load, board)
    )


def predict(
    model: Transformer | Graph | dict[str, Any] | str | Path,
    device: str | Accelerator,
    *,
    plan: Plan | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    limits: Sequence[float] | None = None,
) -> Frontier:
    """Frontier of one training step over the power limits of a device.

    Args:
        model: Description of a transformer (object, document or JSON file), or a captured graph.
        device: Name in the catalog, such as ``h100``.
        plan: Parallel plan; one device with ``batch_size`` sequences where None.
        batch_size: Sequences per step; of a captured graph, what it was captured with.
        precision: Of the matrix products, such as ``bf16`` or ``fp8``.
        limits: Power limits in watts; from the lowest to the default one where None.

    Raises:
        UnknownDeviceError: No such device in the catalog.
        InvalidValueError: The plan does not divide, or the device lacks the precision.
        InfeasibleError: The step does not fit into the device's memory.
    """
    if not isinstance(model, Graph):
        described = transformer(model)
        plan = plan or Plan(micro_batch=batch_size or 1, global_batch=batch_size or 1)
        plan = plan if precision is None else replace(plan, precision=precision)
        found = prediction(described, device, plan, limits=limits)
        return found.frontier(f"step of {described.name or 'a transformer'}")
    board = _device(device)
    _fits(model.peak_bytes, board)
    wanted = power_limits(board) if limits is None else _checked(limits, board)
    load = graph_load(model, board, precision)
    setting = Setting(device=board.name, devices=1, batch_size=batch_size)
    points = _points(load, board, wanted, setting, deviation("step, specs"))
    return Frontier.from_points(points, f"step of {model.name}")


def _points(
    load: Load, board: Accelerator, limits: Array, setting: Setting, error: float
) -> list[OperatingPoint]:
    slowdown, busy_watts = response(board, load, limits)
    seconds = load.busy_seconds * slowdown + load.waiting_seconds
    waiting = np.minimum(WAITING_SHARE * board.limit_watts, busy_watts)
    joules = load.busy_seconds * slowdown * busy_watts + load.waiting_seconds * waiting
    joules *= setting.devices or 1
    made = Provenance(
        Origin.PREDICTED,
        "specifications and fitted constants",
        float(np.hypot(error, deviation("power, specs"))),
    )
    return [
        OperatingPoint(one, energy, replace(setting, power_limit_watts=float(limit)), made)
        for one, energy, limit in zip(seconds.tolist(), joules.tolist(), limits, strict=True)
    ]


def _advice(load: Load, board: Accelerator) -> str:
    """What power limits do to a load: slow it down below some watts, or nothing at all."""
    wanted = load.demand * board.limit_watts
    if wanted < board.min_limit_watts:
        return (
            f"no power limit binds: the kernels draw {wanted:.0f} W and the lowest limit is "
            f"{board.min_limit_watts:.0f} W; lock a clock instead"
        )
    if wanted < board.limit_watts:
        return f"limits above {wanted:.0f} W change nothing: the kernels draw no more"
    return "every power limit below the default one slows the step down"


def _device(name: str | Accelerator) -> Accelerator:
    return name if isinstance(name, Accelerator) else accelerator(name)


def _fits(needed: float, board: Accelerator) -> None:
    if needed > MEMORY_SHARE * board.memory_bytes:
        there = board.memory_bytes / 1e9
        raise InfeasibleError(
            f"the step needs {needed / 1e9:.0f} GB, {board.name} has {there:.0f}",
            remedy="split the model over more devices, shard it, recompute activations or take "
            "smaller micro-batches",
        )


def _checked(limits: Sequence[float], board: Accelerator) -> Array:
    wanted = np.asarray(limits, float)
    for limit in wanted:
        if not board.min_limit_watts <= limit <= board.limit_watts:
            raise InvalidValueError(
                f"{board.name} takes no power limit of {limit:g} W",
                remedy=f"give {board.min_limit_watts:g} to {board.limit_watts:g}, or lock a clock",
            )
    return wanted
