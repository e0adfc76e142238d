"""Bring a database to the schema that this version of the code expects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, MetaData, String, Table, insert, inspect, select, text

from joulery.errors import MissingExtraError, StoreError
from joulery.storage._schema import metadata

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

# Kept here so that making or opening a store that is up to date need not import Alembic.
HEAD = "r0002"
MIGRATIONS = Path(__file__).parent / "migrations"
# Any number will do, as long as nothing else of the database locks it.
_UPGRADE_LOCK = 0x6A6F756C
_VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def upgrade(engine: Engine) -> None:
    """Upgrade a store to ``HEAD``; an empty database gets all tables.

    Many processes may call this at once: one upgrades, the others wait and find it done.

    Raises:
        StoreError: The database is newer than this code.
    """
    with engine.connect().execution_options(reads_only=True) as connection:
        if current(connection) == HEAD:
            return
    with engine.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
        revision = current(connection)
        if revision is None:
            metadata.create_all(connection)
            _VERSION.create(connection)
            connection.execute(insert(_VERSION), {"version_num": HEAD})
        elif revision != HEAD:
            _run(connection, revision)


def current(connection: Connection) -> str | None:
    """The revision that a database is at; None for an empty one."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar()


def _run(connection: Connection, revision: str) -> None:
    try:
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "upgrading a store needs Alembic", remedy='pip install "joulery[store]"'
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
            f"this store is at revision {revision}, which this version does not know",
            remedy="install the version of Joulery that upgraded it, or a newer one",
        ) from error
