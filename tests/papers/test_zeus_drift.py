import numpy as np
import pytest
from papers.zeus.policies import DRIFT_AT, DRIFT_RECURRENCES, DRIFTS, drifting

from joulery.jobs.policies import ZeusPolicy
from joulery.simulate import simulate


@pytest.mark.parametrize("kind", DRIFTS)
def test_a_drift_changes_epochs_and_leaves_a_way_to_the_target(small_workload, kind):
    """The figure would show a job that cannot be trained, or one that never changes."""
    (_, before), (start, after) = DRIFTS[kind](small_workload()).stages
    assert start == DRIFT_AT
    assert not np.array_equal(before.epochs, after.epochs, equal_nan=True)
    assert np.isfinite(after.optimum()[2])


def test_growth_stops_short_of_what_the_job_allows(small_workload):
    """Every run of a job with few epochs would fail for ever."""
    load = small_workload()
    load.epochs[2] = (30.0, 38.0)
    load.epochs[:2] = 39.0
    _, after = DRIFTS["all need up to 1.9× the epochs"](load).stages[1]
    assert after.epochs[load.optimum()[0]].max() <= load.max_epochs


def test_rows_tell_the_optimum_before_and_after(small_workload):
    """Nobody could see whether a policy followed."""
    kind = "the optimum moves"
    load = DRIFTS[kind](small_workload())
    log = simulate([load], ZeusPolicy(window=10), DRIFT_RECURRENCES, range(2))
    data = drifting({(kind, "zeus"): log})
    assert len(data.main) == DRIFT_RECURRENCES
    best = data.main.numbers("optimal_batch_size")
    assert len(set(best[:DRIFT_AT])) == len(set(best[DRIFT_AT:])) == 1
    assert best[0] != best[-1]
    assert "synthetic" in data.remark
    assert data.tables[1].numbers("regret_after_drift")[0] > 0
