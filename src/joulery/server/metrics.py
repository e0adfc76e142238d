"""Counters of all workers in one piece of shared memory, told as Prometheus reads them.

Every worker has a row of its own, so nothing is locked, and whichever worker is asked tells of all.
A worker that is started again goes on with its row.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from typing import TYPE_CHECKING

from joulery import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from joulery.storage.listing import Totals

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
STATUSES = (
    200,
    201,
    204,
    400,
    401,
    403,
    404,
    405,
    408,
    409,
    413,
    415,
    422,
    429,
    431,
    500,
    501,
    503,
)
_OTHER_STATUS = len(STATUSES)
_STATUS_PLACE = {status: place for place, status in enumerate(STATUSES)}
_BUCKETS = len(BUCKETS_SECONDS) + 1
MOST_OPERATIONS = 32
MOST_WORKERS = 64
NO_OPERATION = MOST_OPERATIONS - 1  # requests to addresses that do not exist
_PER_OPERATION = len(STATUSES) + 1 + _BUCKETS + 1
_GAUGES = MOST_OPERATIONS * _PER_OPERATION
_IN_FLIGHT, _WAITING, _CONNECTIONS, _DROPPED, _EXPIRED = range(5)
_ROW = _GAUGES + 8
SHARED_BYTES = 8 * _ROW * MOST_WORKERS


class Metrics:
    """The row of one worker, and the sum of all.

    Args:
        worker: Number of the row.
        shared: Of :data:`SHARED_BYTES`; of this process alone unless given.
        names: Of operations, by number.
    """

    def __init__(
        self, worker: int = 0, shared: mmap.mmap | None = None, names: Iterable[str] = ()
    ) -> None:
        self._cells = memoryview(shared or mmap.mmap(-1, SHARED_BYTES)).cast("d")
        self._first = worker * _ROW
        self.names = tuple(names)
        for gauge in (_IN_FLIGHT, _WAITING, _CONNECTIONS):
            self._cells[self._first + _GAUGES + gauge] = 0.0

    def observe(self, operation: int, status: int, seconds: float) -> None:
        """Count a request."""
        cells, first = self._cells, self._first + operation * _PER_OPERATION
        cells[first + _STATUS_PLACE.get(status, _OTHER_STATUS)] += 1.0
        first += len(STATUSES) + 1
        cells[first + bisect_left(BUCKETS_SECONDS, seconds)] += 1.0
        cells[first + _BUCKETS] += seconds

    def note_in_flight(self, count: int) -> None:
        """Requests under way."""
        self._cells[self._first + _GAUGES + _IN_FLIGHT] = count

    def note_waiting(self, count: int) -> None:
        """Operations that wait for the store."""
        self._cells[self._first + _GAUGES + _WAITING] = count

    def note_connections(self, count: int) -> None:
        """Connections that are open."""
        self._cells[self._first + _GAUGES + _CONNECTIONS] = count

    def count_expired(self, count: int) -> None:
        """Decisions that were released since their holders fell silent."""
        self._cells[self._first + _GAUGES + _EXPIRED] += count

    def note_dropped(self, count: int) -> None:
        """Lines of the log that nobody read in time."""
        self._cells[self._first + _GAUGES + _DROPPED] = count

    def _sum(self, place: int) -> float:
        cells = self._cells
        return sum(cells[worker * _ROW + place] for worker in range(MOST_WORKERS))

    def text(self, totals: Totals | None) -> str:
        """Everything, as Prometheus reads it; ``totals`` where the store could tell."""
        lines = [
            *_family("joulery_build_info", "gauge", "The version that runs."),
            f'joulery_build_info{{version="{__version__}"}} 1',
            *_family("joulery_requests_total", "counter", "Requests by operation and status."),
            *self._requests(),
            *_family("joulery_request_seconds", "histogram", "Time to answer, by operation."),
            *self._histograms(),
        ]
        for place, name, kind, words in (
            (_IN_FLIGHT, "joulery_requests_in_flight", "gauge", "Requests under way."),
            (_WAITING, "joulery_store_waiting", "gauge", "Operations that wait for the store."),
            (_CONNECTIONS, "joulery_connections", "gauge", "Open connections."),
            (_DROPPED, "joulery_log_dropped_total", "counter", "Lines of the log not written."),
            (_EXPIRED, "joulery_expired_total", "counter", "Decisions released by this server."),
        ):
            lines += [*_family(name, kind, words), f"{name} {self._sum(_GAUGES + place):g}"]
        if totals is not None:
            for name, words, count in (
                ("joulery_jobs", "Jobs, all versions.", totals.jobs),
                ("joulery_events", "Events of all jobs.", totals.events),
                ("joulery_open_decisions", "Decisions worked on.", totals.open_decisions),
            ):
                lines += [*_family(name, "gauge", words), f"{name} {count}"]
        return "\n".join(lines) + "\n"

    def _named(self) -> Iterator[tuple[int, str]]:
        yield from enumerate(self.names)
        yield NO_OPERATION, "none"

    def _requests(self) -> Iterator[str]:
        for number, name in self._named():
            for place, status in enumerate((*STATUSES, "other")):
                count = self._sum(number * _PER_OPERATION + place)
                if count:
                    labels = f'operation="{name}",status="{status}"'
                    yield f"joulery_requests_total{{{labels}}} {count:.0f}"

    def _histograms(self) -> Iterator[str]:
        for number, name in self._named():
            first = number * _PER_OPERATION + len(STATUSES) + 1
            counts = [self._sum(first + place) for place in range(_BUCKETS)]
            if not any(counts):
                continue
            below = 0.0
            for bound, count in zip((*BUCKETS_SECONDS, "+Inf"), counts, strict=True):
                below += count
                labels = f'operation="{name}",le="{bound}"'
                yield f"joulery_request_seconds_bucket{{{labels}}} {below:.0f}"
            seconds = self._sum(first + _BUCKETS)
            yield f'joulery_request_seconds_sum{{operation="{name}"}} {seconds:.6f}'
            yield f'joulery_request_seconds_count{{operation="{name}"}} {below:.0f}'


def _family(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} {kind}"
