"""The last run of a job that reached its target, for when nobody can be asked what to run."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class LastGood:
    """What was run.

    Attributes:
        batch_size: Over all devices.
        limit_watts: Power limit that was held; None for none.
    """

    batch_size: int
    limit_watts: float | None


class LastGoodSetting:
    """One small file, replaced in one piece; failing to write it is nobody's problem.

    Args:
        path: Of the file; None remembers nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def note(self, setting: LastGood) -> None:
        """Remember a run that reached its target."""
        if self._path is None:
            return
        document = {"batch_size": setting.batch_size, "limit_watts": setting.limit_watts}
        with suppress(OSError, ValueError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, suffix=".part")
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(document, file, allow_nan=False)
            Path(name).replace(self._path)

    def recall(self, batch_sizes: Sequence[int]) -> LastGood | None:
        """That run, if its batch size is one of ``batch_sizes``."""
        if self._path is None:
            return None
        try:
            document: Any = json.loads(self._path.read_text(encoding="ascii"))
            size, watts = document["batch_size"], document["limit_watts"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if size not in batch_sizes:
            return None
        return LastGood(size, float(watts) if isinstance(watts, int | float) else None)
