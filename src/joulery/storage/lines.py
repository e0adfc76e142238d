"""How a transaction talks to its database: many statements at once, where that saves waiting.

SQLite answers within the process, so it is asked one thing after the other. PostgreSQL is at the
other end of a line, where most of the time goes by waiting: what needs no answer in between goes as
one message, the first together with the begin of the transaction and the last with its commit.
Statements of a message are carried out one after the other, each on what was committed when it
began; the first that fails ends the message, and what comes after it is not carried out, nor is
the commit.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from joulery.storage import bulk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection, CursorResult, Engine

    from joulery.storage.bulk import Rows

_STATEMENTS = (*bulk.READS, *bulk.WRITES)
# Marks a connection, in its ``info``, that has our statements prepared.
_PREPARED = "joulery_prepared"


class Line(Protocol):
    """From one transaction to its database."""

    @property
    def connection(self) -> Connection:
        """For whatever else there is to say, with the transaction begun."""

    def read(self, questions: Iterable[tuple[bulk.Read, Rows]]) -> list[Rows]:
        """The rows that each finds, each on what was committed when those before it had ended."""

    def write(self, writes: Iterable[tuple[bulk.Write, Rows]]) -> None:
        """Carry them out in this order, on at least one row each."""

    def finish(self, writes: Iterable[tuple[bulk.Write, Rows]]) -> None:
        """The same at the end of the transaction; only its commit may follow."""


class SqliteLine:
    """To SQLite.

    Args:
        connection: With its transaction begun.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def read(self, questions: Iterable[tuple[bulk.Read, Rows]]) -> list[Rows]:
        """See :class:`Line`."""
        return [self._ask(asked, wanted).all() if wanted else () for asked, wanted in questions]

    def write(self, writes: Iterable[tuple[bulk.Write, Rows]]) -> None:
        """See :class:`Line`."""
        for write, rows in writes:
            self._ask(write, rows)

    finish = write

    def _ask(self, statement: bulk.Read | bulk.Write, rows: Rows) -> CursorResult[Any]:
        return self.connection.exec_driver_sql(statement.sqlite_text, statement.for_sqlite(rows))


class PostgresqlLine:
    """To PostgreSQL.

    Args:
        connection: On which nothing begins or ends a transaction unless told to.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begun = False

    @property
    def connection(self) -> Connection:
        """See :class:`Line`."""
        if not self._begun:
            self._send(["BEGIN"])
            self._begun = True
        return self._connection

    def read(self, questions: Iterable[tuple[bulk.Read, Rows]]) -> list[Rows]:
        """See :class:`Line`."""
        questions = list(questions)
        statements = [_execute(asked, wanted) for asked, wanted in questions if wanted]
        if not statements:
            return [() for _ in questions]
        self._prepare()
        if not self._begun:
            # What precedes it in a message is part of the transaction, too. It cannot come first:
            # SQLAlchemy keeps results only where the first has rows.
            statements.append("BEGIN")
        with self._send(statements) as answer:
            self._begun = True
            results = _results(answer)
            return [next(results) if wanted else () for _, wanted in questions]

    def write(self, writes: Iterable[tuple[bulk.Write, Rows]]) -> None:
        """See :class:`Line`."""
        self._write(writes, commits=False)

    def finish(self, writes: Iterable[tuple[bulk.Write, Rows]]) -> None:
        """See :class:`Line`."""
        self._write(writes, commits=True)

    def _write(self, writes: Iterable[tuple[bulk.Write, Rows]], *, commits: bool) -> None:
        statements = [_execute(write, rows) for write, rows in writes]
        if not statements:
            return
        self._prepare()
        if not self._begun:
            statements.insert(0, "BEGIN")
        if commits:
            statements.append("COMMIT")
        self._send(statements)
        self._begun = not commits

    def _prepare(self) -> None:
        """Have our statements parsed, once on each connection."""
        if _PREPARED not in self._connection.info:
            self._send(f"PREPARE {_name(one)} AS {one.postgresql_text}" for one in _STATEMENTS)
            self._connection.info[_PREPARED] = True

    def _send(self, statements: Iterable[str]) -> CursorResult[Any]:
        return self._connection.exec_driver_sql(
            ";".join(statements), execution_options={"no_parameters": True}
        )


def _results(answer: CursorResult[Any]) -> Iterator[Rows]:
    """The rows of each statement of a message."""
    from psycopg.rows import namedtuple_row

    cursor: Any = answer.cursor
    cursor.row_factory = namedtuple_row
    yield cursor.fetchall()
    while cursor.nextset():
        yield cursor.fetchall()


def _name(statement: bulk.Read | bulk.Write) -> str:
    return f"joulery_{statement.name}"


def _execute(statement: bulk.Read | bulk.Write, rows: Rows) -> str:
    literal = statement.for_postgresql(rows).replace("'", "''")
    return f"EXECUTE {_name(statement)}('{literal}')"


@contextmanager
def transaction(engine: Engine, *, reads_only: bool = False) -> Iterator[Line]:
    """A line with a transaction, which is committed on leaving."""
    kind: type[PostgresqlLine | SqliteLine] = SqliteLine
    options: dict[str, Any] = {"reads_only": reads_only}
    if engine.dialect.name == "postgresql":
        kind, options = PostgresqlLine, {"isolation_level": "AUTOCOMMIT"}
    with engine.connect().execution_options(**options) as connection, connection.begin():
        yield kind(connection)
