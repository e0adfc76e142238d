"""Demand-response events: between two times the cluster is asked to use less power."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joulery.documents import read_text
from joulery.errors import InvalidValueError, document_errors
from joulery.units import finite


@dataclass(frozen=True, slots=True)
class GridEvent:
    """A request for less power.

    Attributes:
        id: Name of the event.
        start: Time at which the power must be down, in seconds since 1970 UTC.
        end: Time at which it may come back.
        target_watts: Most IT power of the cluster during the event; None where a fraction is
            asked for.
        reduction: Share of the power before the event that is to be saved.
        announced: Time at which the event became known.
        baseline_watts: Power that the reduction is of, where a contract states it; None for the
            mean before the event.
    """

    id: str
    start: float
    end: float
    target_watts: float | None = None
    reduction: float | None = None
    announced: float | None = None
    baseline_watts: float | None = None

    def __post_init__(self) -> None:
        finite(self.start, "start of an event")
        if not finite(self.end, "end of an event") > self.start:
            raise InvalidValueError(
                f"event {self.id} ends before it starts", remedy="give an end after the start"
            )
        if (self.target_watts is None) == (self.reduction is None):
            raise InvalidValueError(
                f"event {self.id} needs a target in watts or a reduction, and not both",
                remedy="give target_watts, or reduction as a fraction",
            )
        if self.baseline_watts is not None:
            finite(self.baseline_watts, "baseline of an event", minimum=0.0)
        if self.target_watts is not None:
            finite(self.target_watts, "target of an event", minimum=0.0)
        elif not 0 < (self.reduction or 0.0) < 1:
            raise InvalidValueError(
                f"event {self.id} asks for a reduction of {self.reduction}",
                remedy="give a fraction between 0 and 1",
            )

    def budget(self, baseline_watts: float) -> float:
        """Most power during the event, of a cluster that used ``baseline_watts`` before it."""
        if self.target_watts is not None:
            return self.target_watts
        stated = self.baseline_watts
        return (baseline_watts if stated is None else stated) * (1 - (self.reduction or 0.0))

    def check_not_past(self, now: float) -> None:
        """Refuse an event that is already over."""
        if self.end <= now:
            raise InvalidValueError(
                f"event {self.id} ended {now - self.end:.0f} s ago",
                remedy="check the event's times and zone; the caps in force stay",
            )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_events(path: Path | str) -> list[GridEvent]:
    """Read events from a JSON list of ``{"id", "start", "end", "target_watts" | "reduction"}``."""
    text = read_text(Path(path), "events")
    remedy = 'write [{"id": "a", "start": 1.7e9, "end": 1.7e9, "reduction": 0.25}]'
    with document_errors(f"{path} holds no events", remedy=remedy):
        return [GridEvent(**entry) for entry in json.loads(text)]
