"""The file of a user's tokens for servers, by their addresses."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from joulery.errors import FileError, InvalidValueError
from joulery.jobs._schema import from_bytes, to_bytes


def token_file() -> Path:
    """Path of the file, which only its owner can read."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "joulery" / "tokens.json"


def read_token(address: str, path: Path | None = None) -> str | None:
    """The token for the server at ``address``, such as ``http://127.0.0.1:8420``, if there is one.

    A token is sent to the server that it was written for, and to no other.
    """
    token = _tokens(path or token_file()).get(address.rstrip("/"))
    return token if isinstance(token, str) else None


def write_token(address: str, token: str, path: Path | None = None) -> Path:
    """Write the token for a server, besides those for others; the path of the file."""
    place = path or token_file()
    tokens = _tokens(place) | {address.rstrip("/"): token}
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A temporary file is readable by its owner only; renaming replaces the other at once.
        handle, draft = tempfile.mkstemp(prefix=".tokens", dir=place.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(to_bytes(tokens) + b"\n")
            Path(draft).replace(place)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        raise FileError(
            f"cannot write {place}: {error.strerror}", remedy="make the folder writable for you"
        ) from error
    return place


def _tokens(path: Path) -> dict[str, Any]:
    try:
        document = from_bytes(path.read_bytes())
    except (OSError, InvalidValueError):  # none yet, or a damaged file
        return {}
    return document if isinstance(document, dict) else {}
