"""The physical models behind predictions, for scripts that fit them, test them or compare others.

A model is a function from log-constants to predictions; see :mod:`joulery.predict._bayes` for
what is known about constants and how measurements change that.
"""

from joulery.predict._bayes import (
    Belief,
    best_probes,
    conditioned,
    fitted,
    fitted_belief,
    fitted_on,
    krige,
    population,
    probe_values,
)
from joulery.predict._calibrate import PLAN_NOISE, on_another_system, unexplained
from joulery.predict._convergence import Convergence
from joulery.predict._curve import CURVE_NOISE, at_scale, curve_after
from joulery.predict._intervals import (
    NINETY,
    NINETY_BELOW,
    conformal_scale,
    shared_correlation,
    summed_deviation,
)
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
from joulery.predict._plan_time import PARTS, PLAN_CONSTANTS, plan_parts, plan_seconds
from joulery.predict._power import Load, graph_load, in_step, node_watts, plan_load, response

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
    "Belief",
    "Convergence",
    "Kernels",
    "Load",
    "at_scale",
    "best_probes",
    "clock_curve",
    "conditioned",
    "conformal_scale",
    "curve_after",
    "fitted",
    "fitted_belief",
    "fitted_on",
    "graph_load",
    "in_step",
    "job_curve",
    "joined",
    "kernel_power",
    "kernel_times",
    "krige",
    "matmuls",
    "node_watts",
    "on_another_system",
    "plan_load",
    "plan_parts",
    "plan_seconds",
    "population",
    "probe_values",
    "response",
    "shared_correlation",
    "streams",
    "summed_deviation",
    "unexplained",
]
