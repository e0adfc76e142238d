"""Heartbeats of runs under way, in memory: for people who watch, and to spare the store."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from joulery.jobs import RunProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.client import ProgressReport
    from joulery.jobs import DecisionLease

_MOST_BEATS, _MOST_RUNS = 400, 1000  # remembered, of a run and in all (by hand: a chart's width)
_MOST_LEASES = 20_000  # by hand: some megabytes
_MOST_FIGURES = 300_000  # heartbeats and devices in them (by hand: some tens of megabytes)
_STORED_SECONDS = 50.0  # between stored heartbeats of a run (by hand: well below the lease)


class HeartbeatLog:
    """The heartbeats of runs under way, of which the store keeps only the latest of a minute."""

    def __init__(self) -> None:
        self._beats: OrderedDict[str, list[RunProgress]] = OrderedDict()
        self._latest: dict[str, float] = {}  # by job
        self._figures = 0
        self._leases: OrderedDict[tuple[str, float], tuple[float, DecisionLease]] = OrderedDict()

    def note(self, decision: str, report: ProgressReport, now_wall_seconds: float) -> None:
        """Remember a heartbeat."""
        progress = report.progress
        if progress is None:
            return
        beats = self._beats.setdefault(decision, [])
        self._beats.move_to_end(decision)
        self._latest[decision.partition(".")[0]] = now_wall_seconds
        figures = progress.seconds, progress.joules, progress.epochs
        beats.append(RunProgress(*figures, now_wall_seconds, report.live))
        self._figures += _size(beats[-1])
        if len(beats) > _MOST_BEATS:
            self._figures -= sum(map(_size, beats[1::2]))
            del beats[1::2]  # every other one, so that the whole run stays in view
        while len(self._beats) > _MOST_RUNS or self._figures > _MOST_FIGURES:
            _, dropped = self._beats.popitem(last=False)
            self._figures -= sum(map(_size, dropped))

    def of(self, decision: str) -> tuple[RunProgress, ...]:
        """The heartbeats of a decision, as far as they are remembered."""
        return tuple(self._beats.get(decision, ()))

    def latest_seconds(self, jobs: Iterable[int]) -> float:
        """Unix time of the latest heartbeat of any run of these jobs; 0 for none."""
        return max((self._latest.get(str(job), 0.0) for job in jobs), default=0.0)

    def keep_lease(self, holder: tuple[str, float], lease: DecisionLease, now: float) -> None:
        """Remember a lease that was just stored, by decision and time of its issue."""
        self._leases[holder] = now, lease
        self._leases.move_to_end(holder)
        if len(self._leases) > _MOST_LEASES:
            self._leases.popitem(last=False)

    def recent_lease(self, holder: tuple[str, float], now: float) -> DecisionLease | None:
        """The lease, if it was stored so lately that the next heartbeat need not be."""
        stored_seconds, lease = self._leases.get(holder, (0.0, None))
        return lease if lease is not None and now - stored_seconds < _STORED_SECONDS else None

    def end(self, holder: tuple[str, float]) -> None:
        """Forget the lease of a decision that was reported on."""
        self._leases.pop(holder, None)


def _size(beat: RunProgress) -> int:
    return 1 + (len(beat.live.devices) if beat.live is not None else 0)
