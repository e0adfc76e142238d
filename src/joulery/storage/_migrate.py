"""Bring a database to the schema that this version of the code expects."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, MetaData, String, Table, delete, insert, inspect, select, text

from joulery.errors import StoreError
from joulery.storage._engines import FOREIGN, FOREIGN_REMEDY
from joulery.storage._schema import jobs, metadata, settings

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

# Kept here so that making or opening a store that is up to date need not import Alembic.
HEAD = "r0005"
MIGRATIONS = Path(__file__).parent / "migrations"
# Any number will do, as long as nothing else of the database locks it.
_UPGRADE_LOCK = 0x6A6F756C
GENERATION = "generation"
_GENERATION_BYTES = 16  # by hand: two stores never share one by chance
_VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def upgrade(engine: Engine) -> None:
    """Upgrade a store to ``HEAD``; an empty database gets all tables.

    Many processes may call this at once: one upgrades, the others wait and find it done.

    Raises:
        StoreError: The database is newer than this code, or another program's.
    """
    with engine.connect().execution_options(reads_only=True) as connection:
        if current(connection) == HEAD:
            return
    with engine.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
        revision = current(connection)
        _check_owner(connection, revision)
        if revision is None:
            metadata.create_all(connection)
            _VERSION.create(connection)
            connection.execute(insert(_VERSION), {"version_num": HEAD})
            renew_generation(connection)
        elif revision != HEAD:
            _run(connection, revision)


def current(connection: Connection) -> str | None:
    """The revision that a database is at; None for an empty one."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar()


def _check_owner(connection: Connection, revision: str | None) -> None:
    """Refuse tables that another program made; PostgreSQL may hold some beside ours."""
    names = set(inspect(connection).get_table_names())
    foreign = names & set(metadata.tables)
    if (revision is None and foreign) or (revision is not None and jobs.name not in names):
        raise StoreError(FOREIGN, remedy=FOREIGN_REMEDY)


def generation(connection: Connection) -> bytes | None:
    """Identity of the content of a store, which every restore and import renews."""
    query = select(settings.c.content).where(settings.c.name == GENERATION)
    content: bytes | None = connection.execute(query).scalar_one_or_none()
    return content


def renew_generation(connection: Connection) -> None:
    """Give the content a new identity, so that processes which know the old one notice."""
    connection.execute(delete(settings).where(settings.c.name == GENERATION))
    row = {"name": GENERATION, "content": secrets.token_bytes(_GENERATION_BYTES)}
    connection.execute(insert(settings), row)


def missing_columns(connection: Connection) -> list[str]:
    """Columns of the present schema that a database lacks, as ``table.column``."""
    inspector = inspect(connection)
    names = set(inspector.get_table_names())
    return [
        f"{table.name}.{column.name}"
        for table in metadata.sorted_tables
        for column in table.columns
        if table.name not in names
        or column.name not in {entry["name"] for entry in inspector.get_columns(table.name)}
    ]


def _run(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

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
