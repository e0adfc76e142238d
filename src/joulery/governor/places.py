"""Where the governor's socket and its state are."""

from __future__ import annotations

import os
from pathlib import Path

SOCKET_VARIABLE = "JOULERY_GOVERNOR"
STATE_VARIABLE = "JOULERY_GOVERNOR_STATE"


def default_socket() -> Path:
    """The daemon's socket; an empty variable means that there is no daemon."""
    return Path(os.environ.get(SOCKET_VARIABLE, "/run/joulery/governor.sock") or os.devnull)


def state_folder() -> Path:
    """For journals and locks; on a memory file system, since boards forget limits too."""
    if os.environ.get(STATE_VARIABLE):
        return Path(os.environ[STATE_VARIABLE])
    if os.geteuid() == 0:
        return Path("/run/joulery/state")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime) if runtime else Path.home() / ".cache") / "joulery-governor"
