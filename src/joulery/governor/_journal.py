"""Crash journal of the governor: each change is on disk before it is made.

One file per device holds the last intended change, and locks show whether its writer lives. A
governor that starts restores what a dead one left changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joulery.errors import FileError, MissingRightsError, NotPossibleHereError
from joulery.files import sync_folder, write_atomic
from joulery.units import finite

STATE_VARIABLE = "JOULERY_GOVERNOR_STATE"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DRIVER_LIBRARY = "libnvidia-ml.so"
# The kernel's struct flock: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")


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
    """Journal of one device: locks that die with their process, and a file with the last change.

    A change is pending after a crash if its file exists and the lock is free. One of an earlier
    boot is ignored, since boards start with their defaults.

    Args:
        folder: Folder of the files, writable by this user alone.
        device: Id of the device.
        holder: Process to name to others; this one by default.
        shared: File that governors with other folders see too, to lock the device's place in.
    """

    def __init__(
        self, folder: Path, device: str, holder: int | None = None, shared: Path | None = None
    ) -> None:
        # An id may hold any character, a file name may not.
        digest = hashlib.sha256(device.encode()).hexdigest()
        self._lock_path = folder / f"{digest[:16]}.lock"
        self._path = self._lock_path.with_suffix(".json")
        self._device, self._holder = device, holder
        self._shared, self._place = shared, int(digest[:15], 16)
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._files: list[int] = []

    def lock(self) -> None:
        """Lock, or raise an error that names the holder; forked children do not inherit it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(self._lock_path, flags, 0o600)
            self._files.append(file)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, str(self._holder or os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._files[-1], 20, 0).decode(errors="replace").strip()
            self.unlock()
            flaw = f"{self._device} is held by process {holder or 'unknown'}"
            raise NotPossibleHereError(flaw, remedy="wait until it ends") from None
        except OSError as error:
            self.unlock()
            flaw = f"cannot lock {self._lock_path}: {error.strerror}"
            raise FileError(flaw, remedy="check its disk") from None
        if self._shared is not None and not self._claimed(self._shared):
            self.unlock()
            flaw = f"{self._device} is held by a governor whose state is not {self._path.parent}"
            remedy = "wait until it ends; give containers the machine's /run/joulery"
            raise NotPossibleHereError(flaw, remedy=remedy)

    def unlock(self) -> None:
        """Unlock, if it is locked."""
        while self._files:
            os.close(self._files.pop())

    def pending(self) -> Intent | None:
        """Change in the file; None where there is none of this boot. A damaged file raises."""
        try:
            record, _, digest = self._path.read_bytes().rpartition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._damaged(error.strerror) from None
        if hashlib.sha256(record).hexdigest().encode() != digest:
            raise self._damaged("its checksum is wrong")
        try:
            document = json.loads(record)
            return _intent(document) if document.pop("boot") == self._boot else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(repr(error)) from None

    def record(self, intent: Intent) -> None:
        """Replace the file in one step, and sync."""
        data = json.dumps({"boot": self._boot, **asdict(intent)}).encode()
        try:
            digest = hashlib.sha256(data).hexdigest().encode()
            write_atomic(self._path, data + b"\n" + digest, private=True, sync=True)
        except OSError:
            raise self._cannot_write() from None

    def clear(self) -> None:
        """Remove the file, and sync."""
        try:
            self._path.unlink(missing_ok=True)
            sync_folder(self._path.parent)
        except OSError:
            raise self._cannot_write() from None

    def _claimed(self, path: Path) -> bool:
        """Whether this process alone has a lock on the device's place in a file.

        The file may be readable only, which permits no lock but a shared one; so each governor
        takes a shared lock first, and then looks for others.
        """
        with suppress(OSError):  # a file system without locks
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._files.append(file)
            claim = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, self._place, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, claim)
            any_other = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._place, 1, 0)
            holder = fcntl.fcntl(file, fcntl.F_OFD_GETLK, any_other)
            return bool(_FLOCK.unpack(holder)[0] == fcntl.F_UNLCK)
        return True

    def _cannot_write(self) -> FileError:
        return FileError(f"cannot write journal {self._path}", remedy="make room on its disk")

    def _damaged(self, reason: object) -> FileError:
        flaw = (
            f"journal {self._path} of {self._device} is damaged ({reason}): the limit in force may"
        )
        remedy = "set the limit that the board shall have, then remove the file"
        return FileError(f"{flaw} be one that was lent, and is left alone", remedy=remedy)


def _intent(document: dict[str, Any]) -> Intent:
    """An intent from its document; raises where a value is no number."""
    expected = tuple(finite(watts, "watts") for watts in document.pop("expected_watts"))
    values = {name: None if v is None else finite(v, name) for name, v in document.items()}
    return Intent(expected_watts=expected, **values)


def driver_library() -> Path | None:
    """The loaded library of NVIDIA's driver: containers get the machine's own file."""
    with suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            if _DRIVER_LIBRARY in line:
                return Path(line.split(maxsplit=5)[5].rstrip("\n"))
    return None


def private_folder(path: Path) -> Path:
    """``path`` as a folder that only this user may read or write, made if necessary."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        flaw = f"cannot use {path}: {error.strerror}"
        raise MissingRightsError(flaw, remedy="name another folder or be root") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise FileError(f"{path} is not a folder of this user alone", remedy="chmod 700 your own")
    return path
