"""Energy at window edges: straight lines from the knots around them, with honest variances."""

import math

import pytest

from joulery.metering import Knot
from joulery.metering.energy._interpolate import energy_between, energy_unseen
from joulery.metering.energy._timeline import Span

MAX_WATTS = 300.0
BOUNDS = (0.0, MAX_WATTS)
PERIOD = 0.1
NOISE = 0.01


def knots(*watts, half_width=0.0, sensor=True):
    """Knots every tenth of a second with these mean powers in between, from time 0."""
    made, joules = [Knot(0.0, 0.0, half_width, watts=watts[0])], 0.0
    for number, power in enumerate(watts, start=1):
        joules += power * PERIOD
        sensed = power if sensor else None
        made.append(Knot(number * PERIOD, joules, half_width, watts=sensed))
    return made


def span(made, number, *, known_until=None):
    """The ``number``-th span of ``made``, closed as far as knots up to ``known_until`` tell."""
    known = made[: len(made) if known_until is None else known_until + 1]

    def at(place):
        return known[place] if 0 <= place < len(known) else None

    before = at(number - 1)
    watts = made[number].watts
    if before is not None:
        watts = (made[number].joules - before.joules) / PERIOD
    return Span(made[number], before, at(number + 1), at(number + 2), watts=watts, noise=NOISE)


def sigmas_off(energy, truth):
    """Distance from the truth in standard errors."""
    return abs(energy.joules - truth) / math.sqrt(energy.variance)


def test_a_steady_load_is_exact_at_any_phase():
    """Windows in the middle of work would depend on where refreshes fall."""
    made = knots(*[200.0] * 12)
    for began, ended in [(0.31, 0.83), (0.3, 0.9), (0.399, 0.801)]:
        first, last = span(made, int(began / PERIOD + 1e-9)), span(made, int(ended / PERIOD + 1e-9))
        energy = energy_between(first, began, last, ended, BOUNDS)
        assert energy.joules == pytest.approx(200.0 * (ended - began))
        assert math.sqrt(energy.variance) < 0.02 * energy.joules


def test_a_load_that_starts_with_the_window_counts_from_its_start():
    """The idle part of the first span would be charged at the busy power."""
    made = knots(50, 50, 50, 0.4 * 50 + 0.6 * 250, 250, 250, 250, 250)
    first, last = span(made, 3), span(made, 7, known_until=7)
    energy = energy_between(first, 0.34, last, 0.75, BOUNDS)
    assert energy.joules == pytest.approx(250.0 * (0.75 - 0.34), rel=0.02)


def test_a_load_that_ends_with_the_window_counts_to_its_end():
    """The idle part of the last span would be charged at the busy power, or the other way."""
    made = knots(250, 250, 250, 250, 250, 0.4 * 250 + 0.6 * 50, 50, 50)
    first, last = span(made, 2), span(made, 5)
    energy = energy_between(first, 0.25, last, 0.54, BOUNDS)
    assert energy.joules == pytest.approx(250.0 * (0.54 - 0.25), rel=0.02)


def test_a_falling_load_switches_too():
    """Going from work to idle inside a window would be mirrored."""
    made = knots(250, 250, 250, 0.3 * 250 + 0.7 * 50, 50, 50, 50, 50)
    energy = energy_between(span(made, 3), 0.33, span(made, 6), 0.65, BOUNDS)
    assert energy.joules == pytest.approx(50.0 * (0.65 - 0.33), rel=0.05)


def test_a_change_of_load_just_before_the_end_is_not_averaged_away():
    """The more certain line would win although the load had left it."""
    made = knots(25, 25, 25, 0.4 * 25 + 0.6 * 230, 230, 230)
    last = span(made, 3)
    last.noise = 0.1
    energy = energy_between(span(made, 1), 0.15, last, 0.399, BOUNDS)
    truth = 25.0 * 0.19 + 230.0 * 0.059
    assert energy.joules == pytest.approx(truth, rel=0.02)


def test_nothing_seen_yet_says_so():
    """A window without a refresh would pass for measured."""
    made = knots(50, 50, 50)
    here = span(made, 3)
    energy = energy_between(here, 0.31, here, 0.34, BOUNDS)
    assert energy.joules == pytest.approx(50.0 * 0.03)
    assert energy == energy_unseen(here, 0.34 - 0.31, MAX_WATTS)
    for truth_watts in (0.0, 50.0, MAX_WATTS):
        assert sigmas_off(energy, truth_watts * 0.03) <= 2.0 + 1e-9


def test_nothing_seen_without_a_known_maximum_is_still_uncertain():
    """An unknown maximum would make the bar vanish."""
    energy = energy_unseen(Span(Knot(0.0, 0.0), watts=100.0), 0.1, None)
    assert sigmas_off(energy, 3 * 100.0 * 0.1) <= 2.0 + 1e-9


def test_unknown_power_is_not_zero_power():
    """A device that was read once and has no power sensor would cost nothing."""
    assert math.isnan(energy_unseen(Span(Knot(0.0, 0.0)), 0.1, MAX_WATTS).joules)


def test_the_tail_after_the_last_refresh_widens_the_bar_of_a_new_load():
    """A load that changed after the last refresh would fall outside the bar."""
    made = knots(50, 50, 50, 0.5 * 50 + 0.5 * 250)
    made[4] = made[4]._replace(watts=250.0)
    last = span(made, 4)
    last.noise = 0.1
    began, ended = 0.35, 0.44
    energy = energy_between(span(made, 3), began, last, ended, BOUNDS)
    stopped_halfway = 250.0 * 0.05 + 250.0 * 0.02 + 50.0 * 0.02
    assert sigmas_off(energy, stopped_halfway) < 1.96
    assert sigmas_off(energy, 250.0 * 0.09) < 1.96


def test_the_tail_of_a_steady_load_costs_little_certainty():
    """Every window in steady work would have a bar of tens of per cent."""
    made = knots(*[200.0] * 6)
    energy = energy_between(span(made, 2), 0.25, span(made, 6), 0.65, BOUNDS)
    assert math.sqrt(energy.variance) < 0.02 * energy.joules


def test_a_tail_without_refreshes_is_doubtful_however_steady_it_was():
    """A driver that hangs would let the last power pass for measured."""
    made = knots(*[200.0] * 6)
    energy = energy_between(span(made, 2), 0.25, span(made, 6), 2.6, BOUNDS)
    assert sigmas_off(energy, 200.0 * 0.55 + 50.0 * 1.8) < 1.96


def test_uncertain_refreshes_make_uncertain_edges():
    """Boards without stamps would seem as exact as those with them."""
    sharp, fuzzy = (knots(*[200.0] * 8, half_width=width) for width in (0.0, 0.01))
    results = [
        energy_between(span(made, 2), 0.25, span(made, 5), 0.55, BOUNDS) for made in (sharp, fuzzy)
    ]
    assert results[0].joules == pytest.approx(results[1].joules)
    added = results[1].variance - results[0].variance
    assert added > (0.01 * 200.0) ** 2 / 3


def test_a_window_inside_one_closed_span_is_bounded_by_it():
    """A short burst would cost more than the span in which it lies."""
    made = knots(50, 50, 70, 50, 50, sensor=False)
    here = span(made, 2)
    energy = energy_between(here, 0.22, here, 0.27, BOUNDS)
    assert 0.0 <= energy.joules <= 70.0 * PERIOD
    burst = 70.0 * PERIOD - 50.0 * (PERIOD - 0.05)
    assert energy.joules == pytest.approx(burst, rel=0.01)


def test_a_knot_read_late_still_counts_the_rest():
    """A window that ended just after the refresh would lose what came between."""
    made = knots(200, 200, 200, 200)
    energy = energy_between(span(made, 1), 0.15, span(made, 2), 0.305, BOUNDS)
    assert energy.joules == pytest.approx(200.0 * 0.155)
    begun_late = energy_between(span(made, 1), 0.205, span(made, 3), 0.35, BOUNDS)
    assert begun_late.joules == pytest.approx(200.0 * 0.145)


def test_a_knot_read_too_early_gives_back_the_excess():
    """A refresh between closing a window and noting it would be charged to the window."""
    made = knots(200, 200, 200, 200)
    energy = energy_between(span(made, 1), 0.15, span(made, 4), 0.395, BOUNDS)
    assert energy.joules == pytest.approx(200.0 * 0.245)


def test_a_load_that_began_shortly_before_the_window_is_not_charged_to_it():
    """Of two steps in one span, the second would pay for the first."""
    made = knots(50, 50, 0.3 * 50 + 0.7 * 250, 250, 250, 250)
    made[3] = made[3]._replace(watts=250.0)
    energy = energy_between(span(made, 2), 0.26, span(made, 3), 0.35, BOUNDS)
    assert energy.joules == pytest.approx(250.0 * 0.09, rel=0.02)


def test_a_sensor_that_disagrees_with_the_mean_widens_the_bar():
    """A load that changed within the span before would be carried on at its mean."""
    made = knots(50, 50, 0.5 * 50 + 0.5 * 250, 250, 250)
    changed = Knot(0.3, made[3].joules, watts=250.0)
    first = Span(changed, made[2], made[4], made[5], watts=150.0, noise=NOISE)
    energy = energy_between(first, 0.39, span(made, 5), 0.5, BOUNDS)
    assert sigmas_off(energy, 250.0 * 0.11) < 1.96


def test_repairs_inside_the_window_widen_its_bar_and_earlier_ones_do_not():
    """A reset long ago would make every later window uncertain, or one inside none."""
    made = knots(*[200.0] * 8)
    repaired = [
        Knot(knot.at_seconds, knot.joules, variance=variance, watts=200.0)
        for knot, variance in zip(made, [0, 0, 9, 9, 9, 9, 25, 25, 25], strict=True)
    ]
    results = [
        energy_between(span(line, 3), 0.35, span(line, 7), 0.75, BOUNDS).variance
        for line in (made, repaired)
    ]
    assert results[1] - results[0] == pytest.approx(16.0)


def test_energy_is_never_negative():
    """Rounding and noise around an idle edge would give energy back."""
    made = knots(100, 100, 0.0, 100, 100)
    here = span(made, 2)
    for began, ended in [(0.2, 0.2), (0.21, 0.22), (0.29, 0.299)]:
        assert energy_between(here, began, here, ended, BOUNDS).joules >= 0.0
