"""Arguments that several commands check in the same way, before any work is done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from joulery.errors import FileError, InvalidValueError

if TYPE_CHECKING:
    from pathlib import Path


def given_command(words: list[str]) -> list[str]:
    """Program and arguments after ``--``."""
    return words[1:] if words[:1] == ["--"] else words


def whole_number(text: str, option: str, least: int, most: int) -> int:
    """The number that ``text`` states for ``option``.

    Raises:
        InvalidValueError: It is no whole number, or out of range.
    """
    remedy = f"give a whole number from {least} to {most}"
    try:
        number = int(text)
    except ValueError:
        raise InvalidValueError(f"{option} {text!r} is no whole number", remedy=remedy) from None
    if not least <= number <= most:
        raise InvalidValueError(f"{option} {number} is out of range", remedy=remedy)
    return number


def writable_folder(folder: Path) -> Path:
    """Make the folder, so that nobody waits for work whose result cannot be written.

    Raises:
        FileError: It cannot be made or written to.
    """
    remedy = "choose another folder with --out"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise FileError(f"cannot make {folder}: {refused.strerror}", remedy=remedy) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"cannot write to {folder}", remedy=remedy)
    return folder
