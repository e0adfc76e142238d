"""The frontier: which points it keeps, what it refuses, and how frontiers add up."""

import itertools
import json
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from joulery.errors import FileError, InfeasibleError, InvalidValueError
from joulery.frontier import (
    ASSUMED,
    Frontier,
    OperatingPoint,
    Origin,
    Provenance,
    Setting,
    lower_hull,
)

MEASURED = Provenance(Origin.MEASURED, "counter", 0.03)


def _points(*pairs):
    return [OperatingPoint(seconds, joules) for seconds, joules in pairs]


def _frontier(*pairs, work=""):
    return Frontier.from_points(_points(*pairs), work)


def _pairs(points):
    return [(point.seconds, point.joules) for point in points]


@pytest.mark.parametrize(
    ("cloud", "kept"),
    [
        ([(1, 5)], [(1, 5)]),
        ([(1, 5), (1, 5), (1, 5)], [(1, 5)]),
        ([(1, 5), (1, 4), (1, 6)], [(1, 4)]),
        ([(1, 5), (2, 5), (3, 5)], [(1, 5)]),
        ([(3, 1), (2, 2), (1, 3)], [(1, 3), (2, 2), (3, 1)]),
        ([(1, 3), (2, 4), (3, 3), (4, 2)], [(1, 3), (4, 2)]),
        ([(1, 0), (2, 0), (3, 7)], [(1, 0)]),
        ([(1, 5), (math.nextafter(1, 2), math.nextafter(5, 0))], None),
    ],
    ids=["one", "twins", "same-time", "same-energy", "reversed", "dominated", "zero", "last-bit"],
)
def test_keeps_the_pareto_set(cloud, kept):
    """A wrong Pareto set hides the best setting or offers a pointless one."""
    assert _pairs(_frontier(*cloud)) == (cloud if kept is None else kept)


def test_of_equal_points_the_first_stays():
    """Which of two equal settings is offered must not change from run to run."""
    first, second = (OperatingPoint(1, 5, Setting(power_limit_watts=w)) for w in (100, 200))
    assert Frontier.from_points([first, second]).points == (first,)
    assert Frontier.from_points([second, first]).points == (second,)


@pytest.mark.parametrize(
    ("seconds", "joules", "says"),
    [
        (math.nan, 1, "finite"),
        (1, math.nan, "finite"),
        (math.inf, 1, "finite"),
        (1, -math.inf, "finite"),
        pytest.param(10**400, 1, "finite", id="huge"),
        (-1, 1, "at least 0"),
        (1, -1e-9, "at least 0"),
        (0, 1, "some time"),
        ("1", 1, "a number"),
        (1, None, "a number"),
    ],
)
def test_refuses_points_that_cannot_be(seconds, joules, says):
    """One NaN among the points would poison every comparison that follows."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        OperatingPoint(seconds, joules)
    assert caught.value.remedy


def test_points_hold_plain_floats():
    """Points made from other numbers would not go through JSON."""
    point = OperatingPoint(Fraction(1, 2), 3)
    assert (type(point.seconds), type(point.joules)) == (float, float)
    assert point.watts == 6.0


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([], "at least one point"),
        ([(1, 5), (1, 5)], "duplicate"),
        ([(1, 5), (2, 5)], "dominated"),
        ([(1, 5), (1, 4)], "dominated"),
        ([(1, 5), (2, 6)], "dominated"),
        ([(2, 4), (1, 5)], "unsorted"),
    ],
)
def test_the_constructor_takes_only_frontiers(pairs, says):
    """Binary search and hulls are wrong on anything that is not sorted and undominated."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        Frontier(tuple(_points(*pairs)))
    assert caught.value.remedy


def test_duplicates_count_as_such_whatever_their_settings():
    """The message must name the real trouble: two points at the same place."""
    twins = tuple(OperatingPoint(1, 5, Setting(devices=n)) for n in (1, 2))
    with pytest.raises(InvalidValueError, match="duplicate"):
        Frontier(twins)


@pytest.mark.parametrize(
    ("pairs", "vertices"),
    [
        ([(1, 5)], [(1, 5)]),
        ([(1, 5), (2, 1)], [(1, 5), (2, 1)]),
        ([(1, 5), (2, 4), (3, 3)], [(1, 5), (3, 3)]),
        ([(1, 5), (2, 4.5), (3, 3)], [(1, 5), (3, 3)]),
        ([(1, 5), (2, 3.5), (3, 3)], [(1, 5), (2, 3.5), (3, 3)]),
        ([(0.5, 9), (1, 8), (1.5, 7), (2, 1), (3, 0.5)], [(0.5, 9), (2, 1), (3, 0.5)]),
    ],
)
def test_hull_has_vertices_only(pairs, vertices):
    """Points on or above a chord are beaten by mixing its ends."""
    assert _pairs(_frontier(*pairs, work="w").hull()) == vertices
    assert _pairs(lower_hull(_points(*pairs))) == vertices
    assert _frontier(*pairs, work="w").hull().work == "w"


def test_ends_and_size():
    """Fastest and least energy are the ends that objectives start from."""
    frontier = _frontier((2, 2), (1, 3), (4, 1))
    assert (frontier.fastest.seconds, frontier.least_energy.joules, len(frontier)) == (1, 1, 3)


@pytest.mark.parametrize(
    ("seconds", "found"),
    [(1, 3), (1.999, 3), (2, 2), (3.9, 2), (4, 1), (1e9, 1), (math.inf, 1)],
)
def test_within_takes_the_leanest_in_time(seconds, found):
    """An off-by-one here misses a deadline or wastes energy."""
    assert _frontier((1, 3), (2, 2), (4, 1)).within(seconds).joules == found


@pytest.mark.parametrize("seconds", [0.999, 0, -1, -math.inf, math.nan])
def test_nothing_finishes_in_too_little_time(seconds):
    """A deadline that cannot be met must be an error, not some point."""
    with pytest.raises(InfeasibleError, match="within") as caught:
        _frontier((1, 3), (2, 2)).within(seconds)
    assert "fastest takes 1 s" in caught.value.remedy


def test_scaling_work_scales_both_axes():
    """An epoch's frontier times the epochs is the run's."""
    scaled = _frontier((1, 30), (2, 20), work="epoch").scaled(8)
    assert (_pairs(scaled), scaled.work) == ([(8, 240), (16, 160)], "epoch")


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_work_scales_by_positive_factors_only(factor):
    """Zero or negative work has no operating points."""
    with pytest.raises(InvalidValueError, match="scale") as caught:
        _frontier((1, 1)).scaled(factor)
    assert caught.value.remedy


def test_composition_takes_every_pair_and_keeps_the_best():
    """A missing pair is a missed saving over two pieces of work."""
    first, second = _frontier((1, 10), (2, 4), work="a"), _frontier((1, 8), (3, 1), work="b")
    both = first.then(second)
    assert _pairs(both) == [(2, 18), (3, 12), (4, 11), (5, 5)]
    assert both.work == "a → b"
    assert _frontier((1, 1)).then(second).work == "b"


def test_composed_points_remember_their_parts():
    """Without each part's setting nobody could act on a point of the sum."""
    low, high = Setting(power_limit_watts=100), Setting(clock_hertz=1.2e9, devices=2)
    point = (
        OperatingPoint(1, 100, low, MEASURED)
        .then(OperatingPoint(2, 300, high, MEASURED))
        .then(OperatingPoint(1, 100, low, Provenance(Origin.PREDICTED, "model", 0.1)))
    )
    assert point.setting.parts == (low, high, low)
    assert str(point.setting) == "100 W → 1200 MHz 2 × → 100 W"
    assert (point.seconds, point.joules) == (4, 500)
    assert point.provenance.origin is Origin.PREDICTED
    assert point.provenance.source == "counter; model"
    expected = math.hypot(0.03 * 100, 0.03 * 300, 0.1 * 100) / 500
    assert point.provenance.relative_error == pytest.approx(expected)


def test_json_round_trip_is_the_identity():
    """A frontier saved today must be the same one tomorrow."""
    every_knob = Setting(250.0, 1.41e9, 256, "V100", 4, "dp4")
    cloud = [
        OperatingPoint(0.1 + 0.2, 300.0, every_knob, MEASURED),
        OperatingPoint(1 / 3, 200.0, Setting(parts=(every_knob, Setting())), ASSUMED),
        OperatingPoint(5e3, 0.0, Setting(power_limit_watts=0.0)),
    ]
    frontier = Frontier.from_points(cloud, "ResNet-50 × 1 epoch")
    assert Frontier.from_json(frontier.to_json()) == frontier
    assert Frontier.from_dict(json.loads(frontier.to_json())).to_json() == frontier.to_json()
    assert pickle.loads(pickle.dumps(frontier)) == frontier  # noqa: S301 - our own bytes


def test_json_keeps_its_shape():
    """Files written by one version are read by others: the format is a promise."""
    point = OperatingPoint(1.5, 300.0, Setting(power_limit_watts=250.0), MEASURED)
    assert Frontier((point,), "epoch").to_dict() == {
        "schema": "joulery.frontier/1",
        "work": "epoch",
        "points": [
            {
                "seconds": 1.5,
                "joules": 300.0,
                "setting": {"power_limit_watts": 250.0},
                "origin": "measured",
                "source": "counter",
                "relative_error": 0.03,
            }
        ],
    }


def test_short_documents_are_enough():
    """People write points by hand: seconds and joules must do."""
    frontier = Frontier.from_dict({"points": [{"seconds": 1, "joules": 2, "source": None}]})
    assert frontier == Frontier((OperatingPoint(1.0, 2.0),))


@pytest.mark.parametrize("changed", ["work", "point", "provenance", "setting"])
def test_frontiers_are_equal_only_when_all_is(changed):
    """Caches compare frontiers: a difference overlooked serves a stale plan."""
    base = {"seconds": 1.0, "joules": 2.0}
    other = {
        "work": base,
        "point": {"seconds": 1.0, "joules": 2.5},
        "provenance": {**base, "origin": "measured"},
        "setting": {**base, "setting": {"devices": 2}},
    }[changed]
    left = Frontier.from_dict({"points": [base]})
    right = Frontier.from_dict({"points": [other], "work": "w" if changed == "work" else ""})
    assert left != right
    assert left == Frontier.from_dict({"points": [base]})
    assert hash(left) == hash(Frontier.from_dict({"points": [base]}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        pytest.param("[" * 100_000, "not valid JSON", id="nested"),
        ("[]", "not a frontier"),
        ("null", "not a frontier"),
        ('{"points": {}}', "not a frontier"),
        ('{"schema": "joulery.frontier/99", "points": []}', "unknown frontier format"),
        ('{"points": [5]}', "not an operating point"),
        ('{"points": [{"joules": 1}]}', "lacks 'seconds'"),
        ('{"points": [{"seconds": 1}]}', "lacks 'joules'"),
        ('{"points": [{"seconds": 1, "joules": 1, "setting": {"volume": 11}}]}', "'volume'"),
        ('{"points": [{"seconds": 1, "joules": 1, "setting": 5}]}', "not a setting"),
    ],
)
def test_refuses_files_that_are_no_frontier(text, says):
    """A broken file must be named as such, never half read."""
    with pytest.raises(FileError, match=says) as caught:
        Frontier.from_json(text)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("point", "says"),
    [
        ('{"seconds": NaN, "joules": 1}', "finite"),
        ('{"seconds": 1, "joules": Infinity}', "finite"),
        pytest.param('{"seconds": 1%s, "joules": 1}' % ("0" * 400), "finite", id="huge"),
        ('{"seconds": "1", "joules": 1}', "a number"),
        ('{"seconds": 1, "joules": 1, "relative_error": -0.1}', "at least 0"),
        ('{"seconds": 1, "joules": 1, "origin": "guessed"}', "guessed"),
        ('{"seconds": 1, "joules": 1, "source": 5}', "source must be text"),
        ('{"seconds": 1, "joules": 1, "setting": {"parts": 5}}', "must be settings"),
        ('{"seconds": 1, "joules": 1, "setting": {"parts": [5]}}', "must be settings"),
        ('{"seconds": 1, "joules": 1, "setting": {"device": 5}}', "device must be"),
        ('{"seconds": 1, "joules": 1, "setting": {"power_limit_watts": "x"}}', "a number"),
        ('{"seconds": 1, "joules": 1, "setting": {"parts": [{"devices": -1}]}}', "at least 0"),
    ],
)
def test_refuses_files_with_impossible_values(point, says):
    """Text or NaN in a file must not travel on into the program."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        Frontier.from_json(f'{{"points": [{point}]}}')
    assert caught.value.remedy


def test_settings_nested_beyond_reason_are_a_file_error():
    """A hostile file must not end in a RecursionError."""
    setting = {}
    for _ in range(5000):
        setting = {"parts": [setting]}
    with pytest.raises(FileError, match="nested too deeply"):
        OperatingPoint.from_dict({"seconds": 1, "joules": 1, "setting": setting})


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (Setting(), "as found"),
        (Setting(power_limit_watts=0.0), "0 W"),
        (Setting(250.0, 1.41e9, 256, "V100", 4, "dp4"), "250 W 1410 MHz batch 256 4 × V100 dp4"),
        (Setting(parts=(Setting(), Setting(devices=2))), "as found → 2 ×"),
    ],
)
def test_settings_read_well(setting, text):
    """Tables show settings in these words."""
    assert str(setting) == text


@pytest.mark.parametrize(
    ("provenance", "text"),
    [
        (Provenance(Origin.MEASURED), "measured"),
        (Provenance(Origin.MEASURED, "NVML", 0.0512), "measured ±5.1 % (NVML)"),
        (Provenance(Origin.ASSUMED, relative_error=1.4), "assumed ±140 %"),
        (Provenance(Origin.SIMULATED, relative_error=0.0), "simulated ±0 %"),
    ],
)
def test_provenance_reads_well(provenance, text):
    """How far to trust a figure must be legible beside it."""
    assert str(provenance) == text


def test_a_sum_is_as_good_as_its_weakest_term():
    """A guess added to a measurement must not pass for one."""
    ranks = list(Origin)
    for first, second in itertools.product(ranks, ranks):
        both = Provenance.combined([(Provenance(first), 1.0), (Provenance(second), 1.0)])
        assert both.origin is max(first, second, key=ranks.index)
    assert ranks[0] is Origin.MEASURED
    assert ranks[-1] is Origin.SIMULATED, "a sum with simulated energy passes for a real one"


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ([(0.1, 100.0)], 0.1),
        ([(0.03, 100.0), (0.04, 100.0)], 0.025),
        ([(0.1, 100.0), (None, 1.0)], None),
        ([(0.1, 0.0), (0.2, 0.0)], None),
    ],
)
def test_independent_errors_add_in_squares(terms, error):
    """Error bars of sums: neither too proud nor, for unknown ones, invented."""
    parts = [(Provenance(Origin.MEASURED, "", term), joules) for term, joules in terms]
    assert Provenance.combined(parts).relative_error == pytest.approx(error)


def test_nothing_has_no_provenance():
    """The provenance of an empty sum would be made up."""
    with pytest.raises(InvalidValueError, match="nothing to combine"):
        Provenance.combined([])


@pytest.mark.parametrize("error", [-0.1, math.nan, "0.1"])
def test_relative_errors_are_numbers_from_zero(error):
    """A negative or textual error bar would surface only when it is drawn."""
    with pytest.raises(InvalidValueError, match="relative error"):
        Provenance(Origin.MEASURED, "", error)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Frontier.from_points([(1, 2)]), "operating points, not \\(1, 2\\)"),
        (lambda: Frontier((1, 2)), "operating points, not 1"),
        (lambda: Setting(power_limit_watts="300"), "power_limit_watts of a setting must be a num"),
        (lambda: Setting(power_limit_watts=-300), "at least 0"),
        (lambda: Setting(device=300), "device must be text"),
        (lambda: OperatingPoint(1, 3, setting="300W"), "must be a Setting, not '300W'"),
        (lambda: OperatingPoint(1, 3, provenance="measured"), "must be a Provenance"),
        (lambda: Provenance("guess"), "'guess' is not an origin"),
        (lambda: _frontier((1, 1)).within("1"), "must be a number"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(build, says):
    """They were taken, and crashed in ``to_json`` much later."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        build()
    assert caught.value.remedy


def test_an_origin_may_be_given_as_text():
    """Text compares equal to an origin, but has no ``value`` that JSON needs."""
    assert Provenance("measured").origin is Origin.MEASURED


def test_numbers_of_numpy_go_through_json():
    """A batch size out of an array crashed in ``to_json``."""
    setting = Setting(np.float32(300), batch_size=np.int64(64))
    assert json.loads(json.dumps(setting.to_dict())) == {
        "power_limit_watts": 300.0,
        "batch_size": 64,
    }
