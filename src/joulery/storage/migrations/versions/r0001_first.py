"""The first release, from which older stores are upgraded; new ones get today's tables at once."""

from __future__ import annotations

revision = "r0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: no store is older."""
