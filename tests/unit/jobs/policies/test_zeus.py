"""Zeus's policy: ceilings, sampling, concurrent submissions."""

import math

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.policies import ActionKind, CounterRng, JobBatch, Outcomes, RunEnd, ZeusPolicy
from joulery.testing.workloads import made_up_workload

ROW = np.zeros(1, dtype=np.int64)
EXPLORE, BEST_KNOWN, SAMPLE = range(3)


class One:
    """A single job that learns costs."""

    def __init__(self, policy, sizes=(32, 64, 128), default=64):
        self.policy = policy
        load = made_up_workload(sizes, best=64, default=default)
        self.jobs = JobBatch.of([load.job()], [7])
        self.beliefs = policy.start(self.jobs)
        self.decided = 0

    def decide(self):
        """What the policy would do next."""
        numbers = CounterRng.of(self.jobs.seeds, np.array([self.decided]))
        return self.policy.decide(self.beliefs, ROW, numbers)

    def begin(self):
        """Hand it out: arm, reason, ceiling."""
        actions = self.decide()
        self.decided += 1
        self.policy.begin(self.beliefs, ROW, actions)
        return int(actions.arm[0]), int(actions.reason[0]), float(actions.ceiling[0])

    def tell(self, arm, cost, *, recurrence=0, end=RunEnd.REACHED, epochs=5.0):
        """How a training ended."""
        blank = np.full((1, self.jobs.limits_watts.shape[1]), np.nan)
        self.policy.learn(
            self.beliefs,
            Outcomes(
                job=ROW,
                recurrence=np.array([recurrence]),
                kind=np.array([ActionKind.TRAIN]),
                arm=np.array([arm]),
                limit=ROW,
                end=np.array([end]),
                epochs=np.array([epochs]),
                seconds=np.array([1.0]),
                joules=np.array([1.0]),
                cost=np.array([cost]),
                epoch_seconds=blank,
                epoch_joules=blank,
                relative_error=blank,
            ),
        )

    def explored(self, costs):
        """Two rounds, the costs of arm 0, 1, 2 in each."""
        recurrence = 0
        while (step := self.begin())[1] == EXPLORE:
            round_number = int(self.beliefs.exploration.round[0])
            self.tell(step[0], costs[step[0]][round_number], recurrence=recurrence)
            recurrence += 1
        return recurrence


def test_first_run_is_the_default_without_a_ceiling():
    """Nothing is known yet that a run could be stopped by."""
    assert One(ZeusPolicy()).begin() == (1, EXPLORE, math.inf)


def test_ceiling_is_beta_times_the_least_recurrence():
    """The least counts whole recurrences, failed attempts included, and never decays."""
    one = One(ZeusPolicy(beta=3.0))
    one.begin()
    one.tell(1, 10.0, recurrence=0)
    assert one.begin()[2] == 30
    one.tell(0, 4.0, recurrence=1, end=RunEnd.STOPPED)
    one.begin()
    one.tell(2, 5.0, recurrence=1)
    assert one.begin()[2] == 27
    one.tell(1, 50.0, recurrence=2)
    assert one.begin()[2] == 27


def test_overlapping_recurrences_are_added_up_apart():
    """Attempts of one recurrence must not count for another that runs at the same time."""
    one = One(ZeusPolicy())
    one.begin()
    one.tell(0, 4.0, recurrence=0, end=RunEnd.STOPPED)
    one.tell(1, 10.0, recurrence=1)
    assert one.beliefs.least[0] == 10
    one.tell(1, 5.0, recurrence=0)
    assert one.beliefs.least[0] == 9


def test_sampling_begins_after_two_rounds():
    """Each batch size is seen twice, so that its variance is known."""
    one = One(ZeusPolicy())
    count = one.explored([(10.0, 11.0), (7.0, 8.0), (9.0, 9.5)])
    assert count == 6
    assert one.begin()[1] == SAMPLE


def test_clear_winner_is_sampled():
    """Far apart and with little variance there is nothing left to explore."""
    one = One(ZeusPolicy())
    one.explored([(100.0, 101.0), (10.0, 10.1), (100.0, 101.0)])
    assert {one.begin()[0] for _ in range(50)} == {1}


def test_close_race_is_sampled_in_proportion():
    """Equal beliefs are chosen about equally often."""
    one = One(ZeusPolicy())
    one.explored([(10.0, 12.0), (10.0, 12.0), (90.0, 91.0)])
    chosen = np.bincount([one.begin()[0] for _ in range(2000)], minlength=3)
    assert chosen[2] == 0
    assert chosen[0] == pytest.approx(1000, abs=120)


def test_no_variance_is_taken_at_its_word():
    """Two equal costs make a belief without doubt, not a division by zero."""
    one = One(ZeusPolicy())
    one.explored([(10.0, 10.0), (11.0, 11.0), (12.0, 12.0)])
    assert {one.begin()[0] for _ in range(20)} == {0}


@pytest.mark.parametrize("window", [2.5, float("nan"), float("inf"), 1e9, -3, 1])
def test_window_that_is_none(window):
    """A window that could not be kept is refused, not a crash at the first decision."""
    with pytest.raises(InvalidValueError, match="window"):
        ZeusPolicy(window=window)


def test_window_lets_the_past_go():
    """With a window the latest costs of a batch size decide."""
    one = One(ZeusPolicy(window=2))
    at = one.explored([(10.0, 11.0), (20.0, 21.0), (90.0, 91.0)])
    for more in range(2):
        one.tell(0, 80.0 + more, recurrence=at + more)
    assert {one.begin()[0] for _ in range(50)} == {1}


def test_concurrent_submissions_run_the_best_known():
    """While one explores, the others run what has cost least."""
    one = One(ZeusPolicy())
    assert one.begin()[:2] == (1, EXPLORE)
    assert one.begin()[:2] == (1, BEST_KNOWN)
    one.tell(1, 10.0)
    assert one.begin()[:2] == (0, EXPLORE)
    assert one.begin()[:2] == (1, BEST_KNOWN)


def test_unaffordable_training_counts_as_a_hundred_ceilings():
    """As in the paper's artifact: what cannot run one epoch is not tried again soon."""
    one = One(ZeusPolicy())
    one.begin()
    one.tell(1, 10.0)
    one.begin()
    one.tell(0, 0.0, recurrence=1, end=RunEnd.STOPPED, epochs=0.0)
    assert one.beliefs.costs.mean[0, 0] == 100 * 2 * 10
    assert one.beliefs.least[0] == 10


@pytest.mark.parametrize(
    "wrong",
    [{"beta": 1.0}, {"beta": math.nan}, {"window": 1}, {"window": -2}],
)
def test_nonsense_is_refused(wrong):
    """A ceiling at or below the best cost would stop every run."""
    with pytest.raises(InvalidValueError):
        ZeusPolicy(**wrong)
