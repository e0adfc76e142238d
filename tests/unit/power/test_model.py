"""The belief about curves: it follows the probes, knows what it does not know, and plans."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulery.frontier import OperatingPoint
from joulery.hardware import catalog, settle
from joulery.objectives import (
    Cost,
    EnergyDelayProduct,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
    score,
)
from joulery.power import Estimate, limit_curves
from joulery.power._model import (
    CurveModel,
    Curves,
    ObjectiveScorer,
    SliceForecast,
    clock_curves,
    plan_probe,
    product,
)
from joulery.power._step_profiler import Reading, SettingUsage

BOARD = catalog.board("V100")
WORK = catalog.workload("bert", BOARD)
LIMITS = np.arange(100.0, 251.0)


def probe(limit):
    """A precise probe of the simulated board."""
    point = settle(BOARD, WORK, limit)
    return Estimate(point.seconds, point.watts, 1e-3, 2e-3, 10, 1.0)


def believed(*limits):
    """The belief after probes at these limits."""
    reference = settle(BOARD, WORK, 250.0)
    model = CurveModel(
        LIMITS, limit_curves(LIMITS, reference.watts), reference.seconds, reference.watts
    )
    return model.posterior({limit - 100: probe(limit) for limit in limits})


def test_prior_is_sane():
    """Curves that rise where boards slow down would misguide every probe."""
    curves = limit_curves(LIMITS, 230.0)
    assert np.all(np.diff(curves.log_seconds, axis=1) <= 1e-9)
    assert np.all(np.diff(curves.log_watts, axis=1) >= -1e-9)
    assert np.allclose(curves.log_seconds[:, -1], 0.0)
    clocks = clock_curves(np.linspace(2e8, 1.4e9, 50))
    assert np.all(np.diff(clocks.log_seconds, axis=1) <= 1e-9)


def test_limits_far_above_the_draw_do_not_bind():
    """A job that draws 40 W must not be expected to slow down at 200 W."""
    curves = limit_curves(LIMITS, 40.0)
    assert np.median(curves.log_seconds[:, 100]) == pytest.approx(0.0, abs=1e-3)


def test_belief_passes_through_the_probes():
    """Ignoring measurements would make them pointless."""
    belief = believed(250, 180, 140)
    for limit in (250, 180, 140):
        truth = settle(BOARD, WORK, limit)
        column = belief.log_seconds[:, limit - 100]
        assert np.exp(column).mean() == pytest.approx(truth.seconds, rel=3e-3)
        assert np.exp(belief.log_watts[:, limit - 100]).mean() == pytest.approx(
            truth.watts, rel=4e-3
        )


def test_few_probes_foretell_the_curve():
    """The point of a model: three limits tell the rest to a few per cent."""
    belief = believed(250, 180, 140)
    for limit in (160, 200, 220):
        truth = settle(BOARD, WORK, limit)
        assert np.exp(np.median(belief.log_seconds[:, limit - 100])) == pytest.approx(
            truth.seconds, rel=0.03
        )


def test_uncertainty_grows_away_from_probes():
    """A belief that is sure everywhere would never look."""
    belief = believed(250, 180)
    assert belief.log_seconds[:, 20].std() > 3 * belief.log_seconds[:, 80].std()


def test_ragged_tables_widen_the_belief():
    """Measured frontiers with kinks must not be smoothed away with false confidence."""
    reference = settle(BOARD, WORK, 250.0)
    model = CurveModel(
        LIMITS, limit_curves(LIMITS, reference.watts), reference.seconds, reference.watts
    )
    smooth = {limit - 100: probe(limit) for limit in (250, 225, 200, 175)}
    bumps = (1.0, 0.94, 1.05, 0.95)
    ragged = {
        position: replace(estimate, seconds=estimate.seconds * bump)
        for (position, estimate), bump in zip(smooth.items(), bumps, strict=True)
    }
    at = 212 - 100
    wide = model.posterior(ragged).log_seconds[:, at].std()
    assert wide > 2 * model.posterior(smooth).log_seconds[:, at].std()


def test_a_slice_that_no_other_explains_stands_out():
    """A slice that lay in another process's burst as a whole would pass for a slow limit."""
    reference = settle(BOARD, WORK, 250.0)
    model = CurveModel(
        LIMITS, limit_curves(LIMITS, reference.watts), reference.seconds, reference.watts
    )
    measured = {limit - 100: probe(limit) for limit in (250, 225, 200, 190, 180, 170, 150)}
    assert not model.slower_than_predicted(measured)
    measured[90] = replace(measured[90], seconds=1.8 * measured[90].seconds)
    doubts = model.slower_than_predicted(measured)
    assert max(doubts, key=doubts.get) == 90
    assert doubts[90] > 2


def curves(*rows):
    """A belief of given (seconds, watts) rows over three knob values."""
    seconds, watts = zip(*rows, strict=True)
    return Curves(np.log(np.array(seconds)), np.log(np.array(watts)))


SURE = curves(*[((1.2, 1.04, 1.0), (100.0, 150.0, 200.0))] * 20)
SPLIT = curves(
    *[((1.2, 1.04, 1.0), (100.0, 150.0, 200.0))] * 10,
    *[((1.4, 1.08, 1.0), (100.0, 150.0, 200.0))] * 10,
)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (Cost(0.0, 200.0), 2),
        (Cost(1.0), 0),
        (LeastEnergy(max_slowdown=0.05), 1),
        (LeastEnergy(deadline_seconds=1.1), 1),
        (FastestWithin(160.0), 1),
        (EnergyDelayProduct(), 0),
        (LeastCarbon(400.0), 0),
        (LeastCarbon(0.0), 2),
        (LeastMoney(-0.3), 2),
        (LeastMoney(0.0, rent_per_hour=2.0), 2),
    ],
)
def test_every_objective_is_judged(objective, expected):
    """An objective that is misjudged makes the tuner hold the wrong limit."""
    score = ObjectiveScorer(objective).score(SURE)
    assert score.position == expected
    assert score.regret == pytest.approx(0.0, abs=1e-9)


def test_doubtful_limits_are_not_chosen_under_a_bound():
    """Half a chance to break the bound is too much."""
    assert ObjectiveScorer(LeastEnergy(max_slowdown=0.05)).score(SPLIT).position == 2


def test_trials_use_the_slowdown_of_the_run_so_far():
    """Trials of slow limits would make a short run slower than its bound."""
    scorer = ObjectiveScorer(LeastEnergy(max_slowdown=0.05))
    fresh = scorer.spendable_steps(SPLIT, {2: 100.0}, 0)
    assert fresh == pytest.approx([5.0 / 0.35, 5.0 / 0.03, math.inf]), "by the worst case"
    spent = scorer.spendable_steps(SPLIT, {2: 100.0, 0: 1.4 * fresh[0]}, 0)
    assert spent == pytest.approx([0.0, 0.0, math.inf], abs=1e-9)
    early = scorer.spendable_steps(SPLIT, {2: 10.0}, 100)
    assert early == pytest.approx(fresh), "a run is taken to have some steps at least"
    unbound = ObjectiveScorer(Cost(1.0)).spendable_steps(SPLIT, {2: 1.0}, 0)
    assert unbound == pytest.approx([math.inf] * 3)


def test_impossible_bounds_mean_as_fast_as_possible():
    """An unreachable deadline must not end in an error inside the loop."""
    assert ObjectiveScorer(LeastEnergy(deadline_seconds=0.5)).score(SURE).position == 2


def test_a_budget_of_the_whole_work_is_left_to_the_steps_that_are_left():
    """A deadline of a night was taken for one of each step, and ignored."""
    scorer = ObjectiveScorer(LeastEnergy(deadline_seconds=109.0), steps=100)
    assert scorer.score(SURE).position == 1, "1.04 s a step"
    scorer.note_progress(Reading(50.0, 0.0, 0.0, 50), {2: SettingUsage(50.0, 1e4, 50)}, SURE)
    assert scorer.score(SURE).position == 1, "half of it at full power leaves 1.14 s for each"
    scorer.note_progress(Reading(60.0, 0.0, 0.0, 50), {2: SettingUsage(50.0, 1e4, 50)}, SURE)
    assert scorer.score(SURE).position == 2, "and pauses like those before none"
    thrifty = ObjectiveScorer(FastestWithin(1.0), steps=100)
    assert thrifty.score(SURE).position == 0, "no setting keeps it, the lowest comes closest"


def test_waiting_is_no_saving():
    """Waiting for data under a limit was counted as work that the limit slows down and saves."""
    used = {0: SettingUsage(120.0, 12_000.0, 100), 2: SettingUsage(100.0, 20_000.0, 100)}
    energy, slowdown = SURE.run_gains(used)
    assert energy == pytest.approx(1 - 32 / 40)
    assert slowdown == pytest.approx(0.1)
    used[0] = SettingUsage(120.0 + 80.0, 12_000.0 + 1_600.0, 100)  # 80 s at 20 W
    energy, slowdown = SURE.run_gains(used)
    assert energy == pytest.approx(1 - 33.6 / 41.6)
    assert slowdown == pytest.approx(20 / 280)
    longer = {0: SettingUsage(240.0, 24_000.0, 100), 2: SettingUsage(100.0, 20_000.0, 100)}
    energy, _ = SURE.run_gains(longer)
    assert energy == pytest.approx(1 - 44 / 60), "longer steps at full power do not wait"


def forecasting(seconds, errors=1e-3):
    """A forecast of slices that take the given seconds at each of three knob values."""
    seconds = np.broadcast_to(seconds, 3)
    return SliceForecast(np.full(3, 10.0), seconds, np.full(3, errors), np.full(3, errors))


def test_planner_asks_where_the_answer_lies():
    """A probe that cannot change the choice is wasted; one that settles it is not."""
    scorer, horizon = ObjectiveScorer(LeastEnergy(max_slowdown=0.05)), 600.0
    assert plan_probe(scorer, SPLIT, forecasting(1.0), horizon).probe in {0, 1}
    assert plan_probe(scorer, SURE, forecasting(1.0), horizon).probe is None


def test_planner_does_not_pay_more_than_it_gains():
    """A job that ends soon is not worth a search."""
    scorer, horizon = ObjectiveScorer(LeastEnergy(max_slowdown=0.05)), 1.0
    probe = plan_probe(scorer, SPLIT, forecasting(1000.0), horizon).probe
    assert probe in {None, 2}, "staying at the reference costs nothing extra here"


def test_planner_does_not_repeat_what_tells_nothing_new():
    """A slice that is far less precise than what is known would be asked for again and again."""
    belief = curves(
        *[((1.2, 1.04, 1.0), (150.0, 180.0, 200.0))] * 10,
        *[((1.4, 1.04, 1.0), (150.0, 180.0, 200.0))] * 10,
    )
    scorer, horizon = ObjectiveScorer(Cost(1.0)), 600.0
    assert plan_probe(scorer, belief, forecasting(1.0), horizon).probe == 0
    assert plan_probe(scorer, belief, forecasting(1.0, errors=100.0), horizon).probe is None


def test_scores_use_the_waist_of_the_package():
    """The chosen point must be one that the objective itself would choose."""
    seconds, joules = np.exp(SURE.log_seconds[0]), np.exp(SURE.log_seconds + SURE.log_watts)[0]
    points = [OperatingPoint(float(s), float(j)) for s, j in zip(seconds, joules, strict=True)]
    objective = LeastEnergy(max_slowdown=0.05)
    scores = [score(objective, p.seconds, p.joules, points[-1]) for p in points]
    assert ObjectiveScorer(objective).score(SURE).position == int(np.argmin(scores))


@pytest.mark.parametrize("shape", [(3, 4, 5), (160, 160, 60), (2500, 7, 7), (1, 2000, 500)])
def test_pieces_make_the_whole(shape):
    """A piece left out would leave garbage in the posterior."""
    chance = np.random.default_rng(0)
    first, second = chance.normal(size=shape[:2]), chance.normal(size=shape[1:])
    assert np.allclose(product(first, second), first @ second)
