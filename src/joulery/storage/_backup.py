"""Backup, export and restore of a store, while it is in use; a file is complete or not there."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import ConflictError, FileError, InvalidValueError, StoreBusyError, StoreError
from joulery.files import sync_folder
from joulery.paths import data_folder
from joulery.storage._migrate import renew_generation
from joulery.storage._store import Store, default_path
from joulery.storage._transfer import check_export, exported, imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from joulery.storage._records import Document

_SQLITE_MARK = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm")
_TABLES = {"alembic_version", "jobs", "events", "decisions", "outcomes"}  # of every store


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


@dataclass(frozen=True, slots=True)
class Restoration:
    """A restore that was made.

    Attributes:
        rows: Number of rows of each table.
        replaced: File that holds what was there before; None where nothing was.
    """

    rows: Document
    replaced: Path | None


def restore(location: str | None, source: Path, *, replace: bool) -> Restoration:
    """Fill a store from a backup or an export.

    What was there before is kept beside the store. The store gets a new generation, so that a
    process which still has the old content open notices, and refuses to continue.

    Raises:
        ConflictError: The store has jobs, and they may not be replaced.
        FileError: The file is damaged, or neither a backup nor an export.
    """
    store = default_path() if location is None else location
    try:
        with source.open("rb") as file:
            if file.read(16) != _SQLITE_MARK:
                file.seek(0)
                earlier = _keep_content(store, file) if replace else None
                return Restoration(imported(store, file, replace=replace), earlier)
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


def _keep_content(store: str | Path, source: BinaryIO) -> Path | None:
    """Copy what an import is about to replace; the file, None where there is nothing."""
    check_export(source)
    if "://" not in str(store):
        if not Path(store).exists():
            return None
        earlier = _free_name(Path(store))
        backup(str(store), earlier)
        return earlier
    data_folder().mkdir(parents=True, exist_ok=True)
    earlier = _free_name(data_folder() / "store.jsonl")
    export(str(store), earlier)
    return earlier


def _free_name(path: Path) -> Path:
    names = (f"{path}.replaced{f'-{number}' if number else ''}" for number in itertools.count())
    return next(Path(name) for name in names if not Path(name).exists())


def _put_in_place(path: Path, source: Path, *, replace: bool) -> Restoration:
    _check_apart(path, source)
    _check_is_store(source)
    if path.exists() and not replace:
        _check_empty(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = None
    with whole_file(path) as draft:
        _copy(source, draft)
        with Store.open(draft) as copy:  # upgraded, where an older version wrote it
            copy.check()
            counts = copy.counts()
            copy.write(lambda transaction: renew_generation(transaction.connection))
        if path.exists():
            earlier = _free_name(path)
            earlier.hardlink_to(path)
            # The log belongs to the file: it must not be mistaken for the new one's.
            for end in _SIDE_FILES:
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{path}{end}").rename(f"{earlier}{end}")
    return Restoration(counts, earlier)


def _check_is_store(path: Path) -> None:
    """Refuse the SQLite file of another program before anything is replaced."""
    try:
        with _opened(path, "ro") as file:
            names = {row[0] for row in file.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.DatabaseError as error:
        raise FileError(f"{path} is damaged: {error}", remedy="give another backup") from None
    if not names >= _TABLES:
        raise FileError(
            f"{path} is an SQLite file, but not a store of Joulery",
            remedy="give a file that `joulery store backup` wrote",
        )


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
