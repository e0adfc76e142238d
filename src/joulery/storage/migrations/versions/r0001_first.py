"""Jobs with their events, decisions, outcomes, profiles and energy."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the first tables."""
    _jobs()
    _events()
    _decisions()
    _outcomes()
    _measurements()


def _job_column() -> sa.Column[int]:
    return sa.Column("job_id", sa.BigInteger, nullable=False)


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id"], ["jobs.id"], name=f"fk_{table}_job_id", ondelete="CASCADE"
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("team", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("inherits", sa.BigInteger),
        sa.Column("specification", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("created_wall_seconds", sa.Double, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
        sa.Column("recurrences", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("team", "name", "version", name="uq_jobs_team_name_version"),
        sqlite_autoincrement=True,
    )


def _events() -> None:
    op.create_table(
        "events",
        _job_column(),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("decision", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("wall_seconds", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_events"),
        _of_job("events"),
    )


def _decisions() -> None:
    op.create_table(
        "decisions",
        _job_column(),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("recurrence", sa.BigInteger, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("issued_wall_seconds", sa.Double, nullable=False),
        sa.Column("deadline_wall_seconds", sa.Double, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("heartbeat_wall_seconds", sa.Double),
        sa.Column("progress", sa.Text),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_decisions"),
        sa.UniqueConstraint("job_id", "key", name="uq_decisions_job_id_key"),
        _of_job("decisions"),
    )
    op.create_index(
        "ix_decisions_open",
        "decisions",
        ["job_id", "deadline_wall_seconds"],
        sqlite_where=sa.text("state = 0"),
        postgresql_where=sa.text("state = 0"),
    )


def _outcomes() -> None:
    op.create_table(
        "outcomes",
        _job_column(),
        sa.Column("decision", sa.BigInteger, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("event", sa.BigInteger, nullable=False),
        sa.Column("late", sa.Boolean, nullable=False),
        sa.Column("wall_seconds", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "decision", name="pk_outcomes"),
        sa.UniqueConstraint("job_id", "key", name="uq_outcomes_job_id_key"),
        sa.ForeignKeyConstraint(
            ["job_id", "decision"],
            ["decisions.job_id", "decisions.sequence"],
            name="fk_outcomes_job_id_decision",
            ondelete="CASCADE",
        ),
    )


def _measurements() -> None:
    op.create_table(
        "profiles",
        _job_column(),
        sa.Column("batch_size", sa.BigInteger, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("frontier", sa.Text, nullable=False),
        sa.Column("wall_seconds", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "batch_size", "device", name="pk_profiles"),
        _of_job("profiles"),
    )
    op.create_table(
        "energy",
        sa.Column("id", _ROW_ID, nullable=False),
        _job_column(),
        sa.Column("decision", sa.BigInteger),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("joules", sa.Double, nullable=False),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("wall_seconds", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energy"),
        _of_job("energy"),
    )
    op.create_index("ix_energy_job_id_wall_seconds", "energy", ["job_id", "wall_seconds"])
