"""Announced grid events: one file each in the agent's state folder.

The right to write that folder is the right to announce.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import FileError, InvalidValueError, flaw_text
from joulery.files import write_atomic
from joulery.grid import GridEvent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Samples of a window of power are merged to so many; by hand: its ends are off by a 300th.
_BUCKETS = 300


def announce(state: Path, event: GridEvent, clock: Clock = REAL_CLOCK) -> None:
    """Make an event known to the agent, in place of one of the same id.

    Raises:
        InvalidValueError: The event is over, or its id is no file name.
        FileError: There is no agent's state, or no right to write it.
    """
    event.check_not_past(clock.wall())
    try:
        write_atomic(_file(state, event.id), json.dumps(event.to_dict()).encode())
    except OSError as error:
        raise FileError(
            f"cannot announce event {event.id}: {error}",
            remedy=f"ask for the right to write {state / 'events'}",
        ) from None


def withdraw(state: Path, event: str) -> None:
    """Cancel an announced event by its id.

    Raises:
        FileError: No such event is announced, or there is no right to cancel it.
    """
    try:
        _file(state, event).unlink()
    except FileNotFoundError:
        remedy = f"see {state / 'events'}"
        raise FileError(f"no event {event} is announced", remedy=remedy) from None
    except OSError as error:
        remedy = f"ask for the right to write {state / 'events'}"
        raise FileError(f"cannot cancel event {event}: {error}", remedy=remedy) from None


def mirror_events(
    state: Path, events: Iterable[GridEvent], mirrored: dict[str, GridEvent], clock: Clock
) -> list[GridEvent]:
    """Make the announced events those of another source; the ones that are new or changed.

    Args:
        state: State folder of the agent.
        events: All events of the source now.
        mirrored: Events announced from it before, by id, which this function updates; those
            that the source no longer has are withdrawn.
        clock: Clock for which events are over.
    """
    current = {event.id: event for event in events if event.end > clock.wall()}
    for name in mirrored.keys() - current.keys():
        if mirrored.pop(name).end > clock.wall() and _file(state, name).exists():
            withdraw(state, name)
    updates = [event for name, event in current.items() if mirrored.get(name) != event]
    for event in updates:
        announce(state, event, clock)
        mirrored[event.id] = event
    return updates


class PowerWindow:
    """Mean power over the last while, of which reductions in per cent are.

    Args:
        seconds: Length of the window.
    """

    def __init__(self, seconds: float) -> None:
        self._length = seconds
        self._samples: deque[tuple[float, float, float]] = deque()

    def note(self, now: float, watts: float, seconds: float) -> None:
        """Add the power of an interval that ends now."""
        span = max(seconds, 1e-3)
        if self._samples and now - self._samples[-1][0] < self._length / _BUCKETS:
            since, mean, total = self._samples.pop()
            watts, span, now = (mean * total + watts * span) / (total + span), total + span, since
        self._samples.append((now, watts, span))
        while self._samples[0][0] < now - self._length and len(self._samples) > 1:
            self._samples.popleft()

    @property
    def seconds(self) -> float:
        """Time that the window covers."""
        return sum(seconds for *_, seconds in self._samples)

    def mean_watts(self, fallback: float) -> float:
        """Mean power; ``fallback`` where nothing was noted."""
        total = self.seconds
        return sum(w * s for _, w, s in self._samples) / total if total else fallback


def active_events(state: Path, until: float, now: float) -> tuple[list[GridEvent], list[str]]:
    """Announced events that start before a time, and what is wrong with others.

    Events that ended before ``now`` are deleted.
    """
    events, messages = [], []
    for file in sorted((state / "events").glob("*.json")):
        try:
            event = GridEvent(**json.loads(file.read_text(encoding="utf-8")))
            if event.end <= now:
                file.unlink(missing_ok=True)
            elif event.start <= until:
                events.append(event)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            messages.append(f"event {file.name} is invalid and ignored: {flaw_text(error)}")
    return events, messages


def _file(state: Path, event: str) -> Path:
    if "/" in event or event.startswith(".") or not event:
        raise InvalidValueError(f"event id {event!r}", remedy="use letters, digits and dashes")
    folder = state / "events"
    if not folder.is_dir():
        raise FileError(f"no agent's state in {state}", remedy="start `joulery cluster agent`")
    return folder / f"{event}.json"
