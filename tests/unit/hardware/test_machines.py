"""Kinds of machines: how they are recognised, and the table of the page."""

from pathlib import Path
from types import MappingProxyType

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


def _names(root, environ=MappingProxyType({})):
    return [machine.name for machine in find_machines(root, environ)]


@pytest.mark.parametrize("name", SIGNS)
def test_kinds_are_recognised(tmp_path, name):
    """The doctor says nothing about the kind of machine that it runs on."""
    file, text = SIGNS[name]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text, "utf-8")
    assert _names(tmp_path) == [name]


@pytest.mark.parametrize(
    ("ids", "is_tpu"), [("0x1ae0 0x006f", True), ("0x1ae0 0x0042", False), ("0x8086 0x006f", False)]
)
def test_a_tpu_is_told_from_a_network_card(tmp_path, ids, is_tpu):
    """A TPU behind vfio is not recognised, or every machine of Google's cloud passes for one."""
    part = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    part.mkdir(parents=True)
    for name, text in zip(("vendor", "device"), ids.split(), strict=True):
        (part / name).write_text(f"{text}\n", "utf-8")
    assert _names(tmp_path) == ["Google TPU"] * is_tpu


def test_a_pod_is_a_container(tmp_path):
    """A pod under containerd, which leaves no file, is told how a whole machine is opened."""
    assert _names(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == ["container"]


@pytest.mark.parametrize(
    ("vendor", "product", "is_virtual"),
    [
        ("Amazon EC2", "c7g.4xlarge", True),
        ("Amazon EC2", "c7g.metal", False),
        ("Google", "Google Compute Engine", True),
        ("Microsoft Corporation", "Virtual Machine", True),
        ("Microsoft Corporation", "Surface Pro X", False),
        ("QEMU", "KVM Virtual Machine", True),
        ("NVIDIA", "GB200 NVL", False),
    ],
)
def test_a_virtual_machine_on_arm_is_recognised(tmp_path, vendor, product, is_virtual):
    """Arm CPUs have no flag for it, so half of the cloud passes for bare metal."""
    texts = {
        "proc/cpuinfo": "CPU implementer\t: 0x41\n",
        "sys/class/dmi/id/sys_vendor": f"{vendor}\n",
        "sys/class/dmi/id/product_name": f"{product}\n",
    }
    for file, text in texts.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, "utf-8")
    assert _names(tmp_path) == ["Arm CPU", *["virtual machine"] * is_virtual]


def test_a_mac_is_recognised(tmp_path, monkeypatch):
    """Somebody with a Mac is not told that nothing is measured there."""
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert _names(tmp_path) == ["Apple"]


def test_an_empty_machine_is_of_no_kind(tmp_path):
    """A plain server is told about limitations that it does not have."""
    assert _names(tmp_path) == []
    assert {*SIGNS, "Apple"} == {machine.name for machine in MACHINES}


def test_the_page_has_the_same_table():
    """Page and doctor contradict each other."""
    page = (ROOT / "docs/reference/hardware.md").read_text("utf-8")
    for machine in MACHINES:
        cells = (machine.name, machine.measured, machine.estimated, machine.impossible)
        assert f"| {' | '.join(cells)} | {machine.works} |" in page
