"""Drift: jobs that need other epochs to the target from some recurrence on.

On the command line a drift is text. ``scale=2@40``: from recurrence 40 on every batch size needs
twice the epochs. ``slide=2@20-60``: the same, growing from recurrence 20 to 60. ``optimum@40``:
another batch size becomes best. ``discarded@40``: one that cost twice as much becomes best.
``traces=DIR@40``: the epochs of other traces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.simulate.traces._reader import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.jobs.policies import Floats
    from joulery.simulate._workload import TracedWorkload


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Epochs to the target, piece by piece.

    Attributes:
        starts: Recurrence from which each piece applies, ascending, the first 0.
        epochs: One (arms, runs) array per piece, laid out like the workload's own.
        allowance: Factor of the epochs that the owner allows, where every batch size needs more.
    """

    starts: tuple[int, ...]
    epochs: tuple[Floats, ...]
    allowance: float = 1.0

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.starts, self.starts[1:], strict=False))
        if not self.starts or self.starts[0] != 0 or not ascending:
            raise InvalidValueError(
                f"pieces must start at recurrence 0 and ascend, not {self.starts}",
                remedy="give the recurrence from which each piece applies",
            )
        if len(self.starts) != len(self.epochs):
            raise InvalidValueError(
                f"{len(self.starts)} starts for {len(self.epochs)} pieces",
                remedy="give one start per piece",
            )


def no_drift(workload: TracedWorkload) -> Drift:
    """No change at all."""
    return Drift((0,), (workload.epochs,))


def pieces(workload: TracedWorkload, others: Sequence[tuple[int, TracedWorkload]]) -> Drift:
    """The epochs of other traces of the same batch sizes, each from a recurrence on.

    Raises:
        InvalidValueError: Another trace has other batch sizes.
    """
    for _, other in others:
        if other.batch_sizes != workload.batch_sizes:
            raise InvalidValueError(
                f"{other} has other batch sizes than {workload}",
                remedy="leave out of both traces what is not in the other",
            )
    runs = max([workload.epochs.shape[1], *(other.epochs.shape[1] for _, other in others)])
    loads = [(0, workload), *others]
    return Drift(
        tuple(start for start, _ in loads), tuple(_resampled(load, runs) for _, load in loads)
    )


def _resampled(workload: TracedWorkload, runs: int) -> Floats:
    """(arms, ``runs``), each batch size's runs repeated to fill the columns of another trace."""
    columns = np.arange(runs)[None, :] % workload.runs[:, None].astype(int)
    return np.take_along_axis(workload.epochs, columns, axis=1)


def scaled(workload: TracedWorkload, at: int, factors: Floats | float) -> Drift:
    """From recurrence ``at`` on every run takes ``factors`` (per arm, or one) times the epochs."""
    return Drift((0, at), (workload.epochs, _times(workload, factors)), _allowance(factors))


def sliding(workload: TracedWorkload, start: int, end: int, factors: Floats | float) -> Drift:
    """The same, but growing geometrically from recurrence ``start`` to ``end``."""
    steps = np.arange(start, end + 1)
    shares = (steps - start + 1) / len(steps)
    grown = [_times(workload, np.asarray(factors, dtype=float) ** share) for share in shares]
    return Drift((0, *steps.tolist()), (workload.epochs, *grown), _allowance(factors))


def optimum_moves(
    workload: TracedWorkload, at: int, eta: float = 0.5, *, announced: bool = True
) -> Drift:
    """Abruptly, large batch sizes need more epochs or small ones do, so that another is best.

    The new best costs about what the old one did; the old one costs a quarter more, or as much more
    as a tilt of the epochs over batch sizes can bring about. Unannounced, the old best stays what
    it was and the new one costs less, which no run of the old one shows.
    """
    best, limit, cost = workload.optimum(eta)
    ratio = np.array(workload.batch_sizes) / workload.batch_sizes[best]
    # Away from the nearer end of the set, where there is room to move.
    sign = 1.0 if 2 * best >= len(workload.batch_sizes) - 1 else -1.0
    strongest, drift = 0.0, no_drift(workload)
    for exponent in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0):
        tilt = ratio ** (sign * exponent)
        new_cost = workload.optimum(eta, _times(workload, tilt))[2]
        factor = max(1.0, cost / new_cost) if announced else 1.0
        tried = scaled(workload, at, tilt * factor)
        moved = with_enough_epochs(workload, tried)
        worse = moved.expected_cost(eta, tried.epochs[1])[best, limit]
        worse /= moved.optimum(eta, tried.epochs[1])[2]
        if worse > strongest:
            strongest, drift = worse, tried
        if worse >= 1.25:
            break
    return drift


def discarded_becomes_best(
    workload: TracedWorkload, at: int, eta: float = 0.5, others: float = 1.5
) -> Drift:
    """Abruptly, a batch size that cost at least twice as much becomes the cheapest.

    It costs what the best did before; all others need ``others`` times their epochs. With 1 nothing
    but the discarded one changes, to 0.6 of the best, which no run of the others shows.
    """
    costs = np.nanmin(workload.expected_cost(eta), axis=1)
    epoch_costs = np.nanmin(workload.epoch_cost(eta), axis=1)
    always = np.isfinite(workload.epochs).sum(axis=1) == workload.runs
    aim = costs.min() * (1.0 if others > 1 else 0.6)
    # One epoch is the least there is: a batch size whose single epoch costs more cannot win.
    able = always & (epoch_costs < aim) & (costs > costs.min())
    if not able.any():
        return optimum_moves(workload, at, eta)
    twice = able & (costs >= 2 * costs.min())
    # The cheapest that was worth discarding, or else the costliest.
    order = np.where(twice, costs, np.inf) if twice.any() else np.where(able, -costs, np.inf)
    arm = int(order.argmin())
    factors = np.full(len(costs), others)
    factors[arm] = aim / costs[arm]
    return Drift((0, at), (workload.epochs, _times(workload, factors)), max(1.0, others))


def with_enough_epochs(workload: TracedWorkload, drift: Drift) -> TracedWorkload:
    """The workload with as many epochs allowed as its drift calls for.

    Raises:
        InvalidValueError: No batch size reaches the target after the change.
    """
    allowed = replace(workload, max_epochs=math.ceil(drift.allowance * workload.max_epochs))
    for start, epochs in zip(drift.starts, drift.epochs, strict=True):
        if not np.isfinite(allowed.mean_epochs(epochs)).any():
            raise InvalidValueError(
                f"{workload}: from recurrence {start} on no batch size reaches the target within "
                f"{allowed.max_epochs} epochs",
                remedy="choose a milder drift, or allow more epochs in workloads.csv",
            )
    return allowed


def _allowance(factors: Floats | float) -> float:
    return max(1.0, float(np.min(factors)))


def _times(workload: TracedWorkload, factors: Floats | float) -> Floats:
    by_arm = np.broadcast_to(np.asarray(factors, dtype=float), (len(workload.batch_sizes),))
    return np.asarray(np.maximum(1.0, np.round(workload.epochs * by_arm[:, None])))


def parse_drift(text: str, eta: float) -> Callable[[TracedWorkload], Drift]:
    """The drift that ``text`` describes, as a function of the workload.

    Raises:
        InvalidValueError: The text describes none.
    """
    what, at, when = text.rpartition("@")
    name, _, value = what.partition("=")
    start, _, end = when.partition("-")
    if not at or not start.isdigit() or int(start) < 1:
        raise _unreadable(text)
    first = int(start)
    if name == "scale":
        factor = _factor(text, value)
        return lambda load: scaled(load, first, factor)
    if name == "slide" and end.isdigit() and int(end) > first:
        factor = _factor(text, value)
        return lambda load: sliding(load, first, int(end), factor)
    if what == "optimum":
        return lambda load: optimum_moves(load, first, eta)
    if what == "discarded":
        return lambda load: discarded_becomes_best(load, first, eta)
    if name == "traces" and value:
        return _other_traces(Path(value), first)
    raise _unreadable(text)


def _factor(text: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        raise _unreadable(text) from None
    if not 0 < factor < math.inf:
        raise _unreadable(text)
    return factor


def _unreadable(text: str) -> InvalidValueError:
    return InvalidValueError(
        f"cannot read the drift {text!r}",
        remedy="write scale=2@40, slide=2@20-60, optimum@40, discarded@40 or traces=DIR@40",
    )


def _other_traces(folder: Path, first: int) -> Callable[[TracedWorkload], Drift]:
    others = {(load.gpu, load.model): load for load in read_traces(folder).workloads}

    def change(load: TracedWorkload) -> Drift:
        other = others.get((load.gpu, load.model))
        if other is None:
            raise InvalidValueError(
                f"{folder} has no {load}", remedy="choose with --gpu and --dataset what both have"
            )
        return pieces(load, [(first, other)])

    return change
