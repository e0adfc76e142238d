"""Energy of a decision is found without reading all that its job has used."""

from __future__ import annotations

from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """Index it; not as unique, since stores of before may hold the same twice."""
    op.create_index("ix_energy_job_id_decision", "energy", ["job_id", "decision", "device"])
