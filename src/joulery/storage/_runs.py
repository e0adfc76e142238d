"""Runs of any kind: stored under the key of their process, found by team, text and number."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, false, func, insert, select, text, update

from joulery.errors import UnknownRecordError
from joulery.storage._records import RunRecord
from joulery.storage._schema import curves, runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ColumnElement

    from joulery.storage._records import Document
    from joulery.storage._transaction import Transaction

SORTS: Mapping[str, ColumnElement[Any]] = {
    "started": runs.c.started_wall_seconds.desc(),
    "energy": func.coalesce(runs.c.joules, -1.0).desc(),
    "time": runs.c.seconds.desc(),
    "power": func.coalesce(runs.c.joules / func.nullif(runs.c.seconds, 0.0), -1.0).desc(),
    "name": runs.c.name.asc(),
    "number": runs.c.id.desc(),
}
"""Orders of a list of runs by name."""
# Literally, or the index of open runs may not be used.
_IS_OPEN = {"sqlite": text("runs.ended = 0"), "postgresql": text("NOT runs.ended")}


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Filter and order of a list of runs.

    Attributes:
        team: Team of the runs; None for every team.
        text: Text that name, host, boards, setting or tags contain, whatever the case.
        open_only: Whether only runs under way are meant.
        below: Number that those of the list are below; 0 for any.
        sort: One of ``SORTS``.
    """

    team: str | None
    text: str = ""
    open_only: bool = False
    below: int = 0
    sort: str = "started"

    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions of the rows."""
        conditions: list[ColumnElement[bool]] = []
        if self.team is not None:
            conditions.append(runs.c.team == self.team)
        if self.below:
            conditions.append(runs.c.id < self.below)
        if self.open_only:
            conditions.append(runs.c.ended == false())  # as literally as the index has it
        if self.text:
            conditions.append(runs.c.searched.icontains(self.text, autoescape=True))
        return conditions


def put_run(transaction: Transaction, run: RunRecord, content: list[Document]) -> None:
    """Store a run with its curves, in place of an earlier report of the same team and key.

    A report that was delayed on its way changes nothing: one of a run under way after the run has
    ended, or of less time than the stored one.
    """
    row = dataclasses.asdict(run)
    del row["id"]  # the database gives it
    same = runs.c.team == run.team, runs.c.key == run.key
    columns = select(runs.c.id, runs.c.ended, runs.c.seconds).where(*same).with_for_update()
    stored = transaction.query(columns).one_or_none()
    if stored is None:
        number = transaction.change(insert(runs).returning(runs.c.id), row).scalar_one()
    elif (stored.ended, stored.seconds) > (run.ended, run.seconds):
        return
    else:
        number = stored.id
        transaction.change(update(runs).where(runs.c.id == number).values(row))
    transaction.change(delete(curves).where(curves.c.run == number))
    transaction.change(insert(curves), {"run": number, "content": content})


def find_run(transaction: Transaction, number: int) -> tuple[RunRecord, list[Document]]:
    """The run of a number, and its curves.

    Raises:
        UnknownRecordError: There is none.
    """
    row = transaction.query(select(runs).where(runs.c.id == number)).one_or_none()
    if row is None:
        raise UnknownRecordError(f"no run number {number}", remedy="list the runs")
    content = transaction.query(select(curves.c.content).where(curves.c.run == number)).scalar()
    return RunRecord(*row), content or []


def list_runs(
    transaction: Transaction, query: RunQuery, limit: int, offset: int = 0
) -> list[RunRecord]:
    """Runs without their curves, in the order of the query; of equals, the latest first."""
    statement = select(runs).where(*query.conditions())
    order = SORTS[query.sort]
    if query.open_only and query.sort == "started":
        # Few are open: sorted after they were found, not looked for in the order of time.
        order = (runs.c.started_wall_seconds + 0.0).desc()
    statement = statement.order_by(order, runs.c.id.desc())
    return [RunRecord(*row) for row in transaction.query(statement.limit(limit).offset(offset))]


def count_runs(transaction: Transaction, query: RunQuery) -> int:
    """Number of the runs that a query finds."""
    statement = select(func.count()).select_from(runs).where(*query.conditions())
    number: int = transaction.query(statement).scalar_one()
    return number


def run_totals(
    transaction: Transaction, team: str | None, start_wall_seconds: float, end_wall_seconds: float
) -> tuple[int, float]:
    """Number of runs that began in a time, of a team or of all, and their joules."""
    conditions: list[ColumnElement[bool]] = [
        runs.c.started_wall_seconds.between(start_wall_seconds, end_wall_seconds)
    ]
    if team is not None:
        conditions.append(runs.c.team == team)
    columns = func.count(), func.coalesce(func.sum(runs.c.joules), 0.0)
    number, joules = transaction.query(select(*columns).where(*conditions)).one()
    return number, joules


def runs_mark(transaction: Transaction) -> str:
    """A text that changes when a run is added, reports or ends, of any team."""
    latest = transaction.query(select(func.max(runs.c.id))).scalar()
    columns = func.count(), func.coalesce(func.sum(runs.c.seconds), 0.0)
    condition = _IS_OPEN[transaction.dialect]
    number, seconds = transaction.query(select(*columns).where(condition).select_from(runs)).one()
    return f"{latest}.{number}.{seconds:g}"
