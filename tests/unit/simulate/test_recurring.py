"""The simulation loop: what is charged, logged and repeatable."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.policies import ActionKind, Actions, ZeusPolicy
from joulery.jobs.policies._default import DefaultPolicy
from joulery.simulate import (
    SimulationConfig,
    Slices,
    horizon,
    make_oracle,
    scale_epochs,
    simulate,
)
from joulery.simulate._environment import EpochAtMean
from joulery.simulate._runner import default_probing
from joulery.testing.workloads import made_up_workload


@pytest.fixture
def load():
    """Batch size 64 is best, 256 the default."""
    return made_up_workload()


def test_default_costs_what_is_expected(load):
    """Without optimisation the mean over seeds is the expectation, and its regret the gap."""
    log = simulate([load], DefaultPolicy(), 20, range(200))
    assert (log.attempts == 1).all()
    assert (log.arm == 4).all()
    assert (log.limit == 3).all()
    assert log.cost.mean() == pytest.approx(log.default[2].mean(), rel=0.01)
    gap = load.expected_cost()[4, 3] / load.optimum()[2] - 1
    assert log.final_regret().mean() == pytest.approx(20 * gap, rel=0.05)


def test_oracle_has_no_regret(load):
    """Regret is measured from the best fixed setting."""
    log = simulate([load, load], make_oracle([load, load], range(100), 0.5), 30, range(100))
    assert abs(log.final_regret().mean()) < 0.5


def test_zeus_converges(load):
    """In the end the best batch size is chosen nearly always."""
    log = simulate([load], ZeusPolicy(), 100, range(50))
    assert (log.arm[:, -10:] == 2).mean() > 0.8
    assert log.reached.all()


def test_jobs_do_not_touch_each_other(load):
    """A seed gives the same recurrences alone and among others."""
    small = made_up_workload((32, 64, 128), default=128, limits_watts=(100.0, 250.0))
    together = simulate([load, small], ZeusPolicy(), 60, [3, 4, 5])
    alone = simulate([small], ZeusPolicy(), 60, [4])
    own = together.of_workload(1)
    assert own.arm[1].tolist() == alone.arm[0].tolist()
    assert own.cost[1].tolist() == alone.cost[0].tolist()


def test_failed_attempts_are_paid(load):
    """A recurrence costs all its attempts."""
    log = simulate(
        [load], ZeusPolicy(beta=1.05), 40, range(20), SimulationConfig(keep_actions=True)
    )
    actions = log.actions
    total = np.zeros_like(log.cost)
    np.add.at(total, (actions.job, actions.recurrence), actions.cost)
    assert (log.attempts > 1).any()
    assert total[log.reached] == pytest.approx(log.cost[log.reached])


def test_horizon_is_twice_the_settings(load):
    """As the paper simulates."""
    assert horizon(load) == 2 * 6 * 4
    log = simulate([load, made_up_workload((32, 64), default=64)], DefaultPolicy(), None, range(2))
    assert log.recurrences.tolist() == [48, 48, 16, 16]
    assert np.isnan(log.cost[2, 16:]).all()
    assert log.of_workload(1).cost.shape == (2, 16)


def test_overlapping_recurrences_all_end(load):
    """With several under way none is lost, and each is logged once."""
    log = simulate(
        [load], ZeusPolicy(), 60, range(10), SimulationConfig(overlap=7, keep_actions=True)
    )
    assert log.reached.all()
    assert (
        len(set(zip(log.actions.job.tolist(), log.actions.recurrence.tolist(), strict=True))) == 600
    )


def test_overlap_of_one_is_one_after_another(load):
    """Recurrences become known in order where they do not overlap."""
    log = simulate([load], ZeusPolicy(), 30, [1], SimulationConfig(keep_actions=True))
    assert (np.diff(log.actions.recurrence) >= 0).all()
    wide = simulate([load], ZeusPolicy(), 30, [1], SimulationConfig(overlap=5, keep_actions=True))
    assert (np.diff(wide.actions.recurrence) < 0).any()


class _Hopeless(DefaultPolicy):
    """Never allows anything."""

    name = "hopeless"

    def decide(self, beliefs, rows, rng):
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=beliefs.arm[rows],
            limit=beliefs.limit[rows],
            ceiling=np.ones(len(rows)),
            reason=np.zeros(len(rows), dtype=np.int64),
        )


def test_policy_that_never_trains_does_not_look_cheap(load):
    """Who gets no model from the policy trains the default in the end."""
    log = simulate([load], _Hopeless(), 5, [1, 2])
    assert not log.reached.any()
    assert (log.attempts == 20).all()
    assert log.cost == pytest.approx(log.default[2])


class _ProbesForEver(DefaultPolicy):
    """Never trains."""

    name = "prober"

    def decide(self, beliefs, rows, rng):
        return Actions(
            kind=np.full(len(rows), ActionKind.PROBE),
            arm=beliefs.arm[rows],
            limit=np.full(len(rows), -1),
            ceiling=np.ones(len(rows)),
            reason=np.zeros(len(rows), dtype=np.int64),
        )


def test_policy_that_only_probes_comes_to_an_end(load):
    """A simulation must end whatever the policy does."""
    log = simulate([load], _ProbesForEver(), 2, [1], SimulationConfig(keep_actions=True))
    assert not log.reached.any()
    assert np.bincount(log.actions.recurrence).tolist() == [200, 200]


def test_optimum_follows_the_drift(load):
    """Regret after a change is measured from what is best then."""
    log = simulate([scale_epochs(load, 10, 2.0)], DefaultPolicy(), 20, [1])
    assert log.optimal[0, 10] == pytest.approx(2 * log.optimal[0, 9])
    assert log.default[2, 0, 10] == pytest.approx(2 * log.default[2, 0, 9])


def test_progress_is_reported(load):
    """Long simulations say how far they are."""
    shares = []
    simulate([load], DefaultPolicy(), 64, [1], SimulationConfig(on_progress=shares.append))
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


def test_probing_is_as_customary():
    """Zeus is charged as its own simulator charges, other policies by the slice."""
    assert isinstance(default_probing("zeus"), EpochAtMean)
    assert isinstance(default_probing("mine"), Slices)


@pytest.mark.parametrize("wrong", [{"overlap": 0}, {"eta": float("nan")}])
def test_nonsense_is_refused(wrong):
    """SimulationConfig that make no sense are refused before any work."""
    with pytest.raises(InvalidValueError):
        SimulationConfig(**wrong)


def test_nothing_to_simulate(load):
    """An empty set is an error, not an empty result."""
    with pytest.raises(InvalidValueError):
        simulate([], ZeusPolicy(), 1, [1])
    with pytest.raises(InvalidValueError):
        simulate([load], ZeusPolicy(), 1, [])
