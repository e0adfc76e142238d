"""Choosing: which point each objective takes, and what it says when none will do."""

import math

import numpy as np
import pytest

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint
from joulery.objectives import (
    OBJECTIVE_HELP,
    Bounds,
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
    Totals,
    choose,
    depends_on_reference,
    eds_gain,
    gains,
    objective_text,
    parse_objective,
    score,
)

# Fastest first. Products: 1000, 770, 780, 1000; the slowest needs the least energy.
POINTS = [OperatingPoint(s, j) for s, j in ((10, 100), (11, 70), (13, 60), (20, 50))]
FRONTIER = Frontier(tuple(POINTS))
GRID = 3.6e6  # one unit per joule


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
        (LeastCarbon(0.0), 10),
        (LeastCarbon(GRID, max_slowdown=0.1), 11),
        (LeastMoney(GRID), 20),
        (LeastMoney(GRID, rent_per_hour=3600 * 10.0), 11),
        (LeastMoney(GRID, rent_per_hour=3600 * 1e6), 10),
        (LeastMoney(GRID, deadline_seconds=13.0), 13),
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
    assert Bounds(max_slowdown=0.05).kept(point.seconds, point.joules, reference)
    assert not Bounds(max_slowdown=0.05).kept(0.10501, 1.0, reference)


def test_the_tighter_bound_counts():
    """With both a deadline and a slowdown, a point must meet both."""
    reference = OperatingPoint(10.0, 1.0)
    assert Bounds().overshoot(1e9, 1e9, reference) == 0.0
    assert Bounds(deadline_seconds=5.0, max_slowdown=0.1).overshoot(10.0, 1.0, reference) == 2.0
    assert Bounds(15.0, 0.1).overshoot(11.0, 1.0, reference) == pytest.approx(1.0)
    assert Bounds(15.0, 0.1, 2.0).overshoot(11.0, 8.0, reference) == pytest.approx(4.0)


@pytest.mark.parametrize(
    "objective",
    [
        LeastEnergy(deadline_seconds=9.99),
        LeastEnergy(max_slowdown=1.0, deadline_seconds=5.0),
        FastestWithin(joules=49.9),
        LeastCarbon(GRID, deadline_seconds=1.0),
        LeastMoney(GRID, deadline_seconds=1.0),
    ],
    ids=str,
)
def test_what_cannot_be_met_says_what_could(objective):
    """Nobody can widen a bound without knowing to what."""
    with pytest.raises(InfeasibleError, match=f"meets {objective_text(objective)}") as caught:
        choose(objective, FRONTIER)
    assert "fastest takes 10 s" in caught.value.remedy
    assert "lowest energy is 50 J" in caught.value.remedy


def test_a_reference_faster_than_all_points_may_leave_none():
    """No slowdown against something faster than anything here is an error, not a shrug."""
    with pytest.raises(InfeasibleError):
        choose(LeastEnergy(max_slowdown=0.0), FRONTIER, OperatingPoint(5.0, 500.0))


def test_of_equals_the_faster_then_the_one_of_less_energy():
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
    carbon = LeastCarbon(Signal(), start_seconds=50.0)
    assert score(carbon, 10.0, 100.0, point) == pytest.approx(200.0)
    money = LeastMoney(Signal(), rent_per_hour=36.0, start_seconds=70.0)
    assert score(money, 10.0, 100.0, point) == pytest.approx(200.1)
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
        (lambda: LeastEnergy(max_slowdown=5), "500 %"),
        (lambda: parse_objective("least-energy:slowdown=500%"), "500 %"),
        (lambda: parse_objective(None), "must be text"),
        (lambda: choose(FRONTIER, LeastEnergy(max_slowdown=0.05)), "not an objective"),
        (lambda: choose("edp", FRONTIER, "fastest"), "reference must be"),
        (lambda: LeastEnergy(deadline_seconds=math.inf), "deadline"),
        (lambda: LeastEnergy(deadline_seconds=0.0), "deadline"),
        (lambda: FastestWithin(0.0), "budget"),
        (lambda: LeastCarbon(-1.0), "carbon intensity"),
        (lambda: FastestWithin(joules=-1.0), "budget"),
        (lambda: EnergyDelaySum(k=0.99), "k of the"),
        (lambda: EnergyDelaySum(k=math.inf), "k of the"),
        (lambda: LeastMoney(math.nan), "per kWh"),
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
    assert cost.value(10.0, 1000.0, POINTS[0]) == cost.of(10.0, 1000.0)


@pytest.mark.parametrize("k", [1.0, 1.5, 2.0, 100.0])
def test_energy_delay_sum_is_one_at_the_reference(k):
    """Its gain is counted from there."""
    assert EnergyDelaySum(k).value(10.0, 100.0, POINTS[0]) == pytest.approx(1.0)
    assert eds_gain(POINTS[0], POINTS[0], k) == pytest.approx(0.0, abs=1e-12)


def test_energy_delay_sum_trades_k_times_the_time_for_all_energy():
    """What k means: no energy in k times the time is as good as the reference."""
    assert EnergyDelaySum(k=3.0).value(30.0, 0.0, POINTS[0]) == pytest.approx(1.0)


@pytest.mark.parametrize("ask", [gains, lambda p, r: eds_gain(p, r, 2.0)], ids=["gains", "eds"])
def test_no_gain_over_a_reference_without_energy(ask):
    """Ratios to nothing must be an error, not infinity."""
    with pytest.raises(InvalidValueError, match="no energy") as caught:
        ask(POINTS[0], OperatingPoint(1.0, 0.0))
    assert caught.value.remedy


def test_time_only_needs_no_reference_energy():
    """With k = 1 energy does not count, nor does the reference's."""
    assert EnergyDelaySum(k=1.0).value(10.0, 100.0, OperatingPoint(5.0, 0.0)) == 2.0


def test_gains_are_in_per_cent():
    """Saved is positive, slower is positive."""
    won = gains(OperatingPoint(11.0, 70.0), OperatingPoint(10.0, 100.0))
    assert (won.energy, won.time) == (pytest.approx(30.0), pytest.approx(10.0))
    assert (won.difference, won.edp) == (pytest.approx(20.0), pytest.approx(23.0))


@pytest.mark.parametrize(
    "objective",
    [
        Cost(0.25, 300.0),
        LeastEnergy(),
        LeastEnergy(0.05, 60.0),
        EnergyDelayProduct(),
        EnergyDelaySum(1.5),
        FastestWithin(1e6),
        LeastCarbon(400.0, max_slowdown=0.1),
        LeastMoney(0.3, 2.0, deadline_seconds=1 / 3),
    ],
    ids=str,
)
def test_text_and_objective_are_the_same(objective):
    """Stores and servers keep objectives as text; nothing may be lost on the way."""
    assert parse_objective(objective_text(objective)) == objective


def test_what_has_no_text_form_is_refused():
    """A signal over time cannot be written in a line, and an own objective has no name."""

    class Signal:
        def mean(self, start_seconds, end_seconds):
            return 1.0

    for objective in (LeastCarbon(Signal()), object()):
        with pytest.raises(InvalidValueError, match="no text form"):
            objective_text(objective)


@pytest.mark.parametrize(
    "objective",
    [
        Cost(0.25, 3.0),
        LeastEnergy(0.1, 12.0),
        EnergyDelayProduct(),
        EnergyDelaySum(1.5),
        FastestWithin(70.0),
        LeastCarbon(400.0, max_slowdown=0.1),
        LeastMoney(0.3, 2.0, deadline_seconds=12.0),
    ],
    ids=str,
)
def test_arrays_and_scalars_score_the_same(objective):
    """Optimizers score thousands of settings at once; each must count as if it were alone."""
    seconds = np.array([[point.seconds] for point in POINTS])
    joules = np.array([[point.joules] for point in POINTS])
    found = score(objective, seconds, joules, Totals(seconds[:1], joules[:1]))
    alone = [score(objective, point.seconds, point.joules, POINTS[0]) for point in POINTS]
    assert np.broadcast_to(found, seconds.shape)[:, 0].tolist() == alone


def test_signals_are_averaged_for_every_element():
    """Under a varying signal each run of an array has its own mean."""

    class Ramp:
        def mean(self, start_seconds, end_seconds):
            return (start_seconds + end_seconds) / 2

    grams = LeastCarbon(Ramp()).value(np.array([2.0, 4.0]), 3.6e6, Totals(1.0, 1.0))
    assert grams.tolist() == [1.0, 2.0]


def test_only_ratios_and_slowdowns_depend_on_the_reference():
    """A tuner measures the reference well only where it matters."""
    assert depends_on_reference(LeastEnergy(max_slowdown=0.1))
    assert depends_on_reference(EnergyDelaySum(2.0))
    assert not depends_on_reference(LeastEnergy(deadline_seconds=3.0))
    assert not depends_on_reference(Cost(0.5, 300.0))


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("cost", Cost(0.5, 300.0)),
        ("cost:eta=0.25", Cost(0.25, 300.0)),
        ("cost:eta=25%,max_watts=1e3", Cost(0.25, 1000.0)),
        ("cost:eta=1,max_watts=0", Cost(1.0, 0.0)),
        ("least-energy", LeastEnergy()),
        ("least-energy:slowdown=5%", LeastEnergy(max_slowdown=0.05)),
        ("least-energy:slowdown=0", LeastEnergy(max_slowdown=0.0)),
        ("least-energy:deadline=3600", LeastEnergy(deadline_seconds=3600.0)),
        ("least-energy:deadline=60,slowdown=0.1", LeastEnergy(0.1, 60.0)),
        ("edp", EnergyDelayProduct()),
        ("edp:", EnergyDelayProduct()),
        ("eds", EnergyDelaySum(2.0)),
        ("eds:k=1.5", EnergyDelaySum(1.5)),
        ("fastest:joules=1e6", FastestWithin(1e6)),
        ("carbon:intensity=400", LeastCarbon(400.0)),
        (
            "carbon:intensity=400,slowdown=10%",
            LeastCarbon(400.0, max_slowdown=0.1),
        ),
        ("money:price=0.3", LeastMoney(0.3)),
        (
            "money:price=0.3,rent=2,deadline=60",
            LeastMoney(0.3, 2.0, deadline_seconds=60.0),
        ),
        (" EDS : k = 2 , ", EnergyDelaySum(2.0)),
    ],
)
def test_reads_every_objective(text, objective):
    """What the help promises must be understood."""
    assert parse_objective(text, max_watts=300.0) == objective


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown objective ''"),
        ("speed", "unknown objective 'speed'"),
        ("cost", "max_watts, which is missing"),
        ("cost:eta", "cannot read 'eta'"),
        ("cost:eta=", "cannot read 'eta='"),
        ("cost:eta=half", "cannot read 'eta=half'"),
        ("cost:eta=%", "cannot read"),
        ("cost:eta=2,max_watts=1", "eta must be at most 1"),
        ("cost:eta=nan,max_watts=1", "eta must be finite"),
        ("edp:k=2", "no option 'k'"),
        ("eds:k=0", "at least 1"),
        ("least-energy:slowdown=-5%", "at least 0"),
        ("least-energy:slowdown=5", "500 %"),
        ("fastest", "needs joules="),
        ("carbon", "needs intensity="),
        ("money:rent=2", "needs price="),
        ("cost:eta=0.1,eta=0.9,max_watts=1", "eta twice"),
    ],
)
def test_explains_what_it_cannot_read(text, says):
    """A typo in an objective must not choose something else in silence."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        parse_objective(text)
    assert caught.value.remedy


def test_the_help_names_every_objective():
    """Unlisted objectives are unused ones."""
    for example in OBJECTIVE_HELP.replace("%%", "%").split(": ", 1)[1].split(" | "):
        values = {"SECONDS": "1", "J": "1", "G_PER_KWH": "1", "PER_KWH": "1", "PER_HOUR": "1"}
        head, colon, options = example.partition(":")
        for word, value in values.items():
            options = ",".join(
                f"{option.split('=')[0]}={value}" if option.endswith(f"={word}") else option
                for option in options.split(",")
            )
        parse_objective(head + colon + options, max_watts=1.0)


@pytest.mark.parametrize(("objective", "points"), [(FRONTIER, "edp"), ([], "edp"), (3, POINTS)])
def test_arguments_in_the_wrong_order_are_refused(objective, points):
    """They ended in an AttributeError from within a sort."""
    with pytest.raises(InvalidValueError) as caught:
        choose(objective, points)
    assert "'edp', frontier" in caught.value.remedy or "text" in caught.value.remedy
