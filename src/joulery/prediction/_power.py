"""Load of a training step on a device, and what power limits and clocks make of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.prediction._assumptions import waiting_share
from joulery.prediction._bayes import fitted_belief
from joulery.prediction._kernels import CONSTANTS, kernel_times, wanted_power
from joulery.prediction._limits import JOB_CONSTANTS, clock_curve, job_curve
from joulery.prediction._plan_time import PARTS

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._graph import Graph

# Power of a board that waits for others or for its host, as a share of its default limit; by hand.
WAITING_SHARE = 0.38
_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one step on one device under its default limit.

    Attributes:
        busy_seconds: Time in kernels.
        waiting_seconds: Time in collectives, bubbles and on the host.
        memory_ratio: Time of the kernels' traffic relative to that of their arithmetic.
        demand: Power of the kernels if no limit cut it, as a share of the default limit.
    """

    busy_seconds: float
    waiting_seconds: float
    memory_ratio: float
    demand: float


def response(
    device: Accelerator, load: Load, limits: Array, clocks: Array = _NONE
) -> tuple[Array, Array]:
    """Slowdown of the kernels and watts while they run, at each power limit, then at each clock.

    Limits are in watts; clocks, in hertz, are locked under the default limit.
    """
    constants = _job_constants(device, load)
    every = np.append(limits, device.limit_watts)
    seconds, watts = job_curve(constants, device, np.ones(len(every)), every)
    locked_seconds, locked_watts = clock_curve(constants, device, np.ones(len(clocks)), clocks)
    # A clock that the default limit cannot feed is not reached.
    locked_seconds = np.maximum(locked_seconds, seconds[-1])
    locked_watts = np.minimum(locked_watts, watts[-1])
    return (
        np.concatenate([seconds[:-1], locked_seconds]) / seconds[-1],
        np.concatenate([watts[:-1], locked_watts]),
    )


def _job_constants(device: Accelerator, load: Load) -> Array:
    """Constants of a job that does nothing but the load's kernels."""
    constants = fitted_belief("limits").mean.copy()
    constants[:JOB_CONSTANTS] = np.log([1.0, load.memory_ratio, 1e-6, 1e-6, 1e-6, 1e6, 1.0])
    ones, watts = np.ones(1), []
    for activity in (1e-9, 1.0):
        constants[JOB_CONSTANTS - 1] = np.log(activity)
        watts.append(job_curve(constants, device, ones, 1e9 * ones)[1][0])
    # The activity at which the board at its highest clock draws what the kernels want.
    activity = (load.demand * device.limit_watts - watts[0]) / (watts[1] - watts[0])
    constants[JOB_CONSTANTS - 1] = np.log(max(activity, 1e-3))
    return constants


def step_cost(
    device: Accelerator, load: Load, limits: Array, clocks: Array = _NONE
) -> tuple[Array, Array]:
    """Seconds and joules of a step on one device, at each power limit, then at each clock."""
    slowdown, busy_watts = response(device, load, limits, clocks)
    busy = load.busy_seconds * slowdown
    waiting_watts = np.minimum(WAITING_SHARE * device.limit_watts, busy_watts)
    joules = busy * busy_watts + load.waiting_seconds * waiting_watts
    return busy + load.waiting_seconds, joules


# A launch from Python, PyTorch in eager mode; runs ahead of the device where kernels are longer;
# by hand.
_HOST_SECONDS = 8e-6
# Operator times in FP32 were taken one by one and carry the host's launch. In a step launches run
# ahead of the device, at this many microseconds from one kernel to the next, and kernels overlap
# with their neighbours; chosen on NeuSight's steps, leaving each device out in turn.
_LAUNCH_IN_STEP, _OVERLAP_IN_STEP = 1.0, 6.0


def in_step(constants: Array) -> Array:
    """Constants of kernels within a step, from those of kernels that were timed one by one."""
    copy = constants.copy()
    copy[CONSTANTS.index("launch")] = np.log(_LAUNCH_IN_STEP)
    copy[CONSTANTS.index("overlap")] = np.log(_OVERLAP_IN_STEP)
    return copy


def kernel_constants(precision: str) -> Array:
    """Constants of kernels within a step, by the precision of most of its operations."""
    if precision == "fp32":
        return in_step(fitted_belief("fp32 kernels").mean)
    if precision in ("fp8", "mxfp8", "nvfp4"):
        return in_step(fitted_belief("fp8 kernels").mean)
    return fitted_belief("kernels").mean


def graph_load(graph: Graph, device: Accelerator, precision: str | None = None) -> Load:
    """Load of a captured step."""
    kernels = graph.kernels(device, precision)
    constants = kernel_constants(precision or graph.precision)
    seconds, compute, traffic = kernel_times(constants, device, kernels)
    times = kernels.count
    busy = float((seconds * times).sum())
    host = float(times.sum()) * _HOST_SECONDS
    demand = wanted_power(fitted_belief("kernel power").mean, device, kernels, seconds)
    ratio = float((traffic * times).sum()) / max(float((compute * times).sum()), 1e-12)
    return Load(
        busy,
        float((busy**4 + host**4) ** 0.25 - busy),
        min(max(ratio, 1e-3), 1e3),
        float((demand * seconds * times).sum() / busy),
    )


# Traffic beside arithmetic in a transformer's kernels, and what they want of the power limit:
# H100 nodes of MLPerf Training draw 0.85 to 0.9 of their boards' limits.
_PLAN_MEMORY_RATIO, _PLAN_DEMAND = 0.45, 0.95
# Kernels of a step take longer than in isolation; by hand.
_KERNEL_FACTOR = 1.2


def busy_seconds(parts: Array, total: Array) -> Array:
    """Time in kernels of steps whose parts are the rows of ``parts``."""
    kernels = sum(
        parts[:, PARTS.index(name)] for name in ("dense", "attention", "experts", "recompute")
    )
    return np.minimum(_KERNEL_FACTOR * kernels, 0.98 * total)


def plan_load(parts: Array, total: float, power_factor: float = 1.0) -> Load:
    """Load of a step of ``total`` seconds, from its parts and the measured power over predicted."""
    busy = float(busy_seconds(parts[None], np.array([total]))[0])
    return replace(plan_demand(power_factor), busy_seconds=busy, waiting_seconds=total - busy)


def plan_demand(power_factor: float = 1.0) -> Load:
    """Load of one second in the kernels of a transformer."""
    return Load(1.0, 0.0, _PLAN_MEMORY_RATIO, _PLAN_DEMAND * power_factor)


def node_watts(busy_watts: float, efficiency: float) -> float:
    """Mean power of a node that works ``efficiency`` of the time and waits for others otherwise."""
    return busy_watts * (efficiency + (1.0 - efficiency) * waiting_share())
