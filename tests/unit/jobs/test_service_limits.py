"""A batch size that was asked for gets the power limit that the policy knows for it."""

import copy

import numpy as np
import pytest

from joulery.clock import VirtualClock
from joulery.jobs import Definition, JobService, Measured, Outcome, Request
from joulery.jobs._client_actions import with_known_limit
from joulery.jobs.policies import (
    ActionKind,
    Actions,
    CounterRng,
    JobBatch,
    Outcomes,
    RunEnd,
    policy_names,
)
from joulery.jobs.policies.bayesian._policy import BayesianPolicy
from joulery.objectives import EnergyDelayProduct, LeastEnergy
from joulery.storage import Store
from joulery.testing.policy_contract import assert_identical
from joulery.testing.workloads import made_up_workload

LOAD = made_up_workload()
JOB = LOAD.job()
ROW = np.zeros(1, dtype=np.int64)
EPOCHS = 30.0


def learned(policy, beliefs, actions, recurrence):
    """Fold in how an action ended, with what it measured."""
    arm, trains = actions.arm, actions.kind[0] == ActionKind.TRAIN
    wanted = np.ones(LOAD.epoch_seconds.shape[1], dtype=bool)
    if actions.probe_limits is not None and actions.limit[0] != -1:
        wanted = actions.probe_limits[0].copy()
        wanted[actions.limit[0]] = True
    seconds = np.where(wanted, LOAD.epoch_seconds[arm], np.nan)
    joules = np.where(wanted, LOAD.epoch_joules[arm], np.nan)
    cost = EPOCHS * LOAD.epoch_cost()[arm[0]].min() if trains else 1.0
    policy.learn(
        beliefs,
        Outcomes(
            job=ROW,
            recurrence=np.array([recurrence]),
            kind=actions.kind,
            arm=arm,
            limit=actions.limit,
            end=np.array([RunEnd.REACHED if trains else RunEnd.PROBED]),
            epochs=np.full(1, EPOCHS if trains else 0.0),
            seconds=np.ones(1),
            joules=np.ones(1),
            cost=np.full(1, cost),
            epoch_seconds=seconds,
            epoch_joules=joules,
            relative_error=np.where(wanted, 0.02, np.nan)[None, :],
        ),
    )


@pytest.mark.parametrize(
    "objective", [None, EnergyDelayProduct(), LeastEnergy(max_slowdown=0.1)], ids=str
)
def test_the_limit_of_a_batch_size_is_what_a_decision_holds(objective):
    """A client that runs a given batch size would hold another limit than the policy's own runs."""
    policy = BayesianPolicy(objective=objective)
    lanes = JobBatch.of([JOB], [7])
    beliefs = policy.start(lanes)
    trained, probed = 0, 0
    for recurrence in range(14):
        actions = policy.decide(beliefs, ROW, CounterRng.of(lanes.seeds, ROW))
        before = copy.deepcopy(beliefs)
        limits = policy.limit_of(beliefs, ROW, actions.arm)
        assert_identical(beliefs, before)
        if actions.kind[0] == ActionKind.TRAIN:
            trained += actions.limit[0] != -1
            assert limits.hold == actions.limit
            assert (limits.measure == actions.probe_limits).all()
        else:
            probed += 1
            assert np.flatnonzero(actions.probe_limits[0]).tolist() == limits.hold.tolist()
        policy.begin(beliefs, ROW, actions)
        learned(policy, beliefs, actions, recurrence)
    assert trained > 5
    assert probed


def test_nothing_is_held_before_anything_is_known():
    """A limit that nobody has measured would be held for a whole training."""
    policy = BayesianPolicy()
    beliefs = policy.start(JobBatch.of([JOB], [7]))
    for arm in range(len(JOB.batch_sizes)):
        limits = policy.limit_of(beliefs, ROW, np.array([arm]))
        assert limits.hold.tolist() == [-1]
        assert limits.measure.all()


def test_what_is_decided_already_stays():
    """The policy's own decision, or a probe, would be changed on its way out."""
    policy = BayesianPolicy()
    beliefs = policy.start(JobBatch.of([JOB], [7]))
    for kind, limit in ((ActionKind.TRAIN, 2), (ActionKind.PROBE, -1), (ActionKind.TRAIN, -1)):
        actions = Actions(np.array([kind]), ROW, np.array([limit]), np.ones(1), ROW)
        assert with_known_limit(actions, policy, beliefs) is actions


@pytest.fixture
def service(tmp_path):
    """A service, with its clock."""
    clock = VirtualClock()
    with Store.open(tmp_path / "store.sqlite") as store:
        yield JobService(store, clock), clock


def run(service, job, key, only=None):
    """One recurrence of a training that measures what it was asked to."""
    service, clock = service
    decision = service.decide(job, Request(key, only=only))
    arm = JOB.batch_sizes.index(decision.batch_size)
    held = decision.power_limit_watts
    wanted = set(decision.probe_limits_watts) | ({held} if held else set())
    figures = {
        watts: (float(LOAD.epoch_seconds[arm, at]), float(LOAD.epoch_joules[arm, at]))
        for at, watts in enumerate(JOB.limits_watts)
    }
    watts = held or JOB.limits_watts[int(LOAD.epoch_cost()[arm].argmin())]
    epochs = EPOCHS if decision.batch_size == JOB.default else 0.4 * EPOCHS
    seconds, joules = (epochs * one for one in figures[watts])
    measured = tuple(Measured(one, *figures[one], 0.01) for one in sorted(wanted | {watts}))
    clock.sleep(seconds)
    outcome = Outcome(RunEnd.REACHED, epochs, seconds, joules, watts, measured)
    service.report(decision, outcome, key)
    return decision


def test_a_given_batch_size_gets_the_limit_that_is_known_for_it(service):
    """Every run of a given batch size would measure all limits again."""
    job = service[0].define(Definition(JOB), seed=7).id
    first = run(service, job, "first", only=JOB.default)
    assert first.power_limit_watts is None
    assert first.probe_limits_watts == JOB.limits_watts
    chosen = [run(service, job, f"{number}") for number in range(8)]
    arm = JOB.batch_sizes.index(JOB.default)
    best = JOB.limits_watts[int(LOAD.epoch_cost()[arm].argmin())]
    again = run(service, job, "again", only=JOB.default)
    assert again.batch_size == JOB.default
    assert chosen[-1].batch_size != JOB.default
    assert again.power_limit_watts == best
    assert best not in again.probe_limits_watts
    assert "was asked for" in again.reason
    assert again.cost_ceiling_joules == float("inf")


def test_policies_that_leave_limits_to_profiling_still_do(service):
    """A policy as published would be changed."""
    for name in policy_names():
        if name == "joulery":
            continue
        job = service[0].define(Definition(JOB, policy=name), seed=7).id
        for number in range(4):
            run(service, job, f"{number}")
        other = next(size for size in JOB.batch_sizes if size != JOB.default)
        assert run(service, job, "only", only=other).power_limit_watts is None
