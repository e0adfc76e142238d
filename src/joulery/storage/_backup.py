"""Backup, export and restore of a store, while it is in use; a file is complete or not there."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import ConflictError, FileError, InvalidValueError, StoreBusyError, StoreError
from joulery.files import sync_folder
from joulery.storage._store import Store, default_path
from joulery.storage._transfer import exported, imported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.storage._records import Document

_SQLITE_MARK = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm")


def backup(location: str | None, target: Path) -> str:
    """Copy a consistent snapshot of a store; the kind of copy, ``sqlite`` or ``export``.

    SQLite is copied by its own backup function: the copy is a store. PostgreSQL is exported.
    """
    store = default_path() if location is None else location
    if "://" in str(store):
        export(location, target)
        return "export"
    _check_source(store, target)
    with whole_file(target) as draft:
        _copy(Path(store), draft)
    return "sqlite"


def export(location: str | None, target: Path) -> int:
    """Write a store as lines of JSON; the number of rows."""
    store = default_path() if location is None else location
    if "://" not in str(store):
        _check_source(store, target)
    rows = -2  # the first and the last line are none
    with whole_file(target) as draft, draft.open("wb") as file:
        for line in exported(store):
            file.write(line)
            rows += 1
    return rows


def restore(location: str | None, source: Path, *, replace: bool) -> Document:
    """Fill a store from a backup or an export; the number of rows of each table.

    A backup of an SQLite store takes the place of the file, so that a server which still has the
    old one open notices and refuses to go on.

    Raises:
        ConflictError: The store has jobs, and they may not be replaced.
        FileError: The file is damaged, or none of these.
    """
    store = default_path() if location is None else location
    try:
        with source.open("rb") as file:
            if file.read(16) != _SQLITE_MARK:
                file.seek(0)
                return imported(store, file, replace=replace)
    except OSError as error:
        raise FileError(
            f"cannot read {source}: {error.strerror}", remedy="check the path"
        ) from None
    if "://" in str(store):
        raise InvalidValueError(
            "the copy of an SQLite file does not fit into another database",
            remedy=f"joulery store export all.jsonl --store {source}, and import that",
        )
    return _put_in_place(Path(store), source, replace=replace)


def _put_in_place(path: Path, source: Path, *, replace: bool) -> Document:
    _check_apart(path, source)
    if path.exists() and not replace:
        _check_empty(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        _copy(source, draft)
        with Store.open(draft) as copy:  # upgraded, where an older version wrote it
            copy.check()
            counts = copy.counts()
        # What the old file still has in its log must not be mistaken for the new one's.
        with contextlib.suppress(sqlite3.DatabaseError), _opened(path, "rwc") as old:
            old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for end in _SIDE_FILES:
            Path(f"{path}{end}").unlink(missing_ok=True)
    return counts


def _check_source(location: str | Path, target: Path) -> None:
    if not Path(location).exists():
        raise FileError(f"no store at {location}", remedy="give its path with --store")
    _check_apart(Path(location), target)


def _check_apart(store: Path, file: Path) -> None:
    """Refuse to copy a store onto itself or its log, by whatever name."""
    for path in (Path(f"{store.resolve()}{end}") for end in ("", *_SIDE_FILES)):
        if path == file.resolve() or (path.exists() and file.exists() and path.samefile(file)):
            raise FileError(f"{file} is the store itself", remedy="give another file")


def _check_empty(path: Path) -> None:
    with Store.open(path) as store:
        if store.counts()["jobs"]:
            raise ConflictError(
                "the store has jobs already", remedy="restore to an empty one, or give --replace"
            )


@contextlib.contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
    ) as file:
        yield file


def _copy(source: Path, target: Path) -> None:
    try:
        with _opened(source, "ro") as store, _opened(target, "rw") as copy:
            store.backup(copy)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise StoreBusyError("the store is locked", remedy="try again") from error
        raise StoreError(
            f"cannot copy the store: {error}", remedy="check the disk and rights"
        ) from error
    except sqlite3.DatabaseError as error:
        raise FileError(f"{source} is no store", remedy="give the path of one") from error


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A draft that replaces ``target`` atomically once it is complete and on the disk.

    Only its owner can read it: it may hold secrets.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(target)
            sync_folder(target.parent)
        finally:
            for end in ("", *_SIDE_FILES):
                Path(f"{draft}{end}").unlink(missing_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot write {target}: {error.strerror}", remedy="check the folder and its disk"
        ) from None
