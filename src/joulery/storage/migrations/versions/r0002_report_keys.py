"""Keys of reports are unique per decision, which they belong to, and no longer per job."""

from __future__ import annotations

from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """Drop the constraint."""
    with op.batch_alter_table("outcomes") as outcomes:
        outcomes.drop_constraint("uq_outcomes_job_key", type_="unique")
