"""Drift: workloads that need other epochs to the target from some recurrence on.

On the command line a drift is text. ``scale=2@40``: from recurrence 40 on every batch size needs
twice the epochs. ``slide=2@20-60``: the same, growing from recurrence 20 to 60. ``optimum@40``:
another batch size becomes best. ``discarded@40``: one that cost twice as much becomes best.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.jobs.policies import Floats
    from joulery.simulate._workload import TracedWorkload


def changed(
    load: TracedWorkload, changes: Sequence[tuple[int, Floats]], allowance: float = 1.0
) -> TracedWorkload:
    """The workload with other epochs from some recurrences on, which ascend.

    The owner allows ``allowance`` times the epochs.

    Raises:
        InvalidValueError: No batch size reaches the target after a change.
    """
    drifting = replace(
        load, changes=tuple(changes), max_epochs=math.ceil(allowance * load.max_epochs)
    )
    for start, stage in drifting.stages:
        if not np.isfinite(stage.mean_epochs()).any():
            raise InvalidValueError(
                f"{load}: from recurrence {start} on no batch size reaches the target within "
                f"{drifting.max_epochs} epochs",
                remedy="choose a milder drift, or allow more epochs in workloads.csv",
            )
    return drifting


def scale_epochs(
    load: TracedWorkload, at: int, factors: Floats | float, until: int | None = None
) -> TracedWorkload:
    """From ``at`` on every run takes ``factors`` (per arm, or one) times the epochs.

    With ``until`` the factors grow geometrically from recurrence ``at`` to that one.
    """
    steps = np.arange(at, (at if until is None else until) + 1)
    grown = [
        (int(step), _times(load, np.asarray(factors, dtype=float) ** share))
        for step, share in zip(steps, (steps - at + 1) / len(steps), strict=True)
    ]
    return changed(load, grown, max(1.0, float(np.min(factors))))


def optimum_moves(
    load: TracedWorkload, at: int, eta: float = 0.5, *, announced: bool = True
) -> TracedWorkload:
    """Abruptly, large batch sizes need more epochs or small ones do, so that another is best.

    The new best costs about what the old one did; the old one costs a quarter more, or as much more
    as a tilt of the epochs over batch sizes can bring about. Unannounced, the old best stays what
    it was and the new one costs less, which no run of the old one shows.
    """
    best, limit, cost = load.optimum(eta)
    ratio = np.array(load.batch_sizes) / load.batch_sizes[best]
    # Away from the nearer end of the set, where there is room to move.
    sign = 1.0 if 2 * best >= len(load.batch_sizes) - 1 else -1.0
    strongest, drifting = 0.0, load
    for exponent in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0):
        tilt = ratio ** (sign * exponent)
        new_cost = replace(load, epochs=_times(load, tilt)).optimum(eta)[2]
        factor = max(1.0, cost / new_cost) if announced else 1.0
        tried = scale_epochs(load, at, tilt * factor)
        after = tried.stages[1][1]
        worse = after.expected_cost(eta)[best, limit] / after.optimum(eta)[2]
        if worse > strongest:
            strongest, drifting = worse, tried
        if worse >= 1.25:
            break
    return drifting


def discarded_becomes_best(
    load: TracedWorkload, at: int, eta: float = 0.5, factor: float = 1.5
) -> TracedWorkload:
    """Abruptly, a batch size that cost at least twice as much becomes the cheapest.

    It costs what the best did before; all others need ``factor`` times their epochs. With 1 nothing
    but the discarded one changes, to 0.6 of the best, which no run of the others shows.
    """
    costs = np.nanmin(load.expected_cost(eta), axis=1)
    epoch_costs = np.nanmin(load.epoch_cost(eta), axis=1)
    always = np.isfinite(load.epochs).sum(axis=1) == load.runs
    aim = costs.min() * (1.0 if factor > 1 else 0.6)
    # One epoch is the least there is: a batch size whose single epoch costs more cannot win.
    able = always & (epoch_costs < aim) & (costs > costs.min())
    if not able.any():
        return optimum_moves(load, at, eta)
    twice = able & (costs >= 2 * costs.min())
    # The cheapest that was worth discarding, or else the costliest.
    order = np.where(twice, costs, np.inf) if twice.any() else np.where(able, -costs, np.inf)
    arm = int(order.argmin())
    factors = np.full(len(costs), factor)
    factors[arm] = aim / costs[arm]
    return changed(load, [(at, _times(load, factors))], max(1.0, factor))


def _times(load: TracedWorkload, factors: Floats | float) -> Floats:
    by_arm = np.broadcast_to(np.asarray(factors, dtype=float), (len(load.batch_sizes),))
    return np.asarray(np.maximum(1.0, np.round(load.epochs * by_arm[:, None])))


def parse_drift(text: str, eta: float) -> Callable[[TracedWorkload], TracedWorkload]:
    """The drift that ``text`` describes, as a function from a workload to one that changes.

    Raises:
        InvalidValueError: The text describes none.
    """
    what, _, when = text.rpartition("@")
    name, _, value = what.partition("=")
    start, _, end = when.partition("-")
    first, last = (int(part) if part.isdigit() else 0 for part in (start, end))
    factor = _factor(value)
    if first:
        if name == "scale" and factor:
            return lambda load: scale_epochs(load, first, factor)
        if name == "slide" and factor and last > first:
            return lambda load: scale_epochs(load, first, factor, until=last)
        if what == "optimum":
            return lambda load: optimum_moves(load, first, eta)
        if what == "discarded":
            return lambda load: discarded_becomes_best(load, first, eta)
    raise InvalidValueError(
        f"cannot read the drift {text!r}",
        remedy="write scale=2@40, slide=2@20-60, optimum@40 or discarded@40",
    )


def _factor(text: str) -> float:
    """A positive factor; 0 where the text is none."""
    try:
        factor = float(text)
    except ValueError:
        return 0.0
    return factor if 0 < factor < math.inf else 0.0
