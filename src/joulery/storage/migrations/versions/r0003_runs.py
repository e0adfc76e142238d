"""Runs of any kind, sessions of the dashboard, and the generation of the store."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"


def upgrade() -> None:
    """Add the tables and the generation."""
    row_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "runs",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("team", "key", "name", "host")),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("searched", sa.Text, nullable=False),
        sa.Column("started_wall_seconds", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("joules", sa.Double),
        sa.Column("ended", sa.Boolean, nullable=False),
        sa.Column("summary", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("id", row_id, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("team", "key", name="uq_runs_team_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_team_started", "runs", ["team", "started_wall_seconds"])
    op.create_index("ix_runs_started", "runs", ["started_wall_seconds"])
    op.create_index(
        "ix_runs_open",
        "runs",
        ["team"],
        sqlite_where=sa.text("ended = 0"),
        postgresql_where=sa.text("NOT ended"),
    )
    op.create_table(
        "curves",
        sa.Column("run", sa.BigInteger, nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_curves"),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], ondelete="CASCADE", name="fk_curves_run"),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("created_wall_seconds", sa.Double, nullable=False),
        sa.Column("seen_wall_seconds", sa.Double, nullable=False),
        sa.Column("expires_wall_seconds", sa.Double, nullable=False),
        sa.Column("ended_wall_seconds", sa.Double),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
        sa.ForeignKeyConstraint(
            ["token"], ["tokens.id"], ondelete="CASCADE", name="fk_sessions_token"
        ),
    )
    settings = sa.table("settings", sa.column("name"), sa.column("content", sa.LargeBinary))
    row = {"name": "generation", "content": secrets.token_bytes(16)}
    op.get_bind().execute(sa.insert(settings), row)
