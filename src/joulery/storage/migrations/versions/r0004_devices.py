"""Jobs are told apart by the kind of device that they run on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"

_COLUMNS = (
    *("id", "team", "name", "version", "inherits", "specification", "policy", "parameters"),
    *("seed", "created_wall_seconds", "paused", "events", "recurrences"),
)
_UNIQUE = "uq_jobs_team_name_device_version"


def upgrade() -> None:
    """Add the device; versions count within it."""
    if op.get_bind().dialect.name == "sqlite":
        _replace()
    else:
        op.add_column("jobs", sa.Column("device", sa.Text, nullable=False, server_default=""))
        op.drop_constraint("uq_jobs_team_name_version", "jobs")
        op.create_unique_constraint(_UNIQUE, "jobs", ["team", "name", "device", "version"])
    op.create_index("ix_jobs_team_id", "jobs", ["team", "id"])


def _replace() -> None:
    """SQLite cannot drop a constraint; foreign keys are off meanwhile, see ``migrate``."""
    connection = op.get_bind()
    last = connection.execute(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"))
    number = last.scalar()
    op.create_table(
        "jobs_with_device",
        sa.Column("id", sa.Integer, nullable=False),
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
        sa.Column("device", sa.Text, nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("team", "name", "device", "version", name=_UNIQUE),
        sqlite_autoincrement=True,
    )
    old, new = (
        sa.table(name, *(sa.column(each) for each in _COLUMNS))
        for name in ("jobs", "jobs_with_device")
    )
    op.execute(new.insert().from_select(_COLUMNS, sa.select(old)))
    op.drop_table("jobs")
    op.rename_table("jobs_with_device", "jobs")
    if number is not None:  # the number of a forgotten job is not used again
        op.execute("DELETE FROM sqlite_sequence WHERE name = 'jobs'")
        insert = sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', :number)")
        connection.execute(insert, {"number": number})
