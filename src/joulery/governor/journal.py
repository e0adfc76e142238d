"""What was meant to be done to the hardware, on disk before it is done."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from joulery.errors import FileError, MissingRightsError

_MAX_BYTES = 256 * 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
WATTS = "watts"
HERTZ = "hertz"


@dataclass(frozen=True, slots=True)
class Intent:
    """One change of one knob, complete in itself: the last one per knob says all.

    Attributes:
        device: The device's id.
        knob: :data:`WATTS` or :data:`HERTZ`.
        baseline: What to give back in the end; None for a clock that was free.
        found: What was in force just before the change.
        target: What it was to become.
    """

    device: str
    knob: str
    baseline: float | None
    found: float | None
    target: float | None


class Journal(Protocol):
    """Where a board notes what it is about to do."""

    def intend(self, intent: Intent) -> None:
        """Note a change; durable on return."""
        ...

    def done(self, device: str) -> None:
        """Note that every knob of a device was given back."""
        ...


class NoJournal:
    """For devices that end with their process."""

    def intend(self, intent: Intent) -> None:
        """Note nothing."""

    def done(self, device: str) -> None:
        """Note nothing."""


class FileJournal:
    """An append-only file of JSON lines, each synced before :meth:`intend` returns.

    Records of an earlier boot mean nothing, since boards start with their defaults.

    Args:
        path: The file; made when first needed, in a folder that only its owner may enter.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._file = -1
        self._open: dict[tuple[str, str], Intent] = {}

    def load(self) -> dict[tuple[str, str], Intent]:
        """What was not given back yet, by device and knob."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        found: dict[tuple[str, str], Intent] = {}
        for line in lines:
            try:
                record = json.loads(line)
                if record.pop("boot") != self._boot:
                    continue
                if record.pop("done", False):
                    found = {key: old for key, old in found.items() if key[0] != record["device"]}
                else:
                    found[record["device"], record["knob"]] = Intent(**record)
            # Torn by a crash: never synced whole, so what it meant was not begun.
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return found

    def start(self) -> dict[tuple[str, str], Intent]:
        """Load, and open for writing with torn and finished records left out."""
        self._open = self.load()
        self._rewrite()
        return dict(self._open)

    def intend(self, intent: Intent) -> None:
        """Append and sync."""
        self._write(self._file, {"boot": self._boot, **asdict(intent)})
        self._open[intent.device, intent.knob] = intent

    def done(self, device: str) -> None:
        """Append and sync; compact when the file has grown."""
        self._write(self._file, {"boot": self._boot, "device": device, "done": True})
        self._open = {key: old for key, old in self._open.items() if key[0] != device}
        if os.fstat(self._file).st_size > _MAX_BYTES:
            with suppress(OSError, FileError):  # a long journal is as good as a short one
                self._rewrite()

    def close(self) -> None:
        """Let the file go; nothing may be written afterwards."""
        os.close(self._file)

    def remove(self) -> None:
        """Delete the file, once nothing in it is open."""
        self._path.unlink(missing_ok=True)

    def _rewrite(self) -> None:
        """Replace the file in one step by what is still open."""
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(fresh, flags, 0o600)
        try:
            for intent in self._open.values():
                self._write(file, {"boot": self._boot, **asdict(intent)})
            fresh.rename(self._path)
        except (OSError, FileError):
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)

    def _write(self, file: int, record: dict[str, object]) -> None:
        # On a line of its own even after one that a full disk has cut short.
        line = b"\n" + json.dumps(record).encode() + b"\n"
        try:
            written = os.write(file, line)
            os.fsync(file)
        except OSError:
            written = 0
        if written != len(line):
            raise FileError(f"cannot write journal {self._path}", remedy="make room on its disk")


def private_folder(path: Path) -> Path:
    """``path`` as a folder that nobody else may read or write, made if need be."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise MissingRightsError(
            f"cannot use {path}: {error.strerror}", remedy="name another folder or be root"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FileError(
            f"{path} is not a folder of this user alone", remedy=f"chown it and chmod 700 {path}"
        )
    return path
