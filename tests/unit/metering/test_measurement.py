"""Totals of a measurement: each joule once, unknown never zero, ready for JSON."""

import json
import math

import pytest

from joulery.frontier import Origin, Provenance
from joulery.hardware import DeviceInfo, DeviceKind
from joulery.metering import Measurement
from joulery.metering._measurement import DeviceMeasurement, Flag, counted_positions

NAN = math.nan


def device(id_, joules, *, error=0.01, kind=DeviceKind.GPU, parent=None, **options):
    """A device's share of a measurement."""
    info = DeviceInfo(id_, f"Board {id_}", kind, "fake", parent=parent)
    provenance = Provenance(options.pop("origin", Origin.MEASURED), "counter", error)
    spread = NAN if error is None else error * joules
    return DeviceMeasurement(
        info,
        joules,
        spread,
        options.pop("peak", 300.0),
        options.pop("idle", NAN),
        provenance,
        options.pop("flags", frozenset()),
    )


def measured(*devices, **options):
    """Ten seconds of these devices."""
    return Measurement("w", 10.0, devices, **options)


def test_devices_add_up():
    """The total would miss a device."""
    total = measured(device("a", 100.0), device("b", 300.0))
    assert total.joules == 400.0
    assert total.mean_watts == 40.0
    assert total.relative_error == pytest.approx(math.hypot(1.0, 3.0) / 400.0)


def test_a_node_meter_replaces_the_sum():
    """The boards would be counted twice, once in the node."""
    total = measured(device("a", 100.0), device("n", 500.0, kind=DeviceKind.NODE, error=0.02))
    assert total.joules == 500.0
    assert total.relative_error == pytest.approx(0.02)
    assert [d.info.id for d in total.counted] == ["n"]


def test_parts_of_a_measured_board_are_not_added():
    """A MIG slice would be counted twice, once in its board."""
    total = measured(device("a", 100.0), device("a/0", 40.0, parent="a"))
    assert total.joules == 100.0


def test_a_part_counts_where_its_board_is_not_measured():
    """A job confined to a slice would cost nothing."""
    assert measured(device("a/0", 40.0, parent="a")).joules == 40.0


def test_counted_positions_of_nothing():
    """A machine without devices would fail."""
    assert counted_positions([]) == ()


def test_unknown_is_nan_and_not_zero():
    """A failed measurement would look like a perfect one."""
    nothing = measured()
    assert math.isnan(nothing.joules)
    assert math.isnan(nothing.mean_watts)
    assert math.isnan(nothing.idle_joules)
    assert nothing.relative_error is None
    assert nothing.provenance.origin is Origin.ASSUMED
    assert all(math.isnan(bound) for bound in nothing.interval_joules)
    unreadable = measured(device("a", NAN, error=None))
    assert math.isnan(unreadable.joules)


def test_a_missing_device_makes_the_error_of_the_total_unknown():
    """A total that lacks a board would carry the tight bar of the others."""
    total = measured(device("a", 100.0), device("b", NAN, error=None))
    assert total.joules == 100.0
    assert total.relative_error is None
    assert all(math.isnan(bound) for bound in total.interval_joules)


def test_one_unknown_error_makes_the_total_unknown():
    """An estimate without error would borrow the bar of its neighbours."""
    assert measured(device("a", 100.0), device("b", 1.0, error=None)).relative_error is None


def test_the_total_is_as_good_as_its_weakest_part():
    """A sum with an assumed term would pass for measured."""
    total = measured(device("a", 100.0), device("b", 1.0, origin=Origin.ASSUMED))
    assert total.provenance.origin is Origin.ASSUMED


def test_the_interval_is_95_percent_and_not_negative():
    """Bars would be one sigma wide, or reach below zero."""
    low, high = measured(device("a", 100.0, error=0.1)).interval_joules
    assert (low, high) == pytest.approx((80.4, 119.6))
    assert measured(device("a", 100.0, error=2.0)).interval_joules[0] == 0.0


def test_idle_energy_adds_up_over_those_who_tell():
    """A CPU that does not report utilisation would hide the boards' waste."""
    total = measured(device("a", 100.0, idle=30.0), device("b", 100.0, idle=NAN))
    assert total.idle_joules == 30.0


def test_flags_of_devices_and_window_come_together():
    """A fault on one board would go unnoticed in the total."""
    total = measured(
        device("a", 1.0, flags=frozenset({Flag.RESET})), events=frozenset({Flag.CLOCK_STEPPED})
    )
    assert total.flags == {Flag.RESET, Flag.CLOCK_STEPPED}


def test_no_time_has_no_mean_power():
    """An empty window would divide by zero."""
    assert math.isnan(Measurement("w", 0.0, (device("a", 0.0),)).mean_watts)


@pytest.mark.parametrize(
    "measurement",
    [
        measured(),
        Measurement("w", NAN, ()),
        measured(device("a", NAN, error=None, peak=NAN), events=frozenset({Flag.CLOCK_STEPPED})),
        measured(device("a", 5.0, idle=1.0, flags=frozenset({Flag.LOST})), peak_watts=3.0),
    ],
)
def test_to_dict_is_strict_json(measurement):
    """Logs and reports would hold NaN, which JSON does not know."""
    text = json.dumps(measurement.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["name"] == "w"
    assert len(back["devices"]) == len(measurement.devices)


def test_to_dict_names_everything():
    """Readers of the JSON would miss figures."""
    document = measured(device("a", 5.0, idle=1.0), peak_watts=3.0).to_dict()
    assert document["joules"] == 5.0
    assert document["idle_joules"] == 1.0
    assert document["peak_watts"] == 3.0
    assert document["seconds"] == 10.0
    assert document["provenance"] == "measured"
    assert document["devices"][0]["source"] == "counter"
    assert document["devices"][0]["relative_error"] == 0.01


def test_an_unreadable_node_meter_leaves_its_parts():
    """If this fails, one broken wattmeter hides what every board used."""
    total = measured(device("n", NAN, kind=DeviceKind.NODE, error=None), device("a", 40.0))
    assert total.joules == 40.0


def twins(count, joules=100.0, systematic=5.0, varying=1.0, name="Board"):
    """Boards of one model."""
    sigma = math.hypot(systematic, varying)
    provenance = Provenance(Origin.MEASURED, "counter", sigma / joules)
    return [
        DeviceMeasurement(
            DeviceInfo(f"{name}:{index}", name, DeviceKind.GPU, "fake"),
            joules,
            sigma,
            300.0,
            NAN,
            provenance,
            systematic_error_joules=systematic,
        )
        for index in range(count)
    ]


def test_boards_of_one_model_share_their_systematic_error():
    """Eight boards with one wrong gain would look three times as good as one."""
    total = measured(*twins(8))
    assert total.systematic_error_joules == pytest.approx(40.0)
    assert total.varying_error_joules == pytest.approx(math.sqrt(8.0))
    assert total.relative_error == pytest.approx(math.hypot(40.0, math.sqrt(8.0)) / 800.0)


def test_models_do_not_share_their_systematic_error():
    """The gains of unlike boards would be added as if they were one."""
    total = measured(*twins(2), *twins(2, name="Other"))
    assert total.systematic_error_joules == pytest.approx(math.hypot(10.0, 10.0))


def test_both_parts_are_in_the_document():
    """A reader of JSON could not tell what averages out from what does not."""
    document = measured(*twins(1)).to_dict()
    for part in (document, document["devices"][0]):
        assert part["varying_error_joules"] == pytest.approx(1.0)
        assert part["systematic_error_joules"] == pytest.approx(5.0)


def test_a_stuck_node_meter_leaves_its_parts():
    """A meter that stands still would decide the total."""
    node = device("n", 500.0, kind=DeviceKind.NODE, flags=frozenset({Flag.STUCK}))
    assert measured(device("a", 100.0), node).joules == 100.0


def test_kilowatt_hours_are_said_where_they_mean_something():
    """A first try prints 3.85e-06 kWh, or a night's training no figure of a bill."""
    assert "kWh" not in str(measured(device("a", 13.9)))
    assert "(1.5 kWh)" in str(measured(device("a", 1.5 * 3.6e6)))
