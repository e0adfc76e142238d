"""Many rows in one statement, as each database reads it.

To PostgreSQL each row would be a message, so all rows of a kind go as one JSON array. SQLite gets
rows one by one, and what to look for as one JSON array. Either way the text of a statement is
always the same, and it is planned once. :mod:`joulery.storage.lines` carries them out.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Insert,
    LargeBinary,
    Text,
    any_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.base import PGDialect

from joulery.storage import statements
from joulery.storage.tables import decisions, events, jobs, outcomes, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Column, Delete, Table, TableValuedAlias, Update
    from sqlalchemy.sql import ClauseElement

    One = Insert | Update | Delete
    Rows = Sequence[Any]  # or what is looked for; at least one

_SQLITE = sqlite.dialect(paramstyle="named")
_untyped: Any = PGDialect
_POSTGRESQL = _untyped(paramstyle="numeric_dollar")


def _text(content: bytes) -> str:
    """What JSON cannot hold, as text."""
    return b64encode(content).decode()


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_text).encode


class Write:
    """Adds, changes or deletes rows; of updates of one row the last counts.

    Args:
        name: Of the statement.
        one: The same for one row.
        many: The same for the parameter ``rows``; see :func:`_given`.
    """

    def __init__(self, name: str, one: One, many: ClauseElement) -> None:
        self.name = name
        self._one = one
        self._many = many

    @cached_property
    def sqlite_text(self) -> str:
        """With named parameters, to be carried out for each row; all columns where it inserts."""
        one = self._one
        if isinstance(one, Insert):
            one = one.values({like.name: bindparam(like.name) for like in one.table.columns})
        return str(one.compile(dialect=_SQLITE))

    @cached_property
    def postgresql_text(self) -> str:
        """With one parameter for all rows."""
        return str(self._many.compile(dialect=_POSTGRESQL))

    def for_sqlite(self, rows: Rows) -> list[Any]:
        """The parameters of SQLite's statements."""
        return list(rows)

    def for_postgresql(self, rows: Rows) -> str:
        """The parameter of PostgreSQL's statement."""
        if "of" in rows[0]:
            rows = list({(row["of"], row.get("number")): row for row in rows}.values())
        return _encode(rows)


class Read:
    """Finds rows by their numbers.

    Args:
        name: Of the statement.
        sqlite_text: With one parameter, a JSON array.
        many: The same for PostgreSQL, with one parameter.
    """

    def __init__(self, name: str, sqlite_text: str, many: ClauseElement) -> None:
        self.name = name
        self.sqlite_text = sqlite_text
        self._many = many

    @cached_property
    def postgresql_text(self) -> str:
        """With one parameter for all that is looked for."""
        return str(self._many.compile(dialect=_POSTGRESQL))

    def for_sqlite(self, wanted: Rows) -> tuple[str]:
        """The parameter of SQLite's statement."""
        return (json.dumps(wanted),)

    def for_postgresql(self, wanted: Rows) -> str:
        """The parameter of PostgreSQL's statement."""
        return f"{{{','.join(map(str, wanted))}}}"


class Lookup(Read):
    """Finds rows by their job and one more column.

    Args:
        table: To look in.
        name: The other column.
    """

    def __init__(self, table: Table, name: str) -> None:
        own = table.c.job_id, table.c[name]
        given = _given({"job": own[0], "name": own[1]})
        super().__init__(
            f"{table.name}_by_{name}",
            # In this order, since SQLite would rather go through the whole table.
            f"SELECT {table.name}.* FROM json_each(?) AS given CROSS JOIN {table.name}"  # noqa: S608 - names of our own
            f" WHERE job_id = given.value ->> 0 AND {table.name}.{name} = given.value ->> 1",
            select(table).join(given, (own[0] == given.c.job) & (own[1] == given.c.name)),
        )

    def for_sqlite(self, wanted: Rows) -> tuple[str]:
        """The parameter of SQLite's statement."""
        return super().for_sqlite(_checked(wanted))

    def for_postgresql(self, wanted: Rows) -> str:
        """The parameter of PostgreSQL's statement."""
        return _encode([{"job": job, "name": name} for job, name in _checked(wanted)])


def _checked(wanted: Rows) -> Rows:
    for _, name in wanted:
        str(name).encode()  # a lone surrogate would be looked for as something else
    return wanted


def _given(names: dict[str, Column[Any]]) -> TableValuedAlias:
    """The parameter ``rows``, JSON, as a table; ``names`` says of which type each member is."""
    rows = cast(bindparam("rows", type_=Text), postgresql.JSON)
    columns = [column(name, _in_json(like)) for name, like in names.items()]
    table = func.json_to_recordset(rows).table_valued(*columns, name="given")
    return table.render_derived(with_types=True)


def _in_json(like: Column[Any]) -> Any:
    return Text() if isinstance(like.type, LargeBinary) else like.type


def _insert(table: Table) -> Insert:
    given = _given({like.name: like for like in table.columns})
    values = [
        func.decode(given.c[like.name], literal_column("'base64'"))
        if isinstance(like.type, LargeBinary)
        else given.c[like.name]
        for like in table.columns
    ]
    return insert(table).from_select([like.name for like in table.columns], select(*values))


def _update(own: dict[str, Column[Any]], **changes: str) -> Update:
    """Of rows by their ``own`` columns; ``changes`` says which column gets which parameter."""
    table = own["of"].table
    given = _given(own | {name: table.c[changed] for changed, name in changes.items()})
    return (
        update(table)
        .values({changed: given.c[name] for changed, name in changes.items()})
        .where(*(like == given.c[name] for name, like in own.items()))
    )


def _delete(table: Table) -> Delete:
    return delete(table).where(table.c.job_id == _given({"of": table.c.job_id}).c.of)


_DECISION = {"of": decisions.c.job_id, "number": decisions.c.sequence}

ADD_DECISION = Write("add_decisions", statements.ADD_DECISION, _insert(decisions))
ADD_EVENT = Write("add_events", statements.ADD_EVENT, _insert(events))
ADD_OUTCOME = Write("add_outcomes", statements.ADD_OUTCOME, _insert(outcomes))
PROLONG = Write(
    "prolong",
    statements.PROLONG,
    _update(
        _DECISION,
        heartbeat_wall_seconds="to_heartbeat_wall_seconds",
        deadline_wall_seconds="to_deadline_wall_seconds",
        progress="to_progress",
    ),
)
CLOSE = Write("close", statements.CLOSE, _update(_DECISION, state="to"))
COUNT = Write(
    "count",
    statements.COUNT,
    _update({"of": jobs.c.id}, events="to_events", recurrences="to_recurrences"),
)
DROP_SNAPSHOT = Write("drop_snapshots", statements.DROP_SNAPSHOT, _delete(snapshots))
ADD_SNAPSHOT = Write("add_snapshots", statements.ADD_SNAPSHOT, _insert(snapshots))

# In this order they refer to nothing that comes later.
WRITES = (
    ADD_DECISION,
    ADD_EVENT,
    ADD_OUTCOME,
    PROLONG,
    CLOSE,
    COUNT,
    DROP_SNAPSHOT,
    ADD_SNAPSHOT,
)

LOCK = Read(
    "lock",
    # SQLite's transactions lock everything.
    "SELECT * FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id",
    # In order, so that two processes never wait for each other.
    select(jobs)
    .where(jobs.c.id == any_(bindparam("some", type_=postgresql.ARRAY(BigInteger))))
    .order_by(jobs.c.id)
    .with_for_update(key_share=True),
)
DECISIONS_AT = Lookup(decisions, "sequence")
DECISIONS_FOR = Lookup(decisions, "key")
OUTCOMES_AT = Lookup(outcomes, "decision")
OUTCOMES_FOR = Lookup(outcomes, "key")
READS = (LOCK, DECISIONS_AT, OUTCOMES_AT, DECISIONS_FOR, OUTCOMES_FOR)
