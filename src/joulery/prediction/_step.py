"""Time, power, energy and memory of a training step on a device, over power limits or clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.prediction._bayes import (
    Interval,
    correlation,
    interval_scale,
    summed_deviation,
)
from joulery.prediction._calibrate import Calibration, predict_times
from joulery.prediction._devices import Accelerator, accelerator
from joulery.prediction._graph import Graph
from joulery.prediction._limits import power_limits
from joulery.prediction._memory import MEMORY_SHARE, Memory, plan_memory, stage_memories
from joulery.prediction._model import Transformer, transformer
from joulery.prediction._plan import Plan
from joulery.prediction._power import Load, graph_load, plan_load, step_cost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.prediction._bayes import Array

# Clocks of a chart where none are asked for; by hand.
_CLOCKS = 9
# Deviations that the models claim for steps from operators and for the power of kernels; the
# scales of left-out devices multiply them; by hand.
_STEP_DEVIATION, _POWER_DEVIATION = 0.1, 0.11
# Repetitions of the same case in gpu_power_benchmark differ by so much (root mean square), which is
# taken for steps of one training as well.
_JITTER = 0.04


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step under a parallel plan at several power limits and clocks.

    Attributes:
        device: Accelerator type.
        plan: Parallel plan.
        points: Time and energy of the step over all devices, lowest power limit first, then lowest
            clock first.
        memory: Peak memory of a device of each pipeline stage, first stage first.
        memory_bytes: Memory that the device has.
        deviation: Standard deviation of the logarithm of the time.
        advice: Effect of power limits on this step, in a sentence.
    """

    device: str
    plan: Plan
    points: tuple[OperatingPoint, ...]
    memory: tuple[Memory, ...]
    memory_bytes: float
    deviation: float
    advice: str

    def frontier(self, work: str = "") -> Frontier:
        """The points that no other beats."""
        return Frontier.from_points(self.points, work)

    def seconds(self, point: OperatingPoint, steps: float = 1.0) -> Interval:
        """90 % interval of the time of so many steps.

        The error of the prediction is the same in every step, so that it does not average out; only
        the variation from step to step does.
        """
        error = float(np.hypot(self.deviation, _JITTER / steps**0.5))
        return Interval.around(steps * point.seconds, error)

    def joules(self, point: OperatingPoint, steps: float = 1.0) -> Interval:
        """90 % interval of the energy of so many steps."""
        error = point.provenance.relative_error or 0.0
        return Interval.around(steps * point.joules, float(np.hypot(error, _JITTER / steps**0.5)))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        fullest = max(self.memory, key=lambda stage: stage.reserved)
        return {
            "device": self.device,
            "devices": self.plan.devices,
            "plan": str(self.plan),
            "precision": self.plan.precision,
            "batch_size": self.plan.global_batch,
            "memory_allocated_bytes": fullest.allocated,
            "memory_reserved_bytes": fullest.reserved,
            "memory_reserved_bytes_by_stage": [stage.reserved for stage in self.memory],
            "memory_bytes": self.memory_bytes,
            "relative_error_time": self.deviation,
            "points": [
                point.to_dict()
                | {
                    "seconds_90_per_cent": list(self.seconds(point)),
                    "joules_90_per_cent": list(self.joules(point)),
                }
                for point in self.points
            ],
            "advice": self.advice,
        }


def prediction(
    model: Transformer | dict[str, Any] | str | Path,
    device: str | Accelerator,
    plan: Plan,
    *,
    limits: Sequence[float] | None = None,
    clocks: Sequence[float] | None = None,
    calibration: Calibration | None = None,
) -> Prediction:
    """A step of a described model under a plan, at several power limits and clocks.

    ``predict``, which keeps the points that no other beats, describes arguments and errors.
    """
    description, board = transformer(model), accelerator(device)
    calibration = calibration or Calibration()
    plan.check(description)
    board.peak(plan.precision)
    _fits(plan_memory(description, plan).reserved, board)
    times = predict_times(description, [plan], board, calibration)
    error = float(times.deviation[0])
    factor, power_error = calibration.power(board.name)
    load = plan_load(times.parts[0], float(times.seconds[0]), factor)
    setting = Setting(
        device=board.name,
        devices=plan.devices,
        parallel=str(plan),
        batch_size=plan.global_batch,
    )
    provenance = Provenance(
        Origin.PREDICTED, calibration.source(board.name), float(np.hypot(error, power_error))
    )
    points = _points(load, board, limits, clocks, setting, provenance)
    return Prediction(
        board.name,
        plan,
        tuple(points),
        stage_memories(description, plan),
        board.memory_bytes,
        error,
        _advice(load, board),
    )


def predict(  # noqa: PLR0913 - all but two by keyword only
    model: Transformer | Graph | dict[str, Any] | str | Path,
    device: str | Accelerator,
    *,
    plan: Plan | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    limits: Sequence[float] | None = None,
    clocks: Sequence[float] | None = None,
    calibration: Calibration | None = None,
) -> Frontier:
    """Frontier of one training step over the power limits and clocks of a device.

    Args:
        model: Description of a transformer (object, document or JSON file), or a captured graph.
        device: Name in the catalog, such as ``h100``.
        plan: Parallel plan; one device with ``batch_size`` sequences where None.
        batch_size: Sequences per step; of a captured graph, what it was captured with.
        precision: Precision of the matrix products, such as ``bf16`` or ``fp8``.
        limits: Power limits in watts; from the lowest to the default one where None.
        clocks: Locked clocks in hertz; where None, some of the device's if no power limit binds,
            else none.
        calibration: Measured steps that sharpen the prediction of a described model.

    Raises:
        UnknownDeviceError: No such device in the catalog.
        InvalidValueError: The plan does not divide, or the device lacks the precision.
        InfeasibleError: The step does not fit into the device's memory.
    """
    if not isinstance(model, Graph):
        description = transformer(model)
        plan = plan or Plan(micro_batch=batch_size or 1, global_batch=batch_size or 1)
        plan = plan if precision is None else replace(plan, precision=precision)
        step = prediction(
            description, device, plan, limits=limits, clocks=clocks, calibration=calibration
        )
        return step.frontier(f"step of {description.name or 'a transformer'}")
    board = accelerator(device)
    _fits(model.peak_bytes, board)
    load = graph_load(model, board, precision)
    setting = Setting(device=board.name, devices=1, batch_size=batch_size)
    error = _STEP_DEVIATION * interval_scale("step from operators, specs")
    power = _POWER_DEVIATION * interval_scale("GEMM power, specs")
    provenance = Provenance(
        Origin.PREDICTED, "specifications and fitted constants", float(np.hypot(error, power))
    )
    points = _points(load, board, limits, clocks, setting, provenance)
    return Frontier.from_points(points, f"step of {model.name}")


def total(phases: Sequence[tuple[OperatingPoint, float]]) -> OperatingPoint:
    """A training in several phases, such as sequence lengths or plans, one after the other.

    Predictions for one machine share a part of their error, so that the sum is surer than its
    terms, but not as if they were independent; steps of one phase share all of it.

    Args:
        phases: A predicted point and the number of steps at it, per phase.
    """
    if not phases:
        raise InvalidValueError("no phase to add up", remedy="give at least one")
    joules = np.array([steps * point.joules for point, steps in phases])
    errors = np.array([point.provenance.relative_error or 0.0 for point, _ in phases])
    error = summed_deviation(joules, errors, correlation("plans on a new system, elsewhere"))
    sources = "; ".join(dict.fromkeys(point.provenance.source for point, _ in phases))
    return OperatingPoint(
        sum(steps * point.seconds for point, steps in phases),
        float(joules.sum()),
        Setting(parts=tuple(point.setting for point, _ in phases)),
        Provenance(Origin.PREDICTED, sources, error),
    )


def _points(
    load: Load,
    board: Accelerator,
    limits: Sequence[float] | None,
    clocks: Sequence[float] | None,
    setting: Setting,
    provenance: Provenance,
) -> list[OperatingPoint]:
    """The step at power limits and clocks, by default those that matter to it."""
    watts, hertz = power_limits(board), np.empty(0)
    if limits is not None:
        low, high = board.min_limit_watts, board.limit_watts
        watts = _check_values(
            limits, low, high, 1.0, f"{board.name} takes no power limit of {{:g}} W"
        )
    if clocks is not None:
        low, high = board.min_clock_hertz, board.clock_hertz
        hertz = _check_values(clocks, low, high, 1e6, f"{board.name} locks no clock of {{:g}} MHz")
    elif load.demand * board.limit_watts <= board.min_limit_watts:
        hertz = np.linspace(max(board.min_clock_hertz, 0.4 * board.clock_hertz), board.clock_hertz)
        hertz = hertz[:: len(hertz) // _CLOCKS]
    seconds, joules = step_cost(board, load, watts, hertz)
    joules *= setting.devices or 1
    settings = [replace(setting, power_limit_watts=limit) for limit in watts.tolist()]
    settings += [replace(setting, clock_hertz=clock) for clock in hertz.tolist()]
    return [
        OperatingPoint(duration, energy, setting, provenance)
        for duration, energy, setting in zip(
            seconds.tolist(), joules.tolist(), settings, strict=True
        )
    ]


def _check_values(
    values: Sequence[float], low: float, high: float, unit: float, message: str
) -> Array:
    for value in values:
        if not low <= value <= high:
            raise InvalidValueError(
                message.format(value / unit),
                remedy=f"give {low / unit:g} to {high / unit:g} {message.rsplit(maxsplit=1)[-1]}",
            )
    return np.asarray(values, float)


def _advice(load: Load, board: Accelerator) -> str:
    """Effect of power limits on a load, in a sentence."""
    demand_watts = load.demand * board.limit_watts
    if demand_watts <= board.min_limit_watts:
        return (
            f"no power limit binds: the kernels draw {demand_watts:.0f} W and the lowest limit is "
            f"{board.min_limit_watts:.0f} W; lock a clock instead"
        )
    if demand_watts < board.limit_watts:
        return f"limits above {demand_watts:.0f} W change nothing: the kernels draw no more"
    return "every power limit below the default one slows the step down"


def _fits(required_bytes: float, board: Accelerator) -> None:
    if required_bytes > MEMORY_SHARE * board.memory_bytes:
        capacity = board.memory_bytes / 1e9
        raise InfeasibleError(
            f"the step needs {required_bytes / 1e9:.0f} GB, {board.name} has {capacity:.0f}",
            remedy="split the model over more devices, shard it, recompute activations or take "
            "smaller micro-batches",
        )
