"""Kinds of machines: how they are recognised, and the table of the page."""

from pathlib import Path

import pytest

from joulery.hardware import MACHINES, find_machines

ROOT = Path(__file__).parents[3]
SIGNS = {
    "Intel CPU": ("proc/cpuinfo", "vendor_id\t: GenuineIntel\n"),
    "AMD CPU": ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\n"),
    "Arm CPU": ("proc/cpuinfo", "CPU implementer\t: 0x41\n"),
    "AMD GPU": ("dev/kfd", ""),
    "Intel GPU": ("sys/class/drm/card0/device/vendor", "0x8086\n"),
    "NVIDIA Jetson": ("proc/device-tree/model", "NVIDIA Jetson AGX Orin\0"),
    "Intel Gaudi": ("sys/module/habanalabs/version", "1"),
    "Google TPU": ("sys/class/accel/accel0/device/vendor", "0x1ae0\n"),
    "AWS Trainium": ("dev/neuron0", ""),
    "laptop": ("sys/class/power_supply/BAT0/type", "Battery\n"),
    "WSL": ("proc/version", "Linux version 5.15.0-microsoft-standard-WSL2\n"),
    "container": ("run/.containerenv", ""),
    "virtual machine": ("proc/cpuinfo", "flags\t: fpu hypervisor lahf_lm\n"),
}


@pytest.mark.parametrize("name", SIGNS)
def test_kinds_are_recognised(tmp_path, name):
    """The doctor says nothing about the kind of machine that it runs on."""
    file, text = SIGNS[name]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text, "utf-8")
    assert [machine.name for machine in find_machines(tmp_path)] == [name]


def test_a_mac_is_recognised(tmp_path, monkeypatch):
    """Somebody with a Mac is not told that nothing is measured there."""
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert [machine.name for machine in find_machines(tmp_path)] == ["Apple"]


def test_an_empty_machine_is_of_no_kind(tmp_path):
    """A plain server is told about limitations that it does not have."""
    assert find_machines(tmp_path) == []
    assert {*SIGNS, "Apple"} == {machine.name for machine in MACHINES}


def test_the_page_has_the_same_table():
    """Page and doctor contradict each other."""
    page = (ROOT / "docs/reference/hardware.md").read_text("utf-8")
    for machine in MACHINES:
        cells = (machine.name, machine.measured, machine.estimated, machine.impossible)
        assert f"| {' | '.join(cells)} | {machine.works} |" in page
