"""Tables of the store; ``joulery.storage.migrations`` creates them.

The columns of a table are the fields of its records, so that a row is a record. Documents are JSON
text: exact for floats, NaN and infinities refused.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from joulery.storage._records import (
    DecisionRecord,
    Document,
    EnergyRecord,
    Event,
    JobRecord,
    OutcomeRecord,
    ProfileRecord,
    RunRecord,
    SessionRecord,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite counts rows up only where the type reads INTEGER.
_ROW_ID = BigInteger().with_variant(Integer, "sqlite")
_TYPES: dict[Any, Any] = {
    int: BigInteger,
    float: Double,
    bool: Boolean,
    str: Text,
    bytes: LargeBinary,
    Document: JSON(none_as_null=True),
}


def _columns(record: type) -> Iterator[Column[Any]]:
    """The columns of a class of records; the database gives each row its ``id``."""
    hints = get_type_hints(record)
    for field in dataclasses.fields(record):
        kind = hints[field.name]
        if field.name == "id":
            yield Column("id", _ROW_ID, primary_key=True)
        elif kind in _TYPES:
            yield Column(field.name, _TYPES[kind], nullable=False)
        else:
            yield Column(field.name, _TYPES[get_args(kind)[0]])  # of `kind | None`


def _of_job() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job"], ["jobs.id"], ondelete="CASCADE")


jobs = Table(
    "jobs",
    metadata,
    *_columns(JobRecord),
    UniqueConstraint("team", "name", "device", "version"),
    Index("ix_jobs_team_id", "team", "id"),
    sqlite_autoincrement=True,  # the number of a deleted job is not used again
)
events = Table(
    "events",
    metadata,
    *_columns(Event),
    Column("job", BigInteger, nullable=False),
    PrimaryKeyConstraint("job", "sequence"),
    _of_job(),
)
decisions = Table(
    "decisions",
    metadata,
    *_columns(DecisionRecord),
    PrimaryKeyConstraint("job", "sequence"),
    _of_job(),
    UniqueConstraint("job", "key"),
    # Few decisions are open at any time, however many there were.
    Index(
        "ix_decisions_open",
        "job",
        "deadline_wall_seconds",
        sqlite_where=text("state = 0"),
        postgresql_where=text("state = 0"),
    ),
)
outcomes = Table(
    "outcomes",
    metadata,
    *_columns(OutcomeRecord),
    PrimaryKeyConstraint("job", "decision"),
    ForeignKeyConstraint(
        ["job", "decision"], ["decisions.job", "decisions.sequence"], ondelete="CASCADE"
    ),
)
profiles = Table(
    "profiles",
    metadata,
    *_columns(ProfileRecord),
    PrimaryKeyConstraint("job", "batch_size", "device"),
    _of_job(),
)
energy = Table(
    "energy",
    metadata,
    *_columns(EnergyRecord),
    _of_job(),
    UniqueConstraint("job", "decision", "device"),  # of null decisions, any number
    Index("ix_energy_job_id", "job", "id"),
    sqlite_autoincrement=True,
)
snapshots = Table(
    "snapshots", metadata, *_columns(Snapshot), PrimaryKeyConstraint("job"), _of_job()
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("team", Text, nullable=False),
    Column("rights", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_wall_seconds", Double, nullable=False),
    Column("expires_wall_seconds", Double),
    Column("revoked_wall_seconds", Double),
    UniqueConstraint("digest"),
    sqlite_autoincrement=True,  # the number of a token is not used again
)

runs = Table(
    "runs",
    metadata,
    *_columns(RunRecord),
    UniqueConstraint("team", "key"),
    # With the number, by which lists go on, and the energy, so that totals read no runs.
    Index(
        "ix_runs_team_started",
        *("team", "started_wall_seconds", "id", "joules", "decision_joules"),
    ),
    Index("ix_runs_started", *("started_wall_seconds", "id", "joules", "decision_joules", "team")),
    Index(
        "ix_runs_open",
        "team",
        sqlite_where=text("ended = 0"),
        postgresql_where=text("NOT ended"),
    ),
    sqlite_autoincrement=True,
)
# Apart from runs, so that lists need not pass over them.
curves = Table(
    "curves",
    metadata,
    Column("run", BigInteger, nullable=False),
    Column("content", JSON(none_as_null=True), nullable=False),
    PrimaryKeyConstraint("run"),
    ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE"),
)

sessions = Table(
    "sessions",
    metadata,
    *_columns(SessionRecord),
    PrimaryKeyConstraint("digest"),
    ForeignKeyConstraint(["token"], ["tokens.id"], ondelete="CASCADE"),
)

settings = Table(
    "settings",
    metadata,
    Column("name", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("name"),
)
