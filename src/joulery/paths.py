"""Folders of this user for Joulery's files, after the XDG base directory specification."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Folder for stores and profiles: under ``XDG_DATA_HOME``, or ``~/.local/share``."""
    return _folder("XDG_DATA_HOME", ".local/share")


def state_folder() -> Path:
    """Folder for undelivered reports: under ``XDG_STATE_HOME``, or ``~/.local/state``."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Folder for compiled libraries: under ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable) or "")
    if not folder.is_absolute():  # the specification has others ignored
        folder = _home() / default
    return folder / "joulery"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name or HOME, as in containers
        return Path("/nonexistent")  # nothing is found there, and writing fails with a remedy
