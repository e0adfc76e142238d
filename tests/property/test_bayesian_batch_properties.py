"""The policy ``joulery`` decides for one job as it does among others, to the last bit."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.jobs import Job
from joulery.jobs.policies import (
    ActionKind,
    Actions,
    CounterRng,
    JobBatch,
    Outcomes,
    RunEnd,
    WarmStart,
)
from joulery.jobs.policies.bayesian._policy import BayesianPolicy
from joulery.objectives import Cost, EnergyDelayProduct, FastestWithin, LeastEnergy

OBJECTIVES = (
    None,
    EnergyDelayProduct(),
    LeastEnergy(max_slowdown=0.05),
    LeastEnergy(deadline_seconds=900.0),
    FastestWithin(joules=2e5),
)
KNOWN = WarmStart((16, 64, 200), (2.0, 2.4, 3.1), (0.1, 0.05, 0.3), shift_sd=0.2)
ALONE = np.zeros(1, dtype=np.int64)


def random_jobs(chance, count, arms, limits):
    """Any jobs of the same shape: batch sizes, defaults, limits and costs differ."""
    made = []
    for number in range(count):
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
    """The end of one action: reached, stopped, failed or abandoned; some limits measured."""
    limits = actions.probe_limits.shape[1]
    measured = chance.random(limits) < chance.choice([0.0, 0.2, 1.0])
    training = actions.kind[at] == ActionKind.TRAIN
    ends = [RunEnd.REACHED, RunEnd.STOPPED, RunEnd.EXHAUSTED, RunEnd.ABANDONED]
    end = int(chance.choice(ends, p=[0.6, 0.2, 0.1, 0.1])) if training else int(RunEnd.PROBED)
    if end == RunEnd.ABANDONED:
        measured[:] = False
    seconds = np.where(measured, 60.0 * np.exp(0.2 * chance.normal(size=limits)), np.nan)
    epochs = float(np.ceil(np.exp(2.5 + shift + 0.2 * chance.normal())))
    if end == RunEnd.STOPPED:
        epochs = float(chance.integers(0, 12))
    one = np.array([1.0])
    return Outcomes(
        job=np.array([row]),
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
        relative_error=np.where(measured, chance.choice([0.005, 0.02]), np.nan)[None],
    )


def joined(parts):
    """Many outcomes as one."""
    names = [part.name for part in dataclasses.fields(Outcomes)]
    return Outcomes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def alone(part, job):
    """The same outcome, of the job alone."""
    assert part.job[0] == job
    return dataclasses.replace(part, job=ALONE)


def one_of(actions, at):
    """One of many actions."""
    names = [part.name for part in dataclasses.fields(Actions)]
    return Actions(*(getattr(actions, name)[at : at + 1] for name in names))


def bits(beliefs, job):
    """Everything that is believed of one job."""
    curves = (beliefs.prior_epochs, beliefs.epochs, beliefs.cost)
    arrays = [array[job] for curve in curves for array in (curve.mean, curve.covariance)]
    evidence = beliefs.evidence
    sums = (evidence.runs, evidence.total, evidence.stop_precision, evidence.stop_total)
    arrays += [each[job] for each in (*sums, evidence.scatter)]
    arrays += [beliefs.deviations[job], beliefs.profiles.logs[job], beliefs.under_way[job]]
    arrays += [beliefs.profiles.precision[job], beliefs.granted[job], beliefs.changed[job]]
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
def test_a_job_alone_is_decided_as_among_others(seed, objective, count, arms, limits, warm):
    """A server decides for one job what a simulation of thousands decided, or its figures lie."""
    chance = np.random.default_rng(seed)
    all_jobs = random_jobs(chance, count, arms, limits)
    policy = BayesianPolicy(objective, warm_start=KNOWN if warm else None)
    together = JobBatch.of(all_jobs, range(count))
    beliefs = policy.start(together)
    each = [policy.start(JobBatch.of([job], [seed])) for seed, job in enumerate(all_jobs)]
    pending = []
    for step in range(20):
        rows = chance.permutation(count)[: chance.integers(1, count + 1)]
        actions = policy.decide(beliefs, rows, CounterRng.of(together.seeds[rows], rows))
        policy.begin(beliefs, rows, actions)
        for at, job in enumerate(rows.tolist()):
            own = policy.decide(
                each[job], ALONE, CounterRng.of(together.seeds[job : job + 1], rows[at : at + 1])
            )
            for part in dataclasses.fields(Actions):
                mine, theirs = getattr(own, part.name)[0], getattr(actions, part.name)[at]
                assert mine.tobytes() == theirs.tobytes(), part.name
            policy.begin(each[job], ALONE, one_of(actions, at))
            pending.append(happened(chance, job, actions, at, shift=1.0 if step > 10 else 0.0))
        # Runs overlap and end in any order, at most one of a job at a time.
        chance.shuffle(pending)
        ended = {part.job[0]: part for part in pending[: chance.integers(0, len(pending) + 1)]}
        pending = [part for part in pending if ended.get(part.job[0]) is not part]
        if ended:
            policy.learn(beliefs, joined(list(ended.values())))
        for job, part in ended.items():
            policy.learn(each[job], alone(part, job))
    for job in range(count):
        assert bits(beliefs, job) == bits(each[job], 0)
