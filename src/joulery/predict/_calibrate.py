"""Sharpen the constants of plans with measured steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import FileError
from joulery.predict._bayes import Belief
from joulery.predict._devices import accelerator
from joulery.predict._fitted import belief
from joulery.predict._plan import Plan, plan_parts, plan_seconds
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.predict._bayes import Array
    from joulery.predict._model import Transformer

# How far a machine's constants lie from those of the fit, and how far its steps from the model;
# chosen on the systems of Megatron-Bridge's tables, leaving each out in turn.
_MACHINE, MEASURING_NOISE = 0.2, 0.08


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Time of a step that ran.

    Attributes:
        device: Accelerator type.
        plan: Parallel plan.
        seconds: Time of one step.
    """

    device: str
    plan: Plan
    seconds: float


def calibrated(model: Transformer, steps: Sequence[MeasuredStep]) -> Belief:
    """Constants of plans after measured steps of a model."""
    parts = np.stack([plan_parts(model, one.plan, accelerator(one.device)) for one in steps])
    measured = np.log([finite(one.seconds, "seconds of a step", minimum=1e-9) for one in steps])

    def seconds(constants: Array) -> Array:
        return np.log(plan_seconds(constants, parts))

    return before_measuring().update(seconds, measured, MEASURING_NOISE)


def before_measuring() -> Belief:
    """Constants of plans on a machine that nothing is known about."""
    prior = belief("plans")
    return Belief(prior.mean, prior.covariance + _MACHINE**2 * np.eye(len(prior.mean)))


def read_steps(path: Path) -> list[MeasuredStep]:
    """Measured steps from a JSON file.

    The file holds a list of objects with ``device``, ``plan`` (such as ``dp8-mb1-zero3``),
    ``global_batch``, ``precision`` (``bf16`` where missing) and ``seconds``.

    Raises:
        FileError: The file cannot be read or lacks a name.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [
            MeasuredStep(
                row["device"],
                Plan.parse(row["plan"], int(row["global_batch"]), row.get("precision", "bf16")),
                float(row["seconds"]),
            )
            for row in rows
        ]
    except OSError as problem:
        raise FileError(
            f"cannot read {path}: {problem.strerror}", remedy="give the path of a JSON file"
        ) from None
    except (KeyError, TypeError, AttributeError) as problem:
        raise FileError(
            f"{path} is no list of measured steps: {problem}",
            remedy="give device, plan, global_batch and seconds of each",
        ) from None
    except ValueError as problem:
        raise FileError(f"{path}: {problem}", remedy="write one JSON list of objects") from None
