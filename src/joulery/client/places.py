"""Where a client keeps what it must not lose, and where it looks for its store."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

STORE_VARIABLE = "JOULERY_STORE"
TOKEN_VARIABLE = "JOULERY_TOKEN"  # noqa: S105 - the name of a variable
TEAM_VARIABLE = "JOULERY_TEAM"
CA_VARIABLE = "JOULERY_CA_FILE"
DEFAULT_TEAM = "default"


def state_folder() -> Path:
    """For what was not delivered yet: under ``XDG_STATE_HOME``, or ``~/.local/state``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "joulery"


def team_of(given: str | None) -> str:
    """Whose jobs are meant: as given, or else by ``JOULERY_TEAM``, or else ``default``."""
    return given or os.environ.get(TEAM_VARIABLE) or DEFAULT_TEAM


def is_server(location: str) -> bool:
    """Whether a store is behind HTTP."""
    return location.lower().startswith(("http://", "https://"))


def file_stem(*names: str) -> str:
    """A file name for names of any kind; the same for the same, and telling nothing."""
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:24]
