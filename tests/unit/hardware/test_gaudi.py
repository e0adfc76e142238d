"""Gaudi cards, by the real binding over an emulated library."""

import os
import subprocess
import sys

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, DeviceLostError, InvalidValueError, MissingRightsError
from joulery.hardware import Capability, Survey, Throttle, _gaudi as gaudi
from joulery.metering import Meter
from joulery.metering._measurement import Flag
from support.hlml import IS_LOST, NOT_SUPPORTED, UNKNOWN, emulate_cards, require_binding

ALL = frozenset(Capability) - {Capability.CLOCK_LOCK}


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Function that makes a machine with so many cards."""
    return lambda count=1: emulate_cards(monkeypatch, tmp_path, count)


@pytest.fixture
def card(make):
    """The emulated card of a machine with one."""
    return make().cards[0]


@pytest.fixture
def device(card):
    """What Joulery makes of it."""
    (device,) = gaudi.survey(VirtualClock(10.0)).devices
    return device


def test_a_card_offers_all_but_clocks(device):
    """HLML states clocks and sets none."""
    assert device.capabilities == ALL


def test_values_are_in_si_units(card, device):
    """HLML counts in thousandths."""
    before = device.read_energy()
    card.millijoules += 250_000
    after = device.read_energy()
    assert after.joules - before.joules == 250.0
    assert after.read_at_seconds == 10.0
    assert device.read_power() == 412.0
    limits = device.power_limits()
    assert (limits.min_watts, limits.max_watts) == (450.0, 850.0)
    assert (limits.default_watts, limits.current_watts) == (850.0, 850.0)


def test_identity_comes_from_the_card(device):
    """The identifier survives a new start of the machine, the position does not."""
    assert device.info.id == "01P4-HL3090A0-18-U4T286-22-05-00"
    assert device.info.name == "Intel Gaudi HL-325L"
    assert (device.info.vendor, device.info.index) == ("gaudi", 0)
    assert device.info.max_watts == 850.0


def test_identity_falls_back_to_serial_and_position(make):
    """A card without a name has to have an id all the same."""
    state = make(2)
    for card in state.cards[:2]:
        card.fail(NOT_SUPPORTED, "uuid", "name")
    state.cards[1].fail(NOT_SUPPORTED, "serial")
    devices = gaudi.survey().devices
    assert {device.info.id for device in devices} == {"AN0", "gaudi:0"}
    assert devices[0].info.name == "Intel Gaudi 0"


def test_cards_are_in_the_order_of_their_modules(make):
    """A run-time gives local rank N the module N; the library counts otherwise."""
    make(3)
    devices = gaudi.survey().devices
    assert [device.info.index for device in devices] == [0, 1, 2]
    assert [device.info.id[-1] for device in devices] == ["2", "1", "0"]


def test_modules_that_are_not_distinct_are_not_used(make):
    """Two cards would both be gaudi:0."""
    state = make(2)
    state.cards[0].module = 0
    assert [device.info.id[-1] for device in gaudi.survey().devices] == ["0", "1"]


def test_a_card_without_a_module_leaves_the_others_theirs(make):
    """A lost card would have the next one take its place in a job's list."""
    make(3).cards[2].fail(NOT_SUPPORTED, "module")
    assert [device.info.id[-1] for device in gaudi.survey().devices] == ["2", "1", "0"]


@pytest.mark.parametrize(
    ("function", "capability"),
    [
        ("energy", Capability.ENERGY),
        ("power", Capability.POWER),
        ("range", Capability.POWER_LIMIT),
        ("default", Capability.POWER_LIMIT),
        ("limit", Capability.POWER_LIMIT),
    ],
)
def test_what_fails_is_not_claimed(card, function, capability):
    """A capability is claimed only after it was tried."""
    card.fail(NOT_SUPPORTED, function)
    (device,) = gaudi.survey().devices
    assert device.capabilities == ALL - {capability}


@pytest.mark.parametrize("field", ["millijoules", "milliwatts"])
def test_a_zero_is_no_reading(card, field):
    """A missing sensor would yield energy of zero."""
    setattr(card, field, 0)
    (device,) = gaudi.survey().devices
    assert len(device.capabilities) == len(ALL) - 1


def test_an_older_binding_has_no_limits(card, monkeypatch):
    """Releases before 1.22 lack functions, early ones state another load: no error may escape."""
    import pyhlml

    monkeypatch.delattr(pyhlml, "hlmlDeviceGetPowerManagementLimitConstraints")
    monkeypatch.setattr(pyhlml, "hlmlDeviceGetUtilizationRates", lambda handle: 87)
    (device,) = gaudi.survey().devices
    assert device.capabilities == ALL - {Capability.POWER_LIMIT}
    assert device.telemetry().utilisation == 0.87


def test_a_limit_is_set_and_read_back(card, device):
    """500 sent where milliwatts are expected would stop the card."""
    device.set_power_limit(500.0)
    assert card.limit == 500_000
    assert device.power_limits().current_watts == 500.0


@pytest.mark.parametrize("watts", [449.0, 851.0, float("nan")])
def test_limits_outside_the_range_are_refused(card, device, watts):
    """The driver must never see a nonsense limit."""
    with pytest.raises(InvalidValueError):
        device.set_power_limit(watts)
    assert card.limit == 850_000


def test_a_limit_that_does_not_take_is_reported(card, device):
    """Firmware in secure mode keeps its limit; silence would fake a saving."""
    card.keeps_limit = 1
    with pytest.raises(DeviceError, match="it holds 850 W"):
        device.set_power_limit(500.0)


@pytest.mark.parametrize(("user", "error"), [(0, DeviceError), (1000, MissingRightsError)])
def test_a_refused_limit_is_a_matter_of_rights_without_root(card, device, monkeypatch, user, error):
    """HLML has no code for a missing right."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    card.fail(UNKNOWN, "set")
    with pytest.raises(error, match="code 49"):
        device.set_power_limit(500.0)


def test_telemetry_is_in_si_units(card, device):
    """Percent and megahertz are the library's business."""
    card.throttles = 1
    telemetry = device.telemetry()
    assert telemetry.utilisation == 0.87
    assert telemetry.temperature_celsius == 61.0
    assert telemetry.clock_hertz == 1.6e9
    assert telemetry.throttles == {Throttle.POWER_CAP}


def test_telemetry_survives_missing_parts(card, device):
    """One sensor that fails, or states nonsense, must not hide the others."""
    card.fail(NOT_SUPPORTED, "throttles", "clock")
    card.percent, card.celsius = 0xFFFF, 0xFFFF
    telemetry = device.telemetry()
    assert telemetry.throttles is None
    assert telemetry.clock_hertz is None
    assert telemetry.utilisation is None
    assert telemetry.temperature_celsius is None


def test_a_lost_card_is_said_to_be_lost(card, device):
    """A meter that tries again and again keeps a dead card for alive."""
    card.fail(IS_LOST)
    for attempt in (device.read_energy, device.read_power, lambda: device.set_power_limit(500.0)):
        with pytest.raises(DeviceLostError, match="AipIsLost"):
            attempt()


@pytest.mark.parametrize("functions", [("handle",), ()], ids=["no handle", "no function"])
def test_a_card_that_is_lost_from_the_start_is_an_obstacle(make, functions):
    """It must not hide the other cards, nor its own loss."""
    make(2).cards[0].fail(IS_LOST, *functions)
    survey = gaudi.survey()
    assert [device.info.id[-1] for device in survey.devices] == ["1"]
    (obstacle,) = survey.obstacles
    assert "AipIsLost" in obstacle.reason


def test_a_counter_that_is_reset_sets_a_flag(card):
    """The driver was loaded anew: the difference is negative, and no energy of anything."""
    clock, reset_seconds = VirtualClock(), 5.03

    def count():
        millijoules = round(card.milliwatts * clock.now())
        is_reset = clock.now() > reset_seconds
        card.millijoules = 1 + millijoules - is_reset * round(card.milliwatts * reset_seconds)

    for step in range(200):
        clock.call_at(0.05 * step, count)
    with Meter(gaudi.survey(clock).devices, clock=clock) as meter:
        with meter.window() as window:
            clock.sleep(9.0)
        assert Flag.RESET in window.flags
        low, high = window.measurement.interval_joules
        assert low <= 412.0 * 9.0 <= high


def test_a_second_survey_works(card):
    """HLML refuses to be initialised again."""
    assert len(gaudi.survey().devices) == len(gaudi.survey().devices) == 1


def test_a_library_without_driver_is_an_obstacle_only_where_there_are_cards(card, make, tmp_path):
    """No card, no complaint; with one, the reader must learn why it is missing."""
    make().init_code = 9
    assert gaudi.survey(driver=tmp_path / "none") == Survey()
    (obstacle,) = gaudi.survey(driver=tmp_path).obstacles
    assert "DriverNotLoaded" in obstacle.reason


def test_a_missing_binding_names_the_extra(tmp_path, monkeypatch):
    """The usual case on a machine with cards."""
    monkeypatch.setitem(sys.modules, "pyhlml", None)
    assert gaudi.survey(driver=tmp_path / "none") == Survey()
    (obstacle,) = gaudi.survey(driver=tmp_path).obstacles
    assert "joulery[gaudi]" in obstacle.remedy


def test_a_missing_library_is_not_announced_by_the_binding(tmp_path, capfd):
    """The binding prints to stdout, where a document of ours belongs."""
    require_binding()
    (obstacle,) = gaudi.survey(driver=tmp_path, library=str(tmp_path / "libhlml.so")).obstacles
    assert "libhlml.so" in obstacle.reason
    assert capfd.readouterr() == ("", "")


def test_the_binding_does_not_warn_of_itself():
    """With warnings as errors there would be no cards; without, every command would warn."""
    require_binding()
    code = (
        "import joulery.hardware._gaudi as gaudi, sys;"
        "gaudi._load_binding(sys.argv[1]);"
        "assert 'pyhlml' in sys.modules"
    )
    library = "libc.so.6"  # any that loads: nothing of it is called
    command = [sys.executable, "-W", "error", "-c", code, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
