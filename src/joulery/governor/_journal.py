"""Crash journal of the governor: each change is on disk before it is made.

One file per device holds the last intended change, and a lock shows whether its writer lives. A
governor that starts restores what a dead one left changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from joulery.errors import FileError, MissingRightsError, NotPossibleHereError
from joulery.files import sync_folder, write_atomic

STATE_VARIABLE = "JOULERY_GOVERNOR_STATE"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def state_folder() -> Path:
    """Folder of journals and locks, in memory: boards lose their limits at boot too."""
    if os.environ.get(STATE_VARIABLE):
        return Path(os.environ[STATE_VARIABLE])
    if os.geteuid() == 0:
        return Path("/run/joulery/state")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime) if runtime else Path.home() / ".cache") / "joulery-governor"


@dataclass(frozen=True, slots=True)
class Intent:
    """Change that a governor is about to make; the last one alone suffices to undo all of them.

    Attributes:
        baseline_watts: Limit to restore in the end; None where there is none to set.
        expected_watts: Limits that the device may have from now on, the intended one last.
        pinned_hertz: Clock to restore; None for an unlocked one.
        hertz: Clock that the governor pins; None when it pins none.
    """

    baseline_watts: float | None
    expected_watts: tuple[float, ...]
    pinned_hertz: float | None = None
    hertz: float | None = None


class LeaseJournal:
    """Journal that records nothing, for devices that end with their process."""

    def lock(self) -> None:
        """Keep other processes from governing the device."""

    def unlock(self) -> None:
        """Let other processes govern the device."""

    def pending(self) -> Intent | None:
        """Change that was intended and not undone; reliable while the journal is locked."""
        return None

    def record(self, intent: Intent) -> None:
        """Record a change; durable on return."""

    def clear(self) -> None:
        """Record that everything was restored."""


class FileJournal(LeaseJournal):
    """Journal of one device: a lock that dies with its process, and a file with the last change.

    A change is pending after a crash if its file exists and the lock is free. One of an earlier
    boot is ignored, since boards start with their defaults.

    Args:
        folder: Folder of the files, writable by this user alone.
        device: Id of the device.
        holder: Process to name to others; this one by default.
    """

    def __init__(self, folder: Path, device: str, holder: int | None = None) -> None:
        # An id may hold any character, a file name may not.
        self._lock_path = folder / f"{hashlib.sha256(device.encode()).hexdigest()[:16]}.lock"
        self._path = self._lock_path.with_suffix(".json")
        self._device, self._holder = device, holder
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._lock_file = -1

    def lock(self) -> None:
        """Lock, or raise an error that names the holder; forked children do not inherit it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._lock_file = os.open(self._lock_path, flags, 0o600)
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock_file, 0)
            os.pwrite(self._lock_file, str(self._holder or os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._lock_file, 20, 0).decode(errors="replace").strip()
            self.unlock()
            flaw = f"{self._device} is held by process {holder or 'unknown'}"
            raise NotPossibleHereError(flaw, remedy="wait until it ends") from None
        except OSError as error:
            self.unlock()
            flaw = f"cannot lock {self._lock_path}: {error.strerror}"
            raise FileError(flaw, remedy="check its disk") from None

    def unlock(self) -> None:
        """Unlock, if it is locked."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def pending(self) -> Intent | None:
        """Change in the file; a file that does not parse was not written by a governor."""
        try:
            record = json.loads(self._path.read_bytes())
            boot, expected = record.pop("boot"), tuple(record.pop("expected_watts"))
            return Intent(expected_watts=expected, **record) if boot == self._boot else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def record(self, intent: Intent) -> None:
        """Replace the file in one step, and sync."""
        data = json.dumps({"boot": self._boot, **asdict(intent)}).encode()
        try:
            write_atomic(self._path, data, private=True, sync=True)
        except OSError:
            raise self._cannot_write() from None

    def clear(self) -> None:
        """Remove the file, and sync."""
        try:
            self._path.unlink(missing_ok=True)
            sync_folder(self._path.parent)
        except OSError:
            raise self._cannot_write() from None

    def _cannot_write(self) -> FileError:
        return FileError(f"cannot write journal {self._path}", remedy="make room on its disk")


def private_folder(path: Path) -> Path:
    """``path`` as a folder that only this user may read or write, made if necessary."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        flaw = f"cannot use {path}: {error.strerror}"
        raise MissingRightsError(flaw, remedy="name another folder or be root") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FileError(f"{path} is not a folder of this user alone", remedy="chmod 700 your own")
    return path
