"""Indexes from which the energy of all runs of a time is added up without reading the runs."""

from __future__ import annotations

from alembic import op

revision = "r0004"
down_revision = "r0003"


def upgrade() -> None:
    """Add the number, which orders runs of the same time, and the energy to indexes by time."""
    for name, columns in (
        ("ix_runs_team_started", ["team", "started_wall_seconds", "id", "joules"]),
        ("ix_runs_started", ["started_wall_seconds", "id", "joules"]),
    ):
        op.drop_index(name, "runs")
        op.create_index(name, "runs", columns)
