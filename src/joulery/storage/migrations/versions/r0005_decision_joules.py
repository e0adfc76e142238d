"""The energy of runs that carry out decisions, which the sums of jobs have too."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """Add the column, fill it from the summaries, and add it to indexes by time."""
    op.add_column("runs", sa.Column("decision_joules", sa.Double))
    decision, joules = (
        ("summary ->> 'decision'", "CAST(summary ->> 'joules' AS DOUBLE PRECISION)")
        if op.get_context().dialect.name == "postgresql"
        else ("json_extract(summary, '$.decision')", "json_extract(summary, '$.joules')")
    )
    op.execute(
        f"UPDATE runs SET decision_joules = coalesce(joules, {joules}) WHERE {decision} <> ''"  # noqa: S608 - texts of this file
    )
    for name, columns in (
        ("ix_runs_team_started", ["team", "started_wall_seconds"]),
        ("ix_runs_started", ["started_wall_seconds"]),
    ):
        op.drop_index(name, "runs")
        columns += ["id", "joules", "decision_joules"]
        op.create_index(name, "runs", columns + ["team"] * ("team" not in columns))
