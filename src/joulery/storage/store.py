"""The store as a whole: opened, written to in groups, read from, closed."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from joulery.errors import MissingExtraError

try:
    from sqlalchemy.exc import DBAPIError
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "a store needs SQLAlchemy", remedy='pip install "joulery[store]"'
    ) from error

from joulery.storage import lines
from joulery.storage.engines import explained, open_engine
from joulery.storage.migrate import upgrade
from joulery.storage.records import Subject
from joulery.storage.transaction import Transaction
from joulery.storage.turns import Turns
from joulery.storage.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from sqlalchemy import Engine

Answer = TypeVar("Answer")

_TURN_SECONDS = 1.0  # then whoever has the turn is taken to hang


def default_path() -> Path:
    """Where the store of this user is, unless told otherwise."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "joulery" / "store.sqlite"


class Store:
    """Jobs and all that belongs to them, in SQLite or PostgreSQL.

    Many processes may have the same one open. Within a process it is used from any thread.

    Args:
        engine: From :func:`joulery.storage.engines.open_engine`, upgraded.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turns: Turns | None = None
        if engine.dialect.name == "sqlite":
            self._turns = Turns(Path(f"{engine.url.database}-turns"), _TURN_SECONDS)
        self._writer = Writer(self._transaction)

    @classmethod
    def open(cls, location: str | Path | None = None) -> Self:
        """Open a store, make it if missing, and bring it up to date.

        Args:
            location: ``postgresql://…``, the path of an SQLite file, or None for
                :func:`default_path`.
        """
        engine = open_engine(default_path() if location is None else location)
        try:
            upgrade(engine)
        except BaseException as error:
            engine.dispose()
            if isinstance(error, DBAPIError):
                raise explained(error) from error
            raise
        store = cls(engine)
        store._writer.start()
        return store

    def submit(
        self, operation: Callable[[Transaction], Answer], about: Subject | int = 0
    ) -> Future[Answer]:
        """Have an operation carried out durably; see :meth:`joulery.storage.writer.Writer.submit`.

        Args:
            operation: To be carried out.
            about: What it is about; a number stands for the job.
        """
        subject = Subject(about) if isinstance(about, int) else about
        return self._writer.submit(operation, subject)

    def after_each_group(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called whenever a group of futures has ended, by the thread that writes."""
        self._writer.after_group = tell

    @property
    def write_failure(self) -> str | None:
        """Why the latest write failed, if that was a moment ago; None if all is well."""
        return self._writer.failure

    def write(self, operation: Callable[[Transaction], Answer], about: Subject | int = 0) -> Answer:
        """Carry an operation out durably and wait for it."""
        return self.submit(operation, about).result()

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A transaction that only reads, and keeps no writer waiting."""
        try:
            with lines.transaction(self._engine, reads_only=True) as line:
                yield Transaction(line)
        except DBAPIError as error:
            raise explained(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        ledger = None
        try:
            with (
                nullcontext() if self._turns is None else self._turns.taken(),
                lines.transaction(self._engine) as line,
            ):
                ledger = Transaction(line)
                yield ledger
            ledger.committed()
        except BaseException as error:
            if ledger is not None:  # also where the commit itself failed
                ledger.rolled_back()
            if isinstance(error, DBAPIError):
                raise explained(error) from error
            raise

    def close(self) -> None:
        """Finish what was submitted and let go of the database."""
        self._writer.close()
        self._engine.dispose()
        if self._turns is not None:
            self._turns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
