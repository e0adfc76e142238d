"""Copies of a store in files."""

import sqlite3
import stat

import pytest

from joulery.errors import FileError
from joulery.jobs import Definition, JobService
from joulery.storage import Store, backup, export, restore
from joulery.storage._backup import whole_file
from joulery.testing.workloads import made_up_workload


@pytest.fixture
def store(tmp_path):
    """The path of a store with a job."""
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        JobService(store).define("vision", Definition(made_up_workload().job(), policy="zeus"))
    return str(path)


def test_a_backup_is_a_store(store, tmp_path):
    """A backup could not be used when it is needed."""
    target = tmp_path / "backup.sqlite"
    with Store.open(store) as used:  # while it is in use
        assert backup(store, target) == "sqlite"
        with used.reading() as ledger:
            before = ledger.jobs("vision")
    with Store.open(target) as copy, copy.reading() as ledger:
        assert ledger.jobs("vision") == before
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with sqlite3.connect(target) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()


def test_an_export_fills_another_store(store, tmp_path):
    """Teams could not move."""
    assert export(store, tmp_path / "all.jsonl") == 1
    other = str(tmp_path / "other.sqlite")
    assert restore(other, tmp_path / "all.jsonl", replace=False)["jobs"] == 1


def test_a_failed_copy_leaves_the_old_one(tmp_path):
    """A backup that fails would destroy the one before."""
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as draft:  # noqa: PT012 - it is the block
        draft.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_copied_is_told(store, tmp_path):
    """Wrong paths would end in an internal error, or in an empty store."""
    missing = tmp_path / "missing.sqlite"
    for copy in (backup, export):
        with pytest.raises(FileError, match="no store"):
            copy(str(missing), tmp_path / "out")
        with pytest.raises(FileError, match="cannot write"):
            copy(store, tmp_path / "nowhere" / "out")
    assert not missing.exists()
    (tmp_path / "text.sqlite").write_text("not a database, whatever it is called; " * 40)
    with pytest.raises(FileError, match="no store"):
        backup(str(tmp_path / "text.sqlite"), tmp_path / "out")
    with pytest.raises(FileError, match="cannot read"):
        restore(store, tmp_path / "nothing", replace=True)
    backup(store, tmp_path / "b.sqlite")
    with pytest.raises(FileError, match="not an export"):
        restore(store, tmp_path / "b.sqlite", replace=True)
