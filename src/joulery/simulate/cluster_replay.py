"""Replay a cluster: groups of recurring jobs that overlap, each group under one policy's beliefs.

A job decides when it is submitted, with what its group has learned by then, and again whenever an
action of its own has ended short of the target. Groups share nothing, so each is a lane, and every
turn handles the next event of all lanes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.policies.counter_rng import CounterRng
from joulery.jobs.policies.job_batch import JobBatch
from joulery.simulate import drift
from joulery.simulate.cluster_match import default_seconds, matched
from joulery.simulate.cluster_slots import Slots
from joulery.simulate.environment import Environment, Moment
from joulery.simulate.recurring import customary_probing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes, Policy
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.cluster_groups import Groups
    from joulery.simulate.cluster_match import Match
    from joulery.simulate.workload import TracedWorkload

# Enough to make a turn's fixed expense small, few enough to stay in the processor's cache.
_LANES_AT_ONCE = 8192
_MOST_TRAININGS = 20
_MOST_ACTIONS = 1000
_TURNS_BETWEEN_REPORTS = 32


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a cluster is replayed.

    Attributes:
        eta: Weight of energy in the cost, 0 to 1.
        seed: Decides all luck.
        sizes_known: Whether the policy is told costs per unit of a job's size, as an owner who
            knows how much data a job has can tell; else a longer job looks like a worse choice.
        on_progress: Called now and then with the share of jobs that are done.
    """

    eta: float = 0.5
    seed: int = 0
    sizes_known: bool = True
    on_progress: Callable[[float], None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReplayLog:
    """What became of every job.

    Attributes:
        policy: Its name.
        workload: (jobs,), position of the job's workload.
        seconds: (jobs,), of all attempts, scaled to the job's size.
        joules: (jobs,), likewise.
        cost: (jobs,), likewise.
        optimal: (jobs,), expected cost of the best fixed setting, likewise.
        arm: (jobs,), batch size of the last attempt, as a position.
        attempts: (jobs,), trainings.
        blind: (jobs,), earlier jobs of the group that were under way when this one decided first.
    """

    policy: str
    workload: NDArray[np.int64]
    seconds: Floats
    joules: Floats
    cost: Floats
    optimal: Floats
    arm: NDArray[np.int64]
    attempts: NDArray[np.int64]
    blind: NDArray[np.int64]


DEFAULT_REPLAY = ReplayOptions()


def replay(
    groups: Groups,
    workloads: Sequence[TracedWorkload],
    policy: Policy[Any],
    options: ReplayOptions = DEFAULT_REPLAY,
) -> ReplayLog:
    """Run every job of every group under ``policy``.

    Args:
        groups: Who submits when.
        workloads: On one type of GPU; groups are matched to them by run time.
        policy: What chooses.
        options: How; see there.
    """
    match = matched(groups, workloads)
    optimal = np.array([load.optimum(options.eta)[2] for load in workloads])
    of_job = match.workload[groups.group_of_job]
    log = ReplayLog(
        policy=policy.name,
        workload=of_job,
        seconds=np.zeros(groups.jobs),
        joules=np.zeros(groups.jobs),
        cost=np.zeros(groups.jobs),
        optimal=optimal[of_job] * match.ratio,
        arm=np.full(groups.jobs, -1),
        attempts=np.zeros(groups.jobs, dtype=np.int64),
        blind=np.zeros(groups.jobs, dtype=np.int64),
    )
    # Groups of similar length together, so that lanes of one turn come to their ends together.
    order = np.argsort(groups.sizes, kind="stable")
    for begin in range(0, len(groups), _LANES_AT_ONCE):
        chosen = order[begin : begin + _LANES_AT_ONCE]
        _Replay(groups, match, workloads, policy, (chosen, options), log).run()
    return log


class _Replay:
    """The loop over one batch of groups."""

    def __init__(
        self,
        groups: Groups,
        match: Match,
        workloads: Sequence[TracedWorkload],
        policy: Policy[Any],
        chosen: tuple[NDArray[np.int64], ReplayOptions],
        log: ReplayLog,
    ) -> None:
        group, options = chosen
        self._options, self._policy, self._log = options, policy, log
        jobs = [load.job(options.eta) for load in workloads]
        of_lane = match.workload[group]
        seeds = (group + (options.seed << 32)).tolist()
        self._lanes = JobBatch.of([jobs[load] for load in of_lane.tolist()], seeds)
        changes = [drift.none(load) for load in workloads]
        probing = customary_probing(policy.name)
        self._world = Environment(workloads, of_lane, self._lanes, probing, changes)
        self._slots = Slots(len(group), self._lanes.limits_watts.shape[1])
        self._first, self._end = groups.first[group], groups.first[group + 1]
        self._next = self._first.copy()
        # A sentinel that is never due, for lanes without another job.
        self._submits = np.append(groups.submit_seconds, np.inf)
        self._ratio = match.ratio
        usual = np.array([default_seconds(load) for load in workloads])[log.workload]
        # Trace seconds that one second of the traced training stands for, job by job: with the
        # default setting a job takes as long as it took in the cluster's trace.
        self._stretch = groups.duration_seconds / usual
        self._decisions = np.zeros(len(group), dtype=np.int64)
        self._beliefs = policy.start(self._lanes)

    def run(self) -> None:
        """From the first submission to the last end."""
        active = np.arange(len(self._lanes))
        turns = 0
        while active.size:
            slot = self._slots.first_end(active)
            ends = self._slots.finish[active, slot]
            following = np.where(self._next[active] < self._end[active], self._next[active], -1)
            submits = self._submits[following]
            ending = ends <= submits
            due = np.isfinite(np.minimum(ends, submits))
            now = np.minimum(ends, submits)[due]
            self._turn(active[due], slot[due], ending[due], now)
            active = active[due]
            turns += 1
            if self._options.on_progress and turns % _TURNS_BETWEEN_REPORTS == 0:
                self._report()

    def _report(self) -> None:
        if self._options.on_progress is not None:
            self._options.on_progress(float((self._log.attempts > 0).mean()))

    def _turn(
        self,
        lane: NDArray[np.int64],
        slot: NDArray[np.int64],
        ending: NDArray[np.bool_],
        now: Floats,
    ) -> None:
        """Learn of what ended, then decide for what goes on and what begins."""
        goes_on = np.zeros(len(lane), dtype=bool)
        if ending.any():
            goes_on[ending] = self._learn(lane[ending], slot[ending])
        begins = ~ending
        if begins.any():
            slot = slot.copy()
            slot[begins] = self._submit(lane[begins])
        acting = goes_on | begins
        if acting.any():
            self._act(lane[acting], slot[acting], now[acting])

    def _learn(self, lane: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell the policy; whether each job needs another action."""
        slots, log = self._slots, self._log
        outcomes = slots.outcomes(lane, slot)
        slots.finish[lane, slot] = np.inf
        job = self._first[lane] + outcomes.recurrence
        ratio = self._ratio[job]
        log.seconds[job] += outcomes.seconds * ratio
        log.joules[job] += outcomes.joules * ratio
        log.cost[job] += outcomes.cost * ratio
        trained = outcomes.kind == ActionKind.TRAIN
        log.attempts[job] += trained
        log.arm[job[trained]] = outcomes.arm[trained]
        self._policy.learn(self._beliefs, self._told(outcomes, ratio))
        trainings, actions = slots.whole["trainings"], slots.whole["actions"]
        trainings[lane, slot] += trained
        actions[lane, slot] += 1
        over = (trainings[lane, slot] >= _MOST_TRAININGS) | (actions[lane, slot] >= _MOST_ACTIONS)
        return np.asarray((outcomes.end != RunEnd.REACHED) & ~over)

    def _told(self, outcomes: Outcomes, ratio: Floats) -> Outcomes:
        if self._options.sizes_known:
            return outcomes
        return replace(
            outcomes,
            seconds=outcomes.seconds * ratio,
            joules=outcomes.joules * ratio,
            cost=outcomes.cost * ratio,
            epoch_seconds=outcomes.epoch_seconds * ratio[:, None],
            epoch_joules=outcomes.epoch_joules * ratio[:, None],
        )

    def _submit(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take in the next job of each lane; the slot that it got."""
        job = self._next[lane]
        self._next[lane] += 1
        self._log.blind[job] = self._slots.busy(lane)
        slot = self._slots.free(lane)
        self._slots.submit(lane, slot, job - self._first[lane])
        return slot

    def _act(self, lane: NDArray[np.int64], slot: NDArray[np.int64], now: Floats) -> None:
        slots = self._slots
        draws = CounterRng.of(self._lanes.seeds[lane], self._decisions[lane])
        actions = self._policy.decide(self._beliefs, lane, draws)
        self._policy.begin(self._beliefs, lane, actions)
        self._decisions[lane] += 1
        recurrence = slots.whole["recurrence"][lane, slot]
        job = self._first[lane] + recurrence
        if not self._options.sizes_known:
            actions = replace(actions, ceiling=actions.ceiling / self._ratio[job])
        same = slots.whole["progress_arm"][lane, slot] == actions.arm
        moment = Moment(
            lane=lane,
            recurrence=recurrence,
            training=slots.whole["trainings"][lane, slot],
            action=slots.whole["actions"][lane, slot],
            progress=np.where(same, slots.figures["progress"][lane, slot], 0.0),
        )
        results = self._world.act(actions, moment)
        slots.begin(lane, slot, actions, results)
        slots.finish[lane, slot] = now + results.seconds * self._stretch[job]
