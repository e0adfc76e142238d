"""The world that policies act on: what each action takes and tells, replayed from traces.

Which run of a trace is replayed hangs on the seed, the recurrence, the number of the training
within it and the batch size, and on nothing else, so that all policies face the same luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.policies.counter_rng import CounterRng, mix
from joulery.simulate.probing import ProbeRequest, noisy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Actions
    from joulery.jobs.policies.counter_rng import Floats, Seeds
    from joulery.jobs.policies.job_batch import JobBatch
    from joulery.simulate.drift import Drift
    from joulery.simulate.probing import ProbedProfile, Probing
    from joulery.simulate.workload import TracedWorkload

# Keeps the world's draws apart from the policy's, which start from the same seeds.
_WORLD = np.full(1, 0x776F726C64, dtype=np.int64)
_HELD_STREAM = 1  # the slices of a profile have 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in its job's life each action takes place.

    Attributes:
        lane: (rows,).
        recurrence: (rows,).
        training: (rows,), number of trainings in this recurrence before this action.
        action: (rows,), number of actions in this recurrence before this one.
        progress: (rows,), epochs that probes of the same batch size just before have trained.
    """

    lane: NDArray[np.int64]
    recurrence: NDArray[np.int64]
    training: NDArray[np.int64]
    action: NDArray[np.int64]
    progress: Floats


@dataclass(frozen=True, slots=True)
class Results:
    """Results of actions: :class:`~joulery.jobs.policies.base.Outcomes` without their place.

    ``progress`` is what probes trained, in epochs.
    """

    limit: NDArray[np.int64]
    end: NDArray[np.int64]
    epochs: Floats
    progress: Floats
    seconds: Floats
    joules: Floats
    cost: Floats
    epoch_seconds: Floats
    epoch_joules: Floats
    relative_error: Floats


class _Tables:
    """The workloads' figures side by side, padded: workload × piece × arm × run or limit."""

    def __init__(self, workloads: Sequence[TracedWorkload], drifts: Sequence[Drift]) -> None:
        count = len(workloads)
        arms = max(len(load.batch_sizes) for load in workloads)
        limits = max(len(load.limits_watts) for load in workloads)
        runs = max(piece.shape[1] for drift in drifts for piece in drift.epochs)
        pieces = max(len(drift.starts) for drift in drifts)
        self.starts = np.full((count, pieces), np.iinfo(np.int64).max)
        self.epochs = np.full((count, pieces, arms, runs), np.inf)
        self.runs = np.ones((count, arms))
        self.seconds = np.full((count, arms, limits), np.nan)
        self.joules = np.full((count, arms, limits), np.nan)
        self.nearest = np.zeros((count, arms, limits), dtype=np.int64)
        for row, (load, drift) in enumerate(zip(workloads, drifts, strict=True)):
            self._fill(row, load, drift)

    def _fill(self, row: int, load: TracedWorkload, drift: Drift) -> None:
        here = len(load.batch_sizes)
        self.starts[row, : len(drift.starts)] = drift.starts
        for piece, epochs in enumerate(drift.epochs):
            reached = np.where(np.isnan(epochs), np.inf, epochs)
            self.epochs[row, piece, :here, : epochs.shape[1]] = reached
        self.runs[row, :here] = load.runs
        self.seconds[row, :here, : len(load.limits_watts)] = load.epoch_seconds
        self.joules[row, :here, : len(load.limits_watts)] = load.epoch_joules
        for arm in range(here):
            known = np.flatnonzero(np.isfinite(load.epoch_seconds[arm]))
            gaps = np.abs(load.limits_watts[None, known] - load.limits_watts[:, None])
            self.nearest[row, arm, : len(load.limits_watts)] = known[gaps.argmin(axis=1)]
            self.nearest[row, arm, len(load.limits_watts) :] = known[-1]


class Environment:
    """Replays traces under actions.

    Args:
        workloads: What is replayed.
        of_lane: (lanes,), which workload each lane runs.
        lanes: The jobs.
        probing: What profiling costs and tells.
        drifts: One per workload.
    """

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        of_lane: NDArray[np.int64],
        lanes: JobBatch,
        probing: Probing,
        drifts: Sequence[Drift],
    ) -> None:
        self._tables = _Tables(workloads, drifts)
        self._of_lane = of_lane
        self._lanes = lanes
        self._probing = probing
        self._seeds: Seeds = mix(lanes.seeds, _WORLD)
        self._weights = np.stack([lanes.joule_weight, lanes.second_weight], axis=1)
        self._profiled = np.zeros(lanes.valid.shape, dtype=bool)

    def act(self, actions: Actions, moment: Moment) -> Results:
        """Carry actions out; ``actions`` has one row per row of ``moment``."""
        needed = self._needed_epochs(actions, moment)
        request = self._request(actions, moment, needed)
        profile = self._probing.profile(request)
        self._profiled[moment.lane, actions.arm] |= request.open
        limit = self._tables.nearest[self._of_lane[moment.lane], actions.arm, profile.limit]
        held = (np.arange(len(limit)), limit)
        training = actions.kind == ActionKind.TRAIN
        begun = moment.progress + profile.progress
        profile_cost = _cost(request, profile.seconds, profile.joules)
        most = self._most_epochs(actions, moment, request.cost[held], (profile_cost, begun))
        # A training whose first epoch is too dear is not begun.
        idle = training & (most < 1.0)
        epochs = np.where(training, np.minimum(needed, most), 0.0)
        rest = np.where(training & ~idle, np.maximum(0.0, epochs - begun), 0.0)
        seconds = np.where(idle, 0.0, profile.seconds) + rest * request.seconds[held]
        joules = np.where(idle, 0.0, profile.joules) + rest * request.joules[held]
        measured = self._measured(request, profile, limit, idle, training & (epochs > 0))
        return Results(
            limit=np.where(training, limit, -1),
            end=self._ends(moment, training, needed, most),
            epochs=epochs,
            progress=np.where(training, 0.0, begun),
            seconds=seconds,
            joules=joules,
            cost=_cost(request, seconds, joules),
            epoch_seconds=measured[0],
            epoch_joules=measured[1],
            relative_error=measured[2],
        )

    def _words(self, arm: NDArray[np.int64], moment: Moment, number: NDArray[np.int64]) -> Seeds:
        words = mix(mix(self._seeds[moment.lane], moment.recurrence), number)
        return mix(words, arm)

    def _needed_epochs(self, actions: Actions, moment: Moment) -> Floats:
        """Epochs to the target in the run that is replayed; infinite where it never gets there."""
        load = self._of_lane[moment.lane]
        piece = (moment.recurrence[:, None] >= self._tables.starts[load]).sum(axis=1) - 1
        words = self._words(actions.arm, moment, moment.training)
        luck = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        run = (luck * self._tables.runs[load, actions.arm]).astype(np.int64)
        return np.asarray(self._tables.epochs[load, piece, actions.arm, run])

    def _request(self, actions: Actions, moment: Moment, needed: Floats) -> ProbeRequest:
        load = self._of_lane[moment.lane]
        seconds = self._tables.seconds[load, actions.arm]
        joules = self._tables.joules[load, actions.arm]
        weights = self._weights[moment.lane]
        left = np.minimum(needed, self._lanes.max_epochs[moment.lane]) - moment.progress
        # Hashing once more keeps measurements apart from the choice of the run.
        words = mix(self._words(actions.arm, moment, moment.action), _WORLD)
        return ProbeRequest(
            kind=actions.kind,
            limit=actions.limit,
            wanted=actions.probe_limits,
            fresh=~self._profiled[moment.lane, actions.arm],
            epochs=np.maximum(0.0, left),
            seconds=seconds,
            joules=joules,
            cost=weights[:, :1] * joules + weights[:, 1:] * seconds,
            cost_weights=weights,
            draws=CounterRng(words),
        )

    def _most_epochs(
        self, actions: Actions, moment: Moment, epoch_cost: Floats, begun: tuple[Floats, Floats]
    ) -> Floats:
        """Whole epochs that the ceiling, and the job, allow."""
        budget = np.minimum(actions.ceiling, np.finfo(np.float64).max)
        profile_cost, progress = begun
        if self._probing.within_budget:
            affordable = np.floor((budget - profile_cost) / epoch_cost + progress)
        else:
            affordable = np.floor_divide(budget, epoch_cost)
        return np.minimum(np.maximum(affordable, 0.0), self._lanes.max_epochs[moment.lane])

    def _ends(
        self, moment: Moment, training: NDArray[np.bool_], needed: Floats, most: Floats
    ) -> NDArray[np.int64]:
        failed = most >= self._lanes.max_epochs[moment.lane]
        fell_short = np.where(failed, RunEnd.EXHAUSTED, RunEnd.STOPPED)
        return np.where(
            training, np.where(needed <= most, RunEnd.REACHED, fell_short), RunEnd.PROBED
        )

    def _measured(
        self,
        request: ProbeRequest,
        profile: ProbedProfile,
        limit: NDArray[np.int64],
        idle: NDArray[np.bool_],
        held: NDArray[np.bool_],
    ) -> tuple[Floats, Floats, Floats]:
        """What is told of each limit: its profile, or better, what holding it showed."""
        at_limit = np.zeros(request.seconds.shape, dtype=bool)
        at_limit[np.arange(len(limit)), limit] = held
        if self._probing.held_error == 0.0:
            seconds, joules = request.seconds, request.joules
        else:
            seconds, joules = noisy(request, self._probing.held_error, _HELD_STREAM)
        nothing = np.where(idle, np.nan, 0.0)[:, None]
        return (
            np.where(at_limit, seconds, profile.epoch_seconds + nothing),
            np.where(at_limit, joules, profile.epoch_joules + nothing),
            np.where(at_limit, self._probing.held_error, profile.relative_error + nothing),
        )


def _cost(request: ProbeRequest, seconds: Floats, joules: Floats) -> Floats:
    """(rows,), of a time and an energy, in joules."""
    return np.asarray(request.cost_weights[:, 0] * joules + request.cost_weights[:, 1] * seconds)
