"""Load of a training step on a device, and what power limits and clocks make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.prediction._assumptions import waiting_share
from joulery.prediction._bayes import fitted_belief
from joulery.prediction._limits import JOB_CONSTANTS, clock_curve, job_curve
from joulery.prediction._plan_time import PARTS, PLAN_CONSTANTS, busy_seconds, uneven_share

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator

POWER_CONSTANTS = (
    "static",  # share of the limit that a board draws while kernels run, whatever they do
    "arithmetic",  # share of the limit that arithmetic units in full use add
    "memory",  # share of the limit that memory in full use adds
    "waiting",  # share of the limit that a board draws while it waits for others or for its host
)
# Power of long dense work against the model, however much the limit cuts: GEMM power of H200 and
# B200, leaving each out in turn.
LEAST_POWER_DEVIATION = 0.09
# Use of the memory's bandwidth by an optimizer; by hand.
_OPTIMIZER_USE = 0.8
_NONE = np.empty(0)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one step on one device under its default limit.

    Attributes:
        busy_seconds: Time in kernels.
        waiting_seconds: Time in collectives, bubbles and on the host.
        memory_ratio: Time of the kernels' traffic relative to that of their arithmetic.
        demand: Power of the kernels if no limit cut it, as a share of the default limit.
        waiting: Power while waiting, likewise.
        power_factor: Measured power over predicted, of the whole step.
        uneven: Share of ``busy_seconds`` that a mean device waits for the slowest stage instead.
    """

    busy_seconds: float
    waiting_seconds: float
    memory_ratio: float
    demand: float
    waiting: float = 0.36
    power_factor: float = 1.0
    uneven: float = 0.0

    def waiting_watts(self, device: Accelerator) -> float:
        """Power of a device while it waits."""
        return self.power_factor * self.waiting * device.limit_watts


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
    demand = load.demand * load.power_factor * device.limit_watts
    activity = (demand - watts[0]) / (watts[1] - watts[0])
    constants[JOB_CONSTANTS - 1] = np.log(max(activity, 1e-3))
    return constants


def step_cost(
    device: Accelerator, load: Load, limits: Array, clocks: Array = _NONE
) -> tuple[Array, Array]:
    """Seconds and joules of a step on one device, at each power limit, then at each clock."""
    slowdown, busy_watts = response(device, load, limits, clocks)
    return step_totals(device, load, slowdown, busy_watts)


def step_totals(
    device: Accelerator, load: Load, slowdown: Array, busy_watts: Array
) -> tuple[Array, Array]:
    """Seconds and joules of a step from the response of its kernels."""
    busy = load.busy_seconds * slowdown
    waiting_watts = np.minimum(load.waiting_watts(device), busy_watts)
    working = busy * (1 - load.uneven)
    waiting = load.waiting_seconds + busy * load.uneven
    joules = working * busy_watts + waiting * waiting_watts
    return busy + load.waiting_seconds, joules


def plan_load(constants: Array, parts: Array, total: float, power_factor: float = 1.0) -> Load:
    """Load of a step of ``total`` seconds.

    Args:
        constants: Constants of plans.
        parts: Parts of the step.
        total: Seconds of the step.
        power_factor: Measured power over predicted.
    """
    part = dict(zip(PARTS, parts.tolist(), strict=True))
    busy = min(float(busy_seconds(constants, parts[None])[0]), 0.98 * total)
    static, arithmetic, memory, waiting = np.exp(fitted_belief("power").mean).tolist()
    nominal = part["dense"] + part["attention"] + part["experts"] + part["recompute"]
    update = part["optimizer"] * np.exp(constants[PLAN_CONSTANTS.index("optimizer")])
    share = min(update / max(busy, 1e-12), 1.0)
    used = arithmetic * part["operations"] + memory * part["bandwidth"]
    demand = static + (1 - share) * used / max(nominal, 1e-12) + share * memory * _OPTIMIZER_USE
    ratio = (part["traffic"] + update) / max(part["arithmetic"], 1e-12)
    bounded = min(max(ratio, 1e-3), 1e3)
    uneven = uneven_share(constants, parts)
    return Load(busy, total - busy, bounded, float(demand), waiting, power_factor, uneven)


def node_watts(busy_watts: float, efficiency: float) -> float:
    """Mean power of a node that works ``efficiency`` of the time and waits for others otherwise."""
    return busy_watts * (efficiency + (1.0 - efficiency) * waiting_share())
