import numpy as np
import pytest
from papers.zeus.ablation import WithoutProfiling, WithoutPruning

from joulery.jobs.policies import ActionKind
from joulery.simulate import SimulationConfig, simulate


def _trainings(load, policy, recurrences):
    actions = simulate(
        [load], policy, recurrences, range(1), SimulationConfig(keep_actions=True)
    ).actions
    trained = actions.kind == ActionKind.TRAIN
    return actions.arm[trained], actions.limit[trained]


def test_without_pruning_a_failed_batch_size_is_tried_again(small_workload):
    """The ablation would prune all the same."""
    load = small_workload()
    load.epochs[0] = np.nan  # never reaches its target
    arms, _ = _trainings(load, WithoutPruning(), 20)
    assert (arms == 0).sum() >= 2


def test_without_pruning_a_stopped_batch_size_does_not_pass_for_cheap(small_workload):
    """Every recurrence would begin with an attempt that is bound to be stopped."""
    load = small_workload()
    load.epochs[0] = np.nan
    log = simulate([load], WithoutPruning(), 40, range(5))
    assert (log.arm[:, -10:] != 0).all()
    assert log.attempts[:, -10:].mean() < 1.5


def test_without_profiling_every_limit_takes_a_training(small_workload):
    """Limits would be known before they were paid for."""
    arms, limits = _trainings(small_workload(), WithoutProfiling(), 30)
    first = limits[arms == arms[0]][:3]
    assert sorted(first.tolist()) == [0, 1, 2]


def test_without_profiling_the_best_limit_is_held_in_the_end(small_workload):
    """The ablation would keep exploring and look worse than it is."""
    load = small_workload()
    log = simulate([load], WithoutProfiling(), 60, range(3))
    arm, limit, _ = load.optimum()
    assert (log.arm[:, -5:] == arm).mean() > 0.5
    assert (log.limit[:, -1][log.arm[:, -1] == arm] == limit).all()


@pytest.mark.parametrize("policy", [WithoutPruning(), WithoutProfiling()])
def test_ablated_policies_reach_their_targets(small_workload, policy):
    """A figure would compare with runs that never finished."""
    assert simulate([small_workload()], policy, 30, range(4)).reached.all()
