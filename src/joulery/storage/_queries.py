"""Runs, profiles and energy, which no policy learns from; and what lists and totals read."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import and_, case, delete, false, func, insert, literal_column, select, text, update

from joulery.errors import ConflictError, UnknownRecordError
from joulery.storage._records import (
    DecisionRecord,
    EnergyRecord,
    OutcomeRecord,
    ProfileRecord,
    RunRecord,
)
from joulery.storage._schema import curves, decisions, energy, jobs, outcomes, profiles, runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, FromClause, Row

    from joulery.storage._records import Document
    from joulery.storage._transaction import Transaction


_QUARTER_SECONDS = 900.0

Record = TypeVar("Record", OutcomeRecord, ProfileRecord, EnergyRecord)

# Table of each kind of record, and the column that numbers those of a job.
_TABLES = {
    OutcomeRecord: (outcomes, "decision"),
    ProfileRecord: (profiles, "batch_size"),
    EnergyRecord: (energy, "id"),
}


def totals(transaction: Transaction) -> dict[str, int]:
    """Number of ``jobs``, of ``events`` and of ``open_decisions`` of all teams."""
    query = select(func.count(), func.coalesce(func.sum(jobs.c.events), 0)).select_from(jobs)
    number, events = transaction.query(query).one()
    # Literally, or the index of open decisions may not be used.
    is_open = decisions.c.state == literal_column("0")
    waiting = transaction.query(select(func.count()).select_from(decisions).where(is_open))
    return {"jobs": number, "events": int(events), "open_decisions": waiting.scalar_one()}


@dataclass(frozen=True, slots=True)
class JobHead:
    """Figures of a job that lists show, without reading its history.

    Attributes:
        id: Number of the job.
        version: Version on its device.
        paused: Whether decisions are refused.
        events: Number of its events, which tells whether anything happened since.
        recurrences: Number of its recurrences.
        team: Namespace of the job.
        name: Name of the job.
        policy: Name of its policy.
        device: Kind of device that it runs on.
        default: Batch size that the owner would run.
    """

    id: int
    version: int
    paused: bool
    events: int
    recurrences: int
    team: str
    name: str
    policy: str
    device: str
    default: int


def job_heads(transaction: Transaction) -> list[JobHead]:
    """All versions of all jobs by number."""
    names = [field.name for field in dataclasses.fields(JobHead)][:-1]
    columns = [jobs.c[name] for name in names]
    query = select(*columns, jobs.c.specification["default"].as_integer()).order_by(jobs.c.id)
    return [JobHead(*row) for row in transaction.query(query)]


def run_groups(transaction: Transaction, numbers: Sequence[int]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Sums over the decisions of some hundred jobs that are alike.

    Each row has ``job``, ``batch_size``, ``state``, ``end`` and ``ignored`` of its decisions, the
    last two None without a report; their ``decisions``; the sums ``joules`` and ``squares`` of
    their energy; and ``latest_wall_seconds``, when the latest of them was made.
    """
    body = outcomes.c.body
    joules, end = body["joules"].as_float(), body["end"].as_string()
    conditions = decisions.c.job == outcomes.c.job, decisions.c.sequence == outcomes.c.decision
    groups = (
        decisions.c.job,
        decisions.c.action["batch_size"].as_integer().label("batch_size"),
        decisions.c.state,
        end.label("end"),
        outcomes.c.ignored,
    )
    sums = (
        select(
            *groups,
            func.count().label("decisions"),
            func.coalesce(func.sum(joules), 0.0).label("joules"),
            func.coalesce(func.sum(joules * joules), 0.0).label("squares"),
            func.max(decisions.c.issued_wall_seconds).label("latest_wall_seconds"),
        )
        .select_from(decisions.outerjoin(outcomes, and_(*conditions)))
        .where(decisions.c.job.in_(numbers))
        .group_by(*groups)
    )
    return transaction.query(sums).all()


def recurrence_sums(
    transaction: Transaction, numbers: Sequence[int]
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Sums over each recurrence of some hundred jobs that was reported on, in order of time.

    Each row has ``job``; ``wall_seconds``, the time of the last report; ``ended``, 0 where all
    attempts were abandoned; the sum of the ``joules`` of all attempts; and ``ended_joules``, that
    without abandoned ones.
    """
    joules = outcomes.c.body["joules"].as_float()
    ended = case((outcomes.c.body["end"].as_string() != "abandoned", 1), else_=0)
    same = decisions.c.job == outcomes.c.job, decisions.c.sequence == outcomes.c.decision
    wall_seconds = func.max(outcomes.c.wall_seconds).label("wall_seconds")
    wanted = (
        select(
            decisions.c.job,
            wall_seconds,
            func.max(ended).label("ended"),
            func.sum(joules).label("joules"),
            func.sum(joules * ended).label("ended_joules"),
        )
        .join(outcomes, and_(*same))
        .where(decisions.c.job.in_(numbers))
        .group_by(decisions.c.job, decisions.c.recurrence)
        .order_by(wall_seconds)
    )
    return transaction.query(wanted).all()


def open_decisions(
    transaction: Transaction, numbers: Sequence[int], limit: int
) -> list[DecisionRecord]:
    """Decisions of some hundred jobs that are being worked on, the latest first."""
    # Literally, or the index of open decisions may not be used.
    is_open = decisions.c.state == literal_column("0")
    wanted = select(decisions).where(is_open, decisions.c.job.in_(numbers))
    latest = wanted.order_by(decisions.c.issued_wall_seconds.desc()).limit(limit)
    return [DecisionRecord(*row) for row in transaction.query(latest)]


def energy_origins(
    transaction: Transaction, numbers: Sequence[int]
) -> list[tuple[int, str | None, float]]:
    """Energy of jobs by the origin of the figures: (job, origin, joules)."""
    origin = energy.c.provenance["origin"].as_string()
    query = select(energy.c.job, origin, func.sum(energy.c.joules))
    query = query.where(energy.c.job.in_(numbers)).group_by(energy.c.job, origin)
    return [(row[0], row[1], row[2]) for row in transaction.query(query)]


def records(
    transaction: Transaction,
    kind: type[Record],
    job: int,
    after: int = 0,
    limit: int | None = None,
    **columns: int | str,
) -> list[Record]:
    """Records of a job with numbers above ``after``, in order; those with equal ``columns``."""
    table, number = _TABLES[kind]
    equal = (table.c[name] == value for name, value in columns.items())
    query = select(table).where(table.c.job == job, table.c[number] > after, *equal)
    rows = transaction.query(query.order_by(table.c[number]).limit(limit))
    return [kind(*row) for row in rows]


def put_profile(transaction: Transaction, profile: ProfileRecord) -> None:
    """Keep a frontier, in place of an earlier one of the same job, batch size and device."""
    transaction.lock(profile.job)
    conditions = (
        profiles.c.job == profile.job,
        profiles.c.batch_size == profile.batch_size,
        profiles.c.device == profile.device,
    )
    transaction.change(delete(profiles).where(*conditions))
    transaction.change(insert(profiles), dataclasses.asdict(profile))


def add_energy(transaction: Transaction, record: EnergyRecord) -> None:
    """Keep energy that was used; where a decision is named, once for each device.

    Raises:
        ConflictError: Another figure was kept of that decision and device.
    """
    transaction.lock(record.job)  # so that no other process looks and adds at the same time
    earlier: list[EnergyRecord] = []
    if record.decision is not None:
        decision, device = record.decision, record.device
        earlier = records(transaction, EnergyRecord, record.job, decision=decision, device=device)
    if not earlier:
        row = dataclasses.asdict(record)
        del row["id"]  # the database gives it
        transaction.change(insert(energy), row)
    elif dataclasses.replace(earlier[0], wall_seconds=record.wall_seconds, id=None) != record:
        raise ConflictError(
            f"another energy of {record.device[:40]!r} is stored for this decision",
            remedy="report all that a device used at once, or without the decision",
        )


SORTS: Mapping[str, Callable[[Any], ColumnElement[Any]]] = {
    "started": lambda run: run.started_wall_seconds.desc(),
    "energy": lambda run: func.coalesce(run.joules, -1.0).desc(),
    "time": lambda run: run.seconds.desc(),
    "power": lambda run: func.coalesce(run.joules / func.nullif(run.seconds, 0.0), -1.0).desc(),
    "name": lambda run: run.name.asc(),
    "number": lambda run: run.id.desc(),
}
"""Orders of a list of runs by name, each a function of the columns of a run."""
MOST_SEARCHED = 20_000
"""Runs that a search for a text looks at, the latest; by hand: five times as many take a second."""
# Literally, or the index of open runs may not be used.
_IS_OPEN = {"sqlite": text("runs.ended = 0"), "postgresql": text("NOT runs.ended")}


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Filter and order of a list of runs.

    Attributes:
        team: Team of the runs; None for every team.
        text: Text that name, host, boards, setting or tags contain, whatever the case; only the
            latest ``MOST_SEARCHED`` runs are looked at.
        open_only: Whether only runs under way are meant.
        below: Number that those of the list are below; 0 for any.
        sort: One of ``SORTS``.
    """

    team: str | None
    text: str = ""
    open_only: bool = False
    below: int = 0
    sort: str = "started"

    def matches(self) -> FromClause:
        """Runs that fit the query, in no order."""
        rows = select(runs)
        if self.team is not None:
            rows = rows.where(runs.c.team == self.team)
        if self.open_only:
            rows = rows.where(runs.c.ended == false())  # as literally as the index has it
        if self.text:
            newest = rows.order_by(runs.c.started_wall_seconds.desc(), runs.c.id.desc())
            latest = newest.limit(MOST_SEARCHED).subquery("latest")
            rows = select(latest).where(latest.c.searched.icontains(self.text, autoescape=True))
        matches = rows.subquery("matches")
        if self.below:
            matches = select(matches).where(matches.c.id < self.below).subquery("below")
        return matches


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
        raise UnknownRecordError(
            f"no run number {number}", remedy="`joulery runs list` shows the runs"
        )
    content = transaction.query(select(curves.c.content).where(curves.c.run == number)).scalar()
    return RunRecord(*row), content or []


def list_runs(
    transaction: Transaction, query: RunQuery, limit: int, offset: int = 0
) -> list[RunRecord]:
    """Runs without their curves, in the order of the query; of equals, the latest first."""
    matches = query.matches()
    order = SORTS[query.sort](matches.c)
    if query.open_only and query.sort == "started":
        # Few are open: sorted after they were found, not looked for in the order of time.
        order = (matches.c.started_wall_seconds + 0.0).desc()
    statement = select(matches).order_by(order, matches.c.id.desc())
    return [RunRecord(*row) for row in transaction.query(statement.limit(limit).offset(offset))]


def count_runs(transaction: Transaction, query: RunQuery) -> int:
    """Number of the runs that a query finds."""
    statement = select(func.count()).select_from(query.matches())
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


@dataclass(frozen=True, slots=True)
class OtherEnergy:
    """Energy of runs of a team that no recurring job has.

    Attributes:
        team: Team of the runs.
        wall_seconds: Unix time at which the first of them began.
        joules: Energy that they used.
    """

    team: str
    wall_seconds: float
    joules: float


def other_energy(
    transaction: Transaction,
    team: str | None,
    start_wall_seconds: float = 0.0,
    end_wall_seconds: float = math.inf,
    *,
    by_time: bool = False,
) -> list[OtherEnergy]:
    """Energy of runs that began in a time, without that of recurring jobs, by team.

    Args:
        transaction: Transaction to read with.
        team: Team of the runs; None for every team.
        start_wall_seconds: Unix time from which runs count.
        end_wall_seconds: Unix time until which they count.
        by_time: Whether sums are by the quarter of an hour, at which days begin in any time zone.
    """
    joules = func.coalesce(runs.c.joules, 0.0) - func.coalesce(runs.c.decision_joules, 0.0)
    began = runs.c.started_wall_seconds
    groups = [runs.c.team, *([func.floor(began / _QUARTER_SECONDS)] if by_time else [])]
    query = select(runs.c.team, func.min(began), func.sum(joules)).group_by(*groups)
    query = query.where(began >= start_wall_seconds, began <= end_wall_seconds)
    if team is not None:
        query = query.where(runs.c.team == team)
    return [OtherEnergy(*row) for row in transaction.query(query)]


def runs_mark(transaction: Transaction) -> str:
    """A text that changes when a run is added, reports or ends, of any team."""
    latest = transaction.query(select(func.max(runs.c.id))).scalar()
    columns = func.count(), func.coalesce(func.sum(runs.c.seconds), 0.0)
    condition = _IS_OPEN[transaction.dialect]
    number, seconds = transaction.query(select(*columns).where(condition).select_from(runs)).one()
    return f"{latest}.{number}.{seconds:g}"
