"""Replay recurring jobs under a policy: many workloads and seeds side by side.

A recurrence is a sequence of actions until a training reaches its target; all of them are paid.
With ``overlap`` above one, that many recurrences of a job are under way at once, and what one
finds out is known to the others when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies.base import ActionKind, Outcomes, RunEnd
from joulery.jobs.policies.counter_rng import CounterRng
from joulery.jobs.policies.job_batch import JobBatch
from joulery.jobs.policies.oracle import Oracle
from joulery.simulate import drift as drifts
from joulery.simulate.bookkeeping import Books
from joulery.simulate.environment import Environment, Moment
from joulery.simulate.probing import EpochAtMean, Slices
from joulery.simulate.yardstick import yardstick
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Actions, Policy
    from joulery.objectives import Objective
    from joulery.simulate.drift import Drift
    from joulery.simulate.environment import Results
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.probing import Probing
    from joulery.simulate.workload import TracedWorkload

Beliefs = TypeVar("Beliefs")

# Policies that make no probes of their own are charged as Zeus's simulator charges.
_WHOLE_EPOCH = ("zeus", "grid", "default", "oracle")
# A policy that probes without end is cut off; none needs as many in earnest.
_ACTIONS_PER_ATTEMPT = 10
_STEPS_BETWEEN_REPORTS = 16


@dataclass(frozen=True, slots=True)
class Options:
    """How a simulation is made.

    Attributes:
        eta: Weight of energy in the cost, 0 to 1.
        objective: What to judge by instead of the cost; None for the cost.
        probing: What profiling costs and tells; None for what is customary for the policy.
        overlap: Recurrences of one job that are under way at once.
        drift: Makes each workload's change over its recurrences; None for no change.
        max_attempts: Trainings after which a recurrence counts as failed.
        keep_deeds: Whether the log keeps every single action.
        on_progress: Called now and then with the share of recurrences that are done.
    """

    eta: float = 0.5
    objective: Objective | None = None
    probing: Probing | None = None
    overlap: int = 1
    drift: Callable[[TracedWorkload], Drift] | None = None
    max_attempts: int = 20
    keep_deeds: bool = False
    on_progress: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        finite(self.eta, "eta", minimum=0.0)
        for name in ("overlap", "max_attempts"):
            if getattr(self, name) < 1:
                raise InvalidValueError(
                    f"{name} must be at least 1, not {getattr(self, name)}",
                    remedy="give a positive whole number",
                )


DEFAULT_OPTIONS = Options()


def customary_probing(policy_name: str) -> Probing:
    """How profiling is charged where nothing else is asked for."""
    return EpochAtMean() if policy_name in _WHOLE_EPOCH else Slices()


def horizon(workload: TracedWorkload) -> int:
    """Recurrences as You et al. (NSDI'23) simulate them: twice the number of settings."""
    return 2 * len(workload.batch_sizes) * len(workload.limits_watts)


def simulate(
    workloads: Sequence[TracedWorkload],
    policy: Policy[Beliefs],
    recurrences: int | None,
    seeds: Sequence[int],
    options: Options = DEFAULT_OPTIONS,
) -> SimulationLog:
    """Replay every workload with every seed.

    Args:
        workloads: What is trained again and again.
        policy: What chooses.
        recurrences: Of each job; None for :func:`horizon`.
        seeds: One job per workload and seed; lanes are ordered by workload, then by seed.
        options: How; see there.
    """
    if not workloads or not seeds:
        raise InvalidValueError(
            "nothing to simulate", remedy="give at least one workload and one seed"
        )
    return _Simulation(workloads, policy, recurrences, seeds, options).run()


def lanes_of(workloads: Sequence[TracedWorkload], seeds: Sequence[int], eta: float) -> JobBatch:
    """One lane per workload and seed, ordered by workload, then by seed."""
    jobs = [load.job(eta) for load in workloads]
    return JobBatch.of(
        [job for job in jobs for _ in seeds], [seed for _ in workloads for seed in seeds]
    )


def oracle_of(
    workloads: Sequence[TracedWorkload],
    seeds: Sequence[int],
    eta: float,
    objective: Objective | None = None,
) -> Oracle:
    """The policy that knows each workload's best fixed setting, for the lanes of a simulation."""
    found = [yardstick(load, eta, objective) for load in workloads]
    best = np.array([(one.arm, one.limit) for one in found]).repeat(len(seeds), axis=0)
    return Oracle(best[:, 0], best[:, 1])


class _Slots:
    """What is under way: ``overlap`` places per lane, flat; place = lane·overlap + slot."""

    def __init__(self, places: int, limits: int) -> None:
        self.finish = np.full(places, np.inf)
        self.recurrence = np.zeros(places, dtype=np.int64)
        self.trainings = np.zeros(places, dtype=np.int64)
        self.actions = np.zeros(places, dtype=np.int64)
        self.progress = np.zeros(places)
        self.progress_arm = np.full(places, -1)
        self.kind = np.zeros(places, dtype=np.int64)
        self.arm = np.zeros(places, dtype=np.int64)
        self.why = np.zeros(places, dtype=np.int64)
        self.ceiling = np.zeros(places)
        self.limit = np.zeros(places, dtype=np.int64)
        self.end = np.zeros(places, dtype=np.int64)
        self.epochs = np.zeros(places)
        self.seconds = np.zeros(places)
        self.joules = np.zeros(places)
        self.cost = np.zeros(places)
        self.epoch_seconds = np.zeros((places, limits))
        self.epoch_joules = np.zeros((places, limits))
        self.relative_error = np.zeros((places, limits))

    def begin(self, place: NDArray[np.int64], actions: Actions, results: Results) -> None:
        """Note what was handed out and what will become of it."""
        for name in ("kind", "arm", "why", "ceiling"):
            getattr(self, name)[place] = getattr(actions, name)
        for name in (
            *("limit", "end", "epochs", "seconds", "joules", "cost", "progress"),
            *("epoch_seconds", "epoch_joules", "relative_error"),
        ):
            getattr(self, name)[place] = getattr(results, name)
        self.progress_arm[place] = np.where(actions.kind == ActionKind.PROBE, actions.arm, -1)

    def outcomes(self, place: NDArray[np.int64], lane: NDArray[np.int64]) -> Outcomes:
        """What became of it, as the policy is told."""
        names = (
            *("recurrence", "kind", "arm", "limit", "end", "epochs", "seconds", "joules", "cost"),
            *("epoch_seconds", "epoch_joules", "relative_error"),
        )
        return Outcomes(lane=lane, **{name: getattr(self, name)[place] for name in names})


class _Simulation(Generic[Beliefs]):
    """One run of the loop; see :func:`simulate`."""

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        policy: Policy[Beliefs],
        recurrences: int | None,
        seeds: Sequence[int],
        options: Options,
    ) -> None:
        of_lane = np.repeat(np.arange(len(workloads)), len(seeds))
        changes = [(options.drift or drifts.none)(load) for load in workloads]
        workloads = [drifts.patient(*pair) for pair in zip(workloads, changes, strict=True)]
        self._policy = policy
        self._options = options
        self._lanes = lanes_of(workloads, seeds, options.eta)
        probing = options.probing or customary_probing(policy.name)
        self._world = Environment(workloads, of_lane, self._lanes, probing, changes)
        counts = [recurrences or horizon(load) for load in workloads]
        self._books = Books(workloads, of_lane, np.array(counts)[of_lane], options, changes)
        self._slots = _Slots(len(self._lanes) * options.overlap, self._lanes.limits_watts.shape[1])
        self._next = np.zeros(len(self._lanes), dtype=np.int64)
        self._decisions = np.zeros(len(self._lanes), dtype=np.int64)
        self._now = np.zeros(len(self._lanes))

    def run(self) -> SimulationLog:
        """Simulate to the end."""
        beliefs = self._policy.start(self._lanes)
        everyone = np.arange(len(self._lanes))
        overlap = self._options.overlap
        for slot in range(overlap):
            self._submit(everyone * overlap + slot, everyone, beliefs)
        steps = 0
        while True:
            finish = self._slots.finish.reshape(-1, overlap)
            slot = finish.argmin(axis=1)
            lane = np.flatnonzero(np.isfinite(finish[everyone, slot]))
            if not lane.size:
                break
            place = lane * overlap + slot[lane]
            self._now[lane] = self._slots.finish[place]
            self._learn(place, lane, beliefs)
            steps += 1
            if self._options.on_progress and steps % _STEPS_BETWEEN_REPORTS == 0:
                self._options.on_progress(self._books.share_done())
        return self._books.log(self._policy.name, self._policy.reasons, self._lanes.seeds)

    def _learn(self, place: NDArray[np.int64], lane: NDArray[np.int64], beliefs: Beliefs) -> None:
        slots = self._slots
        outcomes = slots.outcomes(place, lane)
        self._policy.learn(beliefs, outcomes)
        training = outcomes.kind == ActionKind.TRAIN
        slots.trainings[place] += training
        slots.actions[place] += 1
        most = self._options.max_attempts
        over = (slots.trainings[place] >= most) | (
            slots.actions[place] >= most * _ACTIONS_PER_ATTEMPT
        )
        reached = outcomes.end == RunEnd.REACHED
        self._books.enter(outcomes, slots.why[place], slots.ceiling[place])
        done = reached | over
        slots.finish[place] = np.inf
        self._act(place[~done], lane[~done], beliefs)
        self._submit(place[done], lane[done], beliefs)

    def _submit(self, place: NDArray[np.int64], lane: NDArray[np.int64], beliefs: Beliefs) -> None:
        """Begin the next recurrence, where there is one."""
        more = self._next[lane] < self._books.recurrences[lane]
        place, lane = place[more], lane[more]
        self._slots.recurrence[place] = self._next[lane]
        self._next[lane] += 1
        self._slots.trainings[place] = 0
        self._slots.actions[place] = 0
        self._slots.progress_arm[place] = -1
        self._act(place, lane, beliefs)

    def _act(self, place: NDArray[np.int64], lane: NDArray[np.int64], beliefs: Beliefs) -> None:
        """Decide, and work out what becomes of it."""
        if not lane.size:
            return
        slots = self._slots
        draws = CounterRng.of(self._lanes.seeds[lane], self._decisions[lane])
        actions = self._policy.decide(beliefs, lane, draws)
        self._policy.begin(beliefs, lane, actions)
        self._decisions[lane] += 1
        same = slots.progress_arm[place] == actions.arm
        moment = Moment(
            lane=lane,
            recurrence=slots.recurrence[place],
            training=slots.trainings[place],
            action=slots.actions[place],
            progress=np.where(same, slots.progress[place], 0.0),
        )
        slots.begin(place, actions, self._world.act(actions, moment))
        slots.finish[place] = self._now[lane] + slots.seconds[place]
