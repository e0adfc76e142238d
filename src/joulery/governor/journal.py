"""What is about to be done to a device, on disk before it is done, and who may do it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import FileError, MissingRightsError, NotPossibleHereError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Intent:
    """What a device is about to become, complete in itself: the last one says all.

    Attributes:
        baseline_watts: The limit to give back in the end; None where there is none to set.
        expected_watts: The limits that it may have from now on, what it is to become last.
        pinned_hertz: The clock to give back; None for a free one.
        hertz: The clock that it gets from us; None when we leave it alone.
    """

    baseline_watts: float | None
    expected_watts: tuple[float, ...]
    pinned_hertz: float | None = None
    hertz: float | None = None


class LeaseJournal:
    """Notes nothing: for devices that end with their process."""

    def claim(self) -> None:
        """Keep other processes from governing the device."""

    def disclaim(self) -> None:
        """Let others govern it."""

    def left(self) -> Intent | None:
        """What somebody intended and did not give back; to be trusted under the claim."""
        return None

    def intend(self, intent: Intent) -> None:
        """Note a change; durable on return."""

    def done(self) -> None:
        """Note that everything was given back."""


class FileJournal(LeaseJournal):
    """A device's lock, which dies with its process, and a file with what was last intended.

    So an intent is left behind by a dead process if nobody has the lock. One of an earlier boot
    means nothing, since boards start with their defaults.

    Args:
        folder: Where the files are; nobody else may write there.
        device: The device's id.
        holder: The process to name to others; this one by default.
    """

    def __init__(self, folder: Path, device: str, holder: int | None = None) -> None:
        # An id may hold any character, a file name may not.
        self._lock_path = folder / f"{hashlib.sha256(device.encode()).hexdigest()[:16]}.lock"
        self._path = self._lock_path.with_suffix(".json")
        self._device, self._holder = device, holder
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._lock = -1

    def claim(self) -> None:
        """Lock, or say who has; forked children do not inherit it."""
        try:
            self._lock = os.open(self._lock_path, _FLAGS, 0o600)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(self._holder or os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
            self.disclaim()
            flaw = f"{self._device} is held by process {holder or 'unknown'}"
            raise NotPossibleHereError(flaw, remedy="wait until it ends") from None
        except OSError as error:
            self.disclaim()
            flaw = f"cannot lock {self._lock_path}: {error.strerror}"
            raise FileError(flaw, remedy="see to its disk") from None

    def disclaim(self) -> None:
        """Unlock; nothing happens if it is not locked."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def left(self) -> Intent | None:
        """What the file says; rubbish was not written by us and says nothing."""
        try:
            record = json.loads(self._path.read_bytes())
            boot, expected = record.pop("boot"), tuple(record.pop("expected_watts"))
            return Intent(expected_watts=expected, **record) if boot == self._boot else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def intend(self, intent: Intent) -> None:
        """Replace the file in one step, and sync."""
        data = json.dumps({"boot": self._boot, **asdict(intent)}).encode()
        fresh = self._path.with_suffix(".new")
        with self._syncing(fresh, _FLAGS | os.O_TRUNC) as file:
            if os.write(file, data) != len(data):
                raise OSError
        with self._syncing(self._path.parent, os.O_DIRECTORY):
            fresh.rename(self._path)

    def done(self) -> None:
        """Remove the file, and sync."""
        with self._syncing(self._path.parent, os.O_DIRECTORY):
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _syncing(self, path: Path, flags: int) -> Iterator[int]:
        """A file that is on disk after the block, or FileError."""
        try:
            file = os.open(path, flags, 0o600)
            try:
                yield file
                os.fsync(file)
            finally:
                os.close(file)
        except OSError:
            flaw = f"cannot write journal {self._path}"
            raise FileError(flaw, remedy="make room on its disk") from None


def private_folder(path: Path) -> Path:
    """``path`` as a folder that nobody else may read or write, made if need be."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        flaw = f"cannot use {path}: {error.strerror}"
        raise MissingRightsError(flaw, remedy="name another folder or be root") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FileError(f"{path} is not a folder of this user alone", remedy="chmod 700 your own")
    return path
