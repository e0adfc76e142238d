"""Discrete Intel GPUs and Jetson rails through hwmon, on a made-up sysfs."""

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, DeviceLostError
from joulery.hardware import DeviceKind, Survey, _hwmon as hwmon
from support.hwmon import IntelBoard, show_rails


def _survey(root):
    return hwmon.survey(VirtualClock(), root)


def test_boards_with_a_counter_are_found(tmp_path):
    """An integrated GPU or another vendor's board would count as an Intel board."""
    IntelBoard(tmp_path, "0000:00:02.0", "i915", counter="")  # integrated: within the CPU
    IntelBoard(tmp_path, "0000:01:00.0", "amdgpu")
    board = IntelBoard(tmp_path, "0000:03:00.0", "xe")
    IntelBoard(tmp_path, "0000:04:00.0", "xe", counter="energy2_input")
    board.count(7_500_000)
    first, second = _survey(tmp_path).devices
    assert (first.info.id, first.info.index) == ("intel:0000:03:00.0", 0)
    assert first.read_energy().joules == 7.5
    assert (second.info.id, second.info.index) == ("intel:0000:04:00.0", 1)
    assert "energy2" in second.provenance.source


def test_a_machine_without_them_has_none(tmp_path):
    """A machine without the folder would be an obstacle for everybody."""
    assert _survey(tmp_path) == Survey()


def test_an_unreadable_counter_is_an_obstacle(tmp_path):
    """Nonsense in a file takes all other devices with it, or becomes energy."""
    IntelBoard(tmp_path, "0000:03:00.0", "xe").count("nonsense")
    survey = _survey(tmp_path)
    assert survey.devices == ()
    assert "0000:03:00.0" in survey.obstacles[0].subject


def test_a_board_that_vanishes_is_lost(tmp_path):
    """A reader would meet an error that is not ours."""
    board = IntelBoard(tmp_path, "0000:03:00.0", "xe")
    (device,) = _survey(tmp_path).devices
    board.count("?")
    with pytest.raises(DeviceError):
        device.read_energy()
    board.counter.unlink()
    with pytest.raises(DeviceLostError, match="no counter or sensor any more"):
        device.read_energy()


def test_rails_of_a_jetson_are_devices(tmp_path):
    """A rail counts as another part of the machine, or one that feeds no device counts at all."""
    show_rails(tmp_path, VDD_IN=(5032, 1600), VDD_CPU_GPU_CV=(5032, -8), VDD_SOC=(5032, 400))
    (tmp_path / "hwmon" / "hwmon1").mkdir()  # another driver's, without a name
    module, cores = _survey(tmp_path).devices
    assert (module.info.id, module.info.kind) == ("jetson:VDD_IN", DeviceKind.NODE)
    assert module.read_power() == pytest.approx(8.0512)
    assert (cores.info.kind, cores.read_power()) == (DeviceKind.GPU, 0.0)


def test_a_rail_without_a_current_is_an_obstacle(tmp_path):
    """A machine whose sensor is half there looks like one without."""
    show_rails(tmp_path, GPU=(5000, 100))
    (tmp_path / "hwmon" / "hwmon0" / "curr1_input").unlink()
    survey = _survey(tmp_path)
    assert survey.devices == ()
    assert survey.obstacles[0].subject == "Jetson GPU"
