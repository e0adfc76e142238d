"""The process at the other end of a connection, and whether it uses a device."""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from joulery.errors import JouleryError
from joulery.hardware import Capability, TelemetrySource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.hardware import Device

PROC = Path("/proc")
OPEN = "open"
SLURM = "slurm"
# Bounds on the work that a caller with many processes or files can cause.
_MAX_DEPTH = 64
_MAX_PROCESSES = 64
_MAX_FILES = 4096
_SLURM_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
# From Linux's asm-generic/socket.h; Python names neither.
_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("3i")
# The most that Python's getsockopt takes: 256 groups. A user with more counts by the main group.
_MAX_GROUP_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """Client as the transport identifies it: a local process, or a program with a token.

    Attributes:
        uid: User id; -1 for clients on other machines.
        gids: Ids of the user's groups, the main one included.
        pid: Id of the process that connected; 0 for clients on other machines.
        client: Name of the client's token in the policy; empty for local processes.
    """

    uid: int = -1
    gids: frozenset[int] = frozenset()
    pid: int = 0
    client: str = ""

    def name(self) -> dict[str, int | str]:
        """User and process, or client, for status and audit."""
        return {"client": self.client} if self.uid < 0 else {"uid": self.uid, "pid": self.pid}

    def __str__(self) -> str:
        who = self.client or "a rule with a fallback"
        return who if self.uid < 0 else f"process {self.pid} of user {self.uid}"

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """The process that connected, recorded by the kernel, so it cannot be forged."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(raw)
        try:
            groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUP_BYTES)
        except OSError:
            groups = b""
        gids = struct.unpack(f"{len(groups) // 4}I", groups)
        return cls(uid, frozenset({gid, *gids}), pid)


def pidfd_of(connection: socket.socket, pid: int) -> int:
    """A descriptor that becomes readable when the process that connected ends.

    Kernels before 6.5 cannot give it for a socket. There it is opened by number, which refers to
    another process only if the peer has ended and its number was reused since.

    Raises:
        OSError: The process has ended, or lives in a process namespace out of sight.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


def owns(peer: Peer, device: Device, proof: str, proc: Path = PROC) -> bool:
    """Whether ``peer`` runs on ``device``, has its device file open, or was allocated it.

    With ``SLURM`` the allocation in the environment of a process inside a Slurm job of the same
    user counts, too.
    """
    if peer.uid < 0:
        return False
    if any(_descends(pid, peer.pid, proc) for pid in _users_of(device)):
        return True
    file = device_file(device.info.id, proc)
    if file is not None and file in islice(_open_files(peer.pid, proc), _MAX_FILES):
        return True
    # A Gaudi card's index is its module, by which Slurm does not count.
    counts_alike = device.info.vendor != "gaudi"
    return proof == SLURM and counts_alike and _allocated(peer, device.info.index, proc)


def _users_of(device: Device) -> tuple[int, ...]:
    """Processes that run on the device, according to the driver."""
    if Capability.TELEMETRY in device.capabilities:
        with suppress(JouleryError):
            return cast("TelemetrySource", device).telemetry().process_ids or ()
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


def _open_files(pid: int, proc: Path) -> Iterator[str]:
    """Files that a process and its descendants have open."""
    family = [pid]
    for _ in range(_MAX_PROCESSES):
        folder = proc / str(family.pop())
        with suppress(OSError):
            for entry in (folder / "fd").iterdir():
                with suppress(OSError):
                    yield str(entry.readlink())
        for children in islice(folder.glob("task/*/children"), _MAX_PROCESSES):
            with suppress(OSError, ValueError):
                family += map(int, children.read_text().split())
        if not family:
            return


def device_file(device_id: str, proc: Path = PROC) -> str | None:
    """The file of an NVIDIA board, by whose number Slurm counts; it need not be the index."""
    for information in proc.glob("driver/nvidia/gpus/*/information"):
        with suppress(OSError):
            text = information.read_text(errors="replace")
            minor = re.search(r"Device Minor:\s*(\d+)", text)
            if minor and device_id in text.split():
                return f"/dev/nvidia{minor[1]}"
    return None


def _allocated(peer: Peer, index: int, proc: Path) -> bool:
    """Whether Slurm's variables name the device; a user could have changed them."""
    folder = proc / str(peer.pid)
    try:
        # Only slurmd, as root, can put a process here.
        in_job = re.search(r"slurm.*job_\d+", (folder / "cgroup").read_text(errors="replace"))
        environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    variables = dict(entry.partition("=")[::2] for entry in environment)
    indices = next(filter(None, map(variables.get, _SLURM_VARIABLES)), "")
    ranges = [re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part) for part in indices.split(",")]
    fits = [
        match for match in ranges if match and int(match[1]) <= index <= int(match[2] or match[1])
    ]
    return bool(in_job and fits)
