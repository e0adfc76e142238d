"""Tokens of a server's callers, and settings such as the secret that decisions are signed with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make room for tokens and settings."""
    op.create_table(
        "tokens",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("team", sa.Text, nullable=False),
        sa.Column("rights", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("created_wall_seconds", sa.Double, nullable=False),
        sa.Column("expires_wall_seconds", sa.Double),
        sa.Column("revoked_wall_seconds", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_settings"),
    )
