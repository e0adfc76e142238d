"""A job's whole power-limit curve from a few measured limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.predict._bayes import Belief, fitted_belief
from joulery.predict._devices import Accelerator, accelerator
from joulery.predict._intervals import interval_scale
from joulery.predict._limits import job_curve
from joulery.predict._power import power_limits
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict._bayes import Array, Model

# How far curves lie from the model, and measured limits from their curve; chosen on V100, A40 and
# A100, leaving each out in turn.
CURVE_NOISE, _PROBE_NOISE = 0.04, 0.02


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
    board = accelerator(device) if isinstance(device, str) else device
    for row in measured:
        for value, name in zip(row, ("power limit", "seconds", "watts"), strict=True):
            finite(value, name, minimum=1e-9)
    if not measured:
        raise InvalidValueError("no limit was measured", remedy="measure one at least")
    rows = np.array(sorted(measured), float).T
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


def curve_after(
    belief: Belief, device: Accelerator, measured: Array, at: Array
) -> tuple[Array, Array]:
    """Logarithms of seconds and watts at some limits, and the deviations they claim, as rows.

    Args:
        belief: What is known about jobs on the device.
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
