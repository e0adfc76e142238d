"""The compiled decision of the policy ``joulery`` is the one on arrays, whatever has happened."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulery.objectives import Cost
from joulery.recurring.draws import Draws
from joulery.recurring.inheritance import Inheritance
from joulery.recurring.job import Job
from joulery.recurring.joulery import Joulery
from joulery.recurring.lanes import Lanes
from joulery.recurring.native.library import prepare
from joulery.recurring.policy import End, Kind, Outcomes
from joulery.testing.decisions import Compared

HEIRLOOM = Inheritance((16, 64, 200), (2.0, 2.4, 3.1), (0.1, 0.05, 0.3), shift_sd=0.2)
BARELY = Inheritance((8,), (5.0,), (1.0,))
ENDS = [End.REACHED, End.STOPPED, End.EXHAUSTED, End.ABANDONED]
STEPS = 14


def job(chance, number, most_arms, most_limits):
    """Any job: few or many batch sizes, powers of two or not, with limits or without."""
    arms, limits = chance.integers(1, most_arms + 1), chance.integers(0, most_limits + 1)
    if chance.random() < 0.5 and arms <= 12:
        sizes = 2 ** np.sort(chance.choice(np.arange(12), arms, replace=False))
    else:
        sizes = np.sort(chance.choice(np.arange(1, 80), arms, replace=False)) * 8
    watts = np.sort(chance.choice(np.arange(10, 40), limits, replace=False)) * 10.0
    return Job(
        f"job {number}",
        tuple(int(size) for size in sizes),
        int(chance.choice(sizes)),
        Cost(float(chance.choice([0.0, 0.3, 0.5, 1.0])), 400.0),
        max_epochs=int(chance.integers(5, 200)),
        limits_watts=tuple(watts.tolist()),
    )


def became(chance, lanes, row, actions, at):
    """How one action ended: reached, stopped, failed or never heard of; some limits told."""
    padded = np.isnan(lanes.limits_watts[row])
    padded[0] = False  # where limits are left alone there is one, without a figure
    limits = len(padded)
    told = (chance.random(limits) < chance.choice([0.0, 0.2, 0.6, 1.0])) & ~padded
    training = actions.kind[at] == Kind.TRAIN
    end = int(chance.choice(ENDS, p=[0.5, 0.2, 0.2, 0.1])) if training else int(End.PROBED)
    told &= end != End.ABANDONED
    size = lanes.batch_sizes[row, actions.arm[at]]
    seconds = np.where(told, 60.0 * np.exp(0.3 * chance.normal(size=limits)), np.nan) / size**0.2
    watts = 200.0 * np.exp(0.2 * chance.normal(size=limits))
    if chance.random() < 0.2:  # limits above what a job draws change nothing: exact ties
        seconds, watts = np.where(told, 40.0, np.nan), np.full(limits, 150.0)
    epochs = float(np.ceil(np.exp(2.0 + 0.1 * np.log2(size) + 0.3 * chance.normal())))
    if end == End.STOPPED:
        epochs = float(chance.integers(0, 12))
    one = np.ones(1)
    return Outcomes(
        lane=np.array([row]),
        recurrence=np.zeros(1, dtype=np.int64),
        kind=actions.kind[at : at + 1],
        arm=actions.arm[at : at + 1],
        limit=actions.limit[at : at + 1],
        end=np.array([end]),
        epochs=np.array([epochs if training and end != End.ABANDONED else 0.0]),
        seconds=one,
        joules=one,
        cost=one,
        epoch_seconds=seconds[None],
        epoch_joules=(watts * seconds)[None],
        relative_error=np.where(told, chance.choice([0.002, 0.005, 0.05]), np.nan)[None],
    )


def live(seed, count, most_arms, most_limits):
    """A random history of random jobs, every decision of it compared."""
    chance = np.random.default_rng(seed)
    jobs = [job(chance, number, most_arms, most_limits) for number in range(count)]
    lanes = Lanes.of(jobs, range(count))
    inherited = tuple(chance.choice([None, HEIRLOOM, BARELY], count).tolist())
    policy = Compared(Joulery(inherited=inherited if chance.random() < 0.5 else ()))
    beliefs = policy.start(lanes)
    pending = []
    quiet = int(chance.choice([0, 0, 8]))  # many submissions before the first result
    for step in range(STEPS):
        rows = chance.permutation(count)[: chance.integers(1, count + 1)]
        actions = policy.decide(beliefs, rows, Draws.of(lanes.seeds[rows], rows))
        policy.begin(beliefs, rows, actions)
        pending += [became(chance, lanes, row, actions, at) for at, row in enumerate(rows.tolist())]
        # Runs overlap and end in any order.
        chance.shuffle(pending)
        ended = chance.integers(0, len(pending) + 1) if step >= quiet else 0
        for outcomes in pending[:ended]:
            policy.learn(beliefs, outcomes)
        del pending[:ended]
    return policy


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 15), st.integers(0, 9))
def test_decides_as_on_arrays(seed, count, arms, limits):
    """A server with a compiler and one without would otherwise train different things."""
    assert prepare()
    policy = live(seed, count, arms, limits)
    assert policy.decisions >= STEPS
    assert policy.ties <= 0.01 * policy.decisions


@pytest.mark.slow
def test_random_histories_come_to_every_decision():
    """Else the property above would hold of half of the code only."""
    assert prepare()
    lives = [live(seed, 30, 8, 6) for seed in range(12)]
    assert sum(policy.decisions for policy in lives) > 2000
    assert (np.sum([policy.reasons_seen for policy in lives], axis=0) > 5).all()
    assert sum(policy.ties for policy in lives) <= 2
