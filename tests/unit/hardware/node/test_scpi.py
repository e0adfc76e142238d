"""The WT300 family's commands, without a network."""

import sys

import pytest

from joulery.errors import DeviceError, MissingExtraError, UnsupportedError
from joulery.hardware import Capability, DeviceKind
from joulery.hardware.node import _scpi as scpi
from support.wattmeter import EmulatedWattMeter


class Direct:
    """A session without a network in between."""

    def __init__(self, meter):
        self._meter = meter
        self.closed = False

    def close(self):
        """Hang up."""
        self.closed = True

    def query(self, command):
        """Ask."""
        return self._meter.answer(command)

    def write(self, command):
        """Tell."""
        assert self._meter.answer(command) is None


@pytest.fixture
def emulated():
    """An emulated meter."""
    return EmulatedWattMeter()


def opened(emulated):
    """The meter as :func:`scpi.open_meter` sets it up."""
    return scpi.open_meter("any", lambda resource: Direct(emulated))


def test_reads_watts(emulated):
    """The plain case."""
    assert opened(emulated).read_power() == 350.0


def test_offers_power_only(emulated):
    """Energy is integrated from it."""
    assert opened(emulated).capabilities == {Capability.POWER}


@pytest.mark.parametrize("shown", ["NAN", "INF", "9.91E+37", "9.9E+37"])
def test_no_value_is_an_error(emulated, shown):
    """Over-range must not become a huge power."""
    emulated.watts = shown
    with pytest.raises(DeviceError, match="no power"):
        opened(emulated).read_power()


def test_reversed_terminals_are_an_error(emulated):
    """Negative power would be subtracted."""
    emulated.watts = -350.0
    with pytest.raises(DeviceError, match="-350 W"):
        opened(emulated).read_power()


@pytest.mark.parametrize("reply", ["", "1.0,2.0", "volts"])
def test_a_foreign_reply_is_an_error(emulated, reply):
    """A program that changed the output items must not move other values into the power."""
    emulated.watts = reply
    with pytest.raises(DeviceError, match="expected a number"):
        opened(emulated).read_power()


@pytest.mark.parametrize(
    ("model", "element"), [("WT310E", "1"), ("WT310EH", "1"), ("WT332E", "SIGMA")]
)
def test_several_phases_are_summed(emulated, model, element):
    """One phase of three would show a third of the node."""
    emulated.identity = f"YOKOGAWA,{model},C1,F1"
    opened(emulated)
    assert emulated.items == {1: f"P,{element}"}


def test_identity(emulated):
    """The serial number tells two meters of a kind apart."""
    info = opened(emulated).info
    assert info.id == "scpi:WT310E:C2QG12345V"
    assert info.name == "Yokogawa WT310E"
    assert info.kind is DeviceKind.NODE
    assert opened(emulated).provenance.relative_error == 0.0025


@pytest.mark.parametrize("identity", ["KEITHLEY,2450,1,1", "nonsense", ",,,"])
def test_other_instruments_are_refused(emulated, identity):
    """Its commands may mean anything to another instrument."""
    emulated.identity = identity
    session = Direct(emulated)
    with pytest.raises(UnsupportedError):
        scpi.open_meter("any", lambda resource: session)
    assert emulated.received == ["*IDN?"]
    assert session.closed


def test_pyvisa_is_optional(monkeypatch):
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "pyvisa", None)
    with pytest.raises(MissingExtraError, match=r"joulery\[instruments\]"):
        scpi.connect_visa("TCPIP0::127.0.0.1::INSTR")


class Broken:
    """A resource whose every use fails."""

    def query(self, message):
        """Ask."""
        raise OSError

    def write(self, message):
        """Tell."""
        raise ConnectionResetError(104, "Connection reset by peer")


def test_failures_of_the_line_are_device_errors():
    """Vendor and socket errors must not escape, even without a text."""
    session = scpi.VisaSession(Broken(), "TCPIP0::1::INSTR", (OSError,))
    with pytest.raises(DeviceError, match=r"TCPIP0::1::INSTR failed at '\*IDN\?': OSError"):
        session.query("*IDN?")
    with pytest.raises(DeviceError, match="reset by peer"):
        session.write(":NUMERIC:FORMAT ASCII")
