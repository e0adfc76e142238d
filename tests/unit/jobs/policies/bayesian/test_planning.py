"""What a training is worth."""

import numpy as np
import pytest

from joulery.jobs.policies.bayesian._planning import ExplorationConfig, plan

AHEAD = ExplorationConfig(horizon=100.0, max_cost_ratio=2.0, trial_runs=1.0)
NOISE = np.full((1, 3), 0.01)
FALLBACK = np.zeros(1, dtype=np.int64)


def weigh(mean, sds, prospects=AHEAD, correlation=0.0, fallback=FALLBACK):
    """Three batch sizes."""
    sds = np.array(sds)
    covariance = np.outer(sds, sds) * (correlation + (1 - correlation) * np.eye(3))
    return plan(np.array([mean]), covariance[None], NOISE, fallback, prospects)


def test_expected_cost_is_log_normal():
    """Ranking by medians would favour the noisy."""
    made = weigh([0.0, 1.0, 2.0], [0.1, 0.2, 0.3])
    assert made.expected[0] == pytest.approx(np.exp([0.01, 1.025, 2.05]))


def test_running_the_known_best_is_worth_about_nothing():
    """Values are measured against it."""
    assert weigh([0.0, 3.0, 3.0], [0.01, 0.01, 0.01]).value[0, 0] == pytest.approx(0.0, abs=0.02)


def test_an_unknown_that_may_be_better_is_tried():
    """Without a try the better batch size is never found."""
    value = weigh([0.0, 0.1, 3.0], [0.01, 0.5, 0.01]).value[0]
    assert value.argmax() == 1
    assert value[1] > 0


def test_what_cannot_win_is_not_tried():
    """A batch size that is surely costlier teaches nothing worth its cost."""
    assert weigh([0.0, 1.0, 3.0], [0.01, 0.05, 0.01]).value[0, 1] < 0


def test_no_future_no_tries():
    """Learning pays only over recurrences to come."""
    value = weigh(
        [0.0, 0.1, 3.0],
        [0.01, 0.5, 0.01],
        ExplorationConfig(horizon=0.0, max_cost_ratio=2.0, trial_runs=1.0),
    )
    assert value.value[0].argmax() == 0


def test_a_long_shot_is_stopped_early_and_a_close_call_late():
    """The ceiling is where going on costs more than starting over."""
    wide = weigh([0.0, 0.3, 3.0], [0.01, 1.0, 0.01])
    cost_at_stop = np.exp(0.3 + wide.stop[0, 1] * np.sqrt(1.0 + 0.01))
    assert cost_at_stop < 2.0
    assert weigh([0.0, 0.01, 3.0], [0.05, 0.05, 0.01]).stop[0, 1] > 1.0


def test_a_stop_below_everything_plausible_is_worth_nothing():
    """Stopping at once must not look like learning for free."""
    made = weigh([0.0, 0.5, 0.6], [0.1, 0.6, 0.6], correlation=0.9)
    assert made.stop[0, 1] > -3.0


def test_a_try_is_stopped_where_it_becomes_too_expensive():
    """However much a run might teach, its owner bounds what a try may cost."""
    bounded = ExplorationConfig(horizon=1e6, max_cost_ratio=1.2, trial_runs=1.0)
    made = weigh([0.0, 0.1, 3.0], [0.01, 0.5, 0.01], bounded)
    assert np.exp(0.1 + made.stop[0, 1] * np.sqrt(0.26)) <= 1.2 * made.expected[0, 0]


def test_only_the_proven_follow_a_stopped_run():
    """A cheap dream is no fallback: stopping is costlier when only a expensive one is proven."""
    last = np.array([2])
    cheap = weigh([0.0, 0.1, 1.0], [0.3, 0.5, 0.01])
    expensive = weigh([0.0, 0.1, 1.0], [0.3, 0.5, 0.01], fallback=last)
    assert expensive.stop[0, 1] > cheap.stop[0, 1]


def test_several_runs_pay_where_one_does_not():
    """In noisy jobs one run teaches too little; a series may still pay."""
    noise = np.full((1, 3), 0.16)
    covariance = np.diag([0.0001, 0.04, 0.0001])[None]
    mean = np.array([[0.0, 0.1, 3.0]])
    values = [
        plan(mean, covariance, noise, FALLBACK, ExplorationConfig(100.0, 2.0, runs)).value[0, 1]
        for runs in (1.0, 4.0)
    ]
    assert values[1] * 4 > values[0]


def test_jobs_do_not_mix():
    """Many jobs are weighed at once."""
    rng = np.random.default_rng(3)
    mean = rng.normal(0, 0.3, (4, 3))
    factors = rng.normal(0, 0.2, (4, 3, 3))
    covariance = factors @ factors.transpose(0, 2, 1)
    fallback = np.repeat(FALLBACK, 4)
    together = plan(mean, covariance, np.repeat(NOISE, 4, axis=0), fallback, AHEAD)
    for job in range(4):
        rows = slice(job, job + 1)
        alone = plan(mean[rows], covariance[rows], NOISE, FALLBACK, AHEAD)
        assert alone.value[0] == pytest.approx(together.value[job])
