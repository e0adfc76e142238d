"""Many rows in one statement.

SQLite lives in this process, where a statement per row costs little. To PostgreSQL each would be a
message, so all rows of a kind go as one array per column; the text of a statement is then always
the same, and it is planned once.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import ARRAY, bindparam, column, func, insert, select, update

from joulery.store import statements
from joulery.store.tables import decisions, events, outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import BindParameter, Column, Connection, Executable, Table, TableValuedAlias

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
    """Arrays as a table; ``names`` says of which type each is."""
    arrays = [bindparam(name, type_=ARRAY(like.type)) for name, like in names.items()]
    columns = [column(name, like.type) for name, like in names.items()]
    return func.unnest(*arrays).table_valued(*columns, name="given").render_derived()


def _insert(table: Table) -> Executable:
    given = _given({like.name: like for like in table.columns})
    names = [like.name for like in table.columns]
    return insert(table).from_select(names, select(*(given.c[name] for name in names)))


def _update(**changes: str) -> Executable:
    """Of decisions; ``changes`` says which column gets which parameter."""
    names = {"of": decisions.c.job_id, "number": decisions.c.sequence}
    names |= {name: decisions.c[changed] for changed, name in changes.items()}
    given = _given(names)
    return (
        update(decisions)
        .values({changed: given.c[name] for changed, name in changes.items()})
        .where(decisions.c.job_id == given.c.of, decisions.c.sequence == given.c.number)
    )


_AS_ARRAYS: dict[Executable, Executable] = {
    statements.ADD_DECISION: _insert(decisions),
    statements.ADD_EVENT: _insert(events),
    statements.ADD_OUTCOME: _insert(outcomes),
    statements.CLOSE: _update(state="to"),
    statements.PROLONG: _update(
        heartbeat_wall_seconds="to_heartbeat_wall_seconds",
        deadline_wall_seconds="to_deadline_wall_seconds",
        progress="to_progress",
    ),
}


def write(connection: Connection, statement: Executable, rows: Rows) -> None:
    """Carry ``statement``, one of :data:`ORDER`, out for every row; of updates the last counts."""
    if connection.dialect.name != "postgresql":
        connection.execute(statement, rows)
        return
    if "of" in rows[0]:
        rows = list({(row["of"], row["number"]): row for row in rows}.values())
    arrays = {name: [row[name] for row in rows] for name in rows[0]}
    connection.execute(_AS_ARRAYS[statement], arrays)


class Lookup:
    """Rows of a table by their job and one more column.

    Args:
        table: To look in.
        name: The other column.
    """

    def __init__(self, table: Table, name: str) -> None:
        own = table.c.job_id, table.c[name]
        some: BindParameter[Any] = bindparam("some", expanding=True)
        # By job, since SQLite uses only half of an index for a list of pairs.
        self.of_job = select(table).where(own[0] == bindparam("of"), own[1].in_(some))
        given = _given({"jobs": own[0], "names": own[1]})
        self._as_arrays = select(table).join(
            given, (own[0] == given.c.jobs) & (own[1] == given.c.names)
        )

    def find(self, connection: Connection, wanted: Sequence[tuple[int, Any]]) -> Sequence[Any]:
        """The rows of those names that are there; ``wanted`` is sorted."""
        if not wanted:
            return ()
        if connection.dialect.name != "postgresql":
            return [
                row
                for job, pairs in groupby(wanted, key=itemgetter(0))
                for row in connection.execute(
                    self.of_job, {"of": job, "some": [name for _, name in pairs]}
                )
            ]
        jobs, names = zip(*wanted, strict=True)
        given = {"jobs": list(jobs), "names": list(names)}
        return connection.execute(self._as_arrays, given).all()


DECISIONS_AT = Lookup(decisions, "sequence")
DECISIONS_FOR = Lookup(decisions, "key")
OUTCOMES_AT = Lookup(outcomes, "decision")
OUTCOMES_FOR = Lookup(outcomes, "key")
