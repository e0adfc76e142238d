"""Files that survive crashes: replaced in one step, locked, appended to by lines; their folders."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from joulery.clock import REAL_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.clock import Clock


# By hand: short beside the time that a holder needs to write and sync, some milliseconds.
_LOCK_STEP_SECONDS = 0.005
DATABASE_BEGINNING = b"SQLite format 3\0"
"""How SQLite's files begin."""
EXPORT_BEGINNING = b'{"format":"joulery-store-'
"""How exports of a store begin."""
_KEPT_BEGINNINGS = (DATABASE_BEGINNING, EXPORT_BEGINNING)


def check_replaceable(path: Path) -> None:
    """Refuse to write over a file that holds more than one command's output.

    Raises:
        FileExistsError: It is a database, an export of a store, or a disk.
    """
    if path.is_block_device():
        raise FileExistsError(errno.EEXIST, "it is a disk", str(path))
    if path.is_file():
        with path.open("rb") as file:
            if file.read(max(map(len, _KEPT_BEGINNINGS))).startswith(_KEPT_BEGINNINGS):
                reason = "it is a database, or an export of a store"
                raise FileExistsError(errno.EEXIST, reason, str(path))


@contextmanager
def replacing(path: Path, *, private: bool = False, sync: bool = False) -> Iterator[int]:
    """Write a file that takes the place of ``path`` in one step when the block succeeds.

    Args:
        path: File to replace or make, in a folder that exists.
        private: Whether only its owner may read it.
        sync: Whether it is on the disk when the block has ended, its name included.

    Yields:
        Descriptor of the new file, open for writing.

    Raises:
        FileExistsError: It would take the place of a database, or of an export of a store.
    """
    check_replaceable(path)
    # Unique among processes and threads, and found again should a crash leave it behind.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with _naming(path, draft), _removed_on_failure(draft):
        descriptor = os.open(draft, flags, 0o600 if private else 0o666)
        try:
            yield descriptor
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(path)
    if sync:
        sync_folder(path.parent)


@contextmanager
def _naming(path: Path, draft: Path) -> Iterator[None]:
    """Have errors of the system name ``path``: those of writing name no file, others the draft."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, draft, str(draft)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _removed_on_failure(draft: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: bytes, *, private: bool = False, sync: bool = False) -> None:
    """Make ``content`` the content of ``path``: a reader sees the old one or all of the new one.

    Args:
        path: File to replace or make, in a folder that exists.
        content: New content.
        private: Whether only its owner may read it.
        sync: Whether it is on the disk on return.
    """
    with replacing(path, private=private, sync=sync) as descriptor:
        write_all(descriptor, content)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content``, however little each system call takes."""
    while content:
        content = content[os.write(descriptor, content) :]


def lock(descriptor: int, patience_seconds: float = 0.0, clock: Clock = REAL_CLOCK) -> None:
    """Lock an open file for this process, until it is closed or the process ends in any way.

    Args:
        descriptor: Descriptor of the file.
        patience_seconds: Longest wait for another process to unlock it.
        clock: Clock of the wait.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The file system has no locks.
    """
    deadline = clock.now() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now() >= deadline:
                raise
        else:
            return
        clock.sleep(_LOCK_STEP_SECONDS)


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the columns of the first, below a header; None is empty."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def open_for_append(path: Path) -> int:
    """Descriptor of a file of lines, to which several processes may append.

    A last line that a crash cut short is ended, so that the next one stands alone.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        write_all(descriptor, b"\n")
    return descriptor


def system_text(path: Path) -> str:
    """Text of a file that the kernel shows, stripped; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode_line(document: dict[str, Any]) -> bytes:
    """The line of an object, with its end; NaN and the infinities raise a ValueError."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """The object of a line.

    Raises:
        ValueError: It holds anything but a JSON object.
    """
    try:
        document = json.loads(line.decode(), parse_constant=_refuse)
    # Nesting beyond the interpreter's depth is as malformed as a missing brace.
    except RecursionError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("a line does not hold a JSON object")  # noqa: TRY004 - of the text
    return document


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python would read them."""
    raise ValueError(constant)


def data_folder() -> Path:
    """Folder for stores and profiles: under ``XDG_DATA_HOME``, or ``~/.local/share``."""
    return _folder("XDG_DATA_HOME", ".local/share")


def state_folder() -> Path:
    """Folder for undelivered reports: under ``XDG_STATE_HOME``, or ``~/.local/state``."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Folder for compiled libraries: under ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable) or "")
    if not folder.is_absolute():  # the specification has others ignored
        folder = _home() / default
    return folder / "joulery"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name or HOME, as in containers
        return Path("/nonexistent")  # nothing is found there, and writing fails with a remedy
