"""The file with tokens of a user's programs."""

import stat

import pytest

from joulery.client import read_token, write_token
from joulery.client._backend import token_file
from joulery.errors import FileError


def test_a_token_is_for_one_server(tmp_path):
    """A program would show its token to any server."""
    path = tmp_path / "joulery" / "tokens.json"
    assert write_token("http://127.0.0.1:1", "one", path) == path
    write_token("http://127.0.0.1:2/", "two", path)
    assert read_token("http://127.0.0.1:1/", path) == "one"
    assert read_token("http://127.0.0.1:2", path) == "two"
    assert read_token("https://127.0.0.1:1", path) is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_broken_file_is_none(tmp_path):
    """A server could not start, or a client not train, because of half a file."""
    path = tmp_path / "tokens.json"
    for text in ("", "[]", '{"a": 5}', "{"):
        path.write_text(text)
        assert read_token("a", path) is None
    write_token("a", "b", path)
    assert read_token("a", path) == "b"


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    """A server would end with a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        write_token("a", "b", tmp_path / "file" / "tokens.json")


def test_it_is_in_the_users_data_folder(monkeypatch):
    """Client and server would look in different places."""
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert str(token_file()) == "/somewhere/joulery/tokens.json"
