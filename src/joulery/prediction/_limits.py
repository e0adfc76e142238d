"""Time and power of a training job against power limit, clock and batch size.

The physics is that of the simulated boards (``joulery.hardware.execute``), with a batch size
and a host that works beside the device instead of before it: a board under a limit lowers its clock
until the power while it executes fits; arithmetic stretches with the clock, memory traffic and the
host do not; dynamic power falls with the square of the voltage, which has a floor. With ``b``
samples per step, the work costs ``host / b + loading`` on the host and
``compute * (1 + fill / b + b / waste)`` of arithmetic, because small batches leave units idle and
large ones are padded.

The constants are log-values in the order of ``LIMIT_CONSTANTS``: seven of the job, then six of
the board.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.hardware import execute, relative_voltage, smooth_max
from joulery.prediction._bayes import Belief, fitted_belief, interval_scale
from joulery.prediction._devices import accelerator
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.prediction._bayes import Array, Model
    from joulery.prediction._devices import Accelerator

LIMIT_CONSTANTS = (
    "compute",  # seconds of arithmetic for the work at the highest clock and full batches
    "memory",  # seconds of memory traffic for the work, relative to `compute`
    "host",  # seconds on the host for the work at batch size 1, relative to `compute`
    "loading",  # seconds on the host for the work whatever the batch size, likewise
    "fill",  # batch size at which half of the units are idle
    "waste",  # batch size at which padding and spilling double the work
    "activity",  # share of the board's dynamic power that the arithmetic draws
    "awake",  # watts of a board that a process holds, as a share of its default limit
    "clock",  # watts of the clock tree at the highest clock, likewise
    "dynamic",  # watts of all units busy at the highest clock, likewise
    "traffic",  # watts of saturated memory, likewise
    "floor",  # lowest voltage relative to the one at the highest clock
    "knee",  # clock up to which the voltage stays there, relative to the highest
)
# The first ones are of the job, the others of the board.
JOB_CONSTANTS = 7
# Clocks between which curves are linear; by hand.
_SHARES = 48
# How sharply the slower of device and host counts: the host prepares the next kernels meanwhile; by
# hand.
_ASIDE = 4.0
# A board lowers its clock to this share of the highest at most, even if it then draws more than its
# limit: A40s draw 117 W under a limit of 100 W, and slow down 3 to 4 times; chosen on V100, A40 and
# A100, leaving each out in turn.
_LOWEST_UNDER_LIMIT = 0.2
# Noise of readings that is no typing error, as a factor; by hand.
_ROOM = 1.2
# Units without work are clock-gated but not free; by hand.
_IDLE_UNITS = 0.3
# How far curves lie from the model, and measured limits from their curve; chosen on V100, A40 and
# A100, leaving each out in turn.
CURVE_NOISE, _PROBE_NOISE = 0.04, 0.02


def power_limits(device: Accelerator, count: int = 9) -> Array:
    """Power limits from the lowest to the default one."""
    return np.linspace(device.min_limit_watts, device.limit_watts, count)


def job_curve(
    constants: Array, device: Accelerator, batch_sizes: Array, limit_watts: Array
) -> tuple[Array, Array]:
    """Seconds and mean watts of the work at each pair of batch size and power limit."""
    # Few batch sizes under many limits: each size is computed once.
    sizes, rows = np.unique(batch_sizes, return_inverse=True)
    shares, seconds, busy, mean = _by_clock(constants, device, sizes)
    # Power while executing never falls with the clock; rounding must not say otherwise.
    busy = np.maximum.accumulate(busy, axis=1)
    at = np.empty(len(rows))
    for row, watts in enumerate(busy):
        members = rows == row
        at[members] = np.interp(np.asarray(limit_watts)[members], watts, shares)
    at = np.maximum(at, _LOWEST_UNDER_LIMIT)
    return _rows_at(at, shares, seconds, rows), _rows_at(at, shares, mean, rows)


def clock_curve(
    constants: Array, device: Accelerator, batch_sizes: Array, clock_hertz: Array
) -> tuple[Array, Array]:
    """Seconds and mean watts of the work at each pair of batch size and locked clock."""
    shares, seconds, _, mean = _by_clock(constants, device, batch_sizes)
    at = np.asarray(clock_hertz, float) / device.clock_hertz
    rows = np.arange(len(at))
    return _rows_at(at, shares, seconds, rows), _rows_at(at, shares, mean, rows)


def _rows_at(at: Array, shares: Array, values: Array, rows: NDArray[np.intp]) -> Array:
    position = (at - shares[0]) / (shares[1] - shares[0])
    position = np.minimum(np.maximum(position, 0), len(shares) - 1 - 1e-9)
    low = position.astype(int)
    weight = position - low
    return np.asarray(values[rows, low] * (1 - weight) + values[rows, low + 1] * weight)


@cache
def _clock_shares(lowest: float) -> Array:
    return np.linspace(lowest, 1.0, _SHARES)


def _by_clock(
    constants: Array, device: Accelerator, batch_sizes: Array
) -> tuple[Array, Array, Array, Array]:
    """Shares of the highest clock; per batch size and share: seconds, busy watts, mean watts."""
    value = dict(zip(LIMIT_CONSTANTS, np.exp(constants).tolist(), strict=True))
    floor, knee = min(value["floor"], 0.98), min(value["knee"], 0.95)
    shares = _clock_shares(device.min_clock_hertz / device.clock_hertz)
    voltage = relative_voltage(shares, floor, knee)
    batch = np.asarray(batch_sizes, float)[:, None]
    fill = value["fill"] / batch
    waste = batch / value["waste"]
    compute = value["compute"] * (1 + fill + waste)
    memory = value["compute"] * value["memory"] * (1 + waste)
    work = value["compute"] * (1 + _IDLE_UNITS * fill + waste)
    busy_seconds, awake, joules = execute(
        shares,
        voltage,
        seconds=(compute, memory),
        watts=(device.leakage * value["awake"], value["clock"]),
        joules=(value["activity"] * value["dynamic"] * work, value["traffic"] * memory),
    )
    host = value["compute"] * (value["host"] / batch + value["loading"])
    seconds = smooth_max(busy_seconds, host, _ASIDE)
    busy = device.limit_watts * (awake + joules / busy_seconds)
    mean = device.limit_watts * (awake + joules / seconds)
    return shares, seconds, busy, mean


def limit_curve(
    device: str | Accelerator,
    measured: Sequence[tuple[float, float, float]],
    limits: Sequence[float] | None = None,
) -> Frontier:
    """Frontier of a job over the power limits of a device, from a few limits that were measured.

    One limit best lies at four fifths of the range, two at its ends, a third at the lower third.

    >>> frontier = limit_curve("a100", [(100, 4.2, 100), (200, 1.25, 195), (400, 1.0, 345)])
    >>> 200 <= frontier.least_energy.setting.power_limit_watts <= 300
    True

    Args:
        device: Name in the catalog, such as ``h100``.
        measured: Power limit in watts, seconds and mean watts, per limit.
        limits: Power limits to predict for; from the lowest to the default one where None.

    Raises:
        UnknownDeviceError: No such device in the catalog.
        InvalidValueError: Nothing was measured, or a figure is not above 0.
    """
    board = accelerator(device)
    for row in measured:
        for value, name in zip(row, ("power limit", "seconds", "watts"), strict=True):
            finite(value, name, minimum=1e-9)
    rows = _check_curve(board, measured)
    at = power_limits(board) if limits is None else np.asarray(limits, float)
    predicted, deviation = curve_after(fitted_belief("limits"), board, rows, at)
    level = f"{min(len(measured), 3)} limits"
    for part, name in enumerate(("time", "power")):
        deviation[part] *= interval_scale(f"power-limit curve, {name}, {level}")
    source = f"{len(measured)} measured limits" if len(measured) > 1 else "1 measured limit"
    return Frontier.from_points(
        [
            OperatingPoint(
                float(seconds),
                float(seconds * watts),
                Setting(device=board.name, power_limit_watts=float(limit)),
                Provenance(Origin.PREDICTED, source, float(error)),
            )
            for limit, seconds, watts, error in zip(
                at, *np.exp(predicted), np.hypot(*deviation), strict=True
            )
        ]
    )


def _check_curve(board: Accelerator, measured: Sequence[tuple[float, float, float]]) -> Array:
    """Limits, seconds and watts as rows, lowest limit first; those that cannot be are refused."""
    if not measured:
        raise InvalidValueError("no limit was measured", remedy="measure one at least")
    rows = np.array(sorted(measured), float).T
    limits, seconds, watts = rows
    slowest_above = np.append(np.maximum.accumulate(seconds[::-1])[::-1][1:], 0.0)
    flaws = {
        f"{board.name} takes limits of {board.min_limit_watts:g} to {board.limit_watts:g} W": (
            limits < board.min_limit_watts - 1
        )
        | (limits > _ROOM * board.limit_watts),
        "a board cannot draw more than its limit": watts > _ROOM * limits,
        "a limit was measured twice": np.diff(limits, prepend=-1.0) <= 0,
        "a lower limit cannot be faster": _ROOM * seconds < slowest_above,
    }
    for flaw, at in flaws.items():
        if at.any():
            row = ", ".join(f"{value:g}" for value in rows[:, int(np.argmax(at))])
            raise InvalidValueError(
                f"a measured limit cannot be right ({row}): {flaw}",
                remedy="give the limit in watts, seconds and mean watts of one board",
            )
    return rows


def curve_after(
    belief: Belief, device: Accelerator, measured: Array, at: Array
) -> tuple[Array, Array]:
    """Logarithms of seconds and watts at some limits, and the deviations they claim, as rows.

    Args:
        belief: Belief about jobs on the device.
        device: The device.
        measured: Limits, seconds and watts as rows, lowest limit first.
        at: Power limits in watts.
    """
    limit, logs = measured[0], np.log(measured[1:])

    def model(limits: Array) -> Model:
        ones = np.ones(len(limits))
        return lambda constants: np.log(np.concatenate(job_curve(constants, device, ones, limits)))

    prior = at_scale(belief, float(measured[1, -1]))
    after = prior.update(model(limit), logs.ravel(), _PROBE_NOISE)
    predicted = model(at)(after.mean).reshape(2, -1)
    # The curve is bent to pass through what was measured.
    off = logs - model(limit)(after.mean).reshape(2, -1)
    bend = np.stack([np.interp(at, limit, part) for part in off])
    away = np.abs(np.log(at[:, None] / limit)).min(axis=1)
    noise = CURVE_NOISE * (0.7 + np.stack([3 * away, away]))
    return predicted + bend, np.hypot(after.spread(model(at)).reshape(2, -1), noise)


def at_scale(belief: Belief, seconds: float) -> Belief:
    """The belief with its first constant near a measured time."""
    mean, covariance = belief.mean.copy(), belief.covariance.copy()
    mean[0] += np.log(seconds)
    covariance[0, 0] += 1.0
    return Belief(mean, covariance)
