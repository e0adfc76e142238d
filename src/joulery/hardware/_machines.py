"""Kinds of machines that are not NVIDIA servers: what is measured on them, and what is not.

The table is also that of ``docs/reference/hardware.md``; a test compares them.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.files import system_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTEL, _GOOGLE = "0x8086", "0x1ae0"  # PCI ids of the vendors
# PCI ids of TPUs v3, v4, v5p, v5e, v6e and 7x (jax/_src/hardware_utils.py): network cards of
# Google's cloud have the same vendor, and newer TPUs no driver of the class `accel`.
_TPUS = {"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
_PCI, _PRODUCT = "sys/bus/pci/devices/*", ("sys_vendor", "product_name")
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_POD = "KUBERNETES_SERVICE_HOST"  # set in every pod, where containerd leaves no file
# Vendor and product of virtual machines, as systemd-detect-virt knows them: only CPUs of x86 have
# the flag `hypervisor`.
_VIRTUAL = (
    *("Amazon EC2", "Google Google Compute Engine", "Microsoft Corporation Virtual Machine"),
    *("QEMU", "KVM", "OpenStack", "VMware", "Xen"),
)


@dataclass(frozen=True, slots=True)
class MachineKind:
    """What works on one kind of machine or part.

    Attributes:
        name: The kind.
        measured: Figures by counters and sensors.
        estimated: Figures that are guessed from load and data sheet, marked assumed.
        impossible: What Joulery cannot do there today.
        works: What it can do all the same.
    """

    name: str
    measured: str
    estimated: str
    impossible: str
    works: str


_NODE = "a meter of the node, a plug-in"
MACHINES = (
    MachineKind(
        "Intel CPU",
        "packages and DRAM, by powercap, with the right to read it",
        "the CPU by its load and TDP, ± 50 %, without that right",
        "limits of CPUs",
        "everything else",
    ),
    MachineKind(
        "AMD CPU",
        "packages, by powercap, with the right to read it",
        "the CPU by its load and TDP, ± 50 %, without that right",
        "DRAM; limits of CPUs",
        "everything else",
    ),
    MachineKind(
        "Arm CPU",
        "nothing: there is no powercap",
        "the CPU by its load and TDP, ± 50 %",
        "DRAM; limits of CPUs",
        f"GPUs, {_NODE}",
    ),
    MachineKind(
        "AMD GPU",
        "energy from MI200 on, power of others added up; limits and clocks (`joulery[amd]`)",
        "nothing",
        "error bars for its sensor, which nobody has catalogued",
        "everything else",
    ),
    MachineKind(
        "Intel GPU",
        "discrete boards, by the counter of the i915 or xe driver",
        "nothing",
        "integrated GPUs apart from their CPU; limits and clocks",
        f"CPUs, {_NODE}",
    ),
    MachineKind(
        "NVIDIA Jetson",
        "power of its rails (JetPack 5 and newer): the module, GPU, CPU, memory, as it has them",
        "the CPU by its load and TDP, ± 50 %, where it shares a rail with the GPU",
        "`nvpmodel` as a limit; the rest of an AGX module, which has no rail for all",
        f"everything else; {_NODE}",
    ),
    MachineKind(
        "Apple",
        "nothing",
        "nothing: there is no `/proc`",
        "all that measures or sets; macOS has not been tried",
        "what needs no hardware: predict, recommend, plan, simulate, reports",
    ),
    MachineKind(
        "Intel Gaudi",
        "energy and power of the cards by HLML; limits where the firmware takes them "
        "(`joulery[gaudi]`)",
        "nothing",
        "clocks; error bars for its sensor, which nobody has catalogued",
        "everything else; `predict` knows Gaudi 2 and 3",
    ),
    MachineKind(
        "Google TPU",
        "nothing",
        "nothing",
        "energy and limits of the chips: `tpu-info` and libtpu state load and memory, no power",
        f"CPUs, {_NODE}; `predict` with a device file of yours",
    ),
    MachineKind(
        "AWS Trainium",
        "nothing",
        "nothing",
        "energy and limits of the chips: their driver states power once a minute, as a percentage "
        "of a maximum that AWS does not publish",
        f"CPUs, {_NODE}; `predict` with a device file of yours",
    ),
    MachineKind(
        "laptop",
        "an NVIDIA GPU, CPUs by powercap",
        "nothing more",
        "limits of most laptop GPUs, whose drivers state none; the battery is not read",
        "everything else; clocks where they can be locked",
    ),
    MachineKind(
        "WSL",
        "NVIDIA GPUs as far as Windows passes NVML on",
        "the CPU by its load and TDP, ± 50 %",
        "limits and clocks, which Windows owns",
        "measuring, advice without limits (`dry_run`)",
    ),
    MachineKind(
        "container",
        "GPUs that are passed in with the `utility` capability",
        "the CPU by its load and TDP, ± 50 %: most runtimes hide powercap",
        "limits and clocks, unless it is privileged or has the socket of a governor",
        "everything else",
    ),
    MachineKind(
        "virtual machine",
        "whole GPUs that are passed through",
        "the CPU by its load and TDP, ± 50 %: clouds hide its counters",
        "shares of a GPU (vGPU); limits that the host owns; the rest of the node",
        "everything else",
    ),
)


def find_machines(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> list[MachineKind]:
    """Kinds of machines and parts that this one shows, in the order of the table.

    Args:
        root: Folder that holds ``proc``, ``sys`` and ``dev``.
        environ: Variables, among which a pod has its own; by default those of this process.
    """
    cpuinfo = system_text(root / "proc/cpuinfo")
    model = system_text(root / "proc/device-tree/model")
    vendors = {system_text(path) for path in root.glob("sys/class/drm/card*/device/vendor")}
    accelerators = {system_text(path) for path in root.glob("sys/class/accel/accel*/device/vendor")}
    parts = {
        (system_text(path / "vendor"), system_text(path / "device")) for path in root.glob(_PCI)
    }
    product = " ".join(system_text(root / "sys/class/dmi/id" / name) for name in _PRODUCT)
    signs = {
        "Intel CPU": "GenuineIntel" in cpuinfo,
        "AMD CPU": "AuthenticAMD" in cpuinfo,
        "Arm CPU": "CPU implementer" in cpuinfo,
        "AMD GPU": (root / "dev/kfd").exists(),
        "Intel GPU": _INTEL in vendors,
        "NVIDIA Jetson": "Jetson" in model or (root / "etc/nv_tegra_release").exists(),
        "Apple": platform.system() == "Darwin",
        "Intel Gaudi": any(root.glob("sys/module/habanalabs")),
        "Google TPU": _GOOGLE in accelerators or any((_GOOGLE, tpu) in parts for tpu in _TPUS),
        "AWS Trainium": any(root.glob("dev/neuron[0-9]*")),
        "laptop": any(root.glob("sys/class/power_supply/BAT*")),
        "WSL": "microsoft" in system_text(root / "proc/version").lower(),
        "container": any((root / name).exists() for name in _CONTAINER_FILES)
        or _POD in (os.environ if environ is None else environ),
        "virtual machine": " hypervisor" in cpuinfo
        or ("CPU implementer" in cpuinfo and _is_virtual(product)),
    }
    return [machine for machine in MACHINES if signs[machine.name]]


def _is_virtual(product: str) -> bool:
    """Whether a product of a vendor is a virtual machine: EC2 also has whole machines."""
    return product.startswith(_VIRTUAL) and ".metal" not in product
