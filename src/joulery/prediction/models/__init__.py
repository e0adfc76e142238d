"""The physical models behind predictions, for scripts that fit them, test them or compare others.

A model is a function from log-constants to predictions; see ``joulery.prediction._bayes`` for
what is known about constants and how measurements change that.
"""

from joulery.prediction._bayes import (
    NINETY,
    NINETY_BELOW,
    Belief,
    condition,
    fitted,
    fitted_belief,
    fitted_on,
    krige,
    probe_values,
    summed_deviation,
)
from joulery.prediction._calibrate import PLAN_NOISE, on_another_system, unexplained
from joulery.prediction._kernels import (
    CONSTANTS,
    POWER_CONSTANTS,
    STREAM,
    Kernels,
    kernel_times,
    wanted_power,
)
from joulery.prediction._limits import (
    CURVE_NOISE,
    JOB_CONSTANTS,
    LIMIT_CONSTANTS,
    at_scale,
    curve_after,
    job_curve,
)
from joulery.prediction._plan_time import PARTS, PLAN_CONSTANTS, plan_parts, plan_seconds
from joulery.prediction._power import Load, in_step, node_watts, response

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
    "at_scale",
    "condition",
    "curve_after",
    "fitted",
    "fitted_belief",
    "fitted_on",
    "in_step",
    "job_curve",
    "kernel_times",
    "krige",
    "node_watts",
    "on_another_system",
    "plan_parts",
    "plan_seconds",
    "probe_values",
    "response",
    "summed_deviation",
    "unexplained",
    "wanted_power",
]
