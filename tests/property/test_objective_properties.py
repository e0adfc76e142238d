"""What holds for every objective on every cloud: the frontier is enough to choose from."""

import math

from hypothesis import given, strategies as st

from joulery.errors import InfeasibleError
from joulery.frontier import Frontier, OperatingPoint
from joulery.objectives import (
    Bounds,
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
    score,
)

positive = st.floats(1e-3, 1e6) | st.integers(1, 12).map(float)
points = st.builds(OperatingPoint, positive, positive)
clouds = st.lists(points, min_size=1, max_size=15)

slowdowns = st.none() | st.just(0.0) | st.floats(0, 1)
deadlines = st.none() | positive
bounds = st.builds(Bounds, deadlines, slowdowns)
signals = st.just(0.0) | st.floats(0, 1e3)
objectives = st.one_of(
    st.builds(Cost, st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1), st.floats(1, 1e4)),
    st.builds(LeastEnergy, slowdowns, deadlines),
    st.builds(FastestWithin, positive),
    st.just(EnergyDelayProduct()),
    st.builds(EnergyDelaySum, st.just(1.0) | st.floats(1, 100)),
    st.builds(LeastCarbon, signals, slowdowns, deadlines),
    st.builds(LeastMoney, signals, st.just(0.0) | st.floats(0, 100), slowdowns, deadlines),
)


def _score(objective, point, reference):
    return score(objective, point.seconds, point.joules, reference)


def _chosen(objective, candidates, reference):
    try:
        return choose(objective, candidates, reference)
    except InfeasibleError:
        return None


@given(objectives, clouds, st.none() | points)
def test_the_choice_from_the_frontier_is_best_of_the_whole_cloud(objective, cloud, reference):
    """Optimizers see only frontiers; nothing better may hide behind one."""
    baseline = reference or min(cloud, key=lambda point: (point.seconds, point.joules))
    best = min(_score(objective, point, baseline) for point in cloud)
    chosen = _chosen(objective, Frontier.from_points(cloud), reference)
    if chosen is None:
        assert best == math.inf
    else:
        assert _score(objective, chosen, baseline) == best < math.inf


@given(objectives, clouds, st.none() | points)
def test_cloud_and_frontier_give_the_same_choice(objective, cloud, reference):
    """Also among equals the choice is the same place, in whatever order points come."""
    from_cloud = _chosen(objective, reversed(cloud), reference)
    from_frontier = _chosen(objective, Frontier.from_points(cloud), reference)
    if from_cloud is None or from_frontier is None:
        assert from_cloud is from_frontier is None
    else:
        assert (from_cloud.seconds, from_cloud.joules) == (
            from_frontier.seconds,
            from_frontier.joules,
        )


@given(bounds, clouds, points)
def test_the_choice_respects_its_bounds(limits, cloud, reference):
    """A deadline broken by more than rounding is broken."""
    objective = LeastEnergy(limits.max_slowdown, limits.deadline_seconds)
    chosen = _chosen(objective, cloud, reference)
    overshoots = [limits.overshoot(point.seconds, point.joules, reference) for point in cloud]
    if chosen is None:
        assert min(overshoots) > 1
    else:
        assert limits.overshoot(chosen.seconds, chosen.joules, reference) <= 1 + 1e-9


@given(points, points)
def test_gains_agree_with_each_other(point, reference):
    """The columns of one table must not contradict each other."""
    won = gains(point, reference)
    assert math.isclose(won.difference, won.energy - won.time, rel_tol=1e-9, abs_tol=1e-6)
    product = (1 - won.energy / 100) * (1 + won.time / 100)
    assert math.isclose(1 - won.edp / 100, product, rel_tol=1e-6, abs_tol=1e-6)
    # At k = 2 energy and time weigh the same: half of their difference is won.
    half = won.difference / 2
    assert math.isclose(eds_gain(point, reference, 2.0), half, rel_tol=1e-9, abs_tol=1e-6)
