import numpy as np
import pytest
from papers.zeus.settings import (
    Surface,
    energy_by_batch_size,
    energy_by_limit,
    fronts,
    optima,
    savings_potential,
)


@pytest.fixture
def surface(small_workload):
    """The surface of the small workload."""
    return Surface(small_workload())


def test_a_batch_size_that_fails_at_times_is_unknown(surface):
    """The optimum would be a batch size that misses its target."""
    assert np.isnan(surface.joules[3]).all()
    assert np.isfinite(surface.joules[:3]).all()


def test_energy_is_epochs_times_time_times_power(surface):
    """Every figure would be off."""
    assert surface.joules[2, 1] == pytest.approx(10 * 9.0 * 140.0)
    assert surface.seconds[0, 0] == pytest.approx(8.5 * 40.0)
    assert surface.cost[2, 1] == pytest.approx(0.5 * 12600 + 0.5 * 250 * 90)


def test_the_front_holds_what_nothing_beats(surface):
    """Dominated settings would be drawn as choices."""
    assert surface.front() == [(2, 2), (2, 1)]


def test_savings_are_relative_to_the_default_at_the_highest_limit(surface):
    """Fig. 1 would compare with another baseline than the publication."""
    rows = savings_potential([surface]).main
    default = 8 * 15.5 * 150.0
    assert rows.numbers("joint") == [pytest.approx(12600 / default)]
    assert rows.numbers("batch_size_only") == [pytest.approx(10 * 8.8 * 190 / default)]
    assert rows.numbers("limit_only") == [pytest.approx(8 * 24 * 85 / default)]
    assert rows.column("default_batch_size") == [32]


def test_optima_name_the_settings(surface):
    """The table of optima would point to the wrong settings."""
    rows = optima([surface]).main
    fastest = rows.where(objective="least time")
    assert fastest.column("batch_size") == [64]
    assert fastest.column("limit_watts") == [250.0]
    cheapest = rows.where(objective="least cost, eta 0.5")
    assert (cheapest.column("batch_size"), cheapest.column("limit_watts")) == ([64], [150.0])
    assert rows.where(objective="default").numbers("eta_vs_default") == [1.0]


def test_fronts_mark_front_and_default(surface):
    """Fig. 2 would have no baseline to compare with."""
    rows = fronts([surface]).main
    assert len(rows) == 9
    assert rows.where(default=True).column("batch_size") == [32]
    assert sorted(rows.where(pareto=True).numbers("limit_watts")) == [150.0, 250.0]


def test_energy_by_batch_size_spans_the_runs(surface):
    """The band of Fig. 17 would not be the spread of runs."""
    rows = energy_by_batch_size([surface]).main
    at_64 = rows.where(batch_size=64)
    assert rows.column("batch_size") == [16, 32, 64]
    epoch = min(14.0 * 90, 9.0 * 140)
    assert at_64.numbers("eta_joules_least_run") == [pytest.approx(9 * epoch)]
    assert at_64.numbers("eta_joules_most_run") == [pytest.approx(11 * epoch)]
    assert at_64.numbers("eta_joules_at_highest_limit") == [pytest.approx(10 * 8.8 * 190)]


def test_energy_by_limit_has_the_default_and_the_best(surface):
    """Fig. 18 would show the same line twice."""
    rows = energy_by_limit([surface]).main
    assert rows.numbers("limit_watts") == [100.0, 150.0, 250.0]
    assert rows.distinct("default_batch_size") == ["32"]
    assert rows.distinct("best_batch_size") == ["64"]
    assert rows.numbers("eta_joules_default")[2] == pytest.approx(8 * 15.5 * 150)


def test_a_default_that_fails_at_times_is_repeated(small_workload):
    """There would be nothing to compare with."""
    load = small_workload()
    load.epochs[1, 0] = np.nan
    assert Surface(load).epochs[1] == pytest.approx(40 + 8)
