"""Copies of a store in files."""

import contextlib
import sqlite3
import stat
from pathlib import Path

import pytest

from joulery.errors import ConflictError, FileError, InvalidValueError, StoreError
from joulery.jobs import Definition, JobService, Request
from joulery.storage import RunRecord, Store, backup, export, put_run, restore
from joulery.storage._backup import whole_file
from joulery.testing.workloads import made_up_workload

RUN = RunRecord("speech", "1", "a", "host", "run", "a", 1.0, 2.0, 3.0, ended=True, summary={})


@pytest.fixture
def store(tmp_path):
    """The path of a store with a job."""
    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        JobService(store).for_team("vision").define(
            Definition(made_up_workload().job(), policy="zeus")
        )
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
    assert restore(other, tmp_path / "all.jsonl", replace=False).rows["jobs"] == 1


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
    with pytest.raises(FileError, match="not a store"):
        backup(str(tmp_path / "text.sqlite"), tmp_path / "out")
    with pytest.raises(FileError, match="cannot read"):
        restore(store, tmp_path / "nothing", replace=True)
    backup(store, tmp_path / "b.sqlite")
    with pytest.raises(InvalidValueError, match="another database"):
        restore("postgresql://host/database", tmp_path / "b.sqlite", replace=True)


@pytest.mark.parametrize("copy", [backup, export])
def test_a_copy_replaces_nothing_unasked(store, tmp_path, copy):
    """A mistyped name would cost another team's store, or the script that trains."""
    script, other, folder = tmp_path / "train.py", tmp_path / "other.sqlite", tmp_path / "folder"
    script.write_text("train()")
    folder.mkdir()
    with Store.open(other) as used:
        used.counts()
        with pytest.raises(FileError, match="in use"):
            copy(store, other, replace=True)
    for target in (script, other):
        with pytest.raises(ConflictError, match="exists"):
            copy(store, target)
    for target in (folder, Path("/dev/null")):
        with pytest.raises(FileError, match="regular"):
            copy(store, target, replace=True)
    with pytest.raises(FileError, match="no copy of a store"):
        copy(store, script, replace=True)
    assert script.read_text() == "train()"
    nightly = tmp_path / "nightly"
    copy(store, nightly)
    copy(store, nightly, replace=True)
    new = tmp_path / "new.sqlite"
    assert restore(str(new), nightly, replace=False).rows["jobs"] == 1


@pytest.mark.parametrize("copy", [backup, export])
def test_the_file_of_another_program_is_not_copied_or_changed(tmp_path, copy):
    """Backups of nothing would be made every night; a foreign file would get another journal."""
    photos = tmp_path / "photos.db"
    with contextlib.closing(sqlite3.connect(photos)) as database:
        database.execute("CREATE TABLE photos (name)")
        database.commit()
    content = photos.read_bytes()
    with pytest.raises(FileError, match="not a store of Joulery"):
        copy(str(photos), tmp_path / "copy")
    with pytest.raises(StoreError, match="another program"):
        Store.open(photos)
    assert photos.read_bytes() == content
    assert list(tmp_path.iterdir()) == [photos]


@pytest.mark.parametrize("copy", [backup, export])
def test_a_store_with_runs_alone_is_not_empty(store, tmp_path, copy):
    """Runs of people without recurring jobs would be deleted by a restore."""
    target = tmp_path / "runs.sqlite"
    with Store.open(target) as used:
        used.write(lambda transaction: put_run(transaction, RUN, []))
    copy(store, tmp_path / "copy")
    with pytest.raises(ConflictError, match="has jobs or runs"):
        restore(str(target), tmp_path / "copy", replace=False)


def test_a_store_is_not_copied_onto_itself(store, tmp_path):
    """A backup onto the store, by any of its names, would destroy what it should keep."""
    with Store.open(store):
        link, hard = tmp_path / "link", tmp_path / "hard"
        link.symlink_to(store)
        hard.hardlink_to(store)
        log = Path(f"{store}-wal")
        for target in (Path(store), link, hard, log):
            for copy in (backup, export):
                with pytest.raises(FileError, match="the store itself"):
                    copy(store, target)
        with pytest.raises(FileError, match="the store itself"):
            restore(store, link, replace=True)


def test_a_restored_backup_takes_the_place_of_the_store(store, tmp_path):
    """What was made after the backup would come back in parts, or not go."""
    copy = tmp_path / "copy.sqlite"
    backup(store, copy)
    with Store.open(store) as used:
        JobService(used).for_team("text").define(
            Definition(made_up_workload().job(), policy="zeus")
        )
        with pytest.raises(ConflictError, match="has jobs"):
            restore(store, copy, replace=False)
        restored = restore(store, copy, replace=True)
        assert restored.rows["jobs"] == 1
        for work in (lambda: used.write(lambda one: one.jobs("text")), used.counts):
            with pytest.raises(StoreError, match="replaced"):
                work()
    with Store.open(store) as fresh, Store.open(restored.replaced) as kept:
        fresh.check()
        kept.check()
        assert (fresh.counts()["jobs"], kept.counts()["jobs"]) == (1, 2)
    assert stat.S_IMODE(Path(store).stat().st_mode) == 0o600
    assert restore(str(tmp_path / "new" / "store.sqlite"), copy, replace=False).rows["jobs"] == 1


def test_a_store_whose_file_is_gone_is_not_written_to(store):
    """Reports would be acknowledged into a file that nobody can open again."""
    with Store.open(store) as used:
        used.counts()
        Path(store).unlink()
        with pytest.raises(StoreError, match="replaced or deleted"):
            used.write(lambda one: one.jobs("vision"))


def test_a_damaged_store_is_noticed(store, tmp_path):
    """A copy beside the log of another file would be served, and lose more each day."""
    copy, log = tmp_path / "copy.sqlite", Path(f"{store}-wal")
    with Store.open(store) as used:
        service = JobService(used)
        job = service.for_team("vision").job(made_up_workload().job().name).id
        backup(store, copy)
        for number in range(40):
            service.decide(job, Request(f"{number}"))
        with contextlib.closing(sqlite3.connect(store)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in range(40, 80):
            service.decide(job, Request(f"{number}"))
        kept = log.read_bytes()
    Path(store).write_bytes(copy.read_bytes())
    log.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(StoreError, match="damaged"), Store.open(store) as mixed:
        mixed.check()


def test_a_new_store_is_for_its_owner_only(tmp_path):
    """Other users could read the secret of decision tokens."""
    path = tmp_path / "store.sqlite"
    with Store.open(path):
        modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {0o600}
