"""The journal on disk, and what the next process makes of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulery.errors import FileError, NotPossibleHereError
from joulery.governor.board import Board, Wish
from joulery.governor.claims import FileClaim
from joulery.governor.journal import WATTS, FileJournal, Intent, private_folder
from joulery.governor.orphans import orphans, own_journal, repair_orphans
from joulery.testing.governor.bench import PlainBoard

INTENT = Intent("plain:0", WATTS, 400.0, 400.0, 200.0)


@pytest.fixture
def journal(tmp_path):
    """A journal that is ready to write."""
    made = FileJournal(tmp_path / "1.journal")
    made.start()
    yield made
    made.close()


def _loaded(path):
    return FileJournal(path).load()


def test_last_intent_counts_until_done(journal, tmp_path):
    """A restart would restore the wrong value, or one long given back."""
    later = Intent("plain:0", WATTS, 400.0, 200.0, 150.0)
    other = Intent("plain:1", WATTS, 300.0, 300.0, 100.0)
    for intent in (INTENT, later, other):
        journal.intend(intent)
    path = tmp_path / "1.journal"
    assert list(_loaded(path).values()) == [later, other]
    journal.done("plain:0")
    assert list(_loaded(path).values()) == [other]


@pytest.mark.parametrize("rubbish", [b'{"boot": "', b"\xff\xfe\n", b"[]\n", b"{}\n", b"17\n"])
def test_torn_line_is_skipped(journal, tmp_path, rubbish):
    """A line cut by a crash would hide the ones before it, or stop the start."""
    journal.intend(INTENT)
    path = tmp_path / "1.journal"
    with path.open("ab") as file:
        file.write(rubbish)
    again = FileJournal(path)
    assert list(again.start().values()) == [INTENT]
    again.done("plain:0")
    again.close()
    assert _loaded(path) == {}


def test_other_boot_means_nothing(journal, tmp_path):
    """Boards start with their defaults; an old record would change a cap of today."""
    journal.intend(INTENT)
    path = tmp_path / "1.journal"
    path.write_text(path.read_text().replace(journal._boot, "another"))
    assert _loaded(path) == {}


def test_journal_stays_small(journal, tmp_path):
    """Months of leases would fill the disk."""
    other = Intent("plain:1", WATTS, 300.0, 300.0, 100.0)
    journal.intend(other)
    journal._write(journal._file, {"padding": "x" * 300_000})
    journal.intend(INTENT)
    journal.done("plain:0")
    path = tmp_path / "1.journal"
    assert path.stat().st_size < 1000
    assert list(_loaded(path).values()) == [other]
    journal.intend(INTENT)
    assert len(_loaded(path)) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_folder_must_be_private(tmp_path):
    """Whoever can write a journal can have any value set as root."""
    folder = tmp_path / "state"
    assert private_folder(folder).stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(FileError, match="this user alone"):
        private_folder(folder)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FileError):
        private_folder(tmp_path / "link")


def test_orphans_are_journals_of_the_dead(tmp_path):
    """A living job's limit would be taken away, or a dead one's kept."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").split()
        names = [f"{process.pid}-{fields[21]}", f"{process.pid}-1", "nonsense"]
        for name in [*names, own_journal(tmp_path).stem]:
            (tmp_path / f"{name}.journal").touch()
        assert {each._path.stem for each in orphans(tmp_path)} == {names[1], "nonsense"}
        process.communicate()
    assert names[0] in {each._path.stem for each in orphans(tmp_path)}


def test_orphan_is_repaired_once_its_device_is_there(tmp_path):
    """A board that is away at the next start would stay changed for good."""
    path = tmp_path / "1-1.journal"
    journal = FileJournal(path)
    journal.start()
    journal.intend(INTENT)
    journal.close()
    repair_orphans(tmp_path, {})
    assert path.exists()
    hardware = PlainBoard()
    hardware.watts, hardware.broken = 200.0, True
    repair_orphans(tmp_path, {"plain:0": hardware})
    assert path.exists()
    hardware.broken = False
    repair_orphans(tmp_path, {"plain:0": hardware})
    assert hardware.watts == 400.0
    assert not path.exists()


def test_claim_keeps_other_processes_out(tmp_path):
    """Two governors would undo each other's limits."""
    claim = FileClaim(tmp_path, "GPU/0")
    claim.take()
    program = (
        "import sys; from pathlib import Path; from joulery.governor.claims import FileClaim; "
        "FileClaim(Path(sys.argv[1]), 'GPU/0').take()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert NotPossibleHereError.__name__ in done.stderr
    assert f"held by process {os.getpid()}" in done.stderr
    claim.give()
    assert subprocess.run(command, check=False).returncode == 0


def test_full_disk_keeps_nobody_from_giving_back(journal, monkeypatch):
    """A full disk would leave every limit as it is."""
    hardware = PlainBoard()
    board = Board(hardware, journal)
    board.begin()
    board.apply(Wish(watts=200.0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: 3)
        with pytest.raises(FileError, match="cannot write journal"):
            board.apply(Wish(watts=150.0))
        assert hardware.watts == 200.0
        with pytest.raises(FileError):
            board.finish()
        assert hardware.watts == 400.0
        assert board.held
    board.finish()
    assert not board.held
    assert journal.load() == {}


def test_record_after_a_torn_one_is_whole(journal):
    """A line cut short by a full disk would swallow the next."""
    os.write(journal._file, b'{"boot": "')
    journal.intend(INTENT)
    assert list(journal.load().values()) == [INTENT]
