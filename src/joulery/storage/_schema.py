"""Tables of the store; :mod:`joulery.storage.migrations` creates them.

Columns are named and, but for jobs, ordered like the fields of :mod:`joulery.storage._records`, so
that a row is a record. Documents are JSON text: exact for floats, NaN and infinities refused.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

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
_DOCUMENT = JSON(none_as_null=True)


def _job_column() -> Column[int]:
    return Column("job", BigInteger, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False)


jobs = Table(
    "jobs",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("created_wall_seconds", Double, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("recurrences", BigInteger, nullable=False),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("specification", _DOCUMENT, nullable=False),
    Column("policy", Text, nullable=False),
    Column("parameters", _DOCUMENT, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("inherits", BigInteger),
    Column("device", Text, nullable=False),
    UniqueConstraint("team", "name", "device", "version"),
    Index("ix_jobs_team_id", "team", "id"),
    sqlite_autoincrement=True,  # the number of a deleted job is not used again
)

events = Table(
    "events",
    metadata,
    _job_column(),
    Column("sequence", BigInteger, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("decision", BigInteger, nullable=False),
    Column("body", _DOCUMENT, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    PrimaryKeyConstraint("job", "sequence"),
)

decisions = Table(
    "decisions",
    metadata,
    _job_column(),
    Column("sequence", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    Column("recurrence", BigInteger, nullable=False),
    Column("action", _DOCUMENT, nullable=False),
    Column("reason", Text, nullable=False),
    Column("request", _DOCUMENT, nullable=False),
    Column("issued_wall_seconds", Double, nullable=False),
    Column("deadline_wall_seconds", Double, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("heartbeat_wall_seconds", Double),
    Column("progress", _DOCUMENT),
    PrimaryKeyConstraint("job", "sequence"),
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
    Column("job", BigInteger, nullable=False),
    Column("decision", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    Column("body", _DOCUMENT, nullable=False),
    Column("event", BigInteger, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    Column("quarantined", Boolean, nullable=False),
    Column("ignored", Boolean, nullable=False),
    PrimaryKeyConstraint("job", "decision"),
    ForeignKeyConstraint(
        ["job", "decision"], ["decisions.job", "decisions.sequence"], ondelete="CASCADE"
    ),
)

profiles = Table(
    "profiles",
    metadata,
    _job_column(),
    Column("batch_size", BigInteger, nullable=False),
    Column("device", Text, nullable=False),
    Column("frontier", _DOCUMENT, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    PrimaryKeyConstraint("job", "batch_size", "device"),
)

energy = Table(
    "energy",
    metadata,
    _job_column(),
    Column("decision", BigInteger),
    Column("device", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("joules", Double, nullable=False),
    Column("provenance", _DOCUMENT, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    Column("id", _ROW_ID, primary_key=True),
    UniqueConstraint("job", "decision", "device"),  # of null decisions, any number
    Index("ix_energy_job_id", "job", "id"),
    sqlite_autoincrement=True,
)

snapshots = Table(
    "snapshots",
    metadata,
    _job_column(),
    Column("sequence", BigInteger, nullable=False),
    Column("code", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("job"),
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

settings = Table(
    "settings",
    metadata,
    Column("name", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("name"),
)
