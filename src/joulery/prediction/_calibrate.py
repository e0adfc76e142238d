"""Measured steps: what they say about predictions, and where they are kept for later ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.errors import FileError, InvalidValueError, UsageError, flaw_text
from joulery.files import data_folder, write_atomic
from joulery.prediction._bayes import (
    Belief,
    fitted_belief,
    fitted_cache,
    interval_scale,
    krige,
    probe_values,
    slopes,
)
from joulery.prediction._devices import accelerator
from joulery.prediction._graph import Graph
from joulery.prediction._inference import ROLLOUT_DEVIATION
from joulery.prediction._memory import plan_memory
from joulery.prediction._model import Transformer, transformer
from joulery.prediction._plan import Plan
from joulery.prediction._plan_time import (
    PARTS,
    PLAN_CONSTANTS,
    least_seconds,
    plan_seconds,
    step_parts,
    tf32_seconds,
)
from joulery.prediction._power import plan_load, step_cost
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulery.prediction._bayes import Array, Model
    from joulery.prediction._devices import Accelerator

# How the constants of a further system differ from those of the fit, by name, and how far steps lie
# from the model; chosen on the systems of Megatron-Bridge, MPT and gpu_power_benchmark, leaving
# each out in turn.
_NEW_SYSTEM = {"dense": 0.1, "attention": 0.15, "experts": 0.25, "tensor": 0.2, "host": 0.35}
_NEW_SYSTEM |= {"expert_links": 0.3, "context": 0.3, "data": 0.3, "bubble": 0.05, "optimizer": 0.2}
_FURTHER = np.array([_NEW_SYSTEM.get(name, 0.07) for name in PLAN_CONSTANTS])
PLAN_NOISE = 0.1
# PCIe servers differ by a factor of 3 or so in what boards exchange among each other, by their
# switches, sockets and drivers: 28 GB/s (8 × RTX 5090, NCCL's issue 1639) to 1.2 GB/s (8 × L40S,
# AIConfigurator) each.
_PCIE_SERVERS = 0.7
_OF_LINKS = np.isin(PLAN_CONSTANTS, ("tensor", "expert_links", "context", "data"))
# What the constants leave unexplained, PLAN_NOISE in all: in common to all plans of a model,
# whatever its depth, to those whose devices run the same kernels, and of one plan alone; the first
# against the others chosen likewise, these by hand.
_MODEL_REST, _KERNEL_REST, _PLAN_REST = 0.08, 0.05, 0.033
# A release of the software changes the same plan by so much, with experts and without, and about so
# many days lie between releases (Megatron-Bridge's tables, 25.09 to 26.08): older measurements say
# less, and tomorrow's software differs from today's.
_EXPERT_RELEASE, _DENSE_RELEASE, _RELEASE_DAYS = 0.13, 0.05, 60.0
# The same plan again, on the same day; assumed.
_REPEATED = 0.02
# A step measured on another device type says something about the software, little about this one;
# assumed.
_ELSEWHERE = 0.2
# Deviation of the time of convolutions in TF32: those of ResNet-50 on A100 would have to take 3.4
# times what is predicted to explain published steps (938 images per second in PyTorch, 993 in
# PaddlePaddle; NVIDIA DeepLearningExamples), where data lie channel by channel. The same step is
# within 3 % in 16 bit on A100 (2,470) and in FP32 on V100 (367).
_TF32 = 1.0
# Deviation of the power of other steps from the model after one reading (chosen on four boards of
# gpu_power_benchmark, each left out in turn); of one reading against the next.
_POWER_AFTER, _POWER_NOISE = 0.12, 0.03
# A measured step this many deviations from what its device is expected to do, and by this factor,
# is a typing error rather than a measurement; by hand.
_OUTLIER, _OUTLIER_FACTOR = 4.0, 5.0
# Seconds of a step beyond which it is one of something else; by hand.
_LONGEST_STEP = 86_400.0
# Deviation of a measured peak of memory around the model; by hand.
_MEMORY, _MEMORY_NOISE = 0.05, 0.01
# A reading above the default limit by more than this factor, or a peak below so many bytes, is of
# another unit or of a whole node; by hand.
_OVER_LIMIT, _LEAST_PEAK = 1.2, 1e7


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A training step that ran.

    Attributes:
        model: Description of the model.
        device: Accelerator type.
        plan: Parallel plan.
        seconds: Time of one step.
        watts: Mean power of one device; None where it was not measured.
        measured: Day of the measurement.
        peak_bytes: Peak that the allocator reserved on the fullest device; None where unknown.
    """

    model: Transformer | Graph
    device: str
    plan: Plan
    seconds: float
    watts: float | None = None
    measured: date = field(default_factory=lambda: datetime.now(UTC).date())
    peak_bytes: float | None = None

    def __post_init__(self) -> None:
        finite(self.seconds, "seconds of a step", minimum=1e-9)
        if self.seconds > _LONGEST_STEP:
            raise InvalidValueError(
                f"a step of {self.seconds:g} s is longer than a day",
                remedy="give the seconds of one step, not of the training",
            )
        for value, name in ((self.watts, "watts"), (self.peak_bytes, "peak bytes")):
            if value is not None:
                finite(value, f"{name} of a step", minimum=1e-9)
        if self.measured > datetime.now(UTC).date() + timedelta(days=1):
            raise InvalidValueError(
                f"a step cannot have been measured on {self.measured}, in the future",
                remedy="give the day of the measurement, such as 2026-11-16",
            )
        board = accelerator(self.device)
        _check_reading(self.watts, board.idle_watts, _OVER_LIMIT * board.limit_watts, "W", board)
        _check_reading(self.peak_bytes, _LEAST_PEAK, board.memory_bytes, "bytes", board)
        if isinstance(self.model, Transformer):
            self.plan.check(self.model)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; ``read_steps`` reads it."""
        model = {name: value for name, value in asdict(self.model).items() if value}
        if isinstance(self.model, Transformer):
            model |= {"gated": int(self.model.gated), "causal": int(self.model.causal)}
            model |= {"tied": int(self.model.tied)}
        return {
            "model": model,
            "device": self.device,
            "plan": str(self.plan),
            "batch_size": self.plan.batch_size,
            "precision": self.plan.precision,
            "seconds": self.seconds,
            "watts": self.watts,
            "measured": self.measured.isoformat(),
            "peak_bytes": self.peak_bytes,
        }

    @classmethod
    def from_dict(cls, row: dict[str, Any], model: Transformer | None = None) -> MeasuredStep:
        """The inverse of ``to_dict``; ``model`` stands in where the row names none."""
        if not isinstance(row, dict):
            raise ValueError(f"{row!r:.40} is no object")  # noqa: TRY004 - of a file, not of a call
        if unknown := [name for name in row if name not in _NAMES]:
            raise ValueError(f"unknown name {unknown[0]!r}; known are {', '.join(_NAMES)}")
        description = read_model(row["model"]) if "model" in row or model is None else model
        precision = row.get("precision") or accelerator(row["device"]).sixteen_bits
        plan = Plan.parse(row["plan"], int(row["batch_size"]), precision)
        day = row.get("measured")
        when: dict[str, Any] = {} if day is None else {"measured": date.fromisoformat(day)}
        peak = row.get("peak_bytes")
        figures = row["seconds"], row.get("watts")
        return cls(description, row["device"], plan, *figures, peak_bytes=peak, **when)


def _check_reading(
    value: float | None, least: float, most: float, unit: str, board: Accelerator
) -> None:
    """Refuse a reading of one device that it cannot have given."""
    if value is not None and not least <= value <= most:
        raise InvalidValueError(
            f"a step on {board.name} cannot have taken {value:g} {unit} of a device",
            remedy=f"give the mean of one device, in {unit}: {least:.3g} to {most:.3g}",
        )


def read_model(source: Any) -> Transformer | Graph:
    """A description, or captured operators as a document."""
    if isinstance(source, dict) and "operators" in source:
        return Graph.from_dict(source)
    return transformer(source)


_NAMES = (
    *("device", "plan", "batch_size", "seconds", "precision", "watts", "measured"),
    *("peak_bytes", "model"),
)


class PlanTimes(NamedTuple):
    """Times of steps under several plans."""

    parts: Array  # physical parts of each step, one row per plan
    seconds: Array
    deviation: Array  # standard deviation of the logarithm of each time


@fitted_cache
def _outliers(steps: tuple[MeasuredStep, ...]) -> tuple[MeasuredStep, ...]:
    strange = []
    for step in steps:
        parts = step_parts(step.model, step.plan, accelerator(step.device))[None]
        belief = on_another_system(fitted_belief("plans"), accelerator(step.device))
        claimed = np.hypot(belief.spread(_log_seconds(parts))[0], PLAN_NOISE)
        off = abs(np.log(step.seconds / plan_seconds(belief.mean, parts)[0]))
        far = off > max(_OUTLIER * claimed, np.log(_OUTLIER_FACTOR))
        if far or step.seconds < least_seconds(step.model, step.plan, accelerator(step.device)):
            strange.append(step)
    return tuple(strange)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Beliefs about plans: the fitted constants, sharpened by measured steps.

    Attributes:
        steps: Steps that ran, on any device type.
        today: Day of the prediction; old measurements count less.
    """

    steps: tuple[MeasuredStep, ...] = ()
    today: date = field(default_factory=lambda: datetime.now(UTC).date())

    def steps_on(self, device: str | Accelerator) -> tuple[MeasuredStep, ...]:
        """Steps on one device type, without outliers."""
        name = accelerator(device).name
        strange = self.outliers()
        return tuple(
            step
            for step in self.steps
            if step not in strange and accelerator(step.device).name == name
        )

    def outliers(self) -> tuple[MeasuredStep, ...]:
        """Steps too far from anything that their device could do; predictions leave them out."""
        return _outliers(self.steps)

    def belief(self, device: str | Accelerator) -> Belief:
        """Constants of plans on a device type."""
        return _belief(self, accelerator(device))

    def power(self, device: str | Accelerator) -> tuple[float, float]:
        """Factor of the predicted power, and the standard deviation of its logarithm."""
        board, belief = accelerator(device), self.belief(device)
        off = [
            np.log(step.watts / _predicted_watts(step, belief))
            for step in self.steps_on(board)
            if step.watts is not None
        ]
        prior = board.power_deviation
        trust = (prior / float(np.hypot(_POWER_NOISE, _POWER_AFTER))) ** 2
        mean = trust * float(np.sum(off)) / (1 + trust * len(off))
        deviation = prior / (1 + trust * len(off)) ** 0.5
        # Another plan draws another power than the one that was measured.
        return float(np.exp(mean)), max(deviation, _POWER_AFTER)

    def has_run(self, model: Transformer | Graph, plan: Plan, device: str | Accelerator) -> bool:
        """Whether a measured step had this model and plan, whatever its batch size."""
        return any(
            step.model == model and _shape(step.plan) == _shape(plan)
            for step in self.steps_on(device)
        )

    def memory(self, device: str | Accelerator, model: Transformer | Graph) -> float:
        """Measured peak of memory over predicted, of a model on a device type."""
        off = [
            np.log(step.peak_bytes / plan_memory(step.model, step.plan).reserved)
            for step in self.steps_on(device)
            if step.peak_bytes and isinstance(step.model, Transformer) and step.model == model
        ]
        trust = (_MEMORY / _MEMORY_NOISE) ** 2
        return float(np.exp(trust * np.sum(off) / (1 + trust * len(off))))

    def source(self, device: str | Accelerator) -> str:
        """Evidence behind predictions for a device type, in words."""
        if not (steps := self.steps_on(device)):
            return "specifications and fitted constants"
        latest = max(step.measured for step in steps)
        count = "1 measured step" if len(steps) == 1 else f"{len(steps)} measured steps"
        return f"{count}, the latest of {latest}"


_UNMEASURED, _MEASURED = "plans on a new system, elsewhere", "plans of a measured model, 1 probe"


def predict_times(
    model: Transformer | Graph,
    plans: Sequence[Plan],
    board: Accelerator,
    calibration: Calibration,
) -> PlanTimes:
    """Predict the times of steps of a model under plans, given what was measured."""
    parts = np.stack([step_parts(model, plan, board) for plan in plans])
    prior, belief = _update_elsewhere(calibration, board), calibration.belief(board)
    steps = calibration.steps_on(board)
    slope = slopes(_log_seconds(parts), belief.mean)
    variance = np.einsum("ij,jk,ik->i", slope, prior.covariance, slope) + PLAN_NOISE**2
    predicted = np.log(plan_seconds(belief.mean, parts))
    if steps:
        ran = [(step.model, _shape(step.plan)) for step in steps]
        traits = [_traits(step.model, step.plan) for step in steps]
        measured_parts = np.stack([step_parts(step.model, step.plan, board) for step in steps])
        gains = slopes(_log_seconds(measured_parts), belief.mean) @ prior.covariance
        scatter = _scatter(steps)
        apart = [scatter.get(case, 0.0) for case in ran]
        noise = np.hypot(_noise(steps, calibration.today, _REPEATED), apart)
        off = np.log([step.seconds for step in steps]) - np.log(
            plan_seconds(belief.mean, measured_parts)
        )
        asked = [(model, _shape(plan)) for plan in plans]
        shared = unexplained([_traits(model, plan) for plan in plans], traits)
        among = unexplained(traits, traits)
        predicted = predicted + krige(off, among, shared, noise)[0]
        among = among + gains @ slopes(_log_seconds(measured_parts), belief.mean).T
        variance = variance - krige(off, among, shared + slope @ gains.T, noise)[1]
        # Steps of one plan that contradict each other say little about the next.
        again = np.array([scatter.get(case, 0.0) for case in asked])
        variance = np.maximum(variance, _REPEATED**2) + again**2 + _release(model) ** 2
    scale = interval_scale(_MEASURED if steps else _UNMEASURED)
    seconds, deviation = np.exp(predicted), scale * np.sqrt(variance)
    if not any(step.model == model for step in steps):
        narrow = np.array([tf32_seconds(model, plan, board) for plan in plans]) / seconds
        deviation = deviation + np.minimum(narrow, 1.0) * np.maximum(_TF32 - deviation, 0.0)
    if not any(step.model == model and step.plan.task.kind == "grpo" for step in steps):
        decoding = np.minimum(parts[:, PARTS.index("rollout")] / seconds, 1.0)
        deviation = deviation + decoding * (ROLLOUT_DEVIATION - deviation)  # wrong the same way
    return PlanTimes(parts, seconds, deviation)


def _scatter(steps: Sequence[MeasuredStep]) -> dict[Any, float]:
    """Deviation among the measured steps of a plan, whatever their batch size, where several."""
    groups: dict[Any, list[float]] = {}
    for step in steps:
        rate = np.log(step.seconds / step.plan.batch_size)
        groups.setdefault((step.model, _shape(step.plan)), []).append(rate)
    return {case: float(np.std(rates, ddof=1)) for case, rates in groups.items() if rates[1:]}


@fitted_cache
def _belief(calibration: Calibration, board: Accelerator) -> Belief:
    # Steps elsewhere first, which say little; then those on the device itself.
    prior = _update_elsewhere(calibration, board)
    return _update(prior, calibration.steps_on(board), calibration.today, PLAN_NOISE)


def _release(model: Transformer | Graph) -> float:
    """Deviation of the same plan's time from one software release to the next."""
    return _EXPERT_RELEASE if getattr(model, "experts", 0) else _DENSE_RELEASE


@fitted_cache
def _update_elsewhere(calibration: Calibration, board: Accelerator) -> Belief:
    """Belief about the constants of a device type from steps on other types."""
    own, strange = calibration.steps_on(board), calibration.outliers()
    elsewhere = tuple(step for step in calibration.steps if step not in (*own, *strange))
    prior = _update(fitted_belief("plans"), elsewhere, calibration.today, _ELSEWHERE)
    return on_another_system(prior, board)


def _update(belief: Belief, steps: Sequence[MeasuredStep], today: date, noise: float) -> Belief:
    if not steps:
        return belief
    parts = np.stack(
        [step_parts(step.model, step.plan, accelerator(step.device)) for step in steps]
    )
    measured = np.log([step.seconds for step in steps])
    return belief.update(_log_seconds(parts), measured, _noise(steps, today, noise), robust=False)


def _log_seconds(parts: Array) -> Model:
    return lambda constants: np.log(plan_seconds(constants, parts))


def _noise(steps: Sequence[MeasuredStep], today: date, fresh: float) -> Array:
    """Standard deviation of each measurement around the model, larger for old ones."""
    age = np.array([max((today - step.measured).days, 0) for step in steps])
    release = np.array([_release(step.model) for step in steps])
    return np.asarray(np.hypot(fresh, release * np.minimum(age / _RELEASE_DAYS, 1.0)))


def unexplained(first: Sequence[tuple[Any, ...]], second: Sequence[tuple[Any, ...]]) -> Array:
    """Covariance of what the constants leave unexplained of steps with these traits."""
    rests = (_MODEL_REST, _KERNEL_REST, _PLAN_REST)
    shares = [
        [
            sum(rest**2 * (a == b) for rest, a, b in zip(rests, mine, other, strict=True))
            for other in second
        ]
        for mine in first
    ]
    return np.array(shares)


def _traits(model: Transformer | Graph, plan: Plan) -> tuple[int, ...]:
    """Traits that steps may share: a model of any depth, kernels on a device, the plan itself."""
    kind = hash(model if isinstance(model, Graph) else _block(model))
    kernels = (
        *(kind, plan.tensor, plan.context, plan.expert, plan.micro_batch, plan.precision),
        *(plan.framework, plan.recompute, plan.fused_attention, plan.task),
    )
    return kind, hash(kernels), hash((model, _shape(plan)))


@fitted_cache
def _block(model: Transformer) -> Transformer:
    """A model of one block like those of another."""
    return replace(model, name="", layers=1, dense_layers=0, windowed_layers=0)


def best_probe(
    model: Transformer | Graph,
    plans: Sequence[Plan],
    target: Plan,
    board: Accelerator,
    calibration: Calibration,
) -> tuple[Plan, float]:
    """The plan whose measured step says most about another, and the deviation then left.

    The deviation is relative to that of today.
    """
    rows = [*plans, target]
    parts = np.stack([step_parts(model, plan, board) for plan in rows])
    traits = [_traits(model, plan) for plan in rows]
    covariance = calibration.belief(board).covariance_of(_log_seconds(parts))
    covariance = covariance + unexplained(traits, traits)
    remaining = probe_values(covariance, [[row] for row in range(len(plans))], [-1], _REPEATED)
    at = int(np.argmin(remaining))
    then = interval_scale(_MEASURED) * np.hypot(remaining[at], _release(model))
    now = interval_scale(_UNMEASURED) * covariance[-1, -1] ** 0.5
    return plans[at], float(then / now)


def _shape(plan: Plan) -> tuple[str, str]:
    """A plan without its batch size."""
    return str(plan), plan.precision


def on_another_system(belief: Belief, board: Accelerator) -> Belief:
    """Constants of plans on a machine that nothing is known about."""
    further = np.where(_OF_LINKS & board.in_pcie_server, _PCIE_SERVERS, _FURTHER)
    return Belief(belief.mean, belief.covariance + np.diag(further**2))


def _predicted_watts(step: MeasuredStep, belief: Belief) -> float:
    board = accelerator(step.device)
    parts = step_parts(step.model, step.plan, board)
    load = plan_load(belief.mean, parts, step.seconds)
    seconds, joules = step_cost(board, load, np.array([board.limit_watts]))
    return float(joules[0] / seconds[0])


def read_steps(path: Path, model: Transformer | None = None) -> list[MeasuredStep]:
    """Measured steps from a JSON file.

    The file holds a list of objects with ``device``, ``plan`` (such as ``dp8-mb1-zero3``),
    ``batch_size``, ``seconds``, and where known ``precision`` (16 bits where missing), ``watts``
    of one device, ``measured`` (a day such as ``2026-11-16``; today where missing) and ``model``.

    Args:
        path: The file.
        model: Description of the model of rows that name none.

    Raises:
        FileError: The file cannot be read or lacks a name.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
        rows = rows if isinstance(rows, list) else [rows]
        return [MeasuredStep.from_dict(row, model) for row in rows]
    except (
        OSError,
        UsageError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as problem:
        raise FileError(
            f"cannot read measured steps from {path}: {flaw_text(problem)}",
            remedy="write a list of objects with device, plan, batch_size, seconds, and where "
            "known precision, model, watts and measured",
        ) from None


def steps_file() -> Path:
    """File of the steps that are kept for later predictions."""
    return data_folder() / "predict" / "steps.json"


def forget_steps(path: Path | None = None) -> int:
    """Delete the steps that were kept; their number."""
    file = path or steps_file()
    if not file.exists():
        return 0
    try:
        count = len(read_steps(file))
    except FileError:  # a file that cannot be read is one more reason to forget it
        count = 0
    file.unlink()
    return count


def remember_steps(further: Iterable[MeasuredStep] = (), path: Path | None = None) -> Calibration:
    """Steps that were kept for later predictions, and further ones, which are kept as well.

    Args:
        further: Steps to keep, each once.
        path: File; ``predict/steps.json`` under this user's data folder where None.

    Raises:
        FileError: The file cannot be read or written.
    """
    file = path or steps_file()
    stored = tuple(read_steps(file)) if file.exists() else ()
    steps = tuple(dict.fromkeys((*stored, *further)))
    if steps != stored:
        text = json.dumps([step.to_dict() for step in steps], indent=1)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, text.encode())
        except OSError as problem:
            raise FileError(
                f"cannot write {file}: {problem.strerror}",
                remedy="set XDG_DATA_HOME to a folder that you may write",
            ) from None
    return Calibration(steps)
