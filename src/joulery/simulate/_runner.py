"""A policy run on traced workloads: actions are decided, replayed, and in flight until they end.

Both simulations use it: recurrences of one job after another (``joulery.simulate._recurring``)
and groups of overlapping jobs in a cluster (``joulery.simulate._recurring_cluster``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.jobs.policies import ActionKind, CounterRng, RunEnd
from joulery.simulate._environment import EpochAtMean, Moment, Results, Slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies import Actions, Floats, JobBatch, Outcomes, Policy
    from joulery.simulate._environment import Environment, Probing

    Indices = NDArray[np.int64]

# Policies that make no probes of their own are charged as Zeus's simulator charges.
_WHOLE_EPOCH = ("zeus", "grid", "default", "oracle")
# Trainings after which a recurrence counts as failed; a policy that probes without end is cut off.
_MOST_TRAININGS, _MOST_ACTIONS = 20, 200
_COUNTS = ("trainings", "actions", "progress_arm")
_RESULTS = tuple(name for name in Results.__dataclass_fields__ if name != "job")
_INTEGERS = (*_COUNTS, "recurrence", "kind", "arm", "limit", "end", "reason")
_PER_LIMIT = ("epoch_seconds", "epoch_joules", "relative_error")


def default_probing(policy_name: str) -> Probing:
    """The model of profiling that a policy is usually charged by."""
    return EpochAtMean() if policy_name in _WHOLE_EPOCH else Slices()


class PolicyRunner:
    """A policy that runs a batch of jobs, each with several recurrences in flight.

    There is room for ``width`` recurrences of a job at first.

    Attributes:
        finish: (jobs, slots), time at which the action in flight ends; infinite for a free slot.
    """

    def __init__(
        self, policy: Policy[Any], jobs: JobBatch, environment: Environment, width: int
    ) -> None:
        self._policy = policy
        self._jobs = jobs
        self._environment = environment
        self._beliefs = policy.start(jobs)
        self._decisions = np.zeros(len(jobs), dtype=np.int64)
        shape = (len(jobs), width)
        self.finish = np.full(shape, np.inf)
        per_limit = (*shape, jobs.limits_watts.shape[1])
        self._slots: dict[str, NDArray[Any]] = {
            name: np.zeros(
                per_limit if name in _PER_LIMIT else shape,
                dtype=np.int64 if name in _INTEGERS else np.float64,
            )
            for name in (*_COUNTS, *_RESULTS)
        }

    def next_end(self, job: Indices) -> tuple[Indices, Floats]:
        """(rows,): slot of the action that ends first, and when; infinite where none is."""
        slot = self.finish[job].argmin(axis=1)
        return slot, np.asarray(self.finish[job, slot])

    def in_flight(self, job: Indices) -> Indices:
        """(rows,), number of recurrences in flight."""
        return np.asarray(np.isfinite(self.finish[job]).sum(axis=1))

    def submit(self, job: Indices, recurrence: Indices) -> Indices:
        """Begin recurrences; the slot of each, where the first action is still to be decided."""
        free = np.isinf(self.finish[job])
        if not free.any(axis=1).all():
            self._widen()
            free = np.isinf(self.finish[job])
        slot = np.asarray(free.argmax(axis=1))
        self._slots["recurrence"][job, slot] = recurrence
        self._slots["trainings"][job, slot] = 0
        self._slots["actions"][job, slot] = 0
        self._slots["progress_arm"][job, slot] = -1
        return slot

    def _widen(self) -> None:
        self.finish = np.concatenate((self.finish, np.full_like(self.finish, np.inf)), axis=1)
        for name, array in self._slots.items():
            self._slots[name] = np.concatenate((array, np.zeros_like(array)), axis=1)

    def decide(self, job: Indices) -> Actions:
        """The next actions of jobs; noted as under way."""
        rng = CounterRng.of(self._jobs.seeds[job], self._decisions[job])
        actions = self._policy.decide(self._beliefs, job, rng)
        self._policy.begin(self._beliefs, job, actions)
        self._decisions[job] += 1
        return actions

    def act(self, job: Indices, slot: Indices, actions: Actions) -> Floats:
        """Replay actions in slots; (rows,), the seconds that they take."""
        slots, at = self._slots, (job, slot)
        same = slots["progress_arm"][at] == actions.arm
        moment = Moment(
            job=job,
            recurrence=slots["recurrence"][at],
            training=slots["trainings"][at],
            action=slots["actions"][at],
            progress=np.where(same, slots["progress"][at], 0.0),
        )
        results = self._environment.act(actions, moment)
        for name in _RESULTS:
            slots[name][at] = getattr(results, name)
        slots["progress_arm"][at] = np.where(actions.kind == ActionKind.PROBE, actions.arm, -1)
        return results.seconds

    def end(self, job: Indices, slot: Indices) -> Results:
        """Take actions that have ended out of their slots; how they ended."""
        at = (job, slot)
        self.finish[at] = np.inf
        results = Results(job=job, **{name: self._slots[name][at] for name in _RESULTS})
        self._slots["trainings"][at] += results.kind == ActionKind.TRAIN
        self._slots["actions"][at] += 1
        return results

    def is_done(self, outcomes: Outcomes, slot: Indices) -> NDArray[np.bool_]:
        """(rows,), whether a recurrence has reached its target, or has failed for good."""
        at = (outcomes.job, slot)
        failed = self._slots["trainings"][at] >= _MOST_TRAININGS
        failed |= self._slots["actions"][at] >= _MOST_ACTIONS
        return np.asarray(failed | (outcomes.end == RunEnd.REACHED))

    def learn(self, outcomes: Outcomes) -> None:
        """Pass outcomes on to the policy."""
        self._policy.learn(self._beliefs, outcomes)

    def recurrence(self, job: Indices, slot: Indices) -> Indices:
        """(rows,), number of the recurrence in each slot."""
        return np.asarray(self._slots["recurrence"][job, slot])
