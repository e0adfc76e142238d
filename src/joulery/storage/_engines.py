"""Connections to SQLite and PostgreSQL whose commits are durable and whose waits are bounded."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
)

from joulery.clock import REAL_CLOCK
from joulery.errors import (
    ConflictError,
    FileError,
    InvalidValueError,
    JouleryError,
    MissingExtraError,
    StoreBusyError,
    StoreError,
    StoreReplacedError,
)
from joulery.storage._records import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

BUSY_SECONDS = 4.0
"""Longest wait for a lock that another process holds (by hand: many group commits)."""
STATEMENT_SECONDS = 5.0
"""Longest time that one statement of PostgreSQL may take (by hand: they take milliseconds)."""
SUSPENDED_SECONDS = 10.0
"""Longest wait for PostgreSQL, which bounds nothing while suspended (by hand: two statements)."""
_SILENCE_SECONDS = 5.0  # of the network after data was sent (by hand: as a statement)
_PATIENT_SECONDS = 60.0  # longest wait of migrations and exports for a lock (by hand)

DAMAGED_REMEDY = "restore a backup: joulery store restore FILE --replace"

STORE_TABLES = {"alembic_version", "jobs", "events", "decisions", "outcomes"}
"""Tables of every store, whatever its version."""
FOREIGN = "this database belongs to another program: it has tables, and they are not a store's"
FOREIGN_REMEDY = "give the path or address of a store, or of a new database"

# PostgreSQL's codes for serialization failures, deadlocks and lock timeouts.
_RETRY_CODES = frozenset({"40001", "40P01", "55P03"})


def open_engine(
    location: str | Path, busy_seconds: float = BUSY_SECONDS, *, patient: bool = False
) -> Engine:
    """An engine whose commits have reached the disk when they return.

    On SQLite, transactions lock the database when they begin, except those of connections with the
    execution option ``reads_only``.

    Args:
        location: ``postgresql://…``, or the path of an SQLite file, which is created if missing.
        busy_seconds: Longest wait for a lock before ``StoreBusyError``.
        patient: Whether statements may take any time and locks are waited for a minute, as
            migrations and exports need it.
    """
    text = str(location)
    seconds = _PATIENT_SECONDS if patient else busy_seconds
    if text.startswith(("postgresql:", "postgres:")):
        return _postgresql(text, seconds, 0.0 if patient else STATEMENT_SECONDS)
    if "://" in text:
        raise InvalidValueError(
            f"no store at {text.partition(':')[0]}://…",
            remedy="give postgresql://… or the path of an SQLite file",
        )
    return _sqlite(Path(text), seconds)


def _sqlite(path: Path, busy_seconds: float) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot make the folder {path.parent}: {error.strerror}",
            remedy="give a path that you may write to",
        ) from error
    # SQLite gives its other files the rights of the first.
    with suppress(OSError):  # it is there, or SQLite says why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": busy_seconds},
        json_serializer=to_json,
        pool_timeout=busy_seconds,
    )
    identities: list[tuple[int, int] | None] = []  # the file, since the first connection

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        identities.append(_identity(path))
        connection.isolation_level = None  # transactions begin as below, not when the driver likes
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        if tables and not tables >= STORE_TABLES:  # before anything of another's file changes
            raise StoreError(FOREIGN, remedy=FOREIGN_REMEDY)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if _identity(path) != identities[0]:
            raise StoreReplacedError(
                f"the file {path.name} of the store was replaced or deleted while it was in use",
                remedy="stop all programs that use it, put the file in place with `joulery store "
                "restore`, and start them again",
            )
        # A deferred transaction that reads first and writes later fails if another wrote meanwhile.
        reads = connection.get_execution_options().get("reads_only", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode, which differ between files of the same name; None for no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _postgresql(text: str, busy_seconds: float, statement_seconds: float) -> Engine:
    settings = {
        "lock_timeout": round(1000 * busy_seconds),
        "statement_timeout": round(1000 * statement_seconds),
        "synchronous_commit": "on",
        "default_transaction_isolation": r"read\ committed",
    }
    try:
        url = make_url(text.replace("postgres:", "postgresql:", 1))
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            json_serializer=to_json,
            pool_timeout=busy_seconds,
            connect_args={
                "connect_timeout": max(2, round(busy_seconds)),
                "tcp_user_timeout": round(1000 * _SILENCE_SECONDS),
                "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
            },
        )
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "PostgreSQL needs psycopg", remedy='pip install "joulery[server]"'
        ) from error
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise InvalidValueError(
            "cannot read the address of the store",
            remedy="write postgresql://USER:PASSWORD@HOST:PORT/DATABASE",
        ) from error
    if statement_seconds:
        connection = _bounded_connection()
        event.listen(
            engine,
            "do_connect",
            lambda _, __, arguments, options: connection(*arguments, **options),
        )
    return engine


def _bounded_connection() -> Callable[..., Any]:
    """The function that opens connections which wait for an answer for a bounded time."""
    import psycopg

    def bounded(work: Any, end: float) -> Any:
        try:
            event_mask = next(work)
            while True:
                ready = yield event_mask  # nothing, every tenth of a second
                if not ready and REAL_CLOCK.now() >= end:
                    raise psycopg.errors.ConnectionTimeout("the database does not answer")
                event_mask = work.send(ready)
        except StopIteration as stop:
            return stop.value

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            end = REAL_CLOCK.now() + SUSPENDED_SECONDS
            try:
                return super().wait(bounded(gen, end), *arguments, **options)
            except psycopg.errors.ConnectionTimeout:
                self.close()
                raise

    return Bounded.connect


def explained(error: DBAPIError) -> JouleryError:
    """The error of our tree for a database error, without statements or values."""
    if isinstance(error, IntegrityError):
        return ConflictError(
            "another record has that name already", remedy="read it first, or choose another name"
        )
    if isinstance(error, DataError):
        return InvalidValueError(
            "the store cannot hold one of the values",
            remedy="give numbers within 64 bits and text without NUL",
        )
    lines = str(error.orig).strip().splitlines()
    reason = lines[0] if lines else type(error.orig).__name__
    code = getattr(error.orig, "sqlstate", None) or ""
    timed_out = type(error.orig).__name__ == "ConnectionTimeout"  # of psycopg, which is optional
    restarting = error.connection_invalidated or timed_out or code.startswith(("57", "08"))
    if restarting or code in _RETRY_CODES or "database is locked" in reason:
        return StoreBusyError(
            f"the store is busy or restarting: {reason}", remedy="make the same request again"
        )
    if "malformed" in reason:
        return StoreError(f"the store is damaged: {reason}", remedy=DAMAGED_REMEDY)
    if "not a database" in reason:
        return InvalidValueError(
            "the store is not a database of Joulery",
            remedy="give another path (--store or $JOULERY_STORE); a new store is made where none "
            "is",
        )
    return StoreError(
        f"the store failed: {reason}", remedy="check the database's disk, rights and log"
    )
