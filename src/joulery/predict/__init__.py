"""Predict time, energy, power and memory of training on hardware that has not run it.

>>> from joulery.predict import Plan, predict
>>> model = {"layers": 32, "hidden": 4096, "heads": 32, "feedforward": 14336}
>>> model |= {"vocabulary": 128256, "sequence": 8192}
>>> frontier = predict(model, "h100", plan=Plan(data=8, shard=3, global_batch=64))
>>> frontier.fastest.setting.devices
8
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from joulery.predict._assumptions import Assumptions
from joulery.predict._bayes import Belief, population
from joulery.predict._calibrate import MeasuredStep, calibrated, read_steps
from joulery.predict._devices import PRECISIONS, Accelerator, accelerator
from joulery.predict._fitted import belief as fitted_belief
from joulery.predict._fitted import fitted_on
from joulery.predict._graph import Graph, Operator
from joulery.predict._kernels import (
    CONSTANTS,
    POWER_CONSTANTS,
    Kernels,
    joined,
    kernel_power,
    kernel_times,
    matmuls,
    streams,
)
from joulery.predict._limits import JOB_CONSTANTS, LIMIT_CONSTANTS, clock_curve, job_curve
from joulery.predict._memory import Memory, plan_memory, stage_memory
from joulery.predict._model import Transformer, transformer
from joulery.predict._plan import (
    PARTS,
    PLAN_CONSTANTS,
    Plan,
    plan_parts,
    plan_seconds,
)
from joulery.predict._probes import probe_values
from joulery.predict._recommend import (
    OBJECTIVES,
    Choice,
    Recommendation,
    Work,
    candidate_plans,
    recommend,
)
from joulery.predict._scaling import node_watts, samples_to_target
from joulery.predict._step import (
    Prediction,
    graph_load,
    plan_load,
    predict,
    prediction,
    response,
)

if TYPE_CHECKING:
    from joulery.frontier import Frontier

__all__ = [
    "CONSTANTS",
    "JOB_CONSTANTS",
    "LIMIT_CONSTANTS",
    "OBJECTIVES",
    "PARTS",
    "PLAN_CONSTANTS",
    "POWER_CONSTANTS",
    "PRECISIONS",
    "Accelerator",
    "Assumptions",
    "Belief",
    "Choice",
    "Graph",
    "Kernels",
    "MeasuredStep",
    "Memory",
    "Operator",
    "Plan",
    "Prediction",
    "Recommendation",
    "Transformer",
    "Work",
    "accelerator",
    "calibrated",
    "candidate_plans",
    "capture",
    "clock_curve",
    "fitted_belief",
    "fitted_on",
    "graph_load",
    "job_curve",
    "joined",
    "kernel_power",
    "kernel_times",
    "matmuls",
    "node_watts",
    "plan_load",
    "plan_memory",
    "plan_parts",
    "plan_seconds",
    "population",
    "predict",
    "prediction",
    "probe_values",
    "read_steps",
    "recommend",
    "response",
    "samples_to_target",
    "stage_memory",
    "streams",
    "transformer",
]


class _Room(ModuleType):
    """The room itself can be called: ``joulery.predict(model, device="h100")``."""

    def __call__(self, *arguments: Any, **options: Any) -> Frontier:
        return predict(*arguments, **options)


sys.modules[__name__].__class__ = _Room


def __getattr__(name: str) -> object:
    if name == "capture":  # imports torch, which takes seconds
        from joulery.predict._capture import capture

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
