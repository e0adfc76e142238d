"""The policy ``joulery`` decides for one job as it does among others, to the last bit."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulery.jobs.job import Job
from joulery.jobs.policies.base import ActionKind, Actions, Outcomes, RunEnd
from joulery.jobs.policies.bayesian.policy import BayesianPolicy
from joulery.jobs.policies.counter_rng import CounterRng
from joulery.jobs.policies.job_batch import JobBatch
from joulery.jobs.warm_start import Inheritance
from joulery.objectives import Cost, EnergyDelayProduct, FastestWithin, LeastEnergy

OBJECTIVES = (
    None,
    EnergyDelayProduct(),
    LeastEnergy(max_slowdown=0.05),
    LeastEnergy(deadline_seconds=900.0),
    FastestWithin(joules=2e5),
)
HEIRLOOM = Inheritance((16, 64, 200), (2.0, 2.4, 3.1), (0.1, 0.05, 0.3), shift_sd=0.2)
ALONE = np.zeros(1, dtype=np.int64)


def jobs(chance, lanes, arms, limits):
    """Any jobs of the same shape: batch sizes, defaults, limits and costs differ."""
    made = []
    for number in range(lanes):
        sizes = np.sort(chance.choice(np.arange(1, 40), arms, replace=False)) * 8
        watts = np.sort(chance.choice(np.arange(10, 40), limits, replace=False)) * 10.0
        made.append(
            Job(
                f"job {number}",
                tuple(int(size) for size in sizes),
                int(chance.choice(sizes)),
                Cost(float(chance.choice([0.0, 0.5, 1.0])), float(watts[-1])),
                max_epochs=int(chance.integers(20, 200)),
                limits_watts=tuple(watts.tolist()),
            )
        )
    return made


def happened(chance, row, actions, at, shift):
    """What became of one action: reached, stopped, failed or never heard of; some limits told."""
    limits = actions.probe_limits.shape[1]
    told = chance.random(limits) < chance.choice([0.0, 0.2, 1.0])
    training = actions.kind[at] == ActionKind.TRAIN
    ends = [RunEnd.REACHED, RunEnd.STOPPED, RunEnd.EXHAUSTED, RunEnd.ABANDONED]
    end = int(chance.choice(ends, p=[0.6, 0.2, 0.1, 0.1])) if training else int(RunEnd.PROBED)
    if end == RunEnd.ABANDONED:
        told[:] = False
    seconds = np.where(told, 60.0 * np.exp(0.2 * chance.normal(size=limits)), np.nan)
    epochs = float(np.ceil(np.exp(2.5 + shift + 0.2 * chance.normal())))
    if end == RunEnd.STOPPED:
        epochs = float(chance.integers(0, 12))
    one = np.array([1.0])
    return Outcomes(
        lane=np.array([row]),
        recurrence=ALONE,
        kind=actions.kind[at : at + 1],
        arm=actions.arm[at : at + 1],
        limit=actions.limit[at : at + 1],
        end=np.array([end]),
        epochs=np.array([epochs if training and end != RunEnd.ABANDONED else 0.0]),
        seconds=one,
        joules=one,
        cost=one,
        epoch_seconds=seconds[None],
        epoch_joules=200.0 * np.exp(0.1 * chance.normal(size=limits))[None] * seconds,
        relative_error=np.where(told, chance.choice([0.005, 0.02]), np.nan)[None],
    )


def joined(parts):
    """Many outcomes as one."""
    names = [part.name for part in dataclasses.fields(Outcomes)]
    return Outcomes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def of_lane(part, lane):
    """The same, told to the job alone."""
    assert part.lane[0] == lane
    return dataclasses.replace(part, lane=ALONE)


def one_of(actions, at):
    """One of many actions."""
    names = [part.name for part in dataclasses.fields(Actions)]
    return Actions(*(getattr(actions, name)[at : at + 1] for name in names))


def bits(beliefs, lane):
    """Everything that is believed of one lane."""
    curves = (beliefs.prior_epochs, beliefs.epochs, beliefs.cost)
    arrays = [array[lane] for curve in curves for array in (curve.mean, curve.covariance)]
    arrays += [beliefs.evidence.sums[:, lane], beliefs.evidence.scatter[lane]]
    arrays += [beliefs.watch.state[lane], beliefs.profiles.logs[lane], beliefs.under_way[lane]]
    arrays += [beliefs.profiles.precision[lane], beliefs.granted[lane], beliefs.changed[lane]]
    return [np.asarray(array).tobytes() for array in arrays]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(OBJECTIVES),
    st.integers(2, 5),
    st.integers(1, 10),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_job_alone_is_decided_as_among_others(seed, objective, lanes, arms, limits, heir):
    """A server decides for one job what a simulation of thousands decided, or its figures lie."""
    chance = np.random.default_rng(seed)
    all_jobs = jobs(chance, lanes, arms, limits)
    policy = BayesianPolicy(objective, inherited=(HEIRLOOM,) if heir else ())
    together = JobBatch.of(all_jobs, range(lanes))
    beliefs = policy.start(together)
    each = [policy.start(JobBatch.of([job], [lane])) for lane, job in enumerate(all_jobs)]
    pending = []
    for step in range(20):
        rows = chance.permutation(lanes)[: chance.integers(1, lanes + 1)]
        actions = policy.decide(beliefs, rows, CounterRng.of(together.seeds[rows], rows))
        policy.begin(beliefs, rows, actions)
        for at, lane in enumerate(rows.tolist()):
            own = policy.decide(
                each[lane], ALONE, CounterRng.of(together.seeds[lane : lane + 1], rows[at : at + 1])
            )
            for part in dataclasses.fields(Actions):
                mine, theirs = getattr(own, part.name)[0], getattr(actions, part.name)[at]
                assert mine.tobytes() == theirs.tobytes(), part.name
            policy.begin(each[lane], ALONE, one_of(actions, at))
            pending.append(happened(chance, lane, actions, at, shift=1.0 if step > 10 else 0.0))
        # Runs overlap and end in any order, at most one of a lane at a time.
        chance.shuffle(pending)
        ended = {part.lane[0]: part for part in pending[: chance.integers(0, len(pending) + 1)]}
        pending = [part for part in pending if ended.get(part.lane[0]) is not part]
        if ended:
            policy.learn(beliefs, joined(list(ended.values())))
        for lane, part in ended.items():
            policy.learn(each[lane], of_lane(part, lane))
    for lane in range(lanes):
        assert bits(beliefs, lane) == bits(each[lane], 0)
