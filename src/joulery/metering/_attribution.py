"""The devices of this job among those of the machine, so that every joule is counted once.

Launchers set which accelerators a process may use and its rank. Together the ranks of a node
measure each of its devices exactly once: accelerators are assigned in order of the local rank,
and everything else (CPU, memory, node) belongs to local rank 0.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError, MissingHardwareError, UnknownDeviceError
from joulery.files import lock
from joulery.hardware import DeviceKind, check_devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware import Device, DeviceInfo

# (local rank, ranks on this node) as torchrun, Open MPI, MVAPICH, Intel MPI and Slurm name them.
_RANK_VARIABLES = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # Only steps have this; a batch script itself is local task 0 without any others around it.
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
# Set where Slurm shows each task only the boards bound to it.
_BOUND_VARIABLES = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
_JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "PMIX_NAMESPACE")

# Names that stand for devices on any machine: kinds, and vendors as drivers name them.
_KINDS = frozenset({*DeviceKind, "nvidia", "amd", "intel", "gaudi"})


@dataclass(frozen=True, slots=True)
class LocalRank:
    """Rank of this process among the cooperating processes on this node, and their number."""

    rank: int
    size: int


def my_devices(clock: Clock = REAL_CLOCK, environ: Mapping[str, str] | None = None) -> list[Device]:
    """The devices of this machine whose energy this process should count."""
    from joulery.hardware import discover, visible_devices

    devices = visible_devices(discover(clock, environ=environ), environ)
    rank = local_rank(environ)
    return devices if rank is None else rank_share(devices, rank, environ)


def select(
    devices: Iterable[Device | str],
    clock: Clock = REAL_CLOCK,
    among: Sequence[Device] | None = None,
) -> list[Device]:
    """Devices as given, and those that the given names stand for.

    A name is an id or the beginning of one, a kind (``gpu``, ``cpu``, ``memory``, ``node``), a
    vendor, or either with a position: ``gpu:0``, ``nvidia:1``.

    Args:
        devices: Devices and names.
        clock: Clock of every reading's time.
        among: Devices that names may stand for; those of this machine unless given.

    Raises:
        InvalidValueError: Something is neither a device nor a name.
        MissingHardwareError: This machine has no device of a kind or vendor.
        UnknownDeviceError: A name is neither of these nor that of a device.
    """
    selection: list[Device] = []
    candidates: Sequence[Device] | None = None if among is None else check_devices(among)
    for item in check_devices(devices, allow_names=True):
        if not isinstance(item, str):
            selection.append(item)
            continue
        if candidates is None:
            from joulery.hardware import discover

            candidates = discover(clock)
        matches = [device for device in candidates if _has_name(device, item)]
        if not matches:
            raise _no_device(item, candidates)
        selection += [device for device in matches if device not in selection]
    return selection


def _no_device(name: str, candidates: Sequence[Device]) -> JouleryError:
    """The error about a name without a device: of a kind that is missing here, or mistyped."""
    word = name.lower().partition(":")[0]
    missing = word in _KINDS and not any(_has_name(device, word) for device in candidates)
    names = ", ".join(device.info.id for device in candidates) or "none"
    return (MissingHardwareError if missing else UnknownDeviceError)(
        f"no device {name!r} on this machine",
        remedy=f"devices here: {names}; see `joulery doctor`",
    )


def _has_name(device: Device, name: str) -> bool:
    info = device.info
    word, _, position = name.lower().partition(":")
    if word in (info.kind.value, info.vendor.lower()) and (
        not position or position == str(info.index)
    ):
        return True
    return len(name) > 2 and info.id.lower().startswith(name.lower())


def local_rank(environ: Mapping[str, str] | None = None) -> LocalRank | None:
    """Local rank of this process; None when it is the only one of its job on this node."""
    environ = os.environ if environ is None else environ
    for rank_name, size_name in _RANK_VARIABLES:
        rank = _whole(environ.get(rank_name))
        size = _tasks_here(environ.get(size_name), _whole(environ.get("SLURM_NODEID")))
        if rank is not None and size is not None and 0 <= rank < size:
            return LocalRank(rank, size)
    return None


def rank_share(
    devices: Sequence[Device], rank: LocalRank, environ: Mapping[str, str] | None = None
) -> list[Device]:
    """The devices that this rank counts, so that all ranks together count each once."""
    environ = os.environ if environ is None else environ
    present = {device.info.id for device in devices}
    boards = [
        device.info.id
        for device in devices
        if device.info.kind is DeviceKind.GPU and device.info.parent not in present
    ]
    bound = any(environ.get(name) for name in _BOUND_VARIABLES)
    if len(boards) >= rank.size and not bound:
        share = set(boards[rank.rank :: rank.size])
    else:
        # Each rank sees only its own boards, or several share one. Only the boards' identity
        # shows which, so the first rank to claim a board counts it.
        share = {board for board in boards if _claim(board, environ)}
    return [device for device in devices if _counts(device.info, share, rank)]


def _counts(info: DeviceInfo, boards: set[str], rank: LocalRank) -> bool:
    if info.kind is DeviceKind.GPU:
        # Parts go with their board.
        return info.id in boards or info.parent in boards
    return rank.rank == 0


_claims: dict[Path, int] = {}


def _claim(device_id: str, environ: Mapping[str, str]) -> bool:
    """Whether this process is the one of its job that counts the device; held until it ends."""
    job = next((environ[name] for name in _JOB_VARIABLES if environ.get(name)), "job")
    folder = Path(tempfile.gettempdir()) / f"joulery-{os.getuid()}"
    name = f"{job}-{device_id}".replace(os.sep, "_")
    path = folder / name
    if path in _claims:
        return True
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # no folder for claims: better counted twice than not at all
    try:
        lock(descriptor)
    except OSError:
        os.close(descriptor)
        return False
    _claims[path] = descriptor
    return True


def _whole(text: str | None) -> int | None:
    digits = (text or "").strip()
    return int(digits) if digits.isdecimal() else None


def _tasks_here(text: str | None, node: int | None) -> int | None:
    """Tasks on this node. Slurm writes ``8(x2),4`` for eight on each of two nodes, four on one."""
    counts: list[int] = []
    for part in (text or "").split(","):
        tasks, _, times = part.partition("(x")
        count, repeated = _whole(tasks), _whole(times.rstrip(")")) if times else 1
        if count is None or repeated is None:
            return None
        counts += [count] * repeated
    position = node or 0
    return counts[position] if position < len(counts) else counts[0]
