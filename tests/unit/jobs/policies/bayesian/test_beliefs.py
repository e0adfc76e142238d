"""What joulery believes, event by event."""

import numpy as np
import pytest

from joulery.jobs.policies import ActionKind, Actions, BayesianBeliefs, JobBatch, Outcomes, RunEnd
from joulery.testing.workloads import made_up_workload

LOADS = [made_up_workload(), made_up_workload()]
ROW = np.zeros(1, dtype=np.int64)


def fresh():
    """Of two jobs; only the first learns anything."""
    return BayesianBeliefs.start(JobBatch.of([load.job() for load in LOADS], [1, 2]))


def tell(beliefs, arm, end, epochs, *, measured=True):
    """A training of the first job ended."""
    seconds, joules = LOADS[0].epoch_seconds[[arm]], LOADS[0].epoch_joules[[arm]]
    blank = np.full_like(seconds, np.nan)
    one = np.ones(1)
    beliefs.learn(
        Outcomes(
            job=ROW,
            recurrence=ROW,
            kind=np.array([ActionKind.TRAIN]),
            arm=np.array([arm]),
            limit=np.array([3]),
            end=np.array([end]),
            epochs=epochs * one,
            seconds=one,
            joules=one,
            cost=one,
            epoch_seconds=seconds if measured else blank,
            epoch_joules=joules if measured else blank,
            relative_error=np.full_like(seconds, 0.01) if measured else blank,
        )
    )


def test_runs_teach_epochs_and_costs():
    """Both factors of a run's cost are learned from every run."""
    beliefs = fresh()
    for _ in range(5):
        tell(beliefs, 4, RunEnd.REACHED, 30.0)
    assert np.exp(beliefs.epochs.mean[0, 4]) == pytest.approx(30.0, rel=0.05)
    assert np.exp(beliefs.cost.mean[0, 4]) == pytest.approx(
        LOADS[0].epoch_cost()[4].min(), rel=0.03
    )


def test_jobs_do_not_hear_of_one_another():
    """Beliefs of a job are a function of its own events."""
    beliefs, untouched = fresh(), fresh()
    tell(beliefs, 4, RunEnd.REACHED, 30.0)
    tell(beliefs, 2, RunEnd.STOPPED, 50.0)
    assert np.array_equal(beliefs.epochs.mean[1], untouched.epochs.mean[1])
    assert np.array_equal(beliefs.cost.covariance[1], untouched.cost.covariance[1])


def test_a_change_shifts_all_and_frees_each():
    """After a change all are believed to have moved alike, and each may have moved on its own."""
    beliefs = fresh()
    tell(beliefs, 4, RunEnd.REACHED, 30.0)
    for _ in range(10):
        tell(beliefs, 2, RunEnd.REACHED, 10.0)
    before = np.exp(beliefs.epochs.mean[0])
    for _ in range(5):
        tell(beliefs, 2, RunEnd.REACHED, 30.0)
    after = np.exp(beliefs.epochs.mean[0])
    assert beliefs.changed.tolist() == [True, False]
    assert after[2] == pytest.approx(30.0, rel=0.1)
    assert after[4] > 1.2 * before[4]
    assert beliefs.epochs.variance[0, 4] > 0.3**2


def test_a_stopped_run_of_the_first_epochs_does_not_count():
    """A training that never began tells nothing about epochs, only that one is expensive."""
    beliefs = fresh()
    tell(beliefs, 4, RunEnd.REACHED, 30.0)
    epochs, cost = beliefs.epochs.mean.copy(), beliefs.cost.mean[0, 5]
    actions = Actions(
        kind=np.array([ActionKind.TRAIN]),
        arm=np.array([5]),
        limit=np.array([-1]),
        ceiling=np.exp([cost + 1.0]),
        reason=ROW,
    )
    beliefs.begin(ROW, actions)
    tell(beliefs, 5, RunEnd.STOPPED, 0.0, measured=False)
    assert np.array_equal(beliefs.epochs.mean, epochs)
    assert beliefs.cost.mean[0, 5] > cost + 0.2


def test_what_is_under_way_is_counted_until_it_ends():
    """Otherwise a dead worker would keep a batch size from being tried for ever."""
    beliefs = fresh()
    actions = Actions(np.array([ActionKind.TRAIN]), np.array([4]), ROW, np.array([np.inf]), ROW)
    beliefs.begin(ROW, actions)
    beliefs.begin(ROW, actions)
    assert beliefs.under_way[0, 4] == 2
    tell(beliefs, 4, RunEnd.ABANDONED, np.nan, measured=False)
    tell(beliefs, 4, RunEnd.REACHED, 30.0)
    tell(beliefs, 4, RunEnd.REACHED, 30.0)
    assert beliefs.under_way[0, 4] == 0


def train(beliefs, arm):
    """A training of the first job was handed out."""
    arms = np.array([arm])
    ceiling = np.full(1, np.inf)
    beliefs.begin(ROW, Actions(np.array([ActionKind.TRAIN]), arms, ROW, ceiling, ROW, None))


def test_after_a_loss_more_may_try_at_once():
    """Where every second client dies, the best batch size would be lost again and again."""
    beliefs = fresh()
    for _ in range(2):
        train(beliefs, 2)
        tell(beliefs, 2, RunEnd.ABANDONED, np.nan, measured=False)
    counted = []
    for _ in range(3):
        train(beliefs, 2)
        counted.append(beliefs.under_way[0, 2])
    assert counted == [0.0, 0.0, 1.0]
    assert beliefs.under_way[0, 4] == beliefs.under_way[1, 2] == 0.0


def test_losses_let_no_more_than_a_few_try():
    """Clients that die on purpose would make everybody else try."""
    beliefs = fresh()
    for _ in range(20):
        train(beliefs, 2)
        tell(beliefs, 2, RunEnd.ABANDONED, np.nan, measured=False)
    for _ in range(4):
        train(beliefs, 2)
    assert beliefs.under_way[0, 2] == 1.0


def test_a_result_makes_up_for_losses():
    """What is known by now would go on being tried by several at once."""
    beliefs = fresh()
    train(beliefs, 2)
    tell(beliefs, 2, RunEnd.ABANDONED, np.nan, measured=False)
    for _ in range(2):
        train(beliefs, 2)
    tell(beliefs, 2, RunEnd.REACHED, 12.0)
    assert beliefs.under_way[0, 2] == 1.0
