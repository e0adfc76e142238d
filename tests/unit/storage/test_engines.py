"""Where stores can be, and what their errors mean."""

import sqlite3

import pytest
from sqlalchemy.exc import DataError, IntegrityError, OperationalError

from joulery.errors import (
    ConflictError,
    FileError,
    InvalidValueError,
    StoreBusyError,
    StoreError,
)
from joulery.storage import Store, default_path
from joulery.storage._engines import explained, open_engine


def test_sqlite_keeps_what_it_commits(tmp_path):
    """A power cut would take acknowledged reports."""
    engine = open_engine(tmp_path / "new folder" / "store.sqlite", busy_seconds=2.0)
    with engine.connect() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    engine.dispose()
    assert found == ["wal", 2, 1, 2000]


def test_sqlite_writers_lock_first_and_readers_do_not(tmp_path):
    """A transaction that reads first and writes later fails when another wrote meanwhile."""
    engine = open_engine(tmp_path / "store.sqlite", busy_seconds=0.05)
    with engine.connect() as writer, writer.begin():
        with engine.connect().execution_options(reads_only=True) as reader, reader.begin():
            reader.exec_driver_sql("SELECT 1")
        with engine.connect() as other, pytest.raises(OperationalError, match="locked"):
            other.begin()
    engine.dispose()


@pytest.mark.parametrize("location", ["mysql://host/db", "http://host", "postgresql://h:port/db"])
def test_other_places_are_refused(location):
    """A typing error would make a file of that name."""
    with pytest.raises(InvalidValueError):
        open_engine(location)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """People need to know which path was wrong."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file"):
        open_engine(tmp_path / "file" / "folder" / "store.sqlite")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    """Somebody's file would be overwritten, or an internal error shown."""
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 500)
    with pytest.raises(InvalidValueError, match="not a database"):
        Store.open(path)
    assert path.read_text().startswith("Dear")


def test_the_default_is_in_the_users_data_folder(monkeypatch, tmp_path):
    """State would end up in the working directory of each run."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "joulery" / "store.sqlite"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(default_path()) == "/home/somebody/.local/share/joulery/store.sqlite"


class PostgresError(Exception):
    """As psycopg raises them."""

    def __init__(self, text, sqlstate):
        super().__init__(text)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("kind", "cause", "meaning"),
    [
        (OperationalError, sqlite3.OperationalError("database is locked"), StoreBusyError),
        (OperationalError, sqlite3.OperationalError("disk is full"), StoreError),
        (OperationalError, PostgresError("deadlock detected", "40P01"), StoreBusyError),
        (OperationalError, PostgresError("terminating connection", "57P01"), StoreBusyError),
        (OperationalError, PostgresError("out of disk space", "53100"), StoreError),
        (OperationalError, PostgresError("", None), StoreError),
        (IntegrityError, sqlite3.IntegrityError("UNIQUE"), ConflictError),
        (DataError, PostgresError("out of range", "22003"), InvalidValueError),
    ],
)
def test_errors_say_what_to_do_and_nothing_of_the_inside(kind, cause, meaning):
    """A client would see SQL and other people's values, or not know whether to try again."""
    error = explained(kind("INSERT INTO secret", {"token": "hidden"}, cause))
    assert type(error) is meaning
    assert "secret" not in str(error)
    assert "hidden" not in str(error)
