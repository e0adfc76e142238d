import numpy as np
import pytest
from papers.zeus.policies import (
    MEAN,
    ablation,
    beta_sweep,
    cumulative_regret,
    eta_sweep,
    last_five,
    mean_by_gpu,
    search_paths,
)

from joulery.jobs.policies import ZeusPolicy
from joulery.jobs.policies._default import DefaultPolicy
from joulery.jobs.policies._grid import GridSearchPolicy
from joulery.simulate import SimulationConfig, simulate


@pytest.fixture
def logs(small_workload):
    """Two workloads under two policies."""
    loads = [small_workload(), small_workload("a40", "squad", 2.0)]
    return {
        "default": simulate(loads, DefaultPolicy(), 12, range(6)),
        "zeus": simulate(loads, ZeusPolicy(), 12, range(6)),
    }


def test_default_is_one_relative_to_default(logs):
    """Fig. 6 would be normalised by something else."""
    rows = last_five(logs).main
    base = rows.where(policy="default", gpu="v100")
    assert base.numbers("eta_vs_default")[0] == pytest.approx(1.0)
    assert base.numbers("eta_vs_default_low")[0] <= 1.0 <= base.numbers("eta_vs_default_high")[0]


def test_policies_of_a_workload_stand_side_by_side(logs):
    """Bars of one workload would be drawn in another's place."""
    rows = last_five(logs).main
    assert rows.column("workload") == ["cifar100", "cifar100", "squad", "squad"]
    assert rows.column("policy") == ["default", "zeus"] * 2


def test_regret_rows_end_at_the_total(logs):
    """Fig. 7 and its table would contradict each other."""
    data = cumulative_regret(logs)
    curve = data.main.where(policy="zeus", gpu="v100").numbers("regret")
    total = data.tables[1].where(policy="zeus", gpu="v100").numbers("regret")
    assert len(curve) == 12
    assert curve[-1] == pytest.approx(total[0])
    base = data.tables[1].where(policy="default").numbers("total_cost_vs_default")
    assert base == pytest.approx([1.0, 1.0], rel=0.05)


def test_mean_by_gpu_is_the_geometric_one(logs):
    """Fig. 14 would weigh workloads by their size."""
    last = last_five(logs)
    rows = mean_by_gpu(last).main
    expected = last.main.where(gpu="a40", policy="zeus").numbers("eta_vs_default")[0]
    assert rows.where(gpu="a40", policy="zeus").numbers("eta_vs_default") == [
        pytest.approx(expected)
    ]


def test_search_paths_follow_every_training(small_workload):
    """Paths of Fig. 8 would skip the attempts that were stopped."""
    log = simulate(
        [small_workload()], GridSearchPolicy(), 14, range(1), SimulationConfig(keep_actions=True)
    )
    data = search_paths({"grid": log})
    rows = data.main
    assert rows.numbers("training") == list(range(1, len(rows) + 1))
    assert len(rows) >= 14
    assert rows.numbers("batch_size")[0] == 32
    background = data.tables[1]
    assert len(background) == 12
    assert min(background.numbers("regret")) == 0.0


def test_eta_sweep_has_one_row_per_policy_eta_and_workload(small_workload):
    """A line of Fig. 22 would miss its ends."""
    loads = [small_workload()]
    runs = {
        ("zeus", eta): simulate(loads, ZeusPolicy(), 30, range(3), SimulationConfig(eta=eta))
        for eta in (0.0, 1.0)
    }
    rows = eta_sweep(runs).main
    assert rows.numbers("eta") == [0.0, 1.0]
    fast, frugal = rows.numbers("tta_vs_default")
    assert fast < frugal


def test_beta_sweep_is_relative_to_the_usual(small_workload):
    """Fig. 12 would not pass through one at the usual beta."""
    loads = [small_workload(), small_workload(dataset="squad")]
    runs = {beta: simulate(loads, ZeusPolicy(beta), 10, range(3)) for beta in (1.5, 2.0)}
    rows = beta_sweep(runs, 2.0).main
    assert rows.where(beta=2.0).numbers("total_eta_vs_usual") == pytest.approx([1.0] * 3)
    assert rows.where(beta=1.5).column("workload") == ["cifar100", "squad", MEAN]


def test_ablation_is_relative_to_the_whole(small_workload):
    """Fig. 13 would not say what a part is worth."""
    loads = [small_workload()]
    whole = simulate(loads, ZeusPolicy(), 20, range(4))
    without = simulate(loads, ZeusPolicy(np.inf), 20, range(4))
    rows = ablation({"zeus": whole, "no early stopping": without}).main
    assert rows.where(variant="zeus").numbers("total_eta_vs_whole") == pytest.approx([1.0, 1.0])
    assert rows.where(variant="no early stopping").numbers("total_eta_vs_whole")[0] > 1.0
