"""Who is at the other end of a connection, as the kernel vouches for it."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Self

# From Linux's asm-generic/socket.h; Python names neither.
_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("3i")
# The most that Python's getsockopt takes: 256 groups. Who has more counts by the main group.
_MAX_GROUP_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """A user's process.

    A transport makes it: the Unix socket from the kernel's word, a remote one from a token.

    Attributes:
        uid: The user.
        gids: The user's groups, the main one included.
        pid: The process that connected.
    """

    uid: int
    gids: frozenset[int]
    pid: int

    def name(self) -> dict[str, int]:
        """Who it is, for others to read."""
        return {"uid": self.uid, "pid": self.pid}

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """Who connected; taken by the kernel at that moment, so it cannot be forged."""
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

    Kernels before 6.5 cannot give it for a socket. There it is opened by number, which could
    only mean another process if the peer had ended and its number had come round again since.

    Raises:
        OSError: The process has ended, or lives in a process namespace out of sight.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)
