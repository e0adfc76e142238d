"""Read and write the text files of the pipeline planner: profiles, schedules, plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, document_errors
from joulery.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path


def parse_json(text: str, subject: str, remedy: str) -> Any:
    """The document in a text; a FileError if it is not valid JSON."""
    with document_errors(f"the {subject} is not valid JSON", remedy=remedy):
        return json.loads(text)


def write_text(path: Path, text: str, subject: str) -> None:
    """Write a file in one step; a FileError if that is not possible."""
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise FileError(
            f"cannot write the {subject} {path}: {error.strerror}", remedy="choose another place"
        ) from None
