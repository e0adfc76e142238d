import math
from dataclasses import replace

import pytest

from joulery.frontier import Origin
from joulery.sweep import FinishedRun, Metric, SweepTable

# The default takes 100 s and 1000 J; 170 W costs what Koszczał et al. publish in Table 1.
DEFAULT = FinishedRun(0, 8, 260.0, 0, 100.0, 1000.0, 800.0, 0.0, "simulated", "model", 0.0)
CAPPED = replace(DEFAULT, watts=170.0, seconds=109.35, joules=756.2)


def table(*runs):
    """The table of some runs against 260 W."""
    return SweepTable.of(runs, 260.0, "RTX6000")


def spread(run, *seconds):
    """The run several times, with other times and the energy in proportion."""
    return [
        replace(run, repeat=n, seconds=s, joules=run.joules * s / run.seconds)
        for n, s in enumerate(seconds)
    ]


def test_gains_are_those_of_the_paper():
    """Every column of the table would be wrong."""
    capped = table(DEFAULT, CAPPED).of_count(8)[0]
    assert capped.time_loss == pytest.approx(9.35)
    assert capped.gains == {
        Metric.ENERGY: pytest.approx(24.38),
        Metric.DIFFERENCE: pytest.approx(15.03),
        Metric.EDP: pytest.approx(17.31, abs=0.01),
        Metric.EDS_1_5: pytest.approx(1.89, abs=0.01),
        Metric.EDS_2_0: pytest.approx(7.515),
    }
    assert capped.to_dict()["eds_2.0_gain_percent"] == pytest.approx(7.515)
    assert capped.to_dict()["edp_joule_seconds"] == pytest.approx(109.35 * 756.2)


def test_means_and_deviations_are_over_the_runs():
    """Users would trust a difference that is noise."""
    runs = [
        replace(DEFAULT, repeat=n, seconds=s, joules=j, idle_gpu_joules=i)
        for n, (s, j, i) in enumerate([(99.0, 980.0, 10.0), (101.0, 1020.0, 30.0)])
    ]
    found = table(*runs).settings[0]
    assert (found.runs, found.point.seconds, found.point.joules) == (2, 100.0, 1000.0)
    assert found.seconds_sd == pytest.approx(math.sqrt(2))
    assert found.joules_sd == pytest.approx(20 * math.sqrt(2))
    assert found.idle_gpu_joules == 20.0
    assert table(DEFAULT).settings[0].seconds_sd is None


def test_gains_refer_to_the_same_number_of_boards():
    """A single board would look eight times as slow as the default."""
    slow = replace(DEFAULT, gpus=1, seconds=500.0, joules=4000.0)
    found = table(DEFAULT, CAPPED, slow, replace(slow, watts=170.0, joules=3800.0))
    assert found.gpu_counts == (1, 8)
    assert found.best_by(1, Metric.ENERGY).gain == pytest.approx(5.0)
    assert found.best_by(8, Metric.ENERGY).gain == pytest.approx(24.38)
    assert {(best.gpus, best.metric) for best in found.best()} == {
        (gpus, metric) for gpus in (1, 8) for metric in Metric
    }


def test_failed_runs_count_for_nothing_but_are_kept():
    """A run that crashed after a second would look like a miracle."""
    crashed = replace(CAPPED, repeat=1, exit_code=1, seconds=1.0, joules=5.0)
    found = table(DEFAULT, CAPPED, crashed)
    assert found.failures == (crashed,)
    assert (found.of_count(8)[0].runs, found.of_count(8)[0].failed) == (1, 1)
    assert found.of_count(8)[0].point.seconds == 109.35


def test_a_run_tried_again_replaces_its_failure():
    """A sweep that was repaired would still report failures."""
    found = table(DEFAULT, replace(CAPPED, exit_code=1), CAPPED)
    assert found.failures == ()
    assert found.of_count(8)[0].failed == 0


def test_without_the_default_there_are_no_gains():
    """Gains would refer to something else, silently."""
    found = table(CAPPED, replace(DEFAULT, exit_code=9))
    assert found.settings[0].gains == {}
    assert found.settings[0].time_loss is None
    assert found.best() == ()
    assert found.default_of(8) is None


def test_the_best_says_what_is_as_good():
    """A user would take a tie within the noise for a finding."""
    flat = replace(CAPPED, watts=180.0, joules=757.0)
    noisy = [
        *spread(DEFAULT, 99.0, 100.0, 101.0),
        *spread(CAPPED, 108.0, 109.35, 110.7),
        *spread(flat, 108.0, 109.35, 110.7),
    ]
    best = table(*noisy).best_by(8, Metric.ENERGY)
    assert (best.watts, best.as_good_watts) == (170.0, (170.0, 180.0))
    assert table(DEFAULT, CAPPED, flat).best_by(8, Metric.ENERGY).as_good_watts == (170.0,)


def test_of_equal_limits_the_faster_is_best():
    """A tie would cost time for nothing."""
    found = table(DEFAULT, replace(DEFAULT, watts=250.0))
    assert found.best_by(8, Metric.ENERGY).watts == 260.0


def test_the_frontier_and_its_origin():
    """Later choices would rest on dominated or mislabelled points."""
    worse = replace(CAPPED, watts=100.0, seconds=200.0, joules=900.0)
    found = table(DEFAULT, CAPPED, worse)
    frontier = found.frontier()
    assert [p.setting.power_limit_watts for p in frontier] == [260.0, 170.0]
    assert frontier.fastest.setting.devices == 8
    assert {p.provenance.origin for p in frontier} == {Origin.SIMULATED}
    assert (found.origin, found.sources) == ("simulated", "model")


def test_energy_of_idle_boards_is_unknown_when_one_run_lacks_it():
    """The mean of the known would pass for the mean of all."""
    found = table(DEFAULT, replace(DEFAULT, repeat=1, idle_gpu_joules=None))
    assert found.settings[0].idle_gpu_joules is None
