"""The accelerators of a machine that this process may use.

In order: the run-time's own variable (``CUDA_VISIBLE_DEVICES``; ``ROCR_VISIBLE_DEVICES`` and
``HIP_VISIBLE_DEVICES``; ``HABANA_VISIBLE_MODULES``), else the scheduler's (Slurm) or the
container's (``NVIDIA_VISIBLE_DEVICES``, as Kubernetes' device plug-in sets it); and in any case the
device cgroup, where the kernel shows one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.hardware._device import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.hardware._device import Device

DEVICE_CGROUP = Path("/sys/fs/cgroup/devices/devices.list")
# Global indices of the boards that Slurm gave to the step or job, as nvidia-smi counts them.
_SLURM_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
_GAUDI_VARIABLE = "HABANA_VISIBLE_MODULES"
_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)
_READABLE = re.compile(r"^\s*([ac]) ([*\d]+):([*\d]+) \w*r", re.MULTILINE)
_NVIDIA_MAJOR = "195"
_CONTROL_MINORS = {"254", "255"}


def visible_devices(
    devices: Sequence[Device],
    environ: Mapping[str, str] | None = None,
    cgroup: Path = DEVICE_CGROUP,
) -> list[Device]:
    """``devices`` without the accelerators that are hidden from this process."""
    environ = os.environ if environ is None else environ
    hidden = _hidden_nvidia(devices, environ, cgroup) | _hidden_amd(devices, environ)
    hidden |= _hidden_gaudi(devices, environ)
    return [device for device in devices if device.info.id not in hidden]


def _hidden_nvidia(devices: Sequence[Device], environ: Mapping[str, str], cgroup: Path) -> set[str]:
    boards, instances = _accelerators(devices, "nvidia")
    if not boards:
        return set()
    listed = cuda_visible_ids(_nvidia_list(environ), boards, instances)
    permitted = _permitted_minors(cgroup)
    if permitted is not None:
        listed = tuple(
            name for name in listed if name not in boards or str(boards.index(name)) in permitted
        )
    visible = set(listed)
    # A board that is visible as a whole includes its instances; they are listed for the doctor.
    for device in devices:
        if device.info.parent in visible:
            visible.add(device.info.id)
    return {*boards, *instances} - visible


def _nvidia_list(environ: Mapping[str, str]) -> str | None:
    """The list that applies, in CUDA's notation; None when nothing restricts it."""
    if _CUDA_VARIABLE in environ:
        return environ[_CUDA_VARIABLE]
    for name in _SLURM_VARIABLES:
        if environ.get(name):
            return environ[name]
    container = environ.get(_CONTAINER_VARIABLE)
    if container is None or container == "all":
        return None
    return "" if container in ("void", "none", "") else container


def cuda_visible_ids(
    value: str | None, boards: Sequence[str], instances: Sequence[str] = ()
) -> tuple[str, ...]:
    """Ids of the devices that a process sees, in the order in which CUDA numbers them.

    The rules are those of the CUDA programming guide and of its run-time:

    - unset shows every board, an empty text none;
    - entries are all indices, or all UUIDs of boards (``GPU-…``), or all of MIG instances
      (``MIG-…``); the first entry decides, and the list ends at an entry of another kind;
    - a UUID may be cut short as long as it fits one device only;
    - the list ends before the first entry that is invalid, so ``0,2,-1,1`` shows 0 and 2;
    - a device named twice hides them all;
    - an index is read as ``strtoul`` does: ``1st`` is 1.

    Args:
        value: Value of ``CUDA_VISIBLE_DEVICES``; None when it is not set.
        boards: UUIDs of the boards in NVML's order, which is that of the PCI bus. CUDA counts
            the same way with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or where all boards are alike.
        instances: UUIDs of the MIG instances.

    Examples:
        >>> cuda_visible_ids("1,0", ["GPU-aa", "GPU-bb"])
        ('GPU-bb', 'GPU-aa')
    """
    if value is None:
        return tuple(boards)
    entries = value.split(",")
    first = entries[0].strip()
    if first.startswith("GPU-"):
        matches = _by_prefix(entries, boards, "GPU-")
    elif first.startswith("MIG-"):
        matches = _by_prefix(entries, instances, "MIG-")
    else:
        matches = _by_index(entries, boards)
    visible = tuple(matches)
    return visible if len(set(visible)) == len(visible) else ()


def _by_index(entries: Sequence[str], boards: Sequence[str]) -> Iterator[str]:
    for entry in entries:
        number = _NUMBER.match(entry)
        if number is None or int(number[1]) >= len(boards):
            return
        yield boards[int(number[1])]


def _by_prefix(entries: Sequence[str], ids: Sequence[str], kind: str) -> Iterator[str]:
    for entry in entries:
        prefix = entry.strip()
        matching = [identity for identity in ids if identity.startswith(prefix)]
        if not prefix.startswith(kind) or len(matching) != 1:
            return
        yield matching[0]


def _hidden_amd(devices: Sequence[Device], environ: Mapping[str, str]) -> set[str]:
    boards, _ = _accelerators(devices, "amd")
    visible = {boards[index] for index in rocm_visible_indices(environ, boards)}
    return set(boards) - visible


def rocm_visible_indices(environ: Mapping[str, str], uuids: Sequence[str]) -> tuple[int, ...]:
    """Positions in ``uuids`` of the GPUs that a process sees, in the order it counts them.

    ``ROCR_VISIBLE_DEVICES`` (positions or ``GPU-`` UUIDs) filters first, then
    ``HIP_VISIBLE_DEVICES`` counts within what is left; HIP reads ``CUDA_VISIBLE_DEVICES`` where
    the latter is not set. As in ROCm, a list ends at the first entry that names no GPU.

    Examples:
        >>> hidden = {"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}
        >>> rocm_visible_indices(hidden, "abcd")
        (1,)
    """
    runtime = _chosen(environ.get("ROCR_VISIBLE_DEVICES"), tuple(range(len(uuids))), uuids)
    hip = environ.get("HIP_VISIBLE_DEVICES", environ.get(_CUDA_VARIABLE))
    return _chosen(hip, runtime, uuids)


def _hidden_gaudi(devices: Sequence[Device], environ: Mapping[str, str]) -> set[str]:
    """Cards whose module is not in the list; none without a list of numbers, such as ``all``."""
    words = [word.strip() for word in environ.get(_GAUDI_VARIABLE, "").split(",")]
    modules = {int(word) for word in words if word.isdecimal()}
    gaudi = [device.info for device in devices if device.info.vendor == "gaudi"]
    return {info.id for info in gaudi if modules and info.index not in modules}


def _chosen(text: str | None, available: tuple[int, ...], uuids: Sequence[str]) -> tuple[int, ...]:
    if text is None:
        return available
    by_uuid = {_bare_uuid(uuids[index]): index for index in available}
    indices: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isdecimal():
            index = available[int(word)] if int(word) < len(available) else None
        else:
            index = by_uuid.get(_bare_uuid(word)) if word else None
        if index is None:
            break
        if index not in indices:
            indices.append(index)
    return tuple(indices)


def _bare_uuid(text: str) -> str:
    return text.strip().lower().removeprefix("gpu-").replace("-", "")


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
        text = cgroup.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    minors: set[str] = set()
    # Only what may be read: containers may make any device node (m), which opens none.
    for kind, major, minor in _READABLE.findall(text):
        if kind == "a" or (minor == "*" and major in ("*", _NVIDIA_MAJOR)):
            return None
        if major == _NVIDIA_MAJOR:
            minors.add(minor)
    return minors - _CONTROL_MINORS
