"""Which of a machine's accelerators this process may use, by what launchers and containers say.

In order: the run-time's own variable (``CUDA_VISIBLE_DEVICES``, ``ROCR_VISIBLE_DEVICES``,
``HIP_VISIBLE_DEVICES``), else the scheduler's (Slurm) or the container's
(``NVIDIA_VISIBLE_DEVICES``, as Kubernetes' device plug-in sets it); and in any case the device
cgroup, where the kernel shows one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.hardware.device import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.hardware.device import Device

DEVICE_CGROUP = Path("/sys/fs/cgroup/devices/devices.list")
# Global indices of the boards that Slurm gave to the step or job, as nvidia-smi counts them.
_SLURM_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_NVIDIA_MAJOR = "195"
_CONTROL_MINORS = {"254", "255"}


def visible_devices(
    devices: Sequence[Device],
    environ: Mapping[str, str] = os.environ,
    cgroup: Path = DEVICE_CGROUP,
) -> list[Device]:
    """``devices`` without the accelerators that are kept from this process."""
    hidden = _hidden_nvidia(devices, environ, cgroup) | _hidden_amd(devices, environ)
    return [device for device in devices if device.info.id not in hidden]


def _hidden_nvidia(devices: Sequence[Device], environ: Mapping[str, str], cgroup: Path) -> set[str]:
    from joulery.hardware.nvidia_visible import VARIABLE, visible_ids

    boards, instances = _accelerators(devices, "nvidia")
    if not boards:
        return set()
    named = visible_ids(_nvidia_list(environ, VARIABLE), boards, instances)
    permitted = _permitted_minors(cgroup)
    if permitted is not None:
        named = tuple(
            name for name in named if name not in boards or str(boards.index(name)) in permitted
        )
    visible = set(named)
    # A board that is visible as a whole includes its instances; they are listed for the doctor.
    for device in devices:
        if device.info.parent in visible:
            visible.add(device.info.id)
    return {*boards, *instances} - visible


def _nvidia_list(environ: Mapping[str, str], variable: str) -> str | None:
    """The list that applies, in the run-time's own notation; None when nothing restricts it."""
    if variable in environ:
        return environ[variable]
    for name in _SLURM_VARIABLES:
        if environ.get(name):
            return environ[name]
    container = environ.get(_CONTAINER_VARIABLE)
    if container is None or container == "all":
        return None
    return "" if container in ("void", "none", "") else container


def _hidden_amd(devices: Sequence[Device], environ: Mapping[str, str]) -> set[str]:
    from joulery.hardware.amd import visible_indices

    boards, _ = _accelerators(devices, "amd")
    visible = {boards[index] for index in visible_indices(environ, boards)}
    return set(boards) - visible


def _accelerators(devices: Sequence[Device], vendor: str) -> tuple[list[str], list[str]]:
    """Ids of a vendor's boards, in order, and of the parts of boards."""
    gpus = [
        device.info
        for device in devices
        if device.info.vendor == vendor and device.info.kind is DeviceKind.GPU
    ]
    boards = [info.id for info in gpus if info.parent is None]
    return boards, [info.id for info in gpus if info.parent is not None]


def _permitted_minors(cgroup: Path) -> set[str] | None:
    """Minor numbers of the NVIDIA devices that the cgroup allows; None when it allows all.

    Only version 1 of the device cgroup can be read; under version 2 the driver itself hides
    what may not be opened.
    """
    try:
        lines = cgroup.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    minors: set[str] = set()
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        numbers, _, access = rest.partition(" ")
        if "r" not in access:
            continue  # containers may make any device node (m), which opens none
        if kind == "a" or (kind == "c" and numbers in ("*:*", f"{_NVIDIA_MAJOR}:*")):
            return None
        major, _, minor = numbers.partition(":")
        if kind == "c" and major == _NVIDIA_MAJOR:
            minors.add(minor)
    return minors - _CONTROL_MINORS
