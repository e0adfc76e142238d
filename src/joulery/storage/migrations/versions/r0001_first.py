"""All tables of the first release."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables."""
    _jobs()
    _events()
    _decisions()
    _outcomes()
    _measurements()
    _tokens()


def _column(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=f"fk_{table}_job", ondelete="CASCADE")


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", _ROW_ID, nullable=False),
        _column("version", sa.Integer),
        _column("created_wall_seconds", sa.Double),
        _column("paused", sa.Boolean),
        _column("events", sa.BigInteger),
        _column("recurrences", sa.BigInteger),
        _column("team", sa.Text),
        _column("name", sa.Text),
        _column("specification", sa.JSON),
        _column("policy", sa.Text),
        _column("parameters", sa.JSON),
        _column("seed", sa.BigInteger),
        sa.Column("inherits", sa.BigInteger),
        _column("device", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint(
            "team", "name", "device", "version", name="uq_jobs_team_name_device_version"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_team_id", "jobs", ["team", "id"])


def _events() -> None:
    op.create_table(
        "events",
        _column("job", sa.BigInteger),
        _column("sequence", sa.BigInteger),
        _column("kind", sa.SmallInteger),
        _column("decision", sa.BigInteger),
        _column("body", sa.JSON),
        _column("wall_seconds", sa.Double),
        sa.PrimaryKeyConstraint("job", "sequence", name="pk_events"),
        _of_job("events"),
    )
    op.create_table(
        "snapshots",
        _column("job", sa.BigInteger),
        _column("sequence", sa.BigInteger),
        _column("code", sa.Text),
        _column("content", sa.LargeBinary),
        sa.PrimaryKeyConstraint("job", name="pk_snapshots"),
        _of_job("snapshots"),
    )


def _decisions() -> None:
    op.create_table(
        "decisions",
        _column("job", sa.BigInteger),
        _column("sequence", sa.BigInteger),
        _column("key", sa.Text),
        _column("recurrence", sa.BigInteger),
        _column("action", sa.JSON),
        _column("reason", sa.Text),
        _column("request", sa.JSON),
        _column("issued_wall_seconds", sa.Double),
        _column("deadline_wall_seconds", sa.Double),
        _column("state", sa.SmallInteger),
        sa.Column("heartbeat_wall_seconds", sa.Double),
        sa.Column("progress", sa.JSON),
        sa.PrimaryKeyConstraint("job", "sequence", name="pk_decisions"),
        sa.UniqueConstraint("job", "key", name="uq_decisions_job_key"),
        _of_job("decisions"),
    )
    op.create_index(
        "ix_decisions_open",
        "decisions",
        ["job", "deadline_wall_seconds"],
        sqlite_where=sa.text("state = 0"),
        postgresql_where=sa.text("state = 0"),
    )


def _outcomes() -> None:
    op.create_table(
        "outcomes",
        _column("job", sa.BigInteger),
        _column("decision", sa.BigInteger),
        _column("key", sa.Text),
        _column("body", sa.JSON),
        _column("event", sa.BigInteger),
        _column("late", sa.Boolean),
        _column("wall_seconds", sa.Double),
        _column("quarantined", sa.Boolean),
        sa.PrimaryKeyConstraint("job", "decision", name="pk_outcomes"),
        sa.UniqueConstraint("job", "key", name="uq_outcomes_job_key"),
        sa.ForeignKeyConstraint(
            ["job", "decision"],
            ["decisions.job", "decisions.sequence"],
            name="fk_outcomes_job_decision",
            ondelete="CASCADE",
        ),
    )


def _measurements() -> None:
    op.create_table(
        "profiles",
        _column("job", sa.BigInteger),
        _column("batch_size", sa.BigInteger),
        _column("device", sa.Text),
        _column("frontier", sa.JSON),
        _column("wall_seconds", sa.Double),
        sa.PrimaryKeyConstraint("job", "batch_size", "device", name="pk_profiles"),
        _of_job("profiles"),
    )
    op.create_table(
        "energy",
        _column("job", sa.BigInteger),
        sa.Column("decision", sa.BigInteger),
        _column("device", sa.Text),
        _column("seconds", sa.Double),
        _column("joules", sa.Double),
        _column("provenance", sa.JSON),
        _column("wall_seconds", sa.Double),
        sa.Column("id", _ROW_ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_energy"),
        sa.UniqueConstraint("job", "decision", "device", name="uq_energy_job_decision_device"),
        _of_job("energy"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_energy_job_id", "energy", ["job", "id"])


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", _ROW_ID, nullable=False),
        _column("digest", sa.LargeBinary),
        _column("team", sa.Text),
        _column("rights", sa.Text),
        _column("label", sa.Text),
        _column("created_wall_seconds", sa.Double),
        sa.Column("expires_wall_seconds", sa.Double),
        sa.Column("revoked_wall_seconds", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "settings",
        _column("name", sa.Text),
        _column("content", sa.LargeBinary),
        sa.PrimaryKeyConstraint("name", name="pk_settings"),
    )
