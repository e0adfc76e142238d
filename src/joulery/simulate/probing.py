"""What it costs to find out the time and power of settings, and how well they are then known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies.base import ActionKind
from joulery.units import finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import CounterRng, Floats


_SLICE_STREAM = 0


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What is to be measured, one row per action.

    Attributes:
        kind: (rows,), probe or training.
        limit: (rows,), to hold; -1 leaves the choice to the profile.
        wanted: (rows, limits), asked for by the policy and known to the trace; None where the
            policy left it open.
        fresh: (rows,), whether this job never profiled this batch size before.
        epochs: (rows,), whole epochs that the run can still go on for.
        seconds: (rows, limits), true epoch time; NaN where the trace has none.
        joules: (rows, limits), true epoch energy.
        cost: (rows, limits), true epoch cost in joules.
        cost_weights: (rows, 2), of joules and of seconds in that cost.
        draws: One word per row.
    """

    kind: NDArray[np.int64]
    limit: NDArray[np.int64]
    wanted: NDArray[np.bool_] | None
    fresh: NDArray[np.bool_]
    epochs: Floats
    seconds: Floats
    joules: Floats
    cost: Floats
    cost_weights: Floats
    draws: CounterRng

    @property
    def open(self) -> NDArray[np.bool_]:
        """(rows,), probes and trainings that leave the choice of the limit to the profile."""
        return np.asarray((self.kind == ActionKind.PROBE) | (self.limit < 0))


@dataclass(frozen=True, slots=True)
class ProbedProfile:
    """What measuring took and told.

    Attributes:
        seconds: (rows,), spent.
        joules: (rows,), spent.
        progress: (rows,), epochs that were trained meanwhile.
        limit: (rows,), to hold from here on.
        epoch_seconds: (rows, limits), as measured; NaN where not.
        epoch_joules: (rows, limits), likewise.
        relative_error: (rows, limits), one sigma of the time, and of the power.
    """

    seconds: Floats
    joules: Floats
    progress: Floats
    limit: NDArray[np.int64]
    epoch_seconds: Floats
    epoch_joules: Floats
    relative_error: Floats


class Probing(Protocol):
    """A model of just-in-time profiling."""

    @property
    def within_budget(self) -> bool:
        """Whether the ceiling of a training covers its profiling."""
        ...

    @property
    def held_error(self) -> float:
        """One sigma of the figures of the limit that a whole training held."""
        ...

    def profile(self, request: ProbeRequest) -> ProbedProfile:
        """Measure what ``request`` asks for."""
        ...


@dataclass(frozen=True, slots=True)
class EpochAtMean:
    """Zeus's simulator: a batch size's first run spends one epoch at the mean over all limits.

    From then on every limit is known exactly, and the best by the job's cost is held.
    """

    within_budget = False
    held_error = 0.0

    def profile(self, request: ProbeRequest) -> ProbedProfile:
        """Charge the epoch, tell everything."""
        first = request.fresh & request.open
        known = np.where(request.open[:, None], 0.0, np.nan)
        return ProbedProfile(
            seconds=np.where(first, np.nanmean(request.seconds, axis=1), 0.0),
            joules=np.where(first, np.nanmean(request.joules, axis=1), 0.0),
            progress=np.where(first, 1.0, 0.0),
            limit=np.where(request.limit < 0, cheapest(request.cost), request.limit),
            epoch_seconds=request.seconds + known,
            epoch_joules=request.joules + known,
            relative_error=known + 0.0 * request.seconds,
        )


@dataclass(frozen=True, slots=True)
class Slices:
    """Seconds per setting, with measurements as noisy as seconds are.

    Slices are made from the highest limit downward and train as they measure; a training that
    reaches its target meanwhile measures no more.

    Attributes:
        seconds_per_setting: Of one slice. Five are enough (You et al., NSDI'23, section 5).
        relative_error: One sigma of a slice's time per epoch, and of its power.
        settings: How many limits, spread evenly, where the policy leaves it open; None for all.
        held_error: One sigma of time and power of the limit that a training held.
    """

    seconds_per_setting: float = 5.0
    relative_error: float = 0.02
    settings: int | None = None
    held_error: float = 0.005

    within_budget = True

    def __post_init__(self) -> None:
        finite(self.seconds_per_setting, "seconds per setting", minimum=0.0)
        finite(self.relative_error, "relative error of a slice", minimum=0.0)
        finite(self.held_error, "relative error of a training", minimum=0.0)
        if self.settings is not None and self.settings < 1:
            raise InvalidValueError(
                f"settings must be at least 1, not {self.settings}",
                remedy="give the number of limits to measure, or None for all",
            )

    def profile(self, request: ProbeRequest) -> ProbedProfile:
        """Measure one limit after another for seconds each."""
        share, epochs = self._slices(request)
        spent = share * self.seconds_per_setting
        measured = share > 0
        seconds, joules = noisy(request, self.relative_error, _SLICE_STREAM)
        weights = request.cost_weights
        cost = weights[:, :1] * joules + weights[:, 1:] * seconds
        best = cheapest(np.where(measured, cost, np.nan))
        return ProbedProfile(
            seconds=spent.sum(axis=1),
            joules=np.where(measured, spent * request.joules / request.seconds, 0.0).sum(axis=1),
            progress=epochs.sum(axis=1),
            limit=np.where(request.limit < 0, best, request.limit),
            epoch_seconds=np.where(measured, seconds, np.nan),
            epoch_joules=np.where(measured, joules, np.nan),
            relative_error=np.where(measured, self.relative_error, np.nan),
        )

    def _slices(self, request: ProbeRequest) -> tuple[Floats, Floats]:
        """Per limit: how much of its slice is made, and the epochs that it trains."""
        known = np.isfinite(request.seconds)
        wanted = request.open[:, None] & self._spread(known)
        if request.wanted is not None:
            wanted = request.wanted & known
        epochs = np.where(wanted, self.seconds_per_setting / request.seconds, 0.0)
        descending = epochs[:, ::-1]
        before = (descending.cumsum(axis=1) - descending)[:, ::-1]
        left = np.where(request.kind == ActionKind.PROBE, np.inf, request.epochs)[:, None]
        made = np.clip(left - before, 0.0, epochs)
        share = np.divide(made, epochs, out=np.zeros_like(made), where=epochs > 0)
        return share, made

    def _spread(self, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if self.settings is None:
            return known
        limits = known.shape[1]
        chosen = np.zeros(limits, dtype=bool)
        chosen[np.linspace(0, limits - 1, self.settings).round().astype(int)] = True
        # Where a trace lacks the chosen ones, all that it has.
        has_any = (known & chosen).any(axis=1, keepdims=True)
        return np.where(has_any, known & chosen, known)


def noisy(request: ProbeRequest, relative_error: float, stream: int) -> tuple[Floats, Floats]:
    """Time and energy per epoch with log-normal errors, independent for time and power."""
    errors = relative_error * request.draws.normal(stream, 2 * request.seconds.shape[1])
    seconds = request.seconds * np.exp(errors[:, 0::2])
    watts = request.joules / request.seconds * np.exp(errors[:, 1::2])
    return seconds, seconds * watts


def cheapest(cost: Floats) -> NDArray[np.int64]:
    """(rows,), the limit of least cost, the highest of equals and where nothing is known."""
    limits = cost.shape[1]
    filled = np.where(np.isnan(cost), np.inf, cost)
    return np.asarray(limits - 1 - filled[:, ::-1].argmin(axis=1))
