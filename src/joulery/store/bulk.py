"""Many rows in one statement.

To PostgreSQL each row would be a message, so all rows of a kind go as one JSON array. SQLite gets
rows one by one, and what to look for as one JSON array. Either way the text of a statement is
always the same, and it is planned once.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Insert,
    Text,
    Update,
    any_,
    bindparam,
    cast,
    column,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from joulery.store import statements
from joulery.store.tables import decisions, events, jobs, outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Column, Connection, Executable, Table, TableValuedAlias

Rows = list[dict[str, Any]]

# In this order they refer to nothing that comes later.
ORDER = (
    statements.ADD_DECISION,
    statements.ADD_EVENT,
    statements.ADD_OUTCOME,
    statements.PROLONG,
    statements.CLOSE,
)


def _given(names: dict[str, Column[Any]]) -> TableValuedAlias:
    """The parameter ``rows``, JSON, as a table; ``names`` says of which type each member is."""
    rows = cast(bindparam("rows", type_=Text), postgresql.JSON)
    columns = [column(name, like.type) for name, like in names.items()]
    table = func.json_to_recordset(rows).table_valued(*columns, name="given")
    return table.render_derived(with_types=True)


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _insert(table: Table) -> Executable:
    given = _given({like.name: like for like in table.columns})
    names = [like.name for like in table.columns]
    return insert(table).from_select(names, select(*(given.c[name] for name in names)))


def _update(own: dict[str, Column[Any]], **changes: str) -> Executable:
    """Of rows by their ``own`` columns; ``changes`` says which column gets which parameter."""
    table = own["of"].table
    given = _given(own | {name: table.c[changed] for changed, name in changes.items()})
    return (
        update(table)
        .values({changed: given.c[name] for changed, name in changes.items()})
        .where(*(like == given.c[name] for name, like in own.items()))
    )


_DECISION = {"of": decisions.c.job_id, "number": decisions.c.sequence}


_OF_JSON: dict[Insert | Update, Executable] = {
    statements.ADD_DECISION: _insert(decisions),
    statements.ADD_EVENT: _insert(events),
    statements.ADD_OUTCOME: _insert(outcomes),
    statements.CLOSE: _update(_DECISION, state="to"),
    statements.COUNT: _update({"of": jobs.c.id}, events="to_events", recurrences="to_recurrences"),
    statements.PROLONG: _update(
        _DECISION,
        heartbeat_wall_seconds="to_heartbeat_wall_seconds",
        deadline_wall_seconds="to_deadline_wall_seconds",
        progress="to_progress",
    ),
}


@cache
def _sqlite_text(statement: Insert | Update) -> str:
    """A statement as SQLite reads it, with named parameters; all columns where it inserts."""
    if isinstance(statement, Insert):
        statement = statement.values(
            {like.name: bindparam(like.name) for like in statement.table.columns}
        )
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


def write(connection: Connection, statement: Insert | Update, rows: Rows) -> None:
    """Carry ``statement`` out for every row; of updates of one row the last counts.

    Args:
        connection: With its transaction begun.
        statement: One of :data:`ORDER`, or that counts.
        rows: At least one.
    """
    if connection.dialect.name != "postgresql":
        connection.exec_driver_sql(_sqlite_text(statement), rows)
        return
    if "of" in rows[0]:
        rows = list({(row["of"], row.get("number")): row for row in rows}.values())
    connection.execute(_OF_JSON[statement], {"rows": _encode(rows)})


# In order, so that two processes never wait for each other. SQLite's transactions lock everything.
_LOCK = (
    select(jobs)
    .where(jobs.c.id == any_(bindparam("some", type_=postgresql.ARRAY(BigInteger))))
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
_SQLITE_LOCK = "SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"


def locked_jobs(connection: Connection, wanted: Sequence[int]) -> Sequence[Any]:
    """The rows of those jobs that are there, which nobody else changes from now on."""
    if connection.dialect.name != "postgresql":
        return connection.exec_driver_sql(_SQLITE_LOCK, (json.dumps(wanted),)).all()
    return connection.execute(_LOCK, {"some": wanted}).all()


class Lookup:
    """Rows of a table by their job and one more column.

    Args:
        table: To look in.
        name: The other column.
    """

    def __init__(self, table: Table, name: str) -> None:
        own = table.c.job_id, table.c[name]
        # In this order, since SQLite would rather go through the whole table.
        self.sqlite_text = (
            f"SELECT {table.name}.* FROM json_each(?) AS given CROSS JOIN {table.name}"  # noqa: S608 - names of our own
            f" WHERE job_id = given.value ->> 0 AND {table.name}.{name} = given.value ->> 1"
        )
        given = _given({"job": own[0], "name": own[1]})
        self._of_json = select(table).join(
            given, (own[0] == given.c.job) & (own[1] == given.c.name)
        )

    def find(self, connection: Connection, wanted: Sequence[tuple[int, Any]]) -> Sequence[Any]:
        """The rows of those names that are there; ``wanted`` is sorted."""
        if not wanted:
            return ()
        for _, name in wanted:
            str(name).encode()  # a lone surrogate would be looked for as something else
        if connection.dialect.name != "postgresql":
            return connection.exec_driver_sql(self.sqlite_text, (json.dumps(wanted),)).all()
        given = [{"job": job, "name": name} for job, name in wanted]
        return connection.execute(self._of_json, {"rows": _encode(given)}).all()


DECISIONS_AT = Lookup(decisions, "sequence")
DECISIONS_FOR = Lookup(decisions, "key")
OUTCOMES_AT = Lookup(outcomes, "decision")
OUTCOMES_FOR = Lookup(outcomes, "key")
