"""Partitions that were not profiled: what moving layers does to stages, memory and energy."""

import pytest

from joulery.errors import InvalidValueError
from joulery.pipeline import make_schedule, profiles_from_rows
from joulery.pipeline._search import activations_in_flight
from joulery.pipeline.profiles._read import balanced_layers, repartitioned


def _profiles(layers, head=0.0):
    """Stages of equal layers, the last one with a head that takes as long as ``head`` layers."""
    return profiles_from_rows(
        [
            {
                "stage": stage,
                "instruction": kind,
                "frequency": clock,
                "time": work * (count + (head if stage == len(layers) - 1 else 0)) * 1400 / clock,
                "energy": 100 * work * (count + (head if stage == len(layers) - 1 else 0)),
            }
            for stage, count in enumerate(layers)
            for kind, work in (("forward", 0.01), ("backward", 0.02))
            for clock in (1400, 1000)
        ]
    )


def _seconds(profiles):
    return [profiles.points(stage, "forward", profiles.stages)[0].seconds for stage in range(4)]


def test_a_heavy_head_gives_layers_away():
    """The slowest stage would stay the slowest."""
    profiles = _profiles((6, 6, 6, 6), head=2.5)
    # The later of equal stages takes the layer, since it holds fewer activations.
    assert balanced_layers(profiles, (6, 6, 6, 6)) == (6, 7, 7, 4)


def test_equal_stages_stay():
    """Layers would be moved for nothing."""
    assert balanced_layers(_profiles((6, 6, 6, 6)), (6, 6, 6, 6)) == (6, 6, 6, 6)
    assert balanced_layers(_profiles((7, 6, 6, 5)), (7, 6, 6, 5)) == (6, 6, 6, 6)


def test_moved_layers_take_their_time_and_energy_along():
    """Another partition would not cost what its layers cost; the head stays where it is."""
    profiles = _profiles((6, 6, 6, 6), head=2.5)
    shifted = repartitioned(profiles, (6, 6, 6, 6), (6, 7, 7, 4))
    assert _seconds(shifted) == pytest.approx([0.06, 0.07, 0.07, 0.065])
    slow = shifted.points(3, "backward", 4)[1]
    assert slow.seconds == pytest.approx(0.02 * 6.5 * 1.4)
    assert slow.joules == pytest.approx(100 * 0.02 * 6.5)
    assert slow.setting.clock_hertz == 1e9


def test_moved_layers_take_their_activations_along():
    """A rank with more layers would hold no more."""
    shifted = repartitioned(_profiles((6, 6, 6, 6)), (6, 6, 6, 6), (9, 6, 6, 3))
    assert shifted.sizes == (1.5, 1.0, 1.0, 0.5)
    assert activations_in_flight(make_schedule("1f1b", 4, 8), shifted.sizes) == (6, 3, 2, 0.5)
    # Stages 0 and 7 of a V come from the first and the last profiled stage.
    activations = activations_in_flight(make_schedule("zbv", 4, 8), shifted.sizes)
    assert max(activations) > max(activations_in_flight(make_schedule("zbv", 4, 8)))
    assert shifted.scaled(2.0).sizes == shifted.sizes


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((6, 6, 6), "3 numbers of layers for 4 stages"),
        ((6, 6, 6, 0), "a stage without any"),
    ],
)
def test_partitions_that_make_no_sense(layers, message):
    """Layers would appear or vanish."""
    with pytest.raises(InvalidValueError, match=message):
        balanced_layers(_profiles((6, 6, 6, 6)), layers)


def test_wrong_numbers_of_layers_are_noticed():
    """A stage would take negative time."""
    rows = [
        {"stage": stage, "instruction": kind, "frequency": 1400, "time": time, "energy": 10 * time}
        for stage, times in enumerate(((0.6, 1.2), (0.01, 3.0)))
        for kind, time in zip(("forward", "backward"), times, strict=True)
    ]
    with pytest.raises(InvalidValueError, match="take no time"):
        repartitioned(profiles_from_rows(rows), (6, 6), (11, 1))
