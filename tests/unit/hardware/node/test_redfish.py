"""Redfish documents and addresses; the network is in the integration tests."""

import pytest

from joulery.errors import InvalidValueError
from joulery.hardware import Capability, DeviceKind
from joulery.hardware.node import _redfish as redfish

URL = "https://bmc.example.org/redfish/v1/Chassis/1"


def test_power_of_one_domain():
    """The common document."""
    assert redfish.power_consumed({"PowerControl": [{"PowerConsumedWatts": 344}]}) == 344.0


def test_domains_add_up():
    """Blades state several domains; the node is all of them."""
    document = {"PowerControl": [{"PowerConsumedWatts": 100}, {"PowerConsumedWatts": 50.5}, {}]}
    assert redfish.power_consumed(document) == 150.5


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"PowerControl": None},
        {"PowerControl": []},
        {"PowerControl": ["text"]},
        {"PowerControl": [{"PowerConsumedWatts": None}]},
        {"PowerControl": [{"PowerConsumedWatts": 0}]},
        {"PowerControl": [{"PowerConsumedWatts": "344"}]},
        {"PowerControl": [{"PowerConsumedWatts": True}]},
    ],
)
def test_an_unknown_power_is_none(document):
    """Null and zero are what controllers say when they do not know."""
    assert redfish.power_consumed(document) is None


def test_power_of_the_newer_resource():
    """Controllers without a Power resource state their power in EnvironmentMetrics."""
    assert redfish.power_reading({"PowerWatts": {"Reading": 374.2}}) == 374.2
    assert redfish.power_reading({"PowerWatts": None}) is None
    assert redfish.power_reading(None) is None


@pytest.mark.parametrize("url", ["", "bmc.example.org", "ftp://bmc/x", "file:///etc/passwd"])
def test_only_web_addresses(url):
    """Anything else is a typing error."""
    with pytest.raises(InvalidValueError, match="not a Redfish URL"):
        redfish.RedfishMeter(url)


def test_passwords_stay_out_of_addresses():
    """Addresses become device ids and end up in reports."""
    with pytest.raises(InvalidValueError, match="credentials") as refusal:
        redfish.RedfishMeter("https://me:secret@bmc.example.org/redfish/v1/Chassis/1")
    assert "secret" not in str(refusal.value)


def test_passwords_do_not_travel_in_the_clear():
    """Management controllers own the machine."""
    with pytest.raises(InvalidValueError, match="in the clear") as refused:
        redfish.RedfishMeter(URL.replace("https", "http"), "me", "secret")
    assert "secret" not in str(refused.value)


def test_identity():
    """The chassis is the node; its accuracy is unknown."""
    meter = redfish.RedfishMeter(URL + "/")
    assert meter.info.id == "redfish:bmc.example.org/redfish/v1/Chassis/1"
    assert meter.info.kind is DeviceKind.NODE
    assert meter.capabilities == {Capability.POWER}
    assert meter.provenance.relative_error is None
