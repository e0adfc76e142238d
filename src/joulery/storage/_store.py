"""The store as a whole: opened, written to by group commit, read from, closed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from joulery.errors import MissingExtraError

try:
    from sqlalchemy.exc import DBAPIError
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "a store needs SQLAlchemy", remedy='pip install "joulery[store]"'
    ) from error

from joulery.storage._engines import explained, open_engine
from joulery.storage._migrate import upgrade
from joulery.storage._records import Subject
from joulery.storage._transaction import Transaction
from joulery.storage._writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from sqlalchemy import Engine

Answer = TypeVar("Answer")


def default_path() -> Path:
    """The path of this user's store, unless another one is given."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "joulery" / "store.sqlite"


class Store:
    """Jobs and all that belongs to them, in SQLite or PostgreSQL.

    Many processes may have the same store open. Within a process it is used from any thread.

    Args:
        engine: Engine from :func:`joulery.storage._engines.open_engine`, of an upgraded database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = Writer(self._transaction)

    @classmethod
    def open(cls, location: str | Path | None = None) -> Self:
        """Open a store, create it if missing, and upgrade its schema.

        Args:
            location: ``postgresql://…``, the path of an SQLite file, or None for
                :func:`default_path`.
        """
        location = default_path() if location is None else location
        try:
            upgrade(location)
        except DBAPIError as error:
            raise explained(error) from error
        store = cls(open_engine(location))
        store._writer.start()
        return store

    def submit(
        self, operation: Callable[[Transaction], Answer], about: Subject | int = 0
    ) -> Future[Answer]:
        """Have an operation executed durably; see :meth:`joulery.storage._writer.Writer.submit`.

        Args:
            operation: Function of the transaction.
            about: Records that it is about; a number stands for the job.
        """
        subject = Subject(about) if isinstance(about, int) else about
        return self._writer.submit(operation, subject)

    def write(self, operation: Callable[[Transaction], Answer], about: Subject | int = 0) -> Answer:
        """Execute an operation durably and wait for it."""
        return self.submit(operation, about).result()

    @property
    def write_failure(self) -> str | None:
        """Why the latest write failed, if that was seconds ago; None if writes succeed."""
        return self._writer.failure

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A transaction that only reads, and keeps no writer waiting."""
        try:
            with (
                self._engine.connect().execution_options(reads_only=True) as connection,
                connection.begin(),
            ):
                yield Transaction(connection)
        except DBAPIError as error:
            raise explained(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        transaction = None
        try:
            with self._engine.connect() as connection, connection.begin():
                transaction = Transaction(connection)
                yield transaction
        except BaseException as error:
            if transaction is not None:  # also where the commit itself failed
                transaction.rolled_back()
            if isinstance(error, DBAPIError):
                raise explained(error) from error
            raise

    def close(self) -> None:
        """Finish what was submitted and close the connections."""
        self._writer.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
