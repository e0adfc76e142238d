"""What could not be delivered, on the disk until it can: one JSON line each, in one file per store.

Several processes append to the file and one at a time delivers from it, under locks of the
system that end with their holders. What was delivered is taken out afterwards; who dies in
between delivers it again, which counts once, by its key.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.client.outbox_entries import Undelivered, entry_from
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.client.outbox_entries import Entry

_LARGEST_BYTES = 4 * 2**20
_KEPT_SHARE = 0.75  # of the largest size, when old lines have to go
_LOCK_SECONDS = 1.0
_LOCK_STEP_SECONDS = 0.005


class Outbox:
    """Undelivered reports of one store.

    Args:
        path: Of the file; made when there is something to keep, readable by its owner only.
        largest_bytes: Beyond which heartbeats go first, and then the oldest reports.
    """

    def __init__(self, path: Path, largest_bytes: int = _LARGEST_BYTES) -> None:
        self._path = path
        self._largest_bytes = largest_bytes

    @property
    def waiting(self) -> bool:
        """Whether there is anything to deliver; costs one look at the file."""
        try:
            return self._path.stat().st_size > 0
        except OSError:
            return False

    def append(self, entry: Entry) -> None:
        """Keep an entry; it is on the disk on return.

        Raises:
            FileError: It could not be kept.
        """
        line = entry.to_line()
        try:
            with self._opened() as file:
                size = os.fstat(file).st_size
                if size + len(line) > self._largest_bytes:
                    lines = _lines(_content(file))
                    self._replace(file, _trimmed([*lines, line], self._largest_bytes))
                    return
                # A line that somebody died in the middle of must not swallow this one.
                torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                _write(file, b"\n" + line if torn else line, size)
                os.fsync(file)
                if size == 0:
                    _sync_folder(self._path.parent)
        except OSError as error:
            raise FileError(
                f"cannot keep a report in {self._path}: {error.strerror or error}",
                remedy="set XDG_STATE_HOME to a folder that you may write",
            ) from None

    def entries(self) -> list[Entry]:
        """What waits, oldest first; damaged lines are passed over."""
        try:
            with self._opened() as file:
                lines = _lines(_content(file))
        except OSError:
            return []
        return [entry for entry in map(entry_from, lines) if entry is not None]

    def deliver(self, send: Callable[[Entry], object]) -> int:
        """Send what waits, oldest first, until something cannot be sent; how many were sent.

        One process at a time does so; others return at once.

        Args:
            send: Raises :class:`StoreError` where trying again later may help. What is refused
                for another reason would be refused for ever, and is dropped.
        """
        if not self.waiting:
            return 0
        try:
            with _locked(self._path.with_suffix(".delivering"), patience_seconds=0.0):
                with self._opened() as file:
                    lines = _lines(_content(file))
                done = _sent(lines, send)
                if done:
                    self._remove(lines, done)
                return len(done)
        except OSError:
            return 0  # somebody else delivers, or nobody can

    def _remove(self, lines: list[bytes], done: set[int]) -> None:
        """Take lines out that were among the first of the file; others may have come since."""
        gone = {lines[number] for number in done}
        with self._opened() as file:
            now = _lines(_content(file))
            left = [line for line in now if line not in gone and entry_from(line)]
            self._replace(file, left)

    def _replace(self, file: int, lines: list[bytes]) -> None:
        """Make the file hold nothing but ``lines``, in one piece; under its lock."""
        content = b"".join(lines)
        if not content:
            os.ftruncate(file, 0)
            os.fsync(file)
            return
        handle, name = tempfile.mkstemp(dir=self._path.parent, suffix=".part")
        try:
            _write(handle, content, 0)
            os.fsync(handle)
            Path(name).replace(self._path)
        except OSError:
            with suppress(OSError):
                Path(name).unlink()
            raise
        finally:
            os.close(handle)
        _sync_folder(self._path.parent)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, ours alone while the block lasts."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            with _locked(self._path, _LOCK_SECONDS) as file:
                # Another process may have put a new file in its place while we waited.
                if _is_at(file, self._path):
                    yield file
                    return


def _sent(lines: list[bytes], send: Callable[[Entry], object]) -> set[int]:
    """Numbers of the lines that need not be kept any longer."""
    found = [entry_from(line) for line in lines]
    last = {
        entry.decision.id: number
        for number, entry in enumerate(found)
        if isinstance(entry, Undelivered)
    }
    done: set[int] = set()
    for number, entry in enumerate(found):
        superseded = (
            isinstance(entry, Undelivered)
            and entry.key is None
            and last[entry.decision.id] > number
        )
        if entry is not None and not superseded:
            try:
                send(entry)
            except UsageError:
                pass  # would be refused again
            except StoreError:
                break
            except JouleryError:
                continue  # not now, but others may be taken
        done.add(number)
    return done


def _trimmed(lines: list[bytes], largest_bytes: int) -> list[bytes]:
    """Without heartbeats and, if need be, the oldest reports."""
    entries = [(line, entry_from(line)) for line in lines]
    reports = [line for line, entry in entries if entry is not None and entry.key is not None]
    left = int(_KEPT_SHARE * largest_bytes)
    kept: list[bytes] = []
    for line in reversed(reports):
        left -= len(line)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _lines(content: bytes) -> list[bytes]:
    """Whole lines; a tail without an end was never acknowledged."""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _content(file: int) -> bytes:
    size = os.fstat(file).st_size
    parts, at = [], 0
    while at < size:
        part = os.pread(file, size - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _is_at(file: int, path: Path) -> bool:
    try:
        here, there = os.fstat(file), path.stat()
    except FileNotFoundError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _write(file: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


@contextmanager
def _locked(path: Path, patience_seconds: float) -> Iterator[int]:
    """A file under an exclusive lock; BlockingIOError where somebody else keeps it for too long."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end = REAL_CLOCK.now() + patience_seconds
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if REAL_CLOCK.now() >= end:
                    raise
                REAL_CLOCK.sleep(_LOCK_STEP_SECONDS)
        yield file
    finally:
        os.close(file)


def _sync_folder(folder: Path) -> None:
    """So that the file is still there after a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
