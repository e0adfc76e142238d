"""Word from a training process to the ``joulery run`` that started it.

Each process leaves one small file in a folder that the starter names in the environment. Writing
is atomic, and a failure to write is nobody's problem.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER_VARIABLE = "JOULERY_RUN_REPORTS"


def write_report(document: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Leave ``document`` for the starter, in place of any earlier one of this process."""
    folder = environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    with suppress(OSError):
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, allow_nan=False)
        Path(name).replace(Path(folder) / f"{os.getpid()}.json")


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """What the processes left, in order of their ids; damaged ones are left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(document, dict):
                found.append(document)
    return found
