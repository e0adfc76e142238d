"""The tables; ``migrations`` brings a database to this shape."""

from __future__ import annotations

from sqlalchemy import (
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


def _job_column() -> Column[int]:
    return Column("job_id", BigInteger, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False)


jobs = Table(
    "jobs",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    Column("team", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("inherits", BigInteger),
    Column("specification", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("created_wall_seconds", Double, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("recurrences", BigInteger, nullable=False),
    Column("device", Text, nullable=False, server_default=""),
    UniqueConstraint("team", "name", "device", "version"),
    Index("ix_jobs_team_id", "team", "id"),
    sqlite_autoincrement=True,  # the number of a forgotten job is not used again
)

events = Table(
    "events",
    metadata,
    _job_column(),
    Column("sequence", BigInteger, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("decision", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    PrimaryKeyConstraint("job_id", "sequence"),
)

decisions = Table(
    "decisions",
    metadata,
    _job_column(),
    Column("sequence", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    Column("recurrence", BigInteger, nullable=False),
    Column("action", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("issued_wall_seconds", Double, nullable=False),
    Column("deadline_wall_seconds", Double, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("heartbeat_wall_seconds", Double),
    Column("progress", Text),
    PrimaryKeyConstraint("job_id", "sequence"),
    UniqueConstraint("job_id", "key"),
    # Few are open at any time, however many there were.
    Index(
        "ix_decisions_open",
        "job_id",
        "deadline_wall_seconds",
        sqlite_where=text("state = 0"),
        postgresql_where=text("state = 0"),
    ),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("job_id", BigInteger, nullable=False),
    Column("decision", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("event", BigInteger, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    PrimaryKeyConstraint("job_id", "decision"),
    UniqueConstraint("job_id", "key"),
    ForeignKeyConstraint(
        ["job_id", "decision"], ["decisions.job_id", "decisions.sequence"], ondelete="CASCADE"
    ),
)

profiles = Table(
    "profiles",
    metadata,
    _job_column(),
    Column("batch_size", BigInteger, nullable=False),
    Column("device", Text, nullable=False),
    Column("frontier", Text, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    PrimaryKeyConstraint("job_id", "batch_size", "device"),
)

energy = Table(
    "energy",
    metadata,
    Column("id", _ROW_ID, primary_key=True),
    _job_column(),
    Column("decision", BigInteger),
    Column("device", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("joules", Double, nullable=False),
    Column("provenance", Text, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    Index("ix_energy_job_id_wall_seconds", "job_id", "wall_seconds"),
    Index("ix_energy_job_id_decision", "job_id", "decision", "device"),
)

snapshots = Table(
    "snapshots",
    metadata,
    _job_column(),
    Column("sequence", BigInteger, nullable=False),
    Column("code", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("job_id"),
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
