"""Bring a database to the schema that this version of the code expects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from joulery.errors import MissingExtraError, StoreError
from joulery.storage._engines import open_engine

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Kept here so that opening a store that is up to date need not import Alembic.
HEAD = "r0001"
MIGRATIONS = Path(__file__).parent / "migrations"
# Any number will do, as long as nothing else of the database locks it.
_UPGRADE_LOCK = 0x6A6F756C


def upgrade(location: str | Path) -> None:
    """Upgrade a store to :data:`HEAD`, and create it if missing.

    Many processes may call this at once: one upgrades, the others wait and find it done.

    Raises:
        StoreError: The database is newer than this code.
    """
    engine = open_engine(location, patient=True)
    try:
        with engine.connect().execution_options(reads_only=True) as connection:
            if current(connection) == HEAD:
                return
        with engine.connect() as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
            if current(connection) != HEAD:
                _run(connection)
    finally:
        engine.dispose()


def current(connection: Connection) -> str | None:
    """The revision that a database is at; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _run(connection: Connection) -> None:
    try:
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "making or upgrading a store needs Alembic", remedy='pip install "joulery[store]"'
        ) from error

    config = Config()
    # A percent sign in a path would be taken for an interpolation.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, HEAD)
    except CommandError as error:
        raise StoreError(
            f"this store is at revision {current(connection)}, which this version does not know",
            remedy="install the version of Joulery that upgraded it, or a newer one",
        ) from error
