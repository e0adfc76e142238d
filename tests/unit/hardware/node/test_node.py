"""Node meters by environment."""

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, MissingHardwareError
from joulery.hardware import Capability, IntegratedPower, node
from joulery.hardware.node import _ipmi as ipmi, _redfish as redfish, _scpi as scpi
from support.wattmeter import EmulatedWattMeter

REPLY = "Instantaneous power reading: 332 Watts"


class Direct:
    def __init__(self, meter):
        self._meter = meter

    def close(self):
        """Hang up."""
        self.closed = True

    def query(self, command):
        """Ask."""
        return self._meter.answer(command)

    def write(self, command):
        """Tell."""
        self._meter.answer(command)


@pytest.fixture
def clock():
    """The clock that a test turns."""
    return VirtualClock()


def test_nothing_named_means_nothing_looked_for(clock):
    """Without the variable no instrument is touched."""
    assert node.survey({}, clock) == node.Survey()


@pytest.mark.parametrize("specification", ["", "ipmi", "usb:1", "visa", "REDFISH:https://x"])
def test_unknown_specifications_are_refused(clock, specification):
    """The message lists what can be written."""
    with pytest.raises(InvalidValueError, match="unknown node meter"):
        node.open_node_meter(specification, {}, clock)


def test_a_controller_counts_by_integration(clock, monkeypatch):
    """Power-only meters become energy meters."""
    monkeypatch.setattr(ipmi, "run_command", lambda command: REPLY)
    (meter,) = node.survey({"JOULERY_NODE_METER": "ipmi:"}, clock).devices
    assert isinstance(meter, IntegratedPower)
    meter.read_energy()
    clock.sleep(1.0)
    assert meter.read_energy().joules == 332.0


def test_the_account_comes_from_the_environment(clock, monkeypatch):
    """Who reads a remote controller is the administrator's choice."""
    asked = []
    monkeypatch.setattr(ipmi, "run_command", lambda command: asked.append(command) or REPLY)
    node.open_node_meter("ipmi:bmc1", {"JOULERY_IPMI_USER": "reader"}, clock)
    assert asked == [ipmi.command("bmc1", "reader")]


def test_redfish_gets_its_credentials(clock, monkeypatch):
    """Credentials and certificate authority reach the reader."""
    seen = []

    def answer(meter):
        seen.append((meter._user, meter._password, meter._ca_file))
        return 200.0

    monkeypatch.setattr(redfish.RedfishMeter, "read_power", answer)
    environ = {
        "JOULERY_REDFISH_USER": "me",
        "JOULERY_REDFISH_PASSWORD": "secret",
        "JOULERY_REDFISH_CA": "/ca.pem",
    }
    device = node.open_node_meter("redfish:https://bmc/redfish/v1/Chassis/1", environ, clock)
    assert device.info.id == "redfish:bmc/redfish/v1/Chassis/1"
    assert seen == [("me", "secret", "/ca.pem")]


def test_a_wattmeter_is_integrated(clock, monkeypatch):
    """It has power only, and a run needs energy."""
    monkeypatch.setattr(scpi, "connect_visa", lambda resource: Direct(EmulatedWattMeter()))
    device = node.open_node_meter("visa:TCPIP0::192.0.2.7::INSTR", {}, clock)
    assert isinstance(device, IntegratedPower)
    assert Capability.ENERGY in device.capabilities


def test_one_broken_meter_does_not_hide_another(clock, monkeypatch):
    """Each is tried by itself; failures carry their remedy."""

    def run(command):
        if "-H" in command:
            raise DeviceError("no route", remedy="plug it in")
        return REPLY

    monkeypatch.setattr(ipmi, "run_command", run)
    found = node.survey({"JOULERY_NODE_METER": "ipmi:bmc1 nonsense ipmi:"}, clock)
    assert [device.info.id for device in found.devices] == ["ipmi:local"]
    first, second = found.obstacles
    assert (first.subject, first.reason, first.remedy) == (
        "node meter ipmi:bmc1",
        "no route",
        "plug it in",
    )
    assert "nonsense" in second.reason


def test_a_missing_tool_is_an_obstacle(clock, monkeypatch):
    """Discovery must not raise for what is not installed."""

    def run(command):
        raise MissingHardwareError("ipmitool is not installed", remedy="install it")

    monkeypatch.setattr(ipmi, "run_command", run)
    (obstacle,) = node.survey({"JOULERY_NODE_METER": "ipmi:"}, clock).obstacles
    assert str(obstacle) == "node meter ipmi:: ipmitool is not installed (install it)"
