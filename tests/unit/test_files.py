"""Files that survive crashes, their lines, and the folders for them."""

import os
import stat
from pathlib import Path

import pytest

from joulery import files
from joulery.clock import VirtualClock
from joulery.files import decode_line, encode_line
from joulery.metering import load_calibrations


def test_a_file_is_replaced_in_one_step(tmp_path):
    """A reader would see half a document."""
    path = tmp_path / "document"
    path.write_text("old")
    with files.replacing(path) as descriptor:
        os.write(descriptor, b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("sync", [False, True])
def test_what_was_there_survives_a_failure(tmp_path, sync):
    """A full disk would cost the last good document."""
    path = tmp_path / "document"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), files.replacing(path, sync=sync):
        raise OSError("full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("private", "others"), [(True, 0), (False, stat.S_IRGRP | stat.S_IROTH)])
def test_secrets_are_for_their_owner_only(tmp_path, private, others):
    """Tokens would be readable by every user, or results by nobody else."""
    path = tmp_path / "document"
    previous = os.umask(0o022)
    try:
        files.write_atomic(path, b"content", private=private, sync=True)
    finally:
        os.umask(previous)
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH) == others


@pytest.mark.parametrize("content", [b"SQLite format 3\0...", b'{"format":"joulery-store-1",'])
def test_a_store_is_never_replaced_by_another_output(tmp_path, content):
    """A page that is written to the wrong name would cost a team all that it has learned."""
    path = tmp_path / "team.sqlite"
    path.write_bytes(content)
    with pytest.raises(FileExistsError, match="database"):
        files.write_atomic(path, b"<!doctype html>")
    assert path.read_bytes() == content


def test_short_writes_are_continued(tmp_path, monkeypatch):
    """A signal or a full pipe would cut a line short."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:2]))
    files.write_atomic(tmp_path / "document", b"a long line\n")
    assert (tmp_path / "document").read_bytes() == b"a long line\n"


@pytest.mark.parametrize(
    ("found", "expected"), [(b"", b"x\n"), (b"a\n", b"a\nx\n"), (b"a\nto", b"a\nto\nx\n")]
)
def test_a_torn_line_is_ended_before_the_next(tmp_path, found, expected):
    """The line after a crash would be lost together with the torn one."""
    path = tmp_path / "log"
    path.write_bytes(found)
    descriptor = files.open_for_append(path)
    files.write_all(descriptor, b"x\n")
    os.close(descriptor)
    assert path.read_bytes() == expected


def test_a_lock_is_exclusive_and_ends_with_its_file(tmp_path):
    """Two processes write one journal, or a dead one blocks it for ever."""
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    clock = VirtualClock()
    files.lock(first)
    with pytest.raises(BlockingIOError):
        files.lock(second, 0.1, clock)
    assert clock.now() >= 0.1
    os.close(first)
    files.lock(second)
    os.close(second)


FOLDERS = [
    (files.data_folder, "XDG_DATA_HOME", ".local/share"),
    (files.state_folder, "XDG_STATE_HOME", ".local/state"),
    (files.cache_folder, "XDG_CACHE_HOME", ".cache"),
]


@pytest.mark.parametrize(("folder", "variable", "default"), FOLDERS)
def test_the_variable_decides_and_home_stands_in(folder, variable, default, monkeypatch):
    """Files would end up where neither the user nor their other programs look."""
    monkeypatch.setenv(variable, "/somewhere")
    assert folder() == Path("/somewhere/joulery")
    for unset in ("", None):
        monkeypatch.delenv(variable, raising=False)
        if unset is not None:
            monkeypatch.setenv(variable, unset)
        assert folder() == Path.home() / default / "joulery"


@pytest.mark.parametrize(("folder", "variable", "default"), FOLDERS)
def test_a_relative_folder_is_ignored(folder, variable, default, monkeypatch):
    """If this fails, files are strewn over whatever folder a command is started in."""
    monkeypatch.setenv(variable, "here")
    assert folder() == Path.home() / default / "joulery"


def test_a_user_without_a_home_is_no_error(monkeypatch):
    """If this fails, measuring raises in containers whose user has no name."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    assert load_calibrations() == {}


def _no_home():
    raise RuntimeError


def test_a_line_is_read_as_it_was_written():
    """Journals and sockets lose what they were given."""
    document = {"a": 1, "b": [1.5, None, "ü"]}
    line = encode_line(document)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_line(line) == document


@pytest.mark.parametrize(
    "line", [b"", b"[1]", b"{", b'{"a": NaN}', b"\xff", b"[" * 10**5], ids=lambda line: line[:8]
)
def test_anything_but_an_object_is_refused(line):
    """A torn line passes for a document, or ends the reader."""
    with pytest.raises(ValueError):  # noqa: PT011 - of any kind
        decode_line(line)


def test_what_is_no_json_is_not_written():
    """NaN makes a line that other readers refuse."""
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_line({"a": float("nan")})
