"""Drift as people write it on the command line.

``scale=2@40``: from recurrence 40 on every batch size needs twice the epochs. ``slide=2@20-60``:
the same, growing from recurrence 20 to 60. ``optimum@40``: another batch size becomes best.
``discarded@40``: one that was too dear becomes best. ``traces=DIR@40``: the epochs of other traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.simulate import drift
from joulery.simulate.traces import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.simulate.drift import Drift
    from joulery.simulate.workload import TracedWorkload

_REMEDY = "write scale=2@40, slide=2@20-60, optimum@40, discarded@40 or traces=DIR@40"


def parse_drift(text: str, eta: float) -> Callable[[TracedWorkload], Drift]:
    """The change that ``text`` describes, for any workload.

    Raises:
        InvalidValueError: It describes none.
    """
    what, at, when = text.rpartition("@")
    name, _, value = what.partition("=")
    start, _, end = when.partition("-")
    if not at or not start.isdigit() or int(start) < 1:
        raise _unreadable(text)
    first = int(start)
    if name == "scale":
        factor = _factor(text, value)
        return lambda load: drift.scaled(load, first, factor)
    if name == "slide" and end.isdigit() and int(end) > first:
        factor = _factor(text, value)
        return lambda load: drift.sliding(load, first, int(end), factor)
    if what == "optimum":
        return lambda load: drift.optimum_moves(load, first, eta)
    if what == "discarded":
        return lambda load: drift.discarded_becomes_best(load, first, eta)
    if name == "traces" and value:
        return _other_traces(Path(value), first)
    raise _unreadable(text)


def _factor(text: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        raise _unreadable(text) from None
    if not 0 < factor < float("inf"):
        raise _unreadable(text)
    return factor


def _unreadable(text: str) -> InvalidValueError:
    return InvalidValueError(f"cannot read the drift {text!r}", remedy=_REMEDY)


def _other_traces(folder: Path, first: int) -> Callable[[TracedWorkload], Drift]:
    others = {
        (load.gpu, load.dataset, load.network, load.optimizer): load
        for load in read_traces(folder).workloads
    }

    def change(load: TracedWorkload) -> Drift:
        other = others.get((load.gpu, load.dataset, load.network, load.optimizer))
        if other is None:
            raise InvalidValueError(
                f"{folder} has no {load}", remedy="choose with --gpu and --dataset what both have"
            )
        return drift.pieces(load, [(first, other)])

    return change
