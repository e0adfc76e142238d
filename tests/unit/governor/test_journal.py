"""The journal on disk, and what the next process makes of it."""

import errno
import hashlib
import os
import subprocess
import sys

import pytest

from joulery.errors import FileError, NotPossibleHereError
from joulery.governor._device import GovernedDevice, LeaseRequest
from joulery.governor._journal import FileJournal, Intent, private_folder
from support.governor.bench import PlainBoard

INTENT = Intent(400.0, (400.0, 200.0), pinned_hertz=1.1e9, hertz=1.2e9)


@pytest.fixture
def journal(tmp_path):
    """A device's journal, locked."""
    made = FileJournal(tmp_path, "GPU/0")
    made.lock()
    yield made
    made.unlock()


def _left(folder, device="GPU/0"):
    return FileJournal(folder, device).pending()


def test_last_intent_counts_until_done(journal, tmp_path):
    """A restart would restore the wrong value, or one long restored."""
    assert _left(tmp_path) is None
    journal.record(Intent(400.0, (200.0, 150.0)))
    journal.record(INTENT)
    assert _left(tmp_path) == INTENT
    assert _left(tmp_path, "GPU/1") is None
    journal.clear()
    assert _left(tmp_path) is None


def _damage(journal, how):
    data = journal._path.read_bytes()
    journal._path.write_bytes(how(data))


def _signed(text):
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode()


@pytest.mark.parametrize(
    "how",
    [
        lambda _: b"",
        lambda _: b"\xff\xfe",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"400.0", b"250.0"),  # still JSON, and a lower limit
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda _: _signed(b"[]"),
        lambda _: _signed(b"17"),
        lambda data: _signed(data.rpartition(b"\n")[0].replace(b"400.0", b'"high"')),
        lambda data: _signed(data.rpartition(b"\n")[0].replace(b"[400.0, 200.0]", b"7")),
    ],
)
def test_damaged_journal_is_not_taken_for_none(journal, tmp_path, how):
    """The limit of a dead holder would become the one to restore, without a word."""
    journal.record(INTENT)
    journal.unlock()
    _damage(journal, how)
    hardware = PlainBoard()
    hardware.watts = 200.0
    board = GovernedDevice(hardware, FileJournal(tmp_path, "GPU/0"))
    with pytest.raises(FileError, match="damaged") as raised:
        board.hold()
    assert "remove the file" in raised.value.remedy
    assert not board.held
    journal._path.unlink()  # the administrator has set a limit
    board.hold()
    assert board.baseline_watts == 200.0
    board.restore()


def test_write_cut_short_keeps_the_last_intent(journal, tmp_path):
    """A crash within a write would lose what is to be restored."""
    journal.record(INTENT)
    journal._path.with_name(f".{journal._path.name}.1.1.part").write_bytes(b'{"boot": "')
    assert _left(tmp_path) == INTENT
    journal.record(Intent(400.0, (200.0, 150.0)))
    assert _left(tmp_path).expected_watts == (200.0, 150.0)


def test_other_boot_means_nothing(journal, tmp_path):
    """Boards start with their defaults; an old record would change a cap of today."""
    journal.record(INTENT)
    text = journal._path.read_bytes().rpartition(b"\n")[0]
    journal._path.write_bytes(_signed(text.replace(journal._boot.encode(), b"another")))
    assert _left(tmp_path) is None


def test_journal_stays_small_and_private(journal, tmp_path):
    """Months of changes would fill the disk, or anyone could read who did what."""
    for watts in range(100):
        journal.record(Intent(400.0, (400.0, float(watts))))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_folder_must_be_private(tmp_path):
    """A user who can write a journal could have any value set as root."""
    folder = tmp_path / "state"
    assert private_folder(folder).stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(FileError, match="this user alone"):
        private_folder(folder)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FileError):
        private_folder(tmp_path / "link")


def test_what_the_dead_left_is_taken_over_by_the_next_holder(tmp_path):
    """The limit of a killed job would be taken for the administrator's."""
    dead, hardware = FileJournal(tmp_path, "plain:0"), PlainBoard()
    dead.lock()
    dead.record(Intent(400.0, (400.0, 200.0)))
    dead.unlock()
    hardware.watts = 200.0
    board = GovernedDevice(hardware, FileJournal(tmp_path, "plain:0"))
    board.hold()
    assert board.baseline_watts == 400.0
    board.refresh()
    board.apply(LeaseRequest(watts=300.0))
    assert hardware.watts == 300.0
    board.restore()
    assert hardware.watts == 400.0
    assert _left(tmp_path, "plain:0") is None


def test_the_lock_keeps_other_processes_out(journal, tmp_path):
    """Two governors would undo each other's limits."""
    program = (
        "import sys; from pathlib import Path; from joulery.governor._journal import FileJournal; "
        "FileJournal(Path(sys.argv[1]), 'GPU/0').lock()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert NotPossibleHereError.__name__ in done.stderr
    assert f"held by process {os.getpid()}" in done.stderr
    journal.unlock()
    assert subprocess.run(command, check=False).returncode == 0


def test_governors_with_other_folders_see_each_other(tmp_path):
    """Containers with a /run of their own would undo each other's limits on one board."""
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(b"code")
    library.chmod(0o444)
    folders = [private_folder(tmp_path / name) for name in "ab"]
    first, second = (FileJournal(folder, "GPU/0", shared=library) for folder in folders)
    first.lock()
    with pytest.raises(NotPossibleHereError, match="whose state is not") as raised:
        second.lock()
    assert "/run/joulery" in raised.value.remedy
    other = FileJournal(folders[1], "GPU/1", shared=library)
    other.lock()  # another board of the same machine
    other.unlock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_full_disk_does_not_prevent_a_restore(journal, monkeypatch):
    """A full disk would leave every limit as it is, or change one without a record."""
    hardware = PlainBoard()
    board = GovernedDevice(hardware, journal)
    board.hold()
    board.apply(LeaseRequest(watts=200.0))
    taken = iter([3])

    def write(*_):
        if (count := next(taken, None)) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(FileError, match="cannot write journal"):
            board.apply(LeaseRequest(watts=150.0))
        assert hardware.watts == 200.0
        board.restore()
    assert hardware.watts == 400.0
    assert not board.held
    assert journal.pending() is None
