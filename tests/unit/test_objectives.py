"""Choosing: which point each objective takes, and what it says when none will do."""

import math

import pytest

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint
from joulery.objectives import (
    Bounds,
    ConstantSignal,
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
    choose,
    eds_gain,
    gains,
)

# Fastest first. Products: 1000, 770, 780, 1000; the leanest is the slowest.
POINTS = [OperatingPoint(s, j) for s, j in ((10, 100), (11, 70), (13, 60), (20, 50))]
FRONTIER = Frontier(tuple(POINTS))
GRID = ConstantSignal(3.6e6)  # one unit per joule


@pytest.mark.parametrize(
    ("objective", "seconds"),
    [
        (Cost(eta=1.0), 20),
        (Cost(eta=0.0, max_watts=300.0), 10),
        (Cost(eta=0.5, max_watts=10.0), 11),
        (Cost(eta=0.5, max_watts=1.0), 20),
        (LeastEnergy(), 20),
        (LeastEnergy(max_slowdown=0.0), 10),
        (LeastEnergy(max_slowdown=0.1), 11),
        (LeastEnergy(max_slowdown=0.0999), 10),
        (LeastEnergy(max_slowdown=0.3), 13),
        (LeastEnergy(deadline_seconds=10.0), 10),
        (LeastEnergy(deadline_seconds=19.9), 13),
        (LeastEnergy(max_slowdown=1.0, deadline_seconds=12.0), 11),
        (LeastEnergy(max_slowdown=0.05, deadline_seconds=1e9), 10),
        (FastestWithin(joules=1e9), 10),
        (FastestWithin(joules=99.9), 11),
        (FastestWithin(joules=50.0), 20),
        (EnergyDelayProduct(), 11),
        (EnergyDelaySum(k=1.0), 10),
        (EnergyDelaySum(k=1.5), 11),
        (EnergyDelaySum(k=1e9), 20),
        (LeastCarbon(GRID), 20),
        (LeastCarbon(ConstantSignal(0.0)), 10),
        (LeastCarbon(GRID, bounds=Bounds(max_slowdown=0.1)), 11),
        (LeastMoney(GRID), 20),
        (LeastMoney(GRID, rent_per_hour=3600 * 10.0), 11),
        (LeastMoney(GRID, rent_per_hour=3600 * 1e6), 10),
        (LeastMoney(GRID, bounds=Bounds(deadline_seconds=13.0)), 13),
    ],
    ids=str,
)
def test_each_objective_takes_its_point(objective, seconds):
    """A wrong pick costs time or energy on every run that follows."""
    assert choose(objective, FRONTIER).seconds == seconds
    assert choose(objective, reversed(POINTS)).seconds == seconds


def test_slowdown_counts_from_the_reference():
    """Against the default setting, not against the fastest point, when one is given."""
    default = OperatingPoint(12.0, 90.0)
    assert choose(LeastEnergy(max_slowdown=0.1), FRONTIER, default).seconds == 13
    assert choose(LeastEnergy(max_slowdown=0.0), FRONTIER, default).seconds == 11


def test_bounds_forgive_the_last_bits():
    """1.1 × 10 s is 11.000000000000002 s in floats, and the other way round for other numbers."""
    reference = OperatingPoint(0.1, 1.0)
    point = OperatingPoint(math.nextafter(0.1 * 1.05, 1), 1.0)
    assert Bounds(max_slowdown=0.05).allow(point, reference)
    assert not Bounds(max_slowdown=0.05).allow(OperatingPoint(0.10501, 1.0), reference)


def test_the_tighter_bound_counts():
    """With both a deadline and a slowdown, a point must meet both."""
    reference = OperatingPoint(10.0, 1.0)
    assert Bounds().longest_seconds(reference) == math.inf
    assert Bounds(deadline_seconds=5.0, max_slowdown=0.1).longest_seconds(reference) == 5.0
    assert Bounds(15.0, 0.1).longest_seconds(reference) == pytest.approx(11.0)


@pytest.mark.parametrize(
    "objective",
    [
        LeastEnergy(deadline_seconds=9.99),
        LeastEnergy(deadline_seconds=0.0),
        LeastEnergy(max_slowdown=1.0, deadline_seconds=5.0),
        FastestWithin(joules=49.9),
        FastestWithin(joules=0.0),
        LeastCarbon(GRID, bounds=Bounds(deadline_seconds=1.0)),
        LeastMoney(GRID, bounds=Bounds(deadline_seconds=1.0)),
    ],
    ids=str,
)
def test_what_cannot_be_met_says_what_could(objective):
    """Nobody can widen a bound without knowing to what."""
    with pytest.raises(InfeasibleError, match=type(objective).__name__) as caught:
        choose(objective, FRONTIER)
    assert "fastest takes 10 s" in caught.value.remedy
    assert "leanest needs 50 J" in caught.value.remedy


def test_a_reference_faster_than_all_points_may_leave_none():
    """No slowdown against something faster than anything here is an error, not a shrug."""
    with pytest.raises(InfeasibleError):
        choose(LeastEnergy(max_slowdown=0.0), FRONTIER, OperatingPoint(5.0, 500.0))


def test_of_equals_the_faster_then_the_leaner():
    """A free choice must not fall on the slower or the thirstier."""
    product = [OperatingPoint(4, 5), OperatingPoint(2, 10), OperatingPoint(5, 4)]
    assert choose(EnergyDelayProduct(), product).seconds == 2
    same_time = [OperatingPoint(1, 9), OperatingPoint(1, 3)]
    assert choose(EnergyDelaySum(k=1.0), same_time).joules == 3
    assert choose(FastestWithin(joules=10.0), same_time).joules == 3


def test_no_points_no_choice():
    """An empty cloud is a mistake upstream and must be called one."""
    with pytest.raises(InvalidValueError, match="no points") as caught:
        choose(LeastEnergy(), [])
    assert "measure" in caught.value.remedy


def test_varying_signals_are_asked_for_the_run_itself():
    """Carbon and money depend on when the work runs: from its start, for its own length."""
    asked = []

    class Signal:
        def mean(self, start_seconds, end_seconds):
            asked.append((start_seconds, end_seconds))
            return 7.2e6

    point = OperatingPoint(10.0, 100.0)
    assert LeastCarbon(Signal(), start_seconds=50.0).score(point, point) == pytest.approx(200.0)
    money = LeastMoney(Signal(), rent_per_hour=36.0, start_seconds=70.0)
    assert money.score(point, point) == pytest.approx(200.1)
    assert asked == [(50.0, 60.0), (70.0, 80.0)]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Cost(eta=1.1, max_watts=1.0), "eta"),
        (lambda: Cost(eta=-0.1, max_watts=1.0), "eta"),
        (lambda: Cost(eta=math.nan, max_watts=1.0), "eta"),
        (lambda: Cost(eta=0.5), "max_watts, which is missing"),
        (lambda: Cost(eta=0.5, max_watts=-1.0), "max_watts"),
        (lambda: LeastEnergy(max_slowdown=-0.1), "slowdown"),
        (lambda: LeastEnergy(deadline_seconds=math.inf), "deadline"),
        (lambda: FastestWithin(joules=-1.0), "budget"),
        (lambda: EnergyDelaySum(k=0.99), "k of the"),
        (lambda: EnergyDelaySum(k=math.inf), "k of the"),
        (lambda: ConstantSignal(math.nan), "per kWh"),
        (lambda: LeastMoney(GRID, rent_per_hour=-1.0), "rent"),
        (lambda: Bounds(max_slowdown="5%"), "slowdown"),
    ],
)
def test_impossible_objectives_are_refused_with_a_remedy(build, says):
    """A wrong weight must fail where it is written, not as a strange choice later."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        build()
    assert caught.value.remedy


def test_cost_is_the_published_formula():
    """eta·E + (1 − eta)·P·t; a slip here changes every choice."""
    cost = Cost(eta=0.25, max_watts=300.0)
    assert cost.of(seconds=10.0, joules=1000.0) == 0.25 * 1000 + 0.75 * 300 * 10
    assert cost.score(OperatingPoint(10.0, 1000.0), POINTS[0]) == cost.of(10.0, 1000.0)


@pytest.mark.parametrize("k", [1.0, 1.5, 2.0, 100.0])
def test_energy_delay_sum_is_one_at_the_reference(k):
    """Its gain is counted from there."""
    assert EnergyDelaySum(k).score(POINTS[0], POINTS[0]) == pytest.approx(1.0)
    assert eds_gain(POINTS[0], POINTS[0], k) == pytest.approx(0.0, abs=1e-12)


def test_energy_delay_sum_trades_k_times_the_time_for_all_energy():
    """What k means: no energy in k times the time is as good as the reference."""
    free = OperatingPoint(30.0, 0.0)
    assert EnergyDelaySum(k=3.0).score(free, POINTS[0]) == pytest.approx(1.0)


@pytest.mark.parametrize("ask", [gains, lambda p, r: eds_gain(p, r, 2.0)], ids=["gains", "eds"])
def test_no_gain_over_a_reference_without_energy(ask):
    """Ratios to nothing must be an error, not infinity."""
    with pytest.raises(InvalidValueError, match="no energy") as caught:
        ask(POINTS[0], OperatingPoint(1.0, 0.0))
    assert caught.value.remedy


def test_time_only_needs_no_reference_energy():
    """With k = 1 energy does not count, nor does the reference's."""
    assert EnergyDelaySum(k=1.0).score(POINTS[0], OperatingPoint(5.0, 0.0)) == 2.0


def test_gains_are_in_per_cent():
    """Saved is positive, slower is positive."""
    won = gains(OperatingPoint(11.0, 70.0), OperatingPoint(10.0, 100.0))
    assert (won.energy, won.time) == (pytest.approx(30.0), pytest.approx(10.0))
    assert (won.difference, won.edp) == (pytest.approx(20.0), pytest.approx(23.0))
