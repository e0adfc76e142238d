"""Snapshots of beliefs, so that a restart need not fold whole histories."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """Make room for one snapshot per job."""
    op.create_table(
        "snapshots",
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_snapshots"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_snapshots_job_id", ondelete="CASCADE"
        ),
    )
