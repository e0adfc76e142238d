"""Folders for Joulery's files."""

from pathlib import Path

import pytest

from joulery import paths
from joulery.metering import load_calibrations

FOLDERS = [
    (paths.data_folder, "XDG_DATA_HOME", ".local/share"),
    (paths.state_folder, "XDG_STATE_HOME", ".local/state"),
    (paths.cache_folder, "XDG_CACHE_HOME", ".cache"),
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
