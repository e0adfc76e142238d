"""Predict time, energy, power and memory of training on hardware that has not run it.

Examples:
    >>> from joulery.predict import Plan, predict
    >>> model = {"layers": 32, "hidden": 4096, "heads": 32, "feedforward": 14336}
    >>> model |= {"vocabulary": 128256, "sequence": 8192}
    >>> frontier = predict(model, "h100", plan=Plan(data=8, shard=3, global_batch=64))
    >>> frontier.fastest.setting.devices
    8

The physical models behind it, for those who fit or compare them, are in ``joulery.predict.models``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.frontier import Frontier
    from joulery.predict._assumptions import (
        Assumptions,
        embodied_grams,
        embodied_kilograms,
        embodied_source,
    )
    from joulery.predict._bayes import Interval
    from joulery.predict._calibrate import Calibration, MeasuredStep, kept_steps, read_steps
    from joulery.predict._capture import capture
    from joulery.predict._devices import Accelerator, accelerator
    from joulery.predict._graph import Graph, Operator
    from joulery.predict._limits import limit_curve
    from joulery.predict._memory import Memory, plan_memory
    from joulery.predict._model import Transformer, transformer
    from joulery.predict._plan import Plan
    from joulery.predict._recommend import Choice, Recommendation, recommend
    from joulery.predict._search import Convergence, Work
    from joulery.predict._stages import stage_rows
    from joulery.predict._step import Prediction, predict, prediction, total

__all__ = [
    "Accelerator",
    "Assumptions",
    "Calibration",
    "Choice",
    "Convergence",
    "Graph",
    "Interval",
    "MeasuredStep",
    "Memory",
    "Operator",
    "Plan",
    "Prediction",
    "Recommendation",
    "Transformer",
    "Work",
    "accelerator",
    "capture",
    "embodied_grams",
    "embodied_kilograms",
    "embodied_source",
    "kept_steps",
    "limit_curve",
    "plan_memory",
    "predict",
    "prediction",
    "read_steps",
    "recommend",
    "stage_rows",
    "total",
    "transformer",
]

__getattr__ = lazy(__name__)


class _Room(ModuleType):
    """The room itself can be called: ``joulery.predict(model, device="h100")``."""

    def __call__(self, *arguments: Any, **options: Any) -> Frontier:
        from joulery.predict._step import predict

        return predict(*arguments, **options)


sys.modules[__name__].__class__ = _Room
