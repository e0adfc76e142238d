"""The environment that policies act on: what each action takes and measures, replayed from traces.

Which run of a trace is replayed depends on the seed, the recurrence, the number of the training
within it and the batch size, and on nothing else, so that all policies face the same chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.jobs.policies import ActionKind, CounterRng, Outcomes, RunEnd, mix, unit_interval
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies import Actions, Floats, JobBatch, Seeds
    from joulery.simulate._workload import TracedWorkload

# Keeps the environment's random numbers apart from the policy's, which start from the same seeds.
_ENVIRONMENT = np.full(1, 0x776F726C64, dtype=np.int64)
_SLICE_STREAM, _HELD_STREAM = range(2)


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The measurements of one action per row."""

    kind: NDArray[np.int64]  # (rows,), probe or training
    limit: NDArray[np.int64]  # (rows,), limit to hold; -1 leaves the choice to the profile
    mask: NDArray[np.bool_] | None  # (rows, limits), limits to measure; None for any
    fresh: NDArray[np.bool_]  # (rows,), whether this job never profiled this batch size before
    epochs: Floats  # (rows,), epochs that the run can still go on for
    seconds: Floats  # (rows, limits), true epoch time; NaN where the trace has none
    joules: Floats  # (rows, limits), true epoch energy
    cost: Floats  # (rows, limits), true epoch cost in joules
    cost_weights: Floats  # (rows, 2), weights of joules and of seconds in that cost
    rng: CounterRng  # random numbers of the action

    @property
    def open(self) -> NDArray[np.bool_]:
        """(rows,), probes, and trainings that leave the choice of the limit to the profile."""
        return np.asarray((self.kind == ActionKind.PROBE) | (self.limit < 0))

    def cost_of(self, seconds: Floats, joules: Floats) -> Floats:
        """The cost in joules of a time and an energy; the first axis is the row."""
        shape = (-1,) + (1,) * (seconds.ndim - 1)
        weights = self.cost_weights
        return np.asarray(
            weights[:, 0].reshape(shape) * joules + weights[:, 1].reshape(shape) * seconds
        )

    def noisy(self, relative_error: float, stream: int) -> tuple[Floats, Floats]:
        """(rows, limits): epoch time and energy with log-normal errors of time and of power."""
        errors = relative_error * self.rng.normal(stream, 2 * self.seconds.shape[1])
        seconds = self.seconds * np.exp(errors[:, 0::2])
        watts = self.joules / self.seconds * np.exp(errors[:, 1::2])
        return seconds, seconds * watts


class ProbedProfile(NamedTuple):
    """The result of measuring."""

    seconds: Floats  # (rows,), time spent
    joules: Floats  # (rows,), energy spent
    progress: Floats  # (rows,), epochs that were trained meanwhile
    limit: NDArray[np.int64]  # (rows,), limit to hold from here on
    epoch_seconds: Floats  # (rows, limits), epoch time as measured; NaN where not
    epoch_joules: Floats  # (rows, limits), epoch energy, likewise
    relative_error: Floats  # (rows, limits), one sigma of the time, and of the power


@dataclass(frozen=True, slots=True)
class EpochAtMean:
    """Profiling in Zeus's simulator: a batch size's first run spends one epoch at the mean limit.

    From then on every limit is known exactly, and the best by the job's cost is held.
    """

    within_budget = False  # the ceiling of a training does not cover its profiling
    held_error = 0.0

    def profile(self, request: ProbeRequest) -> ProbedProfile:
        """Charge the epoch, measure everything."""
        first = request.fresh & request.open
        epochs_begun = np.where(request.open[:, None], 0.0, np.nan)
        return ProbedProfile(
            seconds=np.where(first, np.nanmean(request.seconds, axis=1), 0.0),
            joules=np.where(first, np.nanmean(request.joules, axis=1), 0.0),
            progress=np.where(first, 1.0, 0.0),
            limit=np.where(request.limit < 0, cheapest_limit(request.cost), request.limit),
            epoch_seconds=request.seconds + epochs_begun,
            epoch_joules=request.joules + epochs_begun,
            relative_error=epochs_begun + 0.0 * request.seconds,
        )


@dataclass(frozen=True, slots=True)
class Slices:
    """Profiling for seconds per limit, with the noise of such short measurements.

    Slices are made from the highest limit downward and train as they measure; a training that
    reaches its target meanwhile measures no more.

    Attributes:
        seconds_per_setting: Length of one slice. Five are enough (You et al., NSDI'23, section 5).
        relative_error: One sigma of a slice's time per epoch, and of its power.
        held_error: One sigma of time and power of the limit that a training held.
    """

    seconds_per_setting: float = 5.0
    relative_error: float = 0.02
    held_error: float = 0.005

    within_budget = True

    def __post_init__(self) -> None:
        finite(self.seconds_per_setting, "seconds per setting", minimum=0.0)
        finite(self.relative_error, "relative error of a slice", minimum=0.0)
        finite(self.held_error, "relative error of a training", minimum=0.0)

    def profile(self, request: ProbeRequest) -> ProbedProfile:
        """Measure one limit after another."""
        share, epochs = self._slices(request)
        spent = share * self.seconds_per_setting
        measured = share > 0
        seconds, joules = request.noisy(self.relative_error, _SLICE_STREAM)
        best = cheapest_limit(np.where(measured, request.cost_of(seconds, joules), np.nan))
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
        """(rows, limits): share of the slice that is made, and the epochs that it trains."""
        measurable = np.isfinite(request.seconds)
        chosen_limits = measurable & (
            request.open[:, None] if request.mask is None else request.mask
        )
        epochs = np.where(chosen_limits, self.seconds_per_setting / request.seconds, 0.0)
        descending = epochs[:, ::-1]
        before = (descending.cumsum(axis=1) - descending)[:, ::-1]
        budget = np.where(request.kind == ActionKind.PROBE, np.inf, request.epochs)[:, None]
        slice_epochs = np.clip(budget - before, 0.0, epochs)
        share = np.divide(slice_epochs, epochs, out=np.zeros_like(slice_epochs), where=epochs > 0)
        return share, slice_epochs


# A model of just-in-time profiling: what it costs, and how well settings are then known.
Probing = EpochAtMean | Slices


def cheapest_limit(cost: Floats) -> NDArray[np.int64]:
    """(rows,), the limit of least cost, the highest of equals and where nothing is known."""
    limits = cost.shape[1]
    filled = np.where(np.isnan(cost), np.inf, cost)
    return np.asarray(limits - 1 - filled[:, ::-1].argmin(axis=1))


@dataclass(frozen=True, slots=True)
class Moment:
    """The position of each action in its job's history.

    Attributes:
        job: (rows,), index of the job in the batch.
        recurrence: (rows,), number of the recurrence.
        training: (rows,), number of trainings in this recurrence before this action.
        action: (rows,), number of actions in this recurrence before this one.
        progress: (rows,), epochs that probes of the same batch size just before have trained.
    """

    job: NDArray[np.int64]
    recurrence: NDArray[np.int64]
    training: NDArray[np.int64]
    action: NDArray[np.int64]
    progress: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Results(Outcomes):
    """The ends of actions, with what was decided.

    Attributes:
        reason: (rows,), index of the reason for the action.
        ceiling: (rows,), cost in joules that the training may not pass.
        progress: (rows,), epochs that probes trained; 0 for trainings.
    """

    reason: NDArray[np.int64]
    ceiling: Floats
    progress: Floats


class _Tables:
    """The figures of all workloads, padded: workload × stage × arm × run or limit."""

    def __init__(self, workloads: Sequence[TracedWorkload]) -> None:
        count = len(workloads)
        arms = max(len(load.batch_sizes) for load in workloads)
        limits = max(len(load.limits_watts) for load in workloads)
        runs = max(load.epochs.shape[1] for load in workloads)
        stages = max(len(load.stages) for load in workloads)
        self.starts = np.full((count, stages), np.iinfo(np.int64).max)
        self.epochs = np.full((count, stages, arms, runs), np.inf)
        self.runs = np.ones((count, arms))
        self.seconds = np.full((count, arms, limits), np.nan)
        self.joules = np.full((count, arms, limits), np.nan)
        self.nearest = np.zeros((count, arms, limits), dtype=np.int64)
        for row, load in enumerate(workloads):
            self._fill(row, load)

    def _fill(self, row: int, load: TracedWorkload) -> None:
        arms, limits = load.epoch_seconds.shape
        for number, (start, stage) in enumerate(load.stages):
            self.starts[row, number] = start
            reached = np.where(np.isnan(stage.epochs), np.inf, stage.epochs)
            self.epochs[row, number, :arms, : reached.shape[1]] = reached
        self.runs[row, :arms] = load.runs
        self.seconds[row, :arms, :limits] = load.epoch_seconds
        self.joules[row, :arms, :limits] = load.epoch_joules
        for arm in range(arms):
            measured = np.flatnonzero(np.isfinite(load.epoch_seconds[arm]))
            gaps = np.abs(load.limits_watts[None, measured] - load.limits_watts[:, None])
            self.nearest[row, arm, :limits] = measured[gaps.argmin(axis=1)]
            self.nearest[row, arm, limits:] = measured[-1]


class Environment:
    """Replays traces under actions.

    Args:
        workloads: Workloads to replay.
        workload_of: (jobs,), index of each job's workload.
        jobs: The jobs.
        probing: Model of profiling.
    """

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        workload_of: NDArray[np.int64],
        jobs: JobBatch,
        probing: Probing,
    ) -> None:
        self._tables = _Tables(workloads)
        self._workload_of = workload_of
        self._jobs = jobs
        self._probing = probing
        self._seeds: Seeds = mix(jobs.seeds, _ENVIRONMENT)
        self._weights = np.stack([jobs.joule_weight, jobs.second_weight], axis=1)
        self._profiled = np.zeros(jobs.valid.shape, dtype=bool)

    def act(self, actions: Actions, moment: Moment) -> Results:
        """Carry actions out; ``actions`` has one row per row of ``moment``."""
        needed = self._needed_epochs(actions, moment)
        request = self._request(actions, moment, needed)
        profile = self._probing.profile(request)
        self._profiled[moment.job, actions.arm] |= request.open
        limit = self._tables.nearest[self._workload_of[moment.job], actions.arm, profile.limit]
        at_limit = (np.arange(len(limit)), limit)
        training = actions.kind == ActionKind.TRAIN
        begun = moment.progress + profile.progress
        profile_cost = request.cost_of(profile.seconds, profile.joules)
        largest_epochs = self._most_epochs(
            actions, moment, request.cost[at_limit], (profile_cost, begun)
        )
        # A training whose first epoch is over the ceiling is not begun.
        idle = training & (largest_epochs < 1.0)
        epochs = np.where(training, np.minimum(needed, largest_epochs), 0.0)
        remainder = np.where(training & ~idle, np.maximum(0.0, epochs - begun), 0.0)
        seconds = np.where(idle, 0.0, profile.seconds) + remainder * request.seconds[at_limit]
        joules = np.where(idle, 0.0, profile.joules) + remainder * request.joules[at_limit]
        measured = self._measured(request, profile, limit, idle, training & (epochs > 0))
        return Results(
            job=moment.job,
            recurrence=moment.recurrence,
            kind=actions.kind,
            arm=actions.arm,
            limit=np.where(training, limit, -1),
            end=self._ends(moment, training, needed, largest_epochs),
            epochs=epochs,
            reason=actions.reason,
            ceiling=actions.ceiling,
            progress=np.where(training, 0.0, begun),
            seconds=seconds,
            joules=joules,
            cost=request.cost_of(seconds, joules),
            epoch_seconds=measured[0],
            epoch_joules=measured[1],
            relative_error=measured[2],
        )

    def _words(self, arm: NDArray[np.int64], moment: Moment, number: NDArray[np.int64]) -> Seeds:
        words = mix(mix(self._seeds[moment.job], moment.recurrence), number)
        return mix(words, arm)

    def _needed_epochs(self, actions: Actions, moment: Moment) -> Floats:
        """Epochs to the target in the run that is replayed; infinite where it never gets there."""
        load = self._workload_of[moment.job]
        stage = (moment.recurrence[:, None] >= self._tables.starts[load]).sum(axis=1) - 1
        chance = unit_interval(self._words(actions.arm, moment, moment.training))
        run = (chance * self._tables.runs[load, actions.arm]).astype(np.int64)
        return np.asarray(self._tables.epochs[load, stage, actions.arm, run])

    def _request(self, actions: Actions, moment: Moment, needed: Floats) -> ProbeRequest:
        load = self._workload_of[moment.job]
        seconds = self._tables.seconds[load, actions.arm]
        joules = self._tables.joules[load, actions.arm]
        weights = self._weights[moment.job]
        remainder = np.minimum(needed, self._jobs.max_epochs[moment.job]) - moment.progress
        # Hashing once more keeps measurements apart from the choice of the run.
        words = mix(self._words(actions.arm, moment, moment.action), _ENVIRONMENT)
        return ProbeRequest(
            kind=actions.kind,
            limit=actions.limit,
            mask=actions.probe_limits,
            fresh=~self._profiled[moment.job, actions.arm],
            epochs=np.maximum(0.0, remainder),
            seconds=seconds,
            joules=joules,
            cost=weights[:, :1] * joules + weights[:, 1:] * seconds,
            cost_weights=weights,
            rng=CounterRng(words),
        )

    def _most_epochs(
        self, actions: Actions, moment: Moment, epoch_cost: Floats, begun: tuple[Floats, Floats]
    ) -> Floats:
        """(rows,), whole epochs that the ceiling, and the job, allow."""
        budget = np.minimum(actions.ceiling, np.finfo(np.float64).max)
        profile_cost, progress = begun
        if self._probing.within_budget:
            affordable = np.floor((budget - profile_cost) / epoch_cost + progress)
        else:
            affordable = np.floor_divide(budget, epoch_cost)
        return np.minimum(np.maximum(affordable, 0.0), self._jobs.max_epochs[moment.job])

    def _ends(
        self, moment: Moment, training: NDArray[np.bool_], needed: Floats, largest_epochs: Floats
    ) -> NDArray[np.int64]:
        failed = largest_epochs >= self._jobs.max_epochs[moment.job]
        fell_short = np.where(failed, RunEnd.EXHAUSTED, RunEnd.STOPPED)
        return np.where(
            training, np.where(needed <= largest_epochs, RunEnd.REACHED, fell_short), RunEnd.PROBED
        )

    def _measured(
        self,
        request: ProbeRequest,
        profile: ProbedProfile,
        limit: NDArray[np.int64],
        idle: NDArray[np.bool_],
        holding: NDArray[np.bool_],
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, limits), figures of each limit: its profile, or better, those of holding it."""
        at_limit = np.zeros(request.seconds.shape, dtype=bool)
        at_limit[np.arange(len(limit)), limit] = holding
        if self._probing.held_error == 0.0:
            seconds, joules = request.seconds, request.joules
        else:
            seconds, joules = request.noisy(self._probing.held_error, _HELD_STREAM)
        nothing = np.where(idle, np.nan, 0.0)[:, None]
        return (
            np.where(at_limit, seconds, profile.epoch_seconds + nothing),
            np.where(at_limit, joules, profile.epoch_joules + nothing),
            np.where(at_limit, self._probing.held_error, profile.relative_error + nothing),
        )
