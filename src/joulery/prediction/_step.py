"""Time, power, energy and memory of a training step on a device, over power limits or clocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.arguments import check_whole
from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.prediction._bayes import Interval, correlation, summed_deviation
from joulery.prediction._calibrate import Calibration, predict_times
from joulery.prediction._devices import Accelerator, accelerator
from joulery.prediction._graph import Graph
from joulery.prediction._inference import ROLLOUTS_LACK
from joulery.prediction._limits import power_limits
from joulery.prediction._memory import (
    FITS_SHARE,
    Memory,
    judge_memory,
    lean_variant,
    memory_verdict,
    stage_memories,
)
from joulery.prediction._model import training_model
from joulery.prediction._plan import Plan
from joulery.prediction._power import LEAST_POWER_DEVIATION, Load, plan_load, step_cost
from joulery.prediction._task import Task
from joulery.tables import Tabular
from joulery.units import finite, per_cent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from joulery.prediction._bayes import Array
    from joulery.prediction._model import Transformer

# Clocks of a chart where none are asked for; by hand.
_CLOCKS = 9
# Repetitions of the same case in gpu_power_benchmark differ by so much (root mean square), which is
# taken for steps of one training as well.
_JITTER = 0.04


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(Tabular):
    """A step under a parallel plan at several power limits and clocks.

    Attributes:
        device: Accelerator type.
        plan: Parallel plan.
        points: Time and energy of the step over all devices, lowest power limit first, then lowest
            clock first; of the variant where there is one.
        memory: Peak memory of a device of each pipeline stage, first stage first.
        memory_bytes: Memory that the device has.
        deviation: Standard deviation of the logarithm of the time.
        advice: Effect of power limits on this step, in a sentence.
        verdict: Whether memory ``fits`` with 8 % to spare, is ``tight`` (tensors alone fit) or
            ``does not fit``: then a variant does.
        moved: Share by which measured steps changed the time.
        assumed: What was not stated of the device or the step and is assumed, in words.
        variant: Variant of a plan that does not fit which does, whose points these are; None where
            the plan itself fits or is tight.
        variant_bytes: Peak that the allocator takes on the fullest device with the variant.
        left_out: Parts of the step that are not predicted, in words.
        observed: What a self-test of the device says instead of its specification, in words.
    """

    device: str
    plan: Plan
    points: tuple[OperatingPoint, ...]
    memory: tuple[Memory, ...]
    memory_bytes: float
    deviation: float
    advice: str
    verdict: str = "fits"
    moved: float = 0.0
    assumed: tuple[str, ...] = ()
    variant: Plan | None = None
    variant_bytes: float = 0.0
    left_out: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.frontier(f'{self.plan} on {self.plan.devices} × {self.device}')}"

    @property
    def variant_verdict(self) -> str:
        """Whether memory of the variant ``fits`` or is ``tight``; empty where there is none."""
        if self.variant is None:
            return ""
        return "fits" if self.variant_bytes <= FITS_SHARE * self.memory_bytes else "tight"

    def rows(self) -> list[dict[str, Any]]:
        """A row per point that no other beats: seconds, joules, setting and origin."""
        return self.frontier().rows()

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
            "provenance": Origin.PREDICTED.value,
            "device": self.device,
            "devices": self.plan.devices,
            "plan": str(self.plan),
            "precision": self.plan.precision,
            "batch_size": self.plan.batch_size,
            "memory_allocated_bytes": fullest.allocated,
            "memory_reserved_bytes": fullest.reserved,
            "memory_reserved_bytes_by_stage": [stage.reserved for stage in self.memory],
            "memory_bytes": self.memory_bytes,
            "memory_verdict": self.verdict,
            "variant": self.variant and str(self.variant),
            "variant_memory_reserved_bytes": self.variant_bytes if self.variant else None,
            "variant_memory_verdict": self.variant_verdict or None,
            "moved_by_measured_steps": self.moved,
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
            "assumed": list(self.assumed),
            "left_out": list(self.left_out),
            "observed": list(self.observed),
        }


@dataclass(frozen=True, slots=True, repr=False)
class PredictedFrontier(Frontier):
    """The frontier of a predicted step, with what else is predicted of it.

    Attributes:
        prediction: Memory with its verdict, 90 % intervals of time and energy, advice, and every
            setting that was looked at.
    """

    prediction: Prediction = field(kw_only=True)

    def __str__(self) -> str:
        step = self.prediction
        reserved = max(stage.reserved for stage in step.memory)
        return (
            f"{Frontier.__str__(self)}; time ± {per_cent(step.deviation)}; memory "
            f"{reserved / 1e9:.1f} of {step.memory_bytes / 1e9:.1f} GB: {step.verdict}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row per point: seconds, joules, setting, origin, and the ends of 90 % intervals."""
        return [
            point.rows()[0]
            | dict(
                zip(("seconds_low", "seconds_high"), self.prediction.seconds(point), strict=True)
            )
            | dict(zip(("joules_low", "joules_high"), self.prediction.joules(point), strict=True))
            for point in self
        ]


def prediction(  # noqa: PLR0913 - all but three by keyword only
    model: Transformer | Graph | dict[str, Any] | str | Path,
    device: str | Path | Accelerator,
    plan: Plan,
    *,
    sequence: int | None = None,
    limits: Sequence[float] | None = None,
    clocks: Sequence[float] | None = None,
    calibration: Calibration | None = None,
) -> Prediction:
    """A step under a plan, at several power limits and clocks, or of a variant of it that fits.

    ``predict``, which keeps the points that no other beats and refuses a plan that does not fit,
    describes arguments and errors.
    """
    board, evidence = accelerator(device), calibration or Calibration()
    step = model if isinstance(model, Graph) else training_model(model, sequence)
    memory, verdict = _judge(step, plan, board, evidence)
    asked, variant, lean = plan, None, 0.0
    if verdict == "does not fit":
        needed, factor = max(stage.reserved for stage in memory), evidence.memory(board, step)
        plan, lean = _lean(step, plan, board, factor, needed)
        variant = plan
    times = predict_times(step, [plan], board, evidence)
    seconds, error = float(times.seconds[0]), float(times.deviation[0])
    factor, power_error = evidence.power(board)
    load = plan_load(evidence.belief(board).mean, times.parts[0], seconds, factor)
    setting = Setting(
        device=board.name,
        devices=plan.devices,
        parallel=None if isinstance(step, Graph) and plan.devices == 1 else str(plan),
        batch_size=None if isinstance(step, Graph) else plan.batch_size,
    )
    drawn = _drawn_error(board, load, power_error)
    provenance = Provenance(Origin.PREDICTED, evidence.source(board), float(np.hypot(error, drawn)))
    points = _points(load, board, limits, clocks, setting, provenance)
    moved = 0.0
    if evidence.steps:
        moved = seconds / float(predict_times(step, [plan], board, Calibration()).seconds[0]) - 1
    return Prediction(
        board.name,
        asked,
        tuple(points),
        memory,
        board.memory_bytes,
        error,
        _advice(load, board),
        verdict,
        moved,
        board.assumed,
        variant,
        lean,
        (ROLLOUTS_LACK,) if plan.task.kind == "grpo" else (),
        board.observed,
    )


def predict(  # noqa: PLR0913 - all but two by keyword only
    model: Transformer | Graph | dict[str, Any] | str | Path,
    device: str | Path | Accelerator,
    *,
    plan: Plan | str | None = None,
    batch_size: int | None = None,
    precision: str | None = None,
    task: Task | str | None = None,
    sequence: int | None = None,
    limits: Sequence[float] | None = None,
    clocks: Sequence[float] | None = None,
    calibration: Calibration | None = None,
) -> PredictedFrontier:
    """Frontier of one training step over the power limits and clocks of a device.

    Args:
        model: Description of a transformer (object, document or JSON file), or a captured graph.
        device: Name in the catalog, such as ``h100``, path of a TOML file with a specification, or
            an accelerator.
        plan: Parallel plan, or its text such as ``dp8-mb1-zero3``; one device with ``batch_size``
            sequences where None. Of a captured graph, data-parallel copies
            (``Plan(data=8, shard=3, framework="eager")``): each computes what was captured per
            micro-batch of 1.
        batch_size: Sequences per step of all devices, by default the plan's; a captured graph has
            its own.
        precision: Precision of the matrix products, such as ``bf16`` or ``fp8``; where None the
            plan's, but ``fp16`` for ``bf16`` where the device lacks it.
        task: What a step trains, such as ``Task.parse("lora")`` or its text; by default the plan's
            (``dp1-mb4-lora``), which is pre-training where it names none.
        sequence: Tokens per sequence in training, where the description does not say.
        limits: Power limits in watts; from the lowest to the default one where None.
        clocks: Locked clocks in hertz; where None, some of the device's if no power limit binds,
            else none.
        calibration: Measured steps that sharpen the prediction.

    Raises:
        UnknownDeviceError: No such device in the catalog.
        InvalidValueError: The plan does not divide, or the device lacks the precision.
        InfeasibleError: The plan does not fit into the device's memory; the remedy names the
            variant that does, where there is one.

    Examples:
        >>> model = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "feedforward": 14336}
        >>> model |= {"vocabulary": 128256, "sequence": 8192}
        >>> predict(model, "h100", plan="dp8-mb1-zero3", batch_size=128).fastest.setting.devices
        8
        >>> predict(model, "h100", plan="dp8-mb1-zero3", batch_size=128).prediction.verdict
        'fits'
    """
    if batch_size is not None:
        batch_size = check_whole(batch_size, "batch size")
    if isinstance(plan, str):
        plan = Plan.parse(plan, batch_size or 1)
    if not (plan is None or isinstance(plan, Plan)):
        raise InvalidValueError(
            f"plan={plan!r} is not a plan", remedy='give its text, such as "dp8-mb1-zero3"'
        )
    if isinstance(model, Graph):
        plan = plan or Plan(framework="eager", shard=0)
        asked = None if plan.precision == Plan().precision else plan.precision
        plan = replace(plan, precision=precision or asked or model.precision)
        work = f"step of {model.name}"
    else:
        model = training_model(model, sequence)
        plan = plan or Plan(micro_batch=batch_size or 1)
        asked = accelerator(device).sixteen_bits if plan.precision == "bf16" else plan.precision
        plan = replace(plan, batch_size=batch_size or plan.batch_size, precision=precision or asked)
        work = f"step of {model.name or 'a transformer'}"
    if task is not None:
        plan = replace(plan, task=Task.parse(str(task)))
    step = prediction(model, device, plan, limits=limits, clocks=clocks, calibration=calibration)
    if step.variant is not None:
        needed = max(stage.reserved for stage in step.memory)
        raise InfeasibleError(
            f"{plan} needs {needed / 1e9:.1f} GB, {step.device} has {step.memory_bytes / 1e9:.1f}",
            remedy=f'give plan="{step.variant}", which needs {step.variant_bytes / 1e9:.1f} GB '
            f"({step.variant_verdict}), or "
            f"{_saving_advice(model, step.variant, accelerator(device))}",
        )
    frontier = step.frontier(work)
    return PredictedFrontier(frontier.points, frontier.work, prediction=step)


def _drawn_error(board: Accelerator, load: Load, deviation: float) -> float:
    """Deviation of the power that is drawn: what the limit cuts cannot be exceeded."""
    limit = np.array([board.limit_watts])
    watts = []
    for factor in (np.exp(deviation), np.exp(-deviation)):
        seconds, joules = step_cost(
            board, replace(load, power_factor=load.power_factor * float(factor)), limit
        )
        watts.append(joules[0] / seconds[0])
    return float(max(np.log(watts[0] / watts[1]) / 2, LEAST_POWER_DEVIATION))


def _judge(
    step: Transformer | Graph, plan: Plan, board: Accelerator, calibration: Calibration
) -> tuple[tuple[Memory, ...], str]:
    """Memory by stage and the verdict on it."""
    if isinstance(step, Graph):
        _check_copies(plan)
        memory = _graph_memory(step, plan)
        return (memory,), judge_memory(memory, board)
    plan.check(step)
    board.peak(plan.precision)
    factor = calibration.memory(board, step)
    verdict = memory_verdict(step, plan, board, factor)[1]
    stages = tuple(stage.corrected(factor) for stage in stage_memories(step, plan))
    return stages, "fits" if calibration.has_run(step, plan, board) else verdict


def _lean(
    step: Transformer | Graph, plan: Plan, board: Accelerator, factor: float, needed: float
) -> tuple[Plan, float]:
    """The variant that fits of a plan that needs too many bytes, and what it reserves.

    Raises:
        InfeasibleError: None does.
    """
    if not isinstance(step, Graph) and (variant := lean_variant(step, plan, board, factor)):
        return variant, memory_verdict(step, variant, board, factor)[0].reserved
    raise InfeasibleError(
        f"the step needs {needed / 1e9:.1f} GB, {board.name} has {board.memory_bytes / 1e9:.1f}",
        remedy=_saving_advice(step, plan, board),
    )


# Copies to try where a plan does not fit, as factors; by hand.
_COPIES = (2, 4, 8, 16, 32)


def _saving_advice(step: Transformer | Graph, plan: Plan, board: Accelerator) -> str:
    """Ways to take less memory that a plan does not use yet; first those that are known to fit."""
    if isinstance(step, Graph):
        ways = ["capture a smaller batch or recomputed activations"]
    else:
        ways = [f"split the model over more devices ({'more ' * (plan.context > 1)}cp, tp or pp)"]
        if plan.recompute != "full":
            ways.append("recompute activations (full-recompute)")
        if plan.micro_batch > 1:
            ways.append("take smaller micro-batches")
        ways[:0] = _fitting_ways(step, plan, board)
    if plan.shard < 3:
        ways.append("shard it over copies (dp and zero3)")
    return ", or ".join(ways)


def _fitting_ways(step: Transformer, plan: Plan, board: Accelerator) -> Iterator[str]:
    """Plans like one that does not fit which do: the optimizer on the host, or more copies."""
    lean = replace(plan, recompute="full")
    sharded = [
        replace(lean, shard=3, data=factor * plan.data, batch_size=factor * plan.batch_size)
        for factor in _COPIES
    ]
    for variants in ([replace(lean, offload=True)], sharded):
        fitting = (trial for trial in variants if memory_verdict(step, trial, board)[1] == "fits")
        yield from (f"give {trial}, which fits" for trial in islice(fitting, 1))


def _check_copies(plan: Plan) -> None:
    """Refuse a plan that asks more of a captured step than copies of it."""
    copies = Plan(
        data=plan.data,
        shard=plan.shard,
        shard_group=plan.shard_group,
        batch_size=plan.batch_size,
        framework=plan.framework,
        precision=plan.precision,
    )
    if plan != copies:
        raise InvalidValueError(
            f"{plan} changes what a captured step computes",
            remedy="capture what one device computes, and give copies of it: data, shard, "
            "shard_group, batch_size, framework",
        )
    if plan.batch_size % plan.data:
        raise InvalidValueError(
            f"{plan.batch_size} captured steps do not divide among {plan.data} copies",
            remedy="give a batch_size of as many captured batches, a multiple of data",
        )


def _graph_memory(graph: Graph, plan: Plan) -> Memory:
    """Memory of a captured step on each of ``plan.data`` devices."""
    copies = plan.shard_group or plan.data
    optimizer, gradients, parameters = (copies if plan.shard >= level else 1 for level in (1, 2, 3))
    transient = graph.transient_bytes - min(graph.gradient_bytes, graph.transient_bytes)
    return Memory(
        graph.parameter_bytes / parameters,
        min(graph.gradient_bytes, graph.transient_bytes) / gradients,
        graph.optimizer_bytes / optimizer,
        transient,
        0.0,
    )


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
            limits, low, high, 1.0, f"{board.name} takes no power limit of {{:g}} W", "limits"
        )
    if clocks is not None:
        low, high = board.min_clock_hertz, board.clock_hertz
        hertz = _check_values(
            clocks, low, high, 1e6, f"{board.name} locks no clock of {{:g}} MHz", "clocks"
        )
    elif load.demand * load.power_factor * board.limit_watts <= board.min_limit_watts:
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
    values: Any, low: float, high: float, unit: float, message: str, name: str
) -> Array:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise InvalidValueError(
            f"{name}={values!r} is not a list of numbers", remedy=f"write {name}=[{high:g}]"
        )
    for value in values:
        finite(value, name)
        if not low <= value <= high:
            raise InvalidValueError(
                message.format(value / unit),
                remedy=f"give {low / unit:g} to {high / unit:g} {message.rsplit(maxsplit=1)[-1]}",
            )
    return np.asarray(values, float)


def _advice(load: Load, board: Accelerator) -> str:
    """Effect of power limits on a load, in a sentence."""
    demand_watts = load.demand * load.power_factor * board.limit_watts
    if demand_watts <= board.min_limit_watts:
        return (
            f"no power limit binds: the kernels draw {demand_watts:.0f} W and the lowest limit is "
            f"{board.min_limit_watts:.0f} W; lock a clock instead"
        )
    if demand_watts < board.limit_watts:
        return f"limits above {demand_watts:.0f} W change nothing: the kernels draw no more"
    return "every power limit below the default one slows the step down"
