"""Whether a caller has a device: runs on it, has its device file open, or was allocated it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from joulery.errors import JouleryError
from joulery.hardware.device import Capability, TelemetrySource

if TYPE_CHECKING:
    from joulery.governor.peer import Peer
    from joulery.hardware.device import Device

PROC = Path("/proc")
OPEN = "open"
SLURM = "slurm"
# Bounds on the work that a caller with many processes or files can cause.
_MAX_DEPTH = 64
_MAX_PROCESSES = 64
_MAX_FILES = 4096
_SLURM_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def owns(peer: Peer, device: Device, how: str, proc: Path = PROC) -> bool:
    """Whether ``peer`` has ``device``.

    Args:
        peer: Who asks.
        device: What for.
        how: :data:`OPEN`, or :data:`SLURM` to also believe the allocation in the environment of a
            process inside a Slurm job of the same user.
        proc: Where the kernel shows processes.
    """
    return (
        any(_descends(pid, peer.pid, proc) for pid in _users_of(device))
        or _has_open(peer.pid, device.info.id, proc)
        or (how == SLURM and _allocated(peer, device.info.index, proc))
    )


def _users_of(device: Device) -> tuple[int, ...]:
    """Processes that the driver says run on the device."""
    if Capability.TELEMETRY not in device.capabilities:
        return ()
    try:
        return cast("TelemetrySource", device).telemetry().process_ids or ()
    except JouleryError:
        return ()


def _descends(pid: int, ancestor: int, proc: Path) -> bool:
    for _ in range(_MAX_DEPTH):
        if pid == ancestor:
            return True
        try:
            # The command's name, in parentheses, may itself hold spaces and parentheses.
            fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2]
            pid = int(fields.split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _has_open(pid: int, device_id: str, proc: Path) -> bool:
    """Whether a process or one below it has the board's device file open."""
    file = _device_file(device_id, proc)
    if file is None:
        return False
    queue, seen, files = [pid], 0, 0
    while queue and seen < _MAX_PROCESSES:
        folder = proc / str(queue.pop())
        seen += 1
        with suppress(OSError), os.scandir(folder / "fd") as entries:
            for entry in entries:
                files += 1
                if files > _MAX_FILES:
                    return False
                with suppress(OSError):
                    if str(Path(entry.path).readlink()) == file:
                        return True
        for children in islice(folder.glob("task/*/children"), _MAX_PROCESSES):
            with suppress(OSError, ValueError):
                queue += map(int, children.read_text().split())
    return False


def _device_file(device_id: str, proc: Path) -> str | None:
    """The file of an NVIDIA board; its number need not be the board's index."""
    for information in proc.glob("driver/nvidia/gpus/*/information"):
        with suppress(OSError):
            text = information.read_text(errors="replace")
            minor = re.search(r"Device Minor:\s*(\d+)", text)
            if minor and device_id in text.split():
                return f"/dev/nvidia{minor[1]}"
    return None


def _allocated(peer: Peer, index: int, proc: Path) -> bool:
    """What Slurm wrote into the job's environment; a user could have changed it since."""
    folder = proc / str(peer.pid)
    try:
        # Only slurmd, as root, can put a process here.
        in_job = re.search(r"slurm.*job_\d+", (folder / "cgroup").read_text(errors="replace"))
        environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    variables = dict(entry.partition("=")[::2] for entry in environment)
    named = next(filter(None, map(variables.get, _SLURM_VARIABLES)), "")
    ranges = [re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part) for part in named.split(",")]
    return bool(in_job) and any(
        found and int(found[1]) <= index <= int(found[2] or found[1]) for found in ranges
    )
