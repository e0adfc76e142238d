"""Connections to SQLite and PostgreSQL that keep what they acknowledge."""

from __future__ import annotations

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

from joulery.errors import (
    ConflictError,
    FileError,
    InvalidValueError,
    JouleryError,
    MissingExtraError,
    StoreBusyError,
    StoreError,
)
from joulery.storage.watch import UNHURRIED, Watch

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, ExceptionContext

# Deadlocks, serialization failures and lock timeouts: PostgreSQL asks to try again.
_TRY_AGAIN = frozenset({"40001", "40P01", "55P03"})
# With the second that a turn is waited for, less than five; see joulery.storage.turns.
BUSY_SECONDS = 3.5
# Of PostgreSQL: what one statement may take, and how long it may not answer at all. With an attempt
# to connect after that, less than ten.
STATEMENT_SECONDS = 5.0
SILENCE_SECONDS = 5.5
# For whoever has said that it takes its time.
_UNHURRIED_SECONDS = 60.0

# Every statement has its index. The planner knows tables as they were a minute ago, perhaps empty,
# and would rather read them through; plans that are kept would go on doing so.
_BY_INDEX = "-c jit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"

# Transactions that we begin, and literals that we write, mean what they say however it is set up.
_AS_SENT = r"-c default_transaction_isolation=read\ committed -c standard_conforming_strings=on"
# A statement that we have prepared is not there, or there already: another connection is needed.
_NOT_PREPARED = frozenset({"26000", "42P05"})


def open_engine(location: str | Path, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """An engine whose commits have reached the disk when they return.

    Connections take execution options: ``reads_only``, and ``unhurried`` for what may wait for
    others for a minute and take any time itself.

    Args:
        location: ``postgresql://…``, or the path of an SQLite file, which is made if missing.
        busy_seconds: How long to wait for others before :class:`StoreBusyError`.
    """
    text = str(location)
    if text.startswith(("postgresql:", "postgres:")):
        return _postgresql(text, busy_seconds)
    if "://" in text:
        raise InvalidValueError(
            f"no store at {text.partition(':')[0]}://…",
            remedy="give postgresql://… or the path of an SQLite file",
        )
    return _sqlite(Path(text), busy_seconds)


def _sqlite(path: Path, busy_seconds: float) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot make the folder {path.parent}: {error.strerror}",
            remedy="give a path that you may write to",
        ) from error
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": busy_seconds},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say, see below
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        unhurried = _is_unhurried(connection)
        if unhurried != connection.info.get(UNHURRIED, False):
            seconds = _UNHURRIED_SECONDS if unhurried else busy_seconds
            connection.exec_driver_sql(f"PRAGMA busy_timeout={round(1000 * seconds)}")
            connection.info[UNHURRIED] = unhurried
        # A deferred transaction that reads first and writes later fails if another wrote meanwhile.
        reads = connection.get_execution_options().get("reads_only", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _postgresql(text: str, busy_seconds: float) -> Engine:
    try:
        url = make_url(text.replace("postgres:", "postgresql:", 1))
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": max(2, round(busy_seconds)),
                "options": f"-c lock_timeout={round(1000 * busy_seconds)} "
                f"-c statement_timeout={round(1000 * STATEMENT_SECONDS)} "
                f"-c synchronous_commit=on {_AS_SENT} {_BY_INDEX}",
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
    Watch(SILENCE_SECONDS).over(engine)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if _is_unhurried(connection):
            take_time(connection)

    @event.listens_for(engine, "connect")
    def connect(driver: Any, _: object) -> None:
        # Psycopg would deallocate what we prepare along with what it prepares by itself.
        driver.prepare_threshold = None

    @event.listens_for(engine, "handle_error")
    def replace_connection(context: ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) in _NOT_PREPARED:
            context.is_disconnect = True

    return engine


def take_time(connection: Connection) -> None:
    """Let what follows in a transaction wait for others for a minute, and take any time itself.

    SQLite never ends a statement, and has its lock already.
    """
    if connection.dialect.name == "postgresql":
        connection.info[UNHURRIED] = True
        connection.exec_driver_sql(
            "SELECT set_config('statement_timeout', '0', true), "
            f"set_config('lock_timeout', '{round(1000 * _UNHURRIED_SECONDS)}', true)"
        )


def _is_unhurried(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("unhurried", False))


def explained(error: DBAPIError) -> JouleryError:
    """What a database error means to the caller, without statements or values."""
    if isinstance(error, IntegrityError):
        return ConflictError(
            "another record has that name already", remedy="read it first, or choose another name"
        )
    if isinstance(error, DataError):
        return InvalidValueError(
            "the store cannot hold one of the values",
            remedy="give numbers within 64 bits and text without NUL",
        )
    reason = _reason(error)
    code = getattr(error.orig, "sqlstate", None)
    busy = "database is locked" in reason or code in _TRY_AGAIN
    silent = type(error.orig).__name__ == "ConnectionTimeout"  # of psycopg, which may not be here
    restarting = silent or error.connection_invalidated or (code or "").startswith(("57", "08"))
    if busy or restarting:
        return StoreBusyError(
            f"the store is busy or restarting: {reason}", remedy="make the same request again"
        )
    return StoreError(
        f"the store failed: {reason}", remedy="check the database's disk, rights and log"
    )


def _reason(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
