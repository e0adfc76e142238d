"""The physical models behind predictions, for scripts that fit them or leave something out.

A model is a function from log-constants to predictions; see ``joulery.prediction._bayes`` for
what is known about constants and how measurements change that.
"""

from joulery.prediction._bayes import (
    NINETY,
    NINETY_BELOW,
    Belief,
    assume,
    fitted,
    fitted_belief,
    krige,
    probe_values,
    summed_deviation,
)
from joulery.prediction._calibrate import PLAN_NOISE, best_probe
from joulery.prediction._kernels import CONSTANTS, STREAM, Kernels, kernel_times, kernel_use
from joulery.prediction._limits import (
    CURVE_NOISE,
    JOB_CONSTANTS,
    LIMIT_CONSTANTS,
    job_curve,
)
from joulery.prediction._plan_time import (
    PARTS,
    PLAN_CONSTANTS,
    busy_seconds,
    plan_seconds,
    step_parts,
)
from joulery.prediction._power import POWER_CONSTANTS, Load, node_watts, response

__all__ = [
    "CONSTANTS",
    "CURVE_NOISE",
    "JOB_CONSTANTS",
    "LIMIT_CONSTANTS",
    "NINETY",
    "NINETY_BELOW",
    "PARTS",
    "PLAN_CONSTANTS",
    "PLAN_NOISE",
    "POWER_CONSTANTS",
    "STREAM",
    "Belief",
    "Kernels",
    "Load",
    "assume",
    "best_probe",
    "busy_seconds",
    "fitted",
    "fitted_belief",
    "job_curve",
    "kernel_times",
    "kernel_use",
    "krige",
    "node_watts",
    "plan_seconds",
    "probe_values",
    "response",
    "step_parts",
    "summed_deviation",
]
