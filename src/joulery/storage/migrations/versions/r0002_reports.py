"""Keys of reports are unique per decision only; the latest verdict on a report is stored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """Drop the constraint and add the column."""
    with op.batch_alter_table("outcomes") as outcomes:
        outcomes.drop_constraint("uq_outcomes_job_key", type_="unique")
        outcomes.add_column(
            sa.Column("ignored", sa.Boolean, nullable=False, server_default=sa.false())
        )
    op.execute("UPDATE outcomes SET ignored = quarantined")
