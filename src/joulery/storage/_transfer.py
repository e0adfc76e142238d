"""Export of a whole store as lines of JSON, and import into another one, of either database.

The first line is a header; each further line is one row, ``{"jobs": {…}}``; the last has the digest
of all before it, so that a truncated or changed file is noticed. Documents are nested JSON, bytes
are base64, numbers are exact. Snapshots are left out: they are made again from events. So are
sessions of the dashboard.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from sqlalchemy import LargeBinary, delete, insert, select, text
from sqlalchemy.exc import DBAPIError

from joulery.errors import ConflictError, FileError
from joulery.storage._engines import explained, open_engine
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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from joulery.storage._records import Document

FORMAT = "joulery-store-1"
# In this order rows refer to nothing that comes later.
_TABLES = {
    table.name: table
    for table in (
        jobs,
        events,
        decisions,
        outcomes,
        profiles,
        energy,
        runs,
        curves,
        tokens,
        settings,
    )
}
_NUMBERED = ("jobs", "energy", "runs", "tokens")
# Of exports that can be read: later ones only added tables and indexes.
_REVISIONS = ("r0002", "r0003", HEAD)
_AT_ONCE = 1000  # rows, however many there are
_REMEDY = "give a whole file that `joulery store export` wrote"


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
        ConflictError: The store has jobs, and they may not be replaced.
        FileError: The file is damaged or incomplete.
    """
    header = check_export(file)
    with _connected(location, reads_only=False) as connection:
        if not replace and connection.execute(select(jobs.c.id).limit(1)).first() is not None:
            raise ConflictError(
                "the store has jobs already", remedy="import into an empty one, or give --replace"
            )
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
        raise FileError("this is no export of a store", remedy=_REMEDY)
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
            yield name, row


def _line(document: Document) -> bytes:
    return to_json(document).encode("ascii") + b"\n"


def _exported(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


@contextmanager
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
