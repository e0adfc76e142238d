"""Export of a whole store as lines of JSON, and import into another one, of either database.

The first line is a header; each further line is one row, ``{"jobs": {…}}``; the last counts them,
so that a truncated file is noticed. Documents are nested JSON, bytes are base64, numbers are exact.
Snapshots are left out: they are made again from events.
"""

from __future__ import annotations

import base64
import itertools
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, LargeBinary, delete, insert, select, text
from sqlalchemy.exc import DBAPIError

from joulery.errors import ConflictError, FileError
from joulery.storage._engines import explained, open_engine
from joulery.storage._migrate import HEAD, upgrade
from joulery.storage._records import to_json
from joulery.storage._schema import (
    decisions,
    energy,
    events,
    jobs,
    outcomes,
    profiles,
    settings,
    snapshots,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection, Table

    from joulery.storage._records import Document

FORMAT = "joulery-store-1"
# In this order rows refer to nothing that comes later.
_TABLES = {
    table.name: table
    for table in (jobs, events, decisions, outcomes, profiles, energy, tokens, settings)
}
_NUMBERED = ("jobs", "energy", "tokens")
_AT_ONCE = 1000  # rows, however many there are
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_REMEDY = "give a whole file that `joulery serve --export` wrote"


def exported(location: str | Path) -> Iterator[bytes]:
    """The content of a store at one moment, line by line."""
    with _connected(location, reads_only=True) as connection:
        yield _line({"format": FORMAT, "revision": HEAD, "numbers": _last_numbers(connection)})
        counts = {}
        for name, table in _TABLES.items():
            counts[name] = 0
            order = list(table.primary_key.columns)
            found = connection.execute(
                select(table).order_by(*order).execution_options(yield_per=_AT_ONCE)
            )
            for row in found.mappings():
                counts[name] += 1
                yield _line({name: {one: _exported(value) for one, value in row.items()}})
        yield _line({"end": counts})


def imported(location: str | Path, lines: Iterable[bytes], *, replace: bool = False) -> Document:
    """Fill a store with the content of another one, and count the rows of each table.

    Numbers, versions and tokens stay as they were; tokens that the store had are replaced. Either
    all lines are kept or none.

    Raises:
        ConflictError: The store has jobs, and they may not be replaced.
        FileError: The lines are damaged or incomplete.
    """
    with _connected(location, reads_only=False) as connection:
        if not replace and connection.execute(select(jobs.c.id).limit(1)).first() is not None:
            raise ConflictError(
                "the store has jobs already", remedy="import into an empty one, or give --replace"
            )
        for table in (snapshots, *reversed(_TABLES.values())):
            connection.execute(delete(table))
        given, counts = iter(lines), dict.fromkeys(_TABLES, 0)
        numbers = _header(next(given, b""))
        for name, rows in itertools.groupby(_rows(given), key=lambda one: one[0]):
            while some := [row for _, row in itertools.islice(rows, _AT_ONCE)]:
                connection.execute(insert(_TABLES[name]), some)
                counts[name] += len(some)
        _set_numbers(connection, numbers)
        return counts


def _rows(lines: Iterator[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The table and columns of each row after the header; the last line has to count them."""
    counts, ended = dict.fromkeys(_TABLES, 0), False
    for number, line in enumerate(lines, 2):
        if ended:
            raise FileError("the file goes on after its end", remedy=_REMEDY)
        try:
            ((name, content),) = json.loads(line).items()
            if name == "end":
                ended = content == counts
                continue
            row = _imported_row(_TABLES[name], content)
        except _UNREADABLE:
            raise FileError(f"line {number} is no row of a store", remedy=_REMEDY) from None
        counts[name] += 1
        yield name, row
    if not ended:
        raise FileError("the file is cut off or rows are missing", remedy=_REMEDY)


def _header(line: bytes) -> dict[str, int]:
    """The last number of each table, as the first line states them."""
    try:
        document = json.loads(line)
        if document["format"] != FORMAT:
            raise KeyError(FORMAT)
        found, numbers = document["revision"], document["numbers"]
        numbers = {name: int(numbers[name]) for name in _NUMBERED}
    except _UNREADABLE:
        raise FileError("this is no export of a store", remedy=_REMEDY) from None
    if found != HEAD:
        raise FileError(
            f"the export is of revision {str(found)[:20]}, not {HEAD}",
            remedy="import it with the version of Joulery that wrote it, then upgrade",
        )
    return numbers


def _line(document: Document) -> bytes:
    return to_json(document).encode("ascii") + b"\n"


def _exported(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _imported_row(table: Table, content: Document) -> dict[str, Any]:
    if content.keys() != {column.name for column in table.columns}:
        raise ValueError(table.name)
    row = {}
    for column in table.columns:
        value = content[column.name]
        if isinstance(column.type, LargeBinary):
            value = base64.b64decode(value, validate=True)
        elif value is not None and not isinstance(column.type, JSON):
            _check(value, column.type.python_type)
        row[column.name] = value
    return row


def _check(value: Any, kind: type) -> None:
    """Refuse values that a database would take for others, or not take at all."""
    if kind is bool or isinstance(value, bool):
        fits = kind is bool and isinstance(value, bool)
    elif kind is int:
        fits = isinstance(value, int) and abs(value) < 2**63
    else:
        fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits:
        raise ValueError(value)


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
        kept = connection.execute(text("SELECT name, seq FROM sqlite_sequence"))
        given = {row.name: row.seq for row in kept}
    else:
        last = text("SELECT pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass)")
        given = {name: connection.execute(last, {"name": name}).scalar() for name in _NUMBERED}
    return {name: int(given.get(name) or 0) for name in _NUMBERED}


def _set_numbers(connection: Connection, numbers: dict[str, int]) -> None:
    for name, last in numbers.items():
        given = {"name": name, "last": last}
        if connection.dialect.name == "postgresql":
            if last:
                statement = "SELECT setval(pg_get_serial_sequence(:name, 'id'), :last)"
                connection.execute(text(statement), given)
        else:
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), given)
            statement = "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"
            connection.execute(text(statement), given)
