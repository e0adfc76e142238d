"""A lock per device, so that two governors on one machine never hold the same one."""

from __future__ import annotations

import fcntl
import hashlib
import os
from typing import TYPE_CHECKING

from joulery.errors import NotPossibleHereError

if TYPE_CHECKING:
    from pathlib import Path


class FileClaim:
    """A record lock, which dies with its process and is not inherited by forked children.

    Args:
        folder: Where the lock files are.
        device: The device's id.
    """

    def __init__(self, folder: Path, device: str) -> None:
        # An id may hold any character, a file name may not.
        self._path = folder / f"{hashlib.sha256(device.encode()).hexdigest()[:16]}.lock"
        self._device = device
        self._file = -1

    def take(self) -> None:
        """Claim the device, or say who has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 20, 0).decode(errors="replace").strip()
            self.give()
            raise NotPossibleHereError(
                f"{self._device} is held by process {holder or 'unknown'}",
                remedy="wait until it ends",
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def give(self) -> None:
        """Let it go; nothing happens if it is not held."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
