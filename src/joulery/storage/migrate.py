"""Bring a database to the shape that this version of the code expects."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import inspect, text

from joulery.errors import MissingExtraError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

# Kept here so that opening a store that is up to date need not import Alembic.
HEAD = "r0005"
MIGRATIONS = Path(__file__).parent / "migrations"
# Any number will do, as long as nothing else of the database locks it.
_UPGRADE_LOCK = 0x6A6F756C


def upgrade(engine: Engine, revision: str = HEAD) -> None:
    """Upgrade to ``revision``; nothing happens where the database is there already.

    Many processes may do so at once: one upgrades, the others wait and find it done.

    Raises:
        StoreError: The database is newer than this code.
    """
    with engine.connect().execution_options(reads_only=True) as connection:
        if current(connection) == revision:
            return
    with (
        engine.connect().execution_options(unhurried=True) as connection,
        _unchecked(connection),
        connection.begin(),
    ):
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
        if current(connection) != revision:
            _run(connection, revision)


@contextmanager
def _unchecked(connection: Connection) -> Iterator[None]:
    """Let steps replace tables of SQLite, where dropping one deletes all that refers to it."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        yield
        return
    driver.execute("PRAGMA foreign_keys=OFF").close()
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON").close()


def current(connection: Connection) -> str | None:
    """The revision that a database is at; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _run(connection: Connection, revision: str) -> None:
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
        command.upgrade(config, revision)
    except CommandError as error:
        raise StoreError(
            f"this store is at revision {current(connection)}, which this version does not know",
            remedy="install the version of Joulery that upgraded it, or a newer one",
        ) from error
