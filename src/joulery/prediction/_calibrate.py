"""Measured steps: what they say about predictions, and where they are kept for later ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.errors import FileError, UsageError
from joulery.files import write_atomic
from joulery.paths import data_folder
from joulery.prediction._bayes import Belief, fitted_belief, interval_scale, krige, slopes
from joulery.prediction._devices import accelerator
from joulery.prediction._model import Transformer, transformer
from joulery.prediction._plan import Plan
from joulery.prediction._plan_time import plan_parts, plan_seconds
from joulery.prediction._power import plan_load, step_cost
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulery.prediction._bayes import Array, Model
    from joulery.prediction._devices import Accelerator

# How the constants of a further system differ from those of the fit, in the order of
# PLAN_CONSTANTS, and how far steps lie from the model; chosen on the systems of Megatron-Bridge's
# tables, leaving each out in turn.
_NEW_SYSTEM = np.array([0.12, 0.15, 0.2, 0.2, 0.3, 0.3, 0.3, 0.05, 0.2, 0.5, 0.3, 0.08, 0.05, 0.05])
PLAN_NOISE = 0.1
# What the constants leave unexplained, PLAN_NOISE in all: in common to all plans of a model, and of
# one plan alone; the split chosen likewise.
_MODEL_REST, _PLAN_REST = 0.08, 0.06
# A release of the software changes the same plan by so much, and about so many days lie between
# releases (Megatron-Bridge's tables, 25.09 to 26.08): older measurements say less.
_RELEASE, _RELEASE_DAYS = 0.13, 60.0
# The same plan again, on the same day; assumed.
_REPEATED = 0.02
# A step measured on another device type says something about the software, little about this one;
# assumed.
_ELSEWHERE = 0.2
# Power of plans against the model, and of one reading against the next; assumed.
_POWER, _POWER_NOISE = 0.11, 0.03


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
    """

    model: Transformer
    device: str
    plan: Plan
    seconds: float
    watts: float | None = None
    measured: date = field(default_factory=lambda: datetime.now(UTC).date())

    def __post_init__(self) -> None:
        finite(self.seconds, "seconds of a step", minimum=1e-9)
        if self.watts is not None:
            finite(self.watts, "watts of a step", minimum=1e-9)
        accelerator(self.device)
        self.plan.check(self.model)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; ``read_steps`` reads it."""
        plain = {name: value for name, value in asdict(self.model).items() if value}
        return {
            "model": plain | {"gated": self.model.gated, "causal": self.model.causal},
            "device": self.device,
            "plan": str(self.plan),
            "global_batch": self.plan.global_batch,
            "precision": self.plan.precision,
            "seconds": self.seconds,
            "watts": self.watts,
            "measured": self.measured.isoformat(),
        }

    @classmethod
    def from_dict(cls, row: dict[str, Any], model: Transformer | None = None) -> MeasuredStep:
        """The inverse of ``to_dict``; ``model`` stands in where the row names none."""
        description = transformer(row["model"]) if "model" in row or model is None else model
        plan = Plan.parse(row["plan"], int(row["global_batch"]), row.get("precision", "bf16"))
        day = row.get("measured")
        when = {} if day is None else {"measured": date.fromisoformat(day)}
        return cls(description, row["device"], plan, row["seconds"], row.get("watts"), **when)


class PlanTimes(NamedTuple):
    """Times of steps under several plans."""

    parts: Array  # physical parts of each step, one row per plan
    seconds: Array
    deviation: Array  # standard deviation of the logarithm of each time


@dataclass(frozen=True, slots=True)
class Calibration:
    """Beliefs about plans: the fitted constants, sharpened by measured steps.

    Attributes:
        steps: Steps that ran, on any device type.
        today: Day of the prediction; old measurements count less.
    """

    steps: tuple[MeasuredStep, ...] = ()
    today: date = field(default_factory=lambda: datetime.now(UTC).date())

    def steps_on(self, device: str) -> tuple[MeasuredStep, ...]:
        """Steps on one device type."""
        name = accelerator(device).name
        return tuple(step for step in self.steps if accelerator(step.device).name == name)

    def belief(self, device: str) -> Belief:
        """Constants of plans on a device type."""
        # Steps elsewhere first, which say little; then those on the device itself.
        prior = _update_elsewhere(self, device)
        return _update(prior, self.steps_on(device), self.today, PLAN_NOISE)

    def power(self, device: str) -> tuple[float, float]:
        """Factor of the predicted power, and the standard deviation of its logarithm."""
        off = [
            np.log(step.watts / _predicted_watts(step))
            for step in self.steps_on(device)
            if step.watts is not None
        ]
        trust = (_POWER / _POWER_NOISE) ** 2
        mean = trust * float(np.sum(off)) / (1 + trust * len(off))
        deviation = _POWER / (1 + trust * len(off)) ** 0.5
        # Another plan draws another power than the one that was measured.
        return float(np.exp(mean)), interval_scale("GEMM power, specs") * max(
            deviation, 0.5 * _POWER
        )

    def source(self, device: str) -> str:
        """Evidence behind predictions for a device type, in words."""
        if not (steps := self.steps_on(device)):
            return "specifications and fitted constants"
        latest = max(step.measured for step in steps)
        count = "1 measured step" if len(steps) == 1 else f"{len(steps)} measured steps"
        return f"{count}, the latest of {latest}"


_UNMEASURED, _MEASURED = "plans on a new system, elsewhere", "plans of a measured model, 1 probe"


def predict_times(
    model: Transformer, plans: Sequence[Plan], board: Accelerator, calibration: Calibration
) -> PlanTimes:
    """Predict the times of steps of a model under plans, given what was measured."""
    parts = np.stack([plan_parts(model, plan, board) for plan in plans])
    prior, belief = _update_elsewhere(calibration, board.name), calibration.belief(board.name)
    steps = calibration.steps_on(board.name)
    slope = slopes(_log_seconds(parts), belief.mean)
    variance = np.einsum("ij,jk,ik->i", slope, prior.covariance, slope) + PLAN_NOISE**2
    predicted = np.log(plan_seconds(belief.mean, parts))
    if steps:
        ran = [(step.model, _shape(step.plan)) for step in steps]
        measured_parts = np.stack([plan_parts(step.model, step.plan, board) for step in steps])
        gains = slopes(_log_seconds(measured_parts), belief.mean) @ prior.covariance
        noise = _noise(steps, calibration.today, _REPEATED)
        off = np.log([step.seconds for step in steps]) - np.log(
            plan_seconds(belief.mean, measured_parts)
        )
        shared = unexplained([(model, _shape(plan)) for plan in plans], ran)
        among = unexplained(ran, ran)
        predicted = predicted + krige(off, among, shared, noise)[0]
        among = among + gains @ slopes(_log_seconds(measured_parts), belief.mean).T
        variance = variance - krige(off, among, shared + slope @ gains.T, noise)[1]
    scale = interval_scale(_MEASURED if steps else _UNMEASURED)
    return PlanTimes(parts, np.exp(predicted), scale * np.sqrt(variance))


def _update_elsewhere(calibration: Calibration, device: str) -> Belief:
    """Belief about the constants of a device type from steps on other types."""
    steps = calibration.steps_on(device)
    elsewhere = tuple(step for step in calibration.steps if step not in steps)
    prior = _update(fitted_belief("plans"), elsewhere, calibration.today, _ELSEWHERE)
    return on_another_system(prior)


def _update(belief: Belief, steps: Sequence[MeasuredStep], today: date, noise: float) -> Belief:
    if not steps:
        return belief
    parts = np.stack(
        [plan_parts(step.model, step.plan, accelerator(step.device)) for step in steps]
    )
    measured = np.log([step.seconds for step in steps])
    return belief.update(_log_seconds(parts), measured, _noise(steps, today, noise), robust=False)


def _log_seconds(parts: Array) -> Model:
    return lambda constants: np.log(plan_seconds(constants, parts))


def _noise(steps: Sequence[MeasuredStep], today: date, fresh: float) -> Array:
    """Standard deviation of each measurement around the model, larger for old ones."""
    age = np.array([max((today - step.measured).days, 0) for step in steps])
    return np.hypot(fresh, _RELEASE * np.minimum(age / _RELEASE_DAYS, 1.0))


def unexplained(first: Sequence[tuple[Any, Any]], second: Sequence[tuple[Any, Any]]) -> Array:
    """Covariance of what the constants leave unexplained of steps, each a model and its plan."""
    shares = [
        [
            _MODEL_REST**2 * (model == rival) + _PLAN_REST**2 * ((model, plan) == (rival, another))
            for rival, another in second
        ]
        for model, plan in first
    ]
    return np.array(shares)


def _shape(plan: Plan) -> tuple[str, str]:
    """A plan without its global batch."""
    return str(plan), plan.precision


def on_another_system(belief: Belief) -> Belief:
    """Constants of plans on a machine that nothing is known about."""
    further = np.zeros(len(belief.mean))
    further[: len(_NEW_SYSTEM)] = _NEW_SYSTEM**2
    return Belief(belief.mean, belief.covariance + np.diag(further))


def _predicted_watts(step: MeasuredStep) -> float:
    board = accelerator(step.device)
    parts = plan_parts(step.model, step.plan, board)
    seconds, joules = step_cost(
        board, plan_load(parts, step.seconds), np.array([board.limit_watts])
    )
    return float(joules[0] / seconds[0])


def read_steps(path: Path, model: Transformer | None = None) -> list[MeasuredStep]:
    """Measured steps from a JSON file.

    The file holds a list of objects with ``device``, ``plan`` (such as ``dp8-mb1-zero3``),
    ``global_batch``, ``seconds``, and where known ``precision`` (``bf16`` where missing), ``watts``
    of one device, ``measured`` (a day such as ``2026-11-16``; today where missing) and ``model``.

    Args:
        path: The file.
        model: Description of the model of rows that name none.

    Raises:
        FileError: The file cannot be read or lacks a name.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [MeasuredStep.from_dict(row, model) for row in rows]
    except (OSError, UsageError, KeyError, TypeError, AttributeError, ValueError) as problem:
        flaw = f"{problem} is missing" if isinstance(problem, KeyError) else problem
        raise FileError(
            f"cannot read measured steps from {path}: {flaw}",
            remedy="write a list of objects with device, plan, global_batch, seconds, and where "
            "known precision, model, watts and measured",
        ) from None


def remember_steps(further: Iterable[MeasuredStep] = (), path: Path | None = None) -> Calibration:
    """Steps that were kept for later predictions, and further ones, which are kept as well.

    Args:
        further: Steps to keep, each once.
        path: File; ``predict/steps.json`` under this user's data folder where None.

    Raises:
        FileError: The file cannot be read or written.
    """
    file = path or data_folder() / "predict" / "steps.json"
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
