"""AMD GPUs over bindings of several generations."""

import sys
from types import SimpleNamespace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import (
    DeviceError,
    InvalidValueError,
    MissingHardwareError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.hardware import Capability, Survey, amd
from joulery.hardware.amd._device import load_binding, number
from support.amdsmi_module import NO_PERMISSION, NOT_SUPPORTED, EmulatedAmdGpu, EmulatedAmdSmi

FLAVOURS = {
    "rocm7": {"modern": True},
    "rocm5": {"modern": False},
    "host": {"modern": True, "watts_caps": True},
}


@pytest.fixture(params=FLAVOURS.values(), ids=FLAVOURS)
def binding(request):
    """Each flavour of the binding, with one board."""
    return EmulatedAmdSmi([EmulatedAmdGpu()], **request.param)


@pytest.fixture
def gpu(binding):
    """The board that the binding shows."""
    (found,) = amd.survey(VirtualClock(10.0), binding).devices
    return found


def test_every_flavour_offers_everything(gpu):
    """Names and units that differ must not cost a capability."""
    assert gpu.capabilities == frozenset(Capability)


def test_energy_is_in_joules(binding, gpu):
    """Accumulator times resolution is microjoules, whatever the accumulator is called."""
    before = gpu.read_energy().joules
    binding.boards[0].joules += 250.0
    assert gpu.read_energy().joules - before == pytest.approx(250.0, abs=1e-4)


def test_power_is_in_watts(gpu):
    """An all-ones field or "N/A" must give way to the field that holds the power."""
    assert gpu.read_power() == 412.0


def test_power_of_a_virtualisation_host_is_scaled():
    """Hosts state microwatts where bare metal states watts."""
    binding = EmulatedAmdSmi([EmulatedAmdGpu(watts=412e6)])
    (gpu,) = amd.survey(VirtualClock(), binding).devices
    assert gpu.read_power() == pytest.approx(412.0)


def test_limits_are_in_watts(gpu):
    """Caps come in microwatts or watts, and the default under two names."""
    limits = gpu.power_limits()
    assert (limits.min_watts, limits.max_watts) == (300.0, 750.0)
    assert (limits.default_watts, limits.current_watts) == (750.0, 750.0)


def test_setting_a_limit_uses_the_unit_of_reading(binding, gpu):
    """500 sent where microwatts are expected would cap the board at nothing."""
    gpu.set_power_limit(500.0)
    assert binding.boards[0].cap_watts == 500.0


@pytest.mark.parametrize("watts", [299.0, 751.0, 0.0, float("nan")])
def test_limits_outside_the_range_are_refused(binding, gpu, watts):
    """The driver must never see a nonsense cap."""
    with pytest.raises(InvalidValueError):
        gpu.set_power_limit(watts)
    assert binding.boards[0].cap_watts == 750.0


def test_a_zero_cap_is_refused_where_the_minimum_is_zero():
    """Zero means "default" to the driver, the opposite of what was asked."""
    (gpu,) = amd.survey(VirtualClock(), EmulatedAmdSmi([EmulatedAmdGpu(min_watts=0.0)])).devices
    with pytest.raises(InvalidValueError):
        gpu.set_power_limit(0.0)


def test_a_cap_that_does_not_take_is_reported(binding, gpu, monkeypatch):
    """Silently keeping the old cap would fake a saving."""
    monkeypatch.setattr(binding, "amdsmi_set_power_cap", lambda *arguments: None, raising=False)
    with pytest.raises(DeviceError, match="it holds 750 W"):
        gpu.set_power_limit(500.0)


def test_clocks_are_locked_in_megahertz(binding, gpu):
    """The list is in hertz, the call in megahertz."""
    assert gpu.supported_clocks() == (500e6, 1200e6, 2100e6)
    gpu.lock_clock(1200e6)
    assert binding.boards[0].locked_megahertz == 1200
    gpu.unlock_clock()
    assert binding.boards[0].locked_megahertz is None


def test_telemetry_speaks_si(gpu):
    """Percent, megahertz and millidegrees are the binding's business only."""
    found = gpu.telemetry()
    assert found.utilisation == pytest.approx(0.87)
    assert found.temperature_celsius == 61.0
    assert found.clock_hertz == 2100e6
    assert found.process_ids == (4242,)


def test_telemetry_survives_missing_parts(binding):
    """One sensor that fails must not hide the others."""
    binding.codes = {"amdsmi_get_gpu_activity": NOT_SUPPORTED, "amdsmi_get_temp_metric": 8}
    (gpu,) = amd.survey(VirtualClock(), binding).devices
    found = gpu.telemetry()
    assert found.utilisation is None
    assert found.temperature_celsius is None
    assert found.clock_hertz == 2100e6


def test_identity_comes_from_the_board(gpu):
    """The UUID survives reboots, the position does not."""
    assert gpu.info.id == "00ff74a1-0000-1000-8000-000000000001"
    assert gpu.info.name.startswith("AMD Instinct")
    assert gpu.info.max_watts == 750.0


def test_identity_falls_back_to_the_position():
    """Guests may not see UUIDs; the board still needs an id."""
    codes = dict.fromkeys(("amdsmi_get_gpu_device_uuid", "amdsmi_get_gpu_asic_info"), NOT_SUPPORTED)
    found = amd.survey(VirtualClock(), EmulatedAmdSmi([EmulatedAmdGpu()] * 2, codes=codes)).devices
    assert [gpu.info.id for gpu in found] == ["amd:0", "amd:1"]
    assert found[1].info.name == "AMD GPU 1"


@pytest.mark.parametrize(
    ("function", "capability"),
    [
        ("amdsmi_get_energy_count", Capability.ENERGY),
        ("amdsmi_get_power_info", Capability.POWER),
        ("amdsmi_get_power_cap_info", Capability.POWER_LIMIT),
        ("amdsmi_get_clk_freq", Capability.CLOCK_LOCK),
    ],
)
def test_what_fails_is_not_claimed(function, capability):
    """A capability is claimed only after it was tried."""
    (gpu,) = amd.survey(VirtualClock(), EmulatedAmdSmi(codes={function: NOT_SUPPORTED})).devices
    assert gpu.capabilities == frozenset(Capability) - {capability}


def test_absent_energy_is_unknown_and_not_zero(monkeypatch):
    """A board that answers "N/A" has no counter."""
    binding = EmulatedAmdSmi()
    monkeypatch.setattr(
        binding,
        "amdsmi_get_energy_count",
        lambda gpu: {"energy_accumulator": "N/A", "counter_resolution": "N/A", "timestamp": 1},
        raising=False,
    )
    (gpu,) = amd.survey(VirtualClock(), binding).devices
    assert Capability.ENERGY not in gpu.capabilities
    with pytest.raises(UnsupportedError):
        gpu.read_energy()


def test_refused_calls_are_a_matter_of_rights(binding, gpu):
    """Exit code 3 and the way out, not a vendor's stack trace."""
    binding.codes = {"amdsmi_set_power_cap": NO_PERMISSION}
    with pytest.raises(MissingRightsError, match="root"):
        gpu.set_power_limit(500.0)


def test_other_failures_are_device_errors(binding, gpu):
    """A time-out of the driver is worth another try."""
    binding.codes = {"amdsmi_get_energy_count": 8}
    with pytest.raises(DeviceError, match="Error code: 8"):
        gpu.read_energy()


def test_a_function_missing_from_the_binding_is_unsupported(binding, gpu):
    """Old bindings lack functions; AttributeError must not escape."""
    binding.amdsmi_get_power_info = None
    with pytest.raises(UnsupportedError, match="amdsmi_get_power_info"):
        gpu.read_power()


def test_readings_are_dated_whatever_moment_the_stamps_count_from():
    """The first reading may be old; a fresher one corrects the offset."""
    reply = {"energy_accumulator": 1, "counter_resolution": 1.0}
    binding = SimpleNamespace(amdsmi_get_energy_count=lambda handle: reply)
    clock = VirtualClock()
    gpu = amd.AmdGpu(binding, None, 0, clock)
    seen = []
    for stamp_seconds, now in ((1000.0, 5.09), (1000.1, 5.11), (1000.1, 5.15)):
        reply["timestamp"] = stamp_seconds * 1e9
        clock.sleep(now - clock.now())
        seen.append(gpu.read_energy().refreshed_at_seconds)
    assert seen == pytest.approx([5.09, 5.11, 5.11])


def test_readings_carry_their_refresh(binding, gpu):
    """Meters extrapolate from the refresh to the moment of reading."""
    reading = gpu.read_energy()
    assert reading.read_at_seconds == 10.0
    assert reading.refreshed_at_seconds == pytest.approx(10.0)


@pytest.mark.parametrize("function", ["amdsmi_init", "amdsmi_get_processor_handles"])
def test_a_failing_library_is_an_obstacle_only_where_there_is_a_gpu(function, tmp_path):
    """No AMD GPU, no complaint; with one, the reader must learn why it is missing."""
    kfd = tmp_path / "kfd"
    binding = EmulatedAmdSmi(codes={function: 34})
    assert amd.survey(VirtualClock(), binding, kfd) == Survey()
    kfd.touch()
    (obstacle,) = amd.survey(VirtualClock(), binding, kfd).obstacles
    assert "34" in obstacle.reason


def test_a_binding_that_would_print_is_not_imported(tmp_path, monkeypatch, capsys):
    """Without ROCm amdsmi prints and raises KeyError: neither may reach the user's output."""
    (tmp_path / "noisy_amdsmi.py").write_text('print("no ROCm!")\nraise KeyError("ROCM_PATH")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingHardwareError, match="libamd_smi"):
        load_binding("noisy_amdsmi")
    assert capsys.readouterr() == ("", "")


def test_a_missing_binding_is_not_here(monkeypatch):
    """Machines without amdsmi are the common case."""
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert amd.survey(VirtualClock()).devices == ()
    with pytest.raises(MissingHardwareError):
        load_binding()


@pytest.mark.parametrize("value", ["N/A", None, True, -1, 0xFFFF, 0xFFFFFFFF, float("nan"), []])
def test_absent_numbers_are_none(value):
    """None of the ways to say "unknown" may pass as a number."""
    assert number({"x": value}, "x") is None


def test_numbers_come_from_the_first_key_that_has_one():
    """Newer names come first, older ones stand in."""
    assert number({"new": "N/A", "old": 5}, "new", "old") == 5.0
    assert number("not a dictionary", "new") is None
