"""The agent's audit: one line of JSON for whatever an operator may ask about later."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from joulery.files import encode_line, open_for_append, write_all

if TYPE_CHECKING:
    from pathlib import Path

# A budget that follows a ramp or a series is noted when it has moved by this share; by hand.
_BUDGET_STEP = 0.01


class AgentAudit:
    """Lines in ``audit.jsonl`` of the state folder, which may be moved away at any time.

    Args:
        folder: State folder of the agent.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "audit.jsonl"
        self._budget_watts: float | None = None
        self._events: set[str] | None = None

    def write(self, at: float, what: str, **details: Any) -> None:
        """Add a line.

        Raises:
            OSError: The disk is full, or the folder gone.
        """
        descriptor = open_for_append(self._path)
        try:
            write_all(descriptor, encode_line({"at": round(at, 3), "what": what, **details}))
        finally:
            os.close(descriptor)

    def note_budget(self, at: float, watts: float, events: set[str]) -> None:
        """Add lines for events that began or ended, and for a budget that has moved."""
        before = events if self._events is None else self._events
        for name in sorted(events - before):
            self.write(at, "event began", event=name)
        for name in sorted(before - events):
            self.write(at, "event ended", event=name)
        self._events = set(events)
        if self._budget_watts is None:
            self.write(at, "budget", watts=round(watts, 3))
            self._budget_watts = watts
        moved = abs(watts - self._budget_watts) > _BUDGET_STEP * max(watts, self._budget_watts)
        if moved or before != events:
            self.write(at, "budget", watts=round(watts, 3), before=round(self._budget_watts, 3))
            self._budget_watts = watts
