"""What holds for the frontier of every cloud of points."""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting

positive = st.floats(1e-6, 1e9)
# Small whole numbers make ties, duplicates and collinear points likely, and sums exact.
whole = st.integers(1, 12).map(float)
limits = st.none() | st.floats(0, 1e3)
knobs = st.builds(
    Setting,
    power_limit_watts=limits,
    clock_hertz=limits,
    batch_size=st.none() | st.integers(1, 4096),
    device=st.none() | st.text(max_size=5),
    devices=st.none() | st.integers(1, 8),
    parallel=st.none() | st.text(max_size=5),
)
settings = knobs | st.builds(Setting, parts=st.lists(knobs, min_size=1, max_size=3).map(tuple))
provenances = st.builds(
    Provenance, st.sampled_from(Origin), st.text(max_size=8), st.none() | st.floats(0, 2)
)


def clouds(seconds=positive, joules=positive, most=12):
    """Lists of points without settings."""
    return st.lists(st.builds(OperatingPoint, seconds, joules), min_size=1, max_size=most)


any_cloud = clouds() | clouds(whole, whole)
frontiers = any_cloud.map(Frontier.from_points)
exact_frontiers = clouds(whole, whole, 8).map(Frontier.from_points)


def _pairs(frontier):
    return [(point.seconds, point.joules) for point in frontier]


def _dominates(first, second):
    """Whether the first is no worse in both, and better in one."""
    places = [(point.seconds, point.joules) for point in (first, second)]
    return places[0] != places[1] and all(a <= b for a, b in zip(*places, strict=True))


def _convex(frontier):
    """Whether slopes strictly rise; in fractions, since rounding is not the question."""
    exact = [(Fraction(s), Fraction(j)) for s, j in _pairs(frontier)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(exact)]
    return all(left < right for left, right in itertools.pairwise(slopes))


@given(any_cloud)
def test_no_point_of_a_frontier_dominates_another(cloud):
    """Else an objective could pick a pointless setting."""
    frontier = Frontier.from_points(cloud)
    for first, second in itertools.permutations(frontier, 2):
        assert not _dominates(first, second)


@given(any_cloud)
def test_every_point_is_on_the_frontier_or_dominated_by_it(cloud):
    """Else the best setting could get lost."""
    frontier = Frontier.from_points(cloud)
    assert set(frontier) <= set(cloud)
    places = set(_pairs(frontier))
    for point in cloud:
        on_it = (point.seconds, point.joules) in places
        assert on_it != any(_dominates(kept, point) for kept in frontier)


@given(any_cloud, st.randoms(use_true_random=False))
def test_order_does_not_matter(cloud, random):
    """The frontier is a property of the cloud, not of how it was measured."""
    shuffled = random.sample(cloud, len(cloud))
    frontier = Frontier.from_points(cloud)
    assert frontier == Frontier.from_points(shuffled) == Frontier.from_points(frontier)


@given(any_cloud, positive)
def test_binary_search_finds_what_a_scan_finds(cloud, seconds):
    """A deadline must get the leanest point of the whole cloud that meets it."""
    in_time = [point.joules for point in cloud if point.seconds <= seconds]
    if in_time:
        assert Frontier.from_points(cloud).within(seconds).joules == min(in_time)


@given(exact_frontiers)
def test_the_hull_is_convex_and_keeps_the_ends(frontier):
    """Planners follow its slopes in order."""
    hull = frontier.hull()
    assert _convex(hull)
    assert (hull.fastest, hull.least_energy) == (frontier.fastest, frontier.least_energy)
    assert set(hull) <= set(frontier)
    assert hull.hull() == hull


@given(frontiers)
def test_the_hull_lies_below_the_frontier(frontier):
    """What mixing settings reaches is never worse than a single setting."""
    hull = frontier.hull()
    seconds, joules = zip(*_pairs(hull), strict=True)
    for point in frontier:
        assert np.interp(point.seconds, seconds, joules) <= point.joules * (1 + 1e-9)


@given(exact_frontiers, exact_frontiers)
def test_composition_commutes(first, second):
    """Which piece of work comes first does not change what both cost."""
    assert _pairs(first.then(second)) == _pairs(second.then(first))


@given(exact_frontiers, exact_frontiers, exact_frontiers)
def test_composition_is_associative(first, second, third):
    """Chains may be composed in any grouping."""
    left, right = first.then(second).then(third), first.then(second.then(third))
    assert _pairs(left) == _pairs(right)
    assert left.fastest.setting == right.fastest.setting


@given(frontiers, frontiers)
def test_composition_is_the_frontier_of_all_sums(first, second):
    """No pair is missed, whatever the rounding."""
    sums = [a.then(b) for a in first for b in second]
    both = first.then(second)
    for point in sums:
        assert both.within(point.seconds).joules <= point.joules
    assert set(_pairs(both)) <= set(_pairs(sums))


@given(exact_frontiers, exact_frontiers)
def test_composing_hulls_is_the_hull_of_the_composition(first, second):
    """Chains of hulls stay short, and must not lose or invent a vertex."""
    quick = first.hull().then(second.hull()).hull()
    assert _pairs(quick) == _pairs(first.then(second).hull())
    assert len(quick) <= len(first.hull()) + len(second.hull()) - 1


@given(frontiers, st.floats(1e-3, 1e3))
def test_scaling_keeps_the_shape(frontier, factor):
    """More work costs more of both, in proportion."""
    scaled = frontier.scaled(factor)
    assert len(scaled) <= len(frontier)
    assert scaled.fastest.seconds == pytest.approx(frontier.fastest.seconds * factor)
    assert scaled.least_energy.joules == pytest.approx(frontier.least_energy.joules * factor)


@given(
    st.lists(
        st.builds(OperatingPoint, positive, positive, settings, provenances), min_size=1, max_size=5
    ),
    st.text(max_size=8),
)
def test_json_round_trip_is_the_identity(cloud, work):
    """What is saved is what comes back, to the last bit, and valid JSON."""
    frontier = Frontier.from_points(cloud, work)
    text = frontier.to_json()
    assert Frontier.from_json(text) == frontier
    assert Frontier.from_json(json.dumps(json.loads(text), indent=1)).to_json() == text
