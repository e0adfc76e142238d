"""Grid search with pruning."""

import numpy as np

from joulery.jobs.policies import ActionKind, Actions, JobBatch, Outcomes, RunEnd
from joulery.jobs.policies._grid import GridSearchPolicy
from joulery.simulate import SimulationConfig, simulate
from joulery.testing.workloads import made_up_workload


def test_every_setting_once_then_the_best():
    """As many recurrences as settings explore; from then on one setting is held."""
    load = made_up_workload((32, 64, 128), default=128, runs=1)
    log = simulate([load], GridSearchPolicy(), 30, [1])
    tried = list(zip(log.arm[0].tolist(), log.limit[0].tolist(), strict=True))
    assert len(set(tried[:12])) == 12
    assert set(tried[12:]) == {load.optimum()[:2]}


def test_starts_from_the_default():
    """The first run is what the owner would have run."""
    log = simulate([made_up_workload()], GridSearchPolicy(), 1, [1])
    assert (log.arm[0, 0], log.limit[0, 0]) == (4, 3)


def test_failing_batch_size_is_dropped():
    """A batch size that fails once is not tried at its other limits."""
    load = made_up_workload((32, 64, 128), default=128, never=(32,))
    log = simulate([load], GridSearchPolicy(), 40, [1], SimulationConfig(keep_actions=True))
    assert (log.actions.arm == 0).sum() == 1
    assert log.reached.all()


def test_overlapping_submissions_try_different_settings():
    """Nothing is tried twice because two submissions overlap."""
    load = made_up_workload((32, 64, 128), default=128, runs=1)
    log = simulate([load], GridSearchPolicy(), 12, [1], SimulationConfig(overlap=6))
    assert len(set(zip(log.arm[0].tolist(), log.limit[0].tolist(), strict=True))) == 12


def test_jobs_of_different_size_do_not_matter():
    """Padding must not change the order of the walk."""
    small = made_up_workload((32, 64), default=32, limits_watts=(100.0, 250.0))
    alone = simulate([small], GridSearchPolicy(), 10, [1])
    beside = simulate([made_up_workload(), small], GridSearchPolicy(), 10, [1])
    assert np.array_equal(alone.arm[0], beside.of_workload(1).arm[0])


def test_a_limit_that_was_not_held_is_no_cell():
    """A run under no limit of the job's would be booked as the batch size before."""
    jobs = JobBatch.of([made_up_workload((32, 64, 128), default=128).job()], [1])
    policy = GridSearchPolicy()
    beliefs = policy.start(jobs)
    one = np.ones(1, dtype=np.int64)
    unknown = np.full((1, 4), np.nan)
    figures = np.ones(1)
    told = Outcomes(
        *(0 * one, 0 * one, ActionKind.TRAIN * one, one, -one, RunEnd.REACHED * one),
        *(figures, figures, figures, figures, unknown, unknown, unknown),
    )
    untried = beliefs.untried.copy()
    policy.begin(beliefs, 0 * one, Actions(0 * one, one, -one, figures, 0 * one))
    policy.learn(beliefs, told)
    assert np.isinf(beliefs.cost).all()
    assert np.array_equal(beliefs.untried, untried)
