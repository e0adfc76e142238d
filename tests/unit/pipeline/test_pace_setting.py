"""Which plan each pipeline follows, from what its ranks report."""

import pytest

from joulery.pipeline.build import Surroundings, build
from joulery.pipeline.drift import rescaled
from joulery.pipeline.pace_setting import PaceSetting
from joulery.pipeline.paces import Paces
from joulery.pipeline.profiles import profiles_of
from joulery.pipeline.schedules import schedule
from joulery.testing.pipelines import random_rows


@pytest.fixture(scope="module")
def paces():
    """Two stages, three microbatches."""
    profiles = profiles_of(random_rows(2, 5, clocks=6), smooth=False)
    return Paces(build(schedule("1f1b", 2, 3), profiles, Surroundings(blocking_watts=60.0)))


def iteration(setting, number, *factors, ratios=None):
    """Both ranks of every pipeline report; the first rank ends last."""
    for pipeline, factor in enumerate(factors):
        for rank in (0, 1):
            seconds = factor * (1.0 - 0.1 * rank)
            setting.done(pipeline, rank, number, (seconds, 1.0), ratios or {})
    return setting.decide()


def test_all_others_move_to_the_pace_of_a_late_pipeline_and_back(paces):
    """If it fails extrinsic bloat stays, or the job stays slow."""
    setting = PaceSetting(paces, 3)
    decisions = [iteration(setting, number, 1.0, 1.0, 1.0) for number in range(4)]
    assert not any(decisions)
    decisions = [iteration(setting, number, 1.0, 1.2, 1.0) for number in range(4, 9)]
    (first,) = [found for found in decisions if found]
    assert [(a.pipeline, pytest.approx(a.factor)) for a in first] == [(0, 1.2), (2, 1.2)]
    # All switch two iterations after the newest report.
    assert {a.from_iteration for a in first} == {4 + decisions.index(first) + 2}
    assert setting.current(0).factor == pytest.approx(1.2)
    assert setting.current(1) is None
    decisions = [iteration(setting, number, 1.0, 1.0, 1.0) for number in range(9, 14)]
    (last,) = [found for found in decisions if found]
    assert [(a.pipeline, a.factor) for a in last] == [(0, 1.0), (2, 1.0)]


def test_a_notice_decides_at_once(paces):
    """If it fails a known straggler costs iterations of waiting at full power."""
    setting = PaceSetting(paces, 2)
    iteration(setting, 0, 1.0, 1.0)
    setting.notice(1, 1.15)
    (found,) = setting.decide()
    assert (found.pipeline, found.factor) == (0, pytest.approx(1.15))
    assert setting.decide() == []
    setting.notice(1, 1.0)
    assert [a.factor for a in setting.decide()] == [1.0]


def test_a_lone_pipeline_can_wait_for_something_outside(paces):
    """If it fails a single pipeline cannot be told of a straggler elsewhere."""
    setting = PaceSetting(paces)
    setting.wait_for(1.3 * paces.fastest_seconds)
    assert [a.factor for a in setting.decide()] == [pytest.approx(1.3)]
    setting.wait_for(0.0)
    assert [a.factor for a in setting.decide()] == [1.0]


def test_an_iteration_counts_once_all_ranks_have_reported(paces):
    """If it fails the first rank to end decides how long its pipeline took."""
    setting = PaceSetting(paces, 2)
    for number in range(6):
        setting.done(0, 0, number, (2.0, 1.0), {})
        setting.done(1, 0, number, (1.0, 1.0), {})
    assert setting.decide() == []
    for number in range(200):
        setting.done(0, 0, number, (2.0, 1.0), {})
    assert len(setting._all[0].open) <= 64


def test_a_drifted_pipeline_is_planned_anew_and_leads_the_others(paces):
    """If it fails a throttled stage is seen as a straggler only, and its own pipeline hurries."""
    setting = PaceSetting(paces, 2)
    for number in range(12):
        setting.done(0, 1, number, (1.0, 1.0), {(1, "forward"): (1.3,), (1, "backward"): (1.3,)})
    factors = setting.drifted(0)
    assert factors == {(1, "forward"): 1.3, (1, "backward"): 1.3}
    assert setting.drifted(1) == {}
    slower = Paces(rescaled(setting.paces_of(0).problem, factors))
    found = setting.replan(0, slower)
    assert (found.pipeline, found.factor, found.from_iteration) == (0, 1.0, 13)
    assert setting.drifted(0) == {}
    (other,) = setting.decide()
    assert other.pipeline == 1
    assert other.factor == pytest.approx(slower.fastest_seconds / paces.fastest_seconds)
    assert setting.current(0).paces is slower
