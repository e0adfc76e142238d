"""Backup, export and restore of a store, while it is in use; a file is complete or not there."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sqlalchemy import LargeBinary, delete, insert, select, text
from sqlalchemy.exc import DBAPIError

from joulery.errors import ConflictError, FileError, InvalidValueError, StoreBusyError, StoreError
from joulery.files import DATABASE_BEGINNING, EXPORT_BEGINNING, data_folder, sync_folder
from joulery.storage._engines import STORE_TABLES, explained, open_engine
from joulery.storage._migrate import GENERATION, HEAD, renew_generation, upgrade
from joulery.storage._records import to_json
from joulery.storage._schema import (
    curves,
    decisions,
    energy,
    events,
    jobs,
    outcomes,
    profiles,
    runs,
    sessions,
    settings,
    snapshots,
    tokens,
)
from joulery.storage._store import Store, default_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from joulery.storage._records import Document

FORMAT = "joulery-store-1"
# In this order rows refer to nothing that comes later.
_TABLES = {
    table.name: table
    for table in (
        *(jobs, events, decisions, outcomes, profiles),
        *(energy, runs, curves, tokens, settings),
    )
}
_NUMBERED = ("jobs", "energy", "runs", "tokens")
# Of exports that can be read: later ones added tables, indexes and a column.
_REVISIONS = ("r0002", "r0003", "r0004", HEAD)
_AT_ONCE = 1000  # rows, however many there are
_REMEDY = "give a whole file that `joulery store export` wrote"
_SQLITE_MARK = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm")
_HAS_CONTENT = "the store has jobs or runs already"
_CONTENT_REMEDY = "give an empty or new one with --store, or --replace"


def exported(location: str | Path) -> Iterator[bytes]:
    """The content of a store at one moment, line by line."""
    digest = hashlib.sha256()
    with _connected(location, reads_only=True) as connection:
        for document in _documents(connection):
            line = _line(document)
            digest.update(line)
            yield line
    yield _line({"sha256": digest.hexdigest()})


def _documents(connection: Connection) -> Iterator[Document]:
    yield {"format": FORMAT, "revision": HEAD, "numbers": _last_numbers(connection)}
    for name, table in _TABLES.items():
        query = select(table).order_by(*table.primary_key.columns)
        if table is settings:
            query = query.where(settings.c.name != GENERATION)  # an import makes its own
        result = connection.execute(query.execution_options(yield_per=_AT_ONCE))
        for row in result.mappings():
            yield {name: {column: _exported(value) for column, value in row.items()}}


def imported(location: str | Path, file: BinaryIO, *, replace: bool = False) -> Document:
    """Fill a store with the content of another one, and count the rows of each table.

    Numbers, versions and tokens stay as they were; tokens that the store had are replaced. Either
    all lines are kept or none.

    Raises:
        ConflictError: The store has jobs or runs, and they may not be replaced.
        FileError: The file is damaged or incomplete.
    """
    header = check_export(file)
    with _connected(location, reads_only=False) as connection:
        if not replace and any(
            connection.execute(select(table.c.id).limit(1)).first() for table in (jobs, runs)
        ):
            raise ConflictError(_HAS_CONTENT, remedy=_CONTENT_REMEDY)
        for table in (snapshots, sessions, *reversed(_TABLES.values())):
            connection.execute(delete(table))
        counts = dict.fromkeys(_TABLES, 0)
        for name, rows in itertools.groupby(_rows(file), key=lambda pair: pair[0]):
            while batch := [row for _, row in itertools.islice(rows, _AT_ONCE)]:
                connection.execute(insert(_TABLES[name]), batch)
                counts[name] += len(batch)
        _set_numbers(connection, header["numbers"])
        renew_generation(connection)
        return counts


def check_export(file: BinaryIO) -> Document:
    """The first line, once the whole file is known to be as it was written.

    Raises:
        FileError: It is damaged, or not an export.
    """
    file.seek(0)
    first = last = file.readline()
    digest = hashlib.sha256()
    for line in file:
        digest.update(last)
        last = line
    header, end = _document(first), _document(last)
    if header.get("format") != FORMAT:
        raise FileError("this is not an export of a store", remedy=_REMEDY)
    if header.get("revision") not in _REVISIONS:
        raise FileError(
            f"the export is of revision {str(header.get('revision'))[:20]}, not of one of "
            f"{', '.join(_REVISIONS)}",
            remedy="import it with the version of Joulery that wrote it, then upgrade",
        )
    if end != {"sha256": digest.hexdigest()}:
        raise FileError("the file is cut off, or was changed since", remedy=_REMEDY)
    return header


def _document(line: bytes) -> Document:
    """The document of a line; an empty one for a line that has none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _rows(file: BinaryIO) -> Iterator[tuple[str, dict[str, Any]]]:
    """The table and columns of each row, between the first and the last line."""
    file.seek(0)
    file.readline()
    for line in file:
        ((name, row),) = json.loads(line).items()
        if name in _TABLES:
            for column in _TABLES[name].columns:
                if isinstance(column.type, LargeBinary):
                    row[column.name] = base64.b64decode(row[column.name])
            if name == "runs" and "decision_joules" not in row:  # before r0005
                summary = row["summary"]
                joules = summary.get("joules") if row["joules"] is None else row["joules"]
                row["decision_joules"] = joules if summary.get("decision") else None
            yield name, row


def _line(document: Document) -> bytes:
    return to_json(document).encode("ascii") + b"\n"


def _exported(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


@contextlib.contextmanager
def _connected(location: str | Path, *, reads_only: bool) -> Iterator[Connection]:
    engine = open_engine(location, patient=True)
    try:
        upgrade(engine)
        options: dict[str, Any] = {"reads_only": reads_only}
        if engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"  # all tables at the same moment
        with engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        raise explained(error) from error
    finally:
        engine.dispose()


def _last_numbers(connection: Connection) -> dict[str, int]:
    """The last number of each table, so that those of deleted rows are not used again."""
    if connection.dialect.name == "sqlite":
        result = connection.execute(text("SELECT name, seq FROM sqlite_sequence"))
        numbers = {row.name: row.seq for row in result}
    else:
        last = text("SELECT pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass)")
        numbers = {name: connection.execute(last, {"name": name}).scalar() for name in _NUMBERED}
    return {name: int(numbers.get(name) or 0) for name in _NUMBERED}


def _set_numbers(connection: Connection, numbers: dict[str, int]) -> None:
    for name, last in numbers.items():
        parameters = {"name": name, "last": last}
        if connection.dialect.name == "postgresql":
            if last:
                statement = "SELECT setval(pg_get_serial_sequence(:name, 'id'), :last)"
                connection.execute(text(statement), parameters)
        else:
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), parameters)
            statement = "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"
            connection.execute(text(statement), parameters)


def backup(location: str | None, target: Path, *, replace: bool = False) -> str:
    """Copy a consistent snapshot of a store; the kind of copy, ``sqlite`` or ``export``.

    SQLite is copied by its own backup function: the copy is a store. PostgreSQL is exported.

    Raises:
        ConflictError: The target exists, and may not be replaced.
        FileError: There is no store, or the target cannot be written.
    """
    store = default_path() if location is None else location
    if "://" in str(store):
        export(location, target, replace=replace)
        return "export"
    _check_source(store, target)
    _check_target(target, replace=replace)
    with whole_file(target) as draft:
        _copy(Path(store), draft)
    return "sqlite"


def export(location: str | None, target: Path, *, replace: bool = False) -> int:
    """Write a store as lines of JSON; the number of rows.

    Raises:
        ConflictError: The target exists, and may not be replaced.
        FileError: There is no store, or the target cannot be written.
    """
    store = default_path() if location is None else location
    if "://" not in str(store):
        _check_source(store, target)
    _check_target(target, replace=replace)
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
        ConflictError: The store has jobs or runs, and they may not be replaced.
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
    with _explaining(path), _opened(path, "ro") as file:
        names = {row[0] for row in file.execute("SELECT name FROM sqlite_schema")}
    if not names >= STORE_TABLES:
        raise FileError(
            f"{path} is an SQLite file, but not a store of Joulery",
            remedy="give a store, or a file that `joulery store backup` wrote",
        )


def _check_source(location: str | Path, target: Path) -> None:
    if not Path(location).exists():
        raise FileError(f"no store at {location}", remedy="give its path with --store")
    _check_is_store(Path(location))
    _check_apart(Path(location), target)


def _check_target(target: Path, *, replace: bool) -> None:
    """Refuse to write a copy over anything that its user may still need."""
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise FileError(f"{target} is not a regular file", remedy="give another file")
    if any(Path(f"{target}{end}").exists() for end in _SIDE_FILES):
        raise FileError(  # a new file beside the log of an old one would be a damaged store
            f"{target} is a store in use", remedy="give another file, or stop what uses it"
        )
    if not replace:
        raise ConflictError(f"{target} exists", remedy="give another file, or --replace")
    _check_is_copy(target)


def _check_is_copy(file: Path) -> None:
    """Refuse to replace anything but a store, an export or an empty file."""
    with _explaining(file), file.open("rb") as content:
        beginning = content.read(len(EXPORT_BEGINNING))
    if beginning.startswith(DATABASE_BEGINNING):
        _check_is_store(file)
    elif beginning not in (b"", EXPORT_BEGINNING):
        raise FileError(f"{file} is no copy of a store", remedy="give another file")


def _check_apart(store: Path, file: Path) -> None:
    """Refuse to copy a store onto itself or its log, by whatever name."""
    for path in (Path(f"{store.resolve()}{end}") for end in ("", *_SIDE_FILES)):
        if path == file.resolve() or (path.exists() and file.exists() and path.samefile(file)):
            raise FileError(f"{file} is the store itself", remedy="give another file")


def _check_empty(path: Path) -> None:
    with Store.open(path) as store:
        counts = store.counts()
    if counts["jobs"] or counts["runs"]:
        raise ConflictError(_HAS_CONTENT, remedy=_CONTENT_REMEDY)


@contextlib.contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
    ) as file:
        yield file


def _copy(source: Path, target: Path) -> None:
    with _explaining(source), _opened(source, "ro") as store, _opened(target, "rw") as copy:
        store.backup(copy)


@contextlib.contextmanager
def _explaining(source: Path) -> Iterator[None]:
    """Raise SQLite's errors as our own."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise StoreBusyError("the store is locked", remedy="try again") from error
        raise StoreError(
            f"cannot copy the store: {error}", remedy="check the disk and rights"
        ) from error
    except sqlite3.DatabaseError as error:
        raise FileError(
            f"{source} is not a store, or a damaged one: {error}",
            remedy="give a store, or a file that `joulery store backup` wrote",
        ) from error


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
