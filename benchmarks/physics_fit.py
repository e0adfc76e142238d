"""Fits of a workload's four numbers, or of a board's constants, to measured power-limit sweeps.

A workload has four numbers: one scale of time, and memory time, host time and activity relative
to the compute time. The scale follows from the others, so a fit searches three dimensions: a
coarse grid against local minima, then finer and finer grids around the best point. Errors count
by their absolute relative size, so that one outlier does not bend the curve. The catalog's fitted
boards come from ``fit_board``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.hardware import Board, Workload, clock_states, settle_in, smooth_max

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_COARSE_CLOCKS = 40
_REFINEMENTS = 9
_MAX_ACTIVITY = 1.0

# Constants that power-limit sweeps determine; of dynamic_watts and activity only the product is.
_BOARD_CONSTANTS = (
    "awake_watts",
    "clock_watts",
    "memory_watts",
    "voltage_floor",
    "knee_clock_hertz",
)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Mean step time and power of a workload under one power limit."""

    limit_watts: float
    seconds: float
    watts: float

    def __post_init__(self) -> None:
        if not (self.limit_watts > 0 and self.seconds > 0 and self.watts > 0):
            raise InvalidValueError(
                f"a measurement must be above zero: {self}", remedy="leave out failed runs"
            )


@dataclass(frozen=True, slots=True)
class WorkloadFit:
    """A workload, with the relative error of the model at every measurement.

    Attributes:
        workload: Its numbers, usually fitted to the same measurements.
        seconds_errors: Modelled time over measured time, less one; one per measurement.
        watts_errors: The same for mean power.
    """

    workload: Workload
    seconds_errors: tuple[float, ...]
    watts_errors: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Mean absolute relative error of time plus that of power."""
        return fmean(map(abs, self.seconds_errors)) + fmean(map(abs, self.watts_errors))

    @property
    def seconds_error(self) -> float:
        """Median absolute relative error of time."""
        return median(map(abs, self.seconds_errors))

    @property
    def watts_error(self) -> float:
        """Median absolute relative error of power."""
        return median(map(abs, self.watts_errors))


def fit_workload(
    board: Board, measurements: Sequence[SweepPoint], name: str = "fitted"
) -> WorkloadFit:
    """The workload whose behaviour on ``board`` comes closest to ``measurements``.

    Args:
        board: Its constants stay as they are.
        measurements: At least two limits; from four on the numbers are worth trusting.
        name: What to call the workload.
    """
    return fit_workloads(board, {name: measurements})[name]


def fit_workloads(
    board: Board,
    sweeps: dict[str, Sequence[SweepPoint]],
    progress: Callable[[str], None] | None = None,
) -> dict[str, WorkloadFit]:
    """Like :func:`fit_workload` for many sweeps on one board, which share the coarse grid.

    Args:
        board: Its constants stay as they are.
        sweeps: Measurements by name of the workload.
        progress: Called with each name before its fit.
    """
    grids = _Grids(board)
    fits = {}
    for name, measurements in sweeps.items():
        if progress is not None:
            progress(name)
        shape = grids.best(_checked(name, measurements))
        fits[name] = compared(board, _workload_of(shape, name), measurements)
    return fits


def fit_board(
    start: Board, sweeps: Iterable[Sequence[SweepPoint]], *, rounds: int = 4, source: str = ""
) -> Board:
    """Board constants that serve many workloads best, found by pattern search from ``start``.

    Args:
        start: Board to start from; constants that sweeps do not determine are kept.
        sweeps: One sequence of measurements per workload.
        rounds: The step halves after each; the first is 20 %.
        source: Where the measurements come from.
    """
    checked = [_checked("sweep", sweep) for sweep in sweeps]
    best, best_loss = start, _board_loss(start, checked)
    step = 0.2
    for _ in range(rounds):
        for constant in _BOARD_CONSTANTS:
            for factor in (1 + step, 1 / (1 + step)):
                candidate = _changed(best, constant, factor)
                loss = _board_loss(candidate, checked) if candidate is not None else best_loss
                if candidate is not None and loss < best_loss:
                    best, best_loss = candidate, loss
                    break
        step /= 2
    return replace(best, fitted=True, source=source or start.source)


def _changed(board: Board, constant: str, factor: float) -> Board | None:
    try:
        return replace(board, **{constant: getattr(board, constant) * factor})
    except InvalidValueError:
        return None  # the step led out of what a board can be


def _board_loss(board: Board, sweeps: Sequence[Sequence[SweepPoint]]) -> float:
    grids = _Grids(board)
    return fmean(grids.best(sweep, refinements=3).loss for sweep in sweeps)


def _checked(name: str, measurements: Sequence[SweepPoint]) -> Sequence[SweepPoint]:
    if len({m.limit_watts for m in measurements}) < 2:
        raise InvalidValueError(
            f"{name}: a fit needs two or more power limits", remedy="measure more limits"
        )
    return measurements


@dataclass(frozen=True, slots=True)
class _Shape:
    """A workload relative to its compute time, the scale of time, and how well it fits."""

    memory: float
    host: float
    activity: float
    compute_seconds: float
    loss: float


def _workload_of(shape: _Shape, name: str) -> Workload:
    return Workload(
        name,
        shape.compute_seconds,
        shape.compute_seconds * shape.memory,
        shape.compute_seconds * shape.host,
        shape.activity,
    )


def compared(board: Board, workload: Workload, measurements: Sequence[SweepPoint]) -> WorkloadFit:
    """How far the model of ``workload`` on ``board`` lies from ``measurements``."""
    states = clock_states(board, workload)
    modelled = [settle_in(states, m.limit_watts) for m in measurements]
    pairs = list(zip(modelled, measurements, strict=True))
    return WorkloadFit(
        workload,
        tuple(ours.seconds / theirs.seconds - 1 for ours, theirs in pairs),
        tuple(ours.watts / theirs.watts - 1 for ours, theirs in pairs),
    )


class _Grids:
    """Many candidate workloads at once on one board."""

    def __init__(self, board: Board) -> None:
        import numpy as np

        self._board = board
        self._clocks = np.array(board.clocks())
        keep = max(1, len(self._clocks) // _COARSE_CLOCKS)
        # From the top, where power changes fastest; the lowest clock always stays.
        coarse = self._clocks[::-1][::keep][::-1]
        self._coarse_clocks = np.unique(np.append(coarse, self._clocks[0]))
        self._coarse = _product(
            np.append(0.0, np.geomspace(0.15, 5.0, 14)),
            np.append(0.0, np.geomspace(0.01, 50.0, 14)),
            np.geomspace(0.08, _MAX_ACTIVITY, 12),
        )
        self._tables: dict[tuple[float, ...], tuple[Any, Any]] = {}

    def best(self, measurements: Sequence[SweepPoint], refinements: int = _REFINEMENTS) -> _Shape:
        limits = tuple(m.limit_watts for m in measurements)
        if limits not in self._tables:
            self._tables[limits] = settled(self._board, self._coarse_clocks, self._coarse, limits)
        best = _closest(self._coarse, self._tables[limits], measurements)
        span = 1.5
        for _ in range(refinements):
            around = _around(best, span)
            table = settled(self._board, self._clocks, around, limits)
            found = _closest(around, table, measurements)
            best = min(best, found, key=lambda shape: shape.loss)
            span = 1 + (span - 1) * 0.6
        return best


def _around(shape: _Shape, span: float) -> Any:
    import numpy as np

    factors = np.geomspace(1 / span, span, 7)
    # A part that is absent so far may also turn out to be merely small.
    memory = np.append(shape.memory * factors, () if shape.memory else 0.1 * (span - 1))
    host = np.append(shape.host * factors, () if shape.host else 0.02 * (span - 1))
    activity = np.minimum(shape.activity * factors, _MAX_ACTIVITY)
    return _product(np.unique(memory), np.unique(host), np.unique(activity))


def _product(memory: Any, host: Any, activity: Any) -> Any:
    """All combinations, one per row: memory and host time over compute time, and activity."""
    import numpy as np

    axes = np.meshgrid(memory, host, activity, indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1)


def settled(board: Board, clocks: Any, shapes: Any, limits: Sequence[float]) -> tuple[Any, Any]:
    """``joulery.hardware.settle`` for many workloads of one second of compute, vectorised.

    Args:
        board: Its constants.
        clocks: Clocks to choose from, ascending.
        shapes: Rows of memory seconds, host seconds, activity.
        limits: Power limits in watts.

    Returns:
        Seconds and mean watts, one row per workload, one column per limit.
    """
    import numpy as np

    memory, host, activity = (column[:, None] for column in shapes.T)
    share = clocks / board.max_clock_hertz
    squared = np.array([board.voltage(clock) for clock in clocks]) ** 2
    # The product repeats few values of memory time, for which powers are taken once.
    values, positions = np.unique(memory, return_inverse=True)
    busy = smooth_max(1 / share, values[:, None])[positions.ravel()]
    seconds = busy + host
    awake = board.awake_watts + board.clock_watts * share * squared
    joules = activity * board.dynamic_watts * squared + board.memory_watts * memory
    watts, busy_watts = awake + joules / seconds, awake + joules / busy
    rows, last = np.arange(len(shapes)), len(clocks) - 1
    out_seconds: list[Any] = []
    out_watts: list[Any] = []
    for limit in limits:
        within = (busy_watts <= limit).sum(axis=1)
        below, above = np.clip(within - 1, 0, last), np.clip(within, 0, last)
        gap = busy_watts[rows, above] - busy_watts[rows, below]
        part = np.where(
            (within > 0) & (gap > 0),
            (limit - busy_watts[rows, below]) / np.where(gap > 0, gap, 1.0),
            0.0,
        )
        for table, out in ((seconds, out_seconds), (watts, out_watts)):
            low, high = table[rows, below], table[rows, above]
            out.append(low + part * (high - low))
    return np.stack(out_seconds, axis=1), np.stack(out_watts, axis=1)


def _closest(shapes: Any, table: tuple[Any, Any], measurements: Sequence[SweepPoint]) -> _Shape:
    import numpy as np

    seconds = np.array([m.seconds for m in measurements])
    watts = np.array([m.watts for m in measurements])
    offsets = np.log(seconds) - np.log(table[0])
    # The median is the scale of time with the least sum of absolute errors.
    scale = np.median(offsets, axis=1)
    time_errors = np.abs(offsets - scale[:, None]).mean(axis=1)
    power_errors = np.abs(np.log(table[1]) - np.log(watts)).mean(axis=1)
    loss = time_errors + power_errors
    best = int(np.argmin(loss))
    memory, host, activity = (float(value) for value in shapes[best])
    return _Shape(memory, host, activity, float(np.exp(scale[best])), float(loss[best]))
