"""Backup, export and import of a store, while it is in use; a file is complete or not there."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.errors import FileError, StoreBusyError, StoreError
from joulery.storage._store import default_path
from joulery.storage._transfer import exported, imported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.storage._records import Document

_SQLITE_MARK = b"SQLite format 3\0"


def backup(location: str | None, target: Path) -> str:
    """Copy a consistent snapshot of a store; the kind of copy, ``sqlite`` or ``export``.

    SQLite is copied by its own backup function: the copy is a store. PostgreSQL is exported.
    """
    place = default_path() if location is None else location
    if "://" in str(place):
        export(location, target)
        return "export"
    if not Path(place).exists():
        raise FileError(f"no store at {place}", remedy="give its path with --store")
    with whole_file(target) as draft:
        try:
            with (
                contextlib.closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(draft)) as copy,
            ):
                source.backup(copy)
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise StoreBusyError("the store is locked", remedy="try again") from error
            raise StoreError(
                f"cannot copy the store: {error}", remedy="check the disk and rights"
            ) from error
        except sqlite3.DatabaseError as error:
            raise FileError(f"{place} is no store", remedy="give its path with --store") from error
    return "sqlite"


def export(location: str | None, target: Path) -> int:
    """Write a store as lines of JSON; the number of rows."""
    place = default_path() if location is None else location
    if "://" not in str(place) and not Path(place).exists():
        raise FileError(f"no store at {place}", remedy="give its path with --store")
    rows = -2  # the first and the last line are none
    with whole_file(target) as draft, draft.open("wb") as file:
        for line in exported(place):
            file.write(line)
            rows += 1
    return rows


def restore(location: str | None, source: Path, *, replace: bool) -> Document:
    """Fill a store from an export; the number of rows of each table."""
    place = default_path() if location is None else location
    try:
        with source.open("rb") as file:
            if file.read(16) == _SQLITE_MARK:
                raise FileError(
                    f"{source} is an SQLite store, not an export",
                    remedy="put it in the place of the store, or `joulery serve --store FILE`",
                )
            file.seek(0)
            return imported(place, file, replace=replace)
    except OSError as error:
        raise FileError(
            f"cannot read {source}: {error.strerror}", remedy="check the path"
        ) from None


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
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot write {target}: {error.strerror}", remedy="check the folder and its disk"
        ) from None
