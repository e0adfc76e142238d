"""Published traces: our ``zeus`` beside the figures of Zeus's own simulator, and ``grid``'s."""

import os
from pathlib import Path

import pytest

from joulery.jobs.policies import make_policy
from joulery.simulate import read_traces, simulate, summaries

DATA = Path(os.environ.get("JOULERY_DATA", Path(__file__).parents[3] / "shared" / "data"))

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not (DATA / "zeus").is_dir(), reason="no traces here"),
]

# Zeus 0.16's own simulator, 200 seeds: regret, energy of the last five recurrences against
# Default; and the regret of grid search with pruning. Sampling noise of the regret is 1 to 5 %.
PUBLISHED = {
    ("v100", "librispeech"): (8.88, 0.620, 88.7),
    ("v100", "squad"): (1.76, 0.821, 10.0),
    ("v100", "sentiment140"): (1.69, 0.791, 8.2),
    ("v100", "imagenet"): (4.62, 0.811, 15.5),
    ("v100", "cifar100"): (9.73, 0.258, 249.4),
    ("v100", "movielens-1m"): (15.75, 0.348, 25093.8),
    ("a40", "librispeech"): (8.23, 0.337, 63.1),
    ("a40", "squad"): (3.20, 0.825, 32.3),
    ("a40", "sentiment140"): (4.41, 0.794, 24.5),
    ("a40", "imagenet"): (5.07, 0.851, 34.9),
    ("a40", "cifar100"): (10.14, 0.331, 323.9),
    ("a40", "movielens-1m"): (14.47, 0.391, 9597.1),
}


@pytest.fixture(scope="module")
def loads():
    """The published traces."""
    found = read_traces(DATA / "zeus").workloads
    return [load for load in found if (load.gpu, load.dataset) in PUBLISHED]


def by_pair(loads, policy, seeds):
    """Summaries by GPU and dataset."""
    log = simulate(loads, make_policy(policy), None, range(seeds))
    return {(one.gpu, one.dataset): one for one in summaries(log)}


@pytest.mark.slow
def test_zeus_is_zeus(loads):
    """The baseline that we compare with must be the one that anyone else would find."""
    found = by_pair(loads, "zeus", 1000)
    for pair, (regret, energy, _) in PUBLISHED.items():
        assert found[pair].regret_mean == pytest.approx(regret, rel=0.03, abs=0.2), pair
        assert found[pair].eta_last5_vs_default == pytest.approx(energy, rel=0.02), pair
        assert found[pair].failed == 0


def test_grid_search(loads):
    """Grid search pays for every setting, the worst included."""
    found = by_pair(loads, "grid", 50)
    for pair, (_, _, regret) in PUBLISHED.items():
        assert found[pair].regret_mean == pytest.approx(regret, rel=0.05), pair


def test_savings_potential(loads):
    """Best settings by energy alone, as the paper's Fig. 1 on the V100: 23.8 to 74.7 % less."""
    savings = []
    for load in (load for load in loads if load.gpu == "v100"):
        default = load.expected_cost(1.0)[load.default_setting()]
        savings.append(100 * (1 - load.optimum(1.0)[2] / default))
    assert min(savings) == pytest.approx(23.8, abs=0.05)
    assert max(savings) == pytest.approx(74.7, abs=0.05)
