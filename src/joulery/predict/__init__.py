"""Predict time, energy, power and memory of training on hardware that has not run it."""

from __future__ import annotations

from joulery.predict._bayes import Belief, population
from joulery.predict._devices import PRECISIONS, Device, device
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
    stack_parts,
)
from joulery.predict._probes import probe_values
from joulery.predict._scaling import node_watts, samples_to_target

__all__ = [
    "CONSTANTS",
    "JOB_CONSTANTS",
    "LIMIT_CONSTANTS",
    "PARTS",
    "PLAN_CONSTANTS",
    "POWER_CONSTANTS",
    "PRECISIONS",
    "Belief",
    "Device",
    "Kernels",
    "Memory",
    "Plan",
    "Transformer",
    "clock_curve",
    "device",
    "job_curve",
    "joined",
    "kernel_power",
    "kernel_times",
    "matmuls",
    "node_watts",
    "plan_memory",
    "plan_parts",
    "plan_seconds",
    "population",
    "probe_values",
    "samples_to_target",
    "stack_parts",
    "stage_memory",
    "streams",
    "transformer",
]
