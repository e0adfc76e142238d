"""The store as a whole: opened, written to by group commit, read from, checked, closed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeoutError

from joulery.errors import StoreBusyError, StoreError, StoreReplacedError
from joulery.files import data_folder
from joulery.storage._engines import DAMAGED_REMEDY, explained, open_engine
from joulery.storage._migrate import generation, missing_columns, upgrade
from joulery.storage._schema import events, jobs, metadata
from joulery.storage._transaction import Transaction
from joulery.storage._writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from sqlalchemy import Connection, Engine

    from joulery.storage._records import Subject

Answer = TypeVar("Answer")

_MEMORY = ":memory:"

_ANSWER_SECONDS = 15.0  # by hand: more than all waits that the database itself bounds


def default_path() -> Path:
    """The path of this user's store, unless another one is given."""
    return data_folder() / "store.sqlite"


def _memory_folder() -> Path | None:
    """The folder of Linux whose files are in memory; None where there is none."""
    folder = Path("/dev/shm")  # noqa: S108 - a folder of the store's own is made there
    return folder if os.access(folder, os.W_OK) else None


class Store:
    """Jobs and all that belongs to them, in SQLite or PostgreSQL.

    Many processes may have the same store open. Within a process it is used from any thread.

    Args:
        engine: Engine from ``joulery.storage._engines.open_engine``, of an upgraded database.
        folder: Folder of the database, to be deleted when the store is closed; None for none.

    Attributes:
        replaced: Whether another content was found in its place; then nothing is read or written.
        submit: Function that has an operation executed durably, and returns a future of its answer;
            see ``joulery.storage._writer.Writer.submit``.
    """

    def __init__(self, engine: Engine, folder: TemporaryDirectory[str] | None = None) -> None:
        self._engine = engine
        self._writer = Writer(self._transaction)
        self._folder = folder
        self._generation: bytes | None = None  # since the first transaction
        self.replaced = False
        self.submit = self._writer.submit

    @classmethod
    def open(cls, location: str | Path | None = None) -> Self:
        """Open a store, create it if missing, and upgrade its schema.

        Args:
            location: ``postgresql://…``, the path of an SQLite file, None for
                ``default_path``, or ``:memory:`` for a new store that ends when it is closed,
                for tests.
        """
        folder = None
        if location == _MEMORY:
            # A file, since connections to a database in SQLite's memory lock each other out.
            folder = TemporaryDirectory(prefix="joulery-", dir=_memory_folder())
            location = Path(folder.name) / "store.sqlite"
        location = default_path() if location is None else location
        patient = open_engine(location, patient=True)
        try:
            with _explaining():
                upgrade(patient)
        finally:
            patient.dispose()
        return cls(open_engine(location), folder)

    def write(
        self, operation: Callable[[Transaction], Answer], subject: Subject | int = 0
    ) -> Answer:
        """Execute an operation durably and wait for it."""
        return self.wait(self.submit(operation, subject))

    @staticmethod
    def wait(future: Future[Answer]) -> Answer:
        """The answer of an operation that was submitted.

        Raises:
            StoreBusyError: The database is suspended or unreachable; the operation may still be
                executed once it continues.
        """
        try:
            return future.result(_ANSWER_SECONDS)
        except TimeoutError:
            if future.done():
                raise
            raise StoreBusyError(
                f"the store did not answer within {_ANSWER_SECONDS:g} s",
                remedy="check that the database is running, and make the same request again",
            ) from None

    @property
    def write_failure(self) -> str | None:
        """Error of the latest write, if it failed seconds ago; None if writes succeed."""
        return self._writer.failure

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A transaction that only reads, and keeps no writer waiting."""
        with (
            self._explaining(),
            self._engine.connect().execution_options(reads_only=True) as connection,
            connection.begin(),
        ):
            self._check_generation(connection)
            yield Transaction(connection)

    def _check_generation(self, connection: Connection) -> None:
        """Refuse a store whose content was replaced: what this process knows is of the old one."""
        present = generation(connection)
        self._generation = self._generation or present
        if self._generation != present:
            raise StoreReplacedError(
                "the content of the store was replaced by a restore or an import",
                remedy="start this program again",
            )

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with _explaining():
                yield
        except StoreReplacedError:
            self.replaced = True
            raise

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        transaction = None
        try:
            with self._explaining(), self._engine.connect() as connection, connection.begin():
                self._check_generation(connection)
                transaction = Transaction(connection)
                yield transaction
        except BaseException:
            if transaction is not None:  # also where the commit itself failed
                transaction.rolled_back()
            raise

    def check(self) -> None:
        """Check the whole content; takes about a second per 100 MB of SQLite.

        Raises:
            StoreError: The file is damaged: pages contradict one another, or a job its events; or
                a version that was not released wrote it.
        """
        wrong = []
        with (
            _explaining(),
            self._engine.connect().execution_options(reads_only=True) as connection,
        ):
            missing = missing_columns(connection)
        if missing:
            raise StoreError(
                f"the store has no {missing[0]}: a version that was not released wrote it",
                remedy="export it with that version and import the file, or begin a new store",
            )
        with self.reading() as transaction:
            if self._engine.dialect.name == "sqlite":
                verdict = transaction.query(text("PRAGMA integrity_check(1)")).scalar_one()
                wrong += [] if verdict == "ok" else [str(verdict)]
                if transaction.query(text("PRAGMA foreign_key_check")).first() is not None:
                    wrong.append("rows refer to others that are missing")
            last = select(func.max(events.c.sequence)).where(events.c.job == jobs.c.id)
            differs = jobs.c.events != func.coalesce(last.scalar_subquery(), 0)
            if transaction.query(select(jobs.c.id).where(differs).limit(1)).first() is not None:
                wrong.append("events of a job are missing")
        if wrong:
            raise StoreError(
                f"the store is damaged: {wrong[0].splitlines()[-1]}",
                remedy=DAMAGED_REMEDY,
            )

    def counts(self) -> dict[str, Any]:
        """The number of rows of each table."""
        with self.reading() as transaction:
            return {
                name: transaction.query(select(func.count()).select_from(table)).scalar_one()
                for name, table in metadata.tables.items()
            }

    def close(self) -> None:
        """Finish what was submitted and close the connections."""
        self._writer.close()
        self._engine.dispose()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _explaining() -> Iterator[None]:
    """Raise errors of the database as our own."""
    try:
        yield
    except DBAPIError as error:
        raise explained(error) from error
    except PoolTimeoutError as error:
        raise StoreBusyError(
            "all connections to the store are in use",
            remedy="check that the database is running, and make the same request again",
        ) from error
