"""From the location that people write to a backend."""

import pytest

from joulery.client import open_backend, write_token
from joulery.client._http import HttpBackend
from joulery.errors import InvalidValueError
from joulery.jobs import JobService


def test_nothing_means_the_store_of_the_user(tmp_path):
    """If this fails, runs without a server have nowhere to learn."""
    backend = open_backend()
    assert isinstance(backend, JobService)
    backend.close()
    assert (tmp_path / "data" / "joulery" / "store.sqlite").exists()


def test_the_environment_names_a_server(monkeypatch):
    """If this fails, JOULERY_STORE is not obeyed."""
    monkeypatch.setenv("JOULERY_STORE", "http://127.0.0.1:1")
    monkeypatch.setenv("JOULERY_TOKEN", "from the environment")
    monkeypatch.setenv("JOULERY_TEAM", "vision")
    backend = open_backend()
    assert isinstance(backend, HttpBackend)
    assert backend._token == "from the environment"  # noqa: S105 - of this test
    assert backend._team == "vision"
    backend.close()


def test_arguments_win_over_the_environment(monkeypatch, tmp_path):
    """If this fails, a script cannot choose its store."""
    monkeypatch.setenv("JOULERY_STORE", "http://127.0.0.1:1")
    backend = open_backend(tmp_path / "own.sqlite", "mine")
    assert isinstance(backend, JobService)
    assert backend._team == "mine"
    backend.close()


def test_the_token_that_a_server_left_is_found():
    """If this fails, every user must copy a token by hand."""
    write_token("http://127.0.0.1:8420", "left by the server")
    assert open_backend("http://127.0.0.1:8420/")._token == "left by the server"  # noqa: S105
    assert open_backend("http://127.0.0.1:9999")._token is None


def test_nonsense_is_refused():
    """If this fails, a typo in an address makes a file of that name."""
    with pytest.raises(InvalidValueError):
        open_backend("ftp://server")
    with pytest.raises(InvalidValueError):
        open_backend("http://user:password@server")
