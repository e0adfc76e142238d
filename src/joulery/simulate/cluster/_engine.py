"""An event-driven cluster under a power budget, exact in time.

Jobs of one class (equal curve, weight and floor) always run at the same speed, so a class has one
clock of work done: a job that starts when it shows ``v`` ends when it shows ``v`` + its work. A
change of power moves every class's clock rate and no job, so an event costs the same however many
jobs run.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster import POLICIES, DeficitLedger, FlatAllocator, Fleet
from joulery.errors import InfeasibleError, InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.grid import GridEvent
    from joulery.simulate.cluster._traces import Trace

_QUEUES = ("fifo", "backfill", "sjf")
# How far behind the first waiting job backfilling looks.
_BACKFILL_DEPTH = 64
# Performance that a job may be owed, or owe, in steps that keep the number of classes small.
_CREDITS = np.array([0.0, -0.25, -0.1875, -0.125, -0.0625, 0.0625, 0.125, 0.1875, 0.25])


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster that a trace is replayed on.

    Attributes:
        gpus: Number of GPUs, or the number of each type.
        budget: Times in seconds from the trace's start with the IT power allowed from then on;
            the first must be at time 0 or before. Empty for no limit.
        policy: Name of the allocation policy.
        queue: ``fifo``, ``backfill`` (jobs that do not delay the first waiting one may pass it)
            or ``sjf`` (shortest job first).
        overhead_watts: Power of hosts and network.
        idle_watts: Power of one GPU without a job.
        rotation_seconds: Time after which a paused job takes the place of those that have run
            longest; infinite for never. Jobs of an ``sjf`` queue do not rotate.
        recovery_seconds: Time between two looks at what jobs ran below the mean of all, which the
            policies ``fair`` and ``max-min`` give back over the next hours; infinite for never.
        alpha: Aversion to unequal performance, for ``alpha-fair``.
    """

    gpus: int | Mapping[str, int]
    budget: Sequence[tuple[float, float]] = ()
    policy: str = "fair"
    queue: str = "fifo"
    overhead_watts: float = 0.0
    idle_watts: float = 0.0
    rotation_seconds: float = math.inf
    recovery_seconds: float = math.inf
    alpha: float = 2.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES or self.queue not in _QUEUES:
            raise InvalidValueError(
                f"unknown policy {self.policy!r} or queue {self.queue!r}",
                remedy=f"policies: {', '.join(POLICIES)}; queues: {', '.join(_QUEUES)}",
            )
        finite(self.overhead_watts, "overhead_watts", minimum=0.0)
        finite(self.idle_watts, "idle_watts", minimum=0.0)
        if not min(self.rotation_seconds, self.recovery_seconds) > 0:
            raise InvalidValueError(
                "the time between two rotations or recoveries is not positive",
                remedy="give a positive number of seconds, or leave it out",
            )
        if self.budget and self.budget[0][0] > 0:
            raise InvalidValueError(
                "the budget does not say what holds at the start", remedy="give it from time 0"
            )

    @property
    def pools(self) -> Mapping[str, int]:
        """Number of GPUs of each type."""
        return {"": self.gpus} if isinstance(self.gpus, int) else self.gpus


def budget_steps(
    watts: float, events: Sequence[GridEvent], origin: float = 0.0
) -> list[tuple[float, float]]:
    """A budget that grid events lower for a while, as a ``Site`` takes it.

    Args:
        watts: Budget without an event; reductions are of this.
        events: Events in seconds since 1970 UTC.
        origin: Time of the trace's start.
    """
    spans = [(event.start - origin, event.end - origin, event.budget(watts)) for event in events]
    times = sorted({0.0, *(time for start, end, _ in spans for time in (start, end) if time > 0)})
    return [
        (time, min([watts, *(target for start, end, target in spans if start <= time < end)]))
        for time in times
    ]


@dataclass(frozen=True, slots=True)
class ClusterReplay:
    """Result of a replay: times of every job, and the power over time.

    Attributes:
        start: Time at which each job first ran.
        end: Time at which it ended.
        times: Times at which the power changed.
        watts: IT power from each of these times on.
        budget_watts: IT power allowed from each of these times on.
        events: Number of submissions, starts, ends, pauses and changes of the budget.
        refused: Jobs larger than the cluster, which never start.
        pauses: Number of times that a running job had to stop.
        trace: Jobs that were replayed.
    """

    start: np.ndarray
    end: np.ndarray
    times: np.ndarray
    watts: np.ndarray
    budget_watts: np.ndarray
    events: int
    refused: int
    pauses: int
    trace: Trace = field(repr=False)


def simulate(trace: Trace, site: Site) -> ClusterReplay:
    """Replay a trace on a cluster under a power budget."""
    return _Simulation(trace, site).run()


class _Simulation:
    """State of one replay."""

    def __init__(self, trace: Trace, site: Site) -> None:
        self._trace, self._site = trace, site
        # Each class once for each credit, between which its jobs move.
        self._credits = _CREDITS if math.isfinite(site.recovery_seconds) else _CREDITS[:1]
        weight, floor, curve = (
            np.tile(column, len(self._credits))
            for column in (trace.weight, trace.floor, trace.curve)
        )
        credit = np.repeat(self._credits, len(trace))
        fleet = Fleet(trace.curves, curve, weight=weight, floor=floor, credit=credit)
        self._rows = fleet.row.reshape(len(self._credits), len(trace))
        self._row = self._rows[0].tolist()
        rows = len(fleet.count)
        base = site.overhead_watts + site.idle_watts * sum(site.pools.values())
        self._allocator = FlatAllocator(fleet, site.policy, base, site.idle_watts, site.alpha)
        self._work = trace.work_seconds.tolist()
        self._gpus = trace.gpus.tolist()
        self._pool_of = [self._pool(name) for name in trace.pool]
        self._capacity = list(site.pools.values())
        self._free = list(self._capacity)
        self._waiting: list[deque[int]] = [deque() for _ in self._free]
        self._shortest: list[list[tuple[float, int]]] = [[] for _ in self._free]
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in range(rows)]
        self._next_end = np.full(rows, np.inf)
        self._done = np.zeros(rows)  # clock of work done by each class
        self._speed = np.ones(rows)
        self._budget = math.inf
        self._start = [math.nan] * len(trace)
        self._end = [math.nan] * len(trace)
        self._reserved: dict[int, tuple[int, float, int]] = {}
        self._since = [math.nan] * len(trace)  # start of the present run of each job
        self._paused: dict[int, float] = {}  # since when
        self._rotate_at = math.inf
        self._ledger = DeficitLedger()
        self._recover_at, self._done_before = site.recovery_seconds, np.zeros(rows)
        self._now = 0.0
        self._events = self._refused = self._pauses = 0
        self._record: list[tuple[float, float, float]] = []

    def _pool(self, name: str) -> int:
        names = list(self._site.pools)
        if name in names:
            return names.index(name)
        if name == "" or len(names) == 1:
            return 0
        raise InvalidValueError(
            f"the trace asks for GPUs of type {name!r}",
            remedy=f"this cluster has {', '.join(names)}",
        )

    def run(self) -> ClusterReplay:
        """Go from event to event until every job has ended."""
        submit = [*self._trace.submit.tolist(), math.inf]
        changes = [*self._site.budget, (math.inf, 0.0)]
        arrived = changed = 0
        while True:
            seconds_left = (self._next_end - self._done) / self._speed
            row = int(seconds_left.argmin())
            end = self._now + float(seconds_left[row])
            time = min(end, submit[arrived], changes[changed][0], self._rotate_at)
            if time == math.inf:
                break
            time = min(time, self._recover_at)
            self._done += self._speed * (max(time, self._now) - self._now)
            self._now = max(time, self._now)
            if end <= time:
                self._done[row] = self._next_end[row]  # exactly, whatever rounding says
                self._finish(row)
            while submit[arrived] <= time:
                self._submit(arrived)
                arrived += 1
            while changes[changed][0] <= time:
                self._budget = changes[changed][1]
                self._events += 1
                changed += 1
                self._pause_until_it_fits()
            if self._rotate_at <= time:
                self._rotate()
            if self._recover_at <= time:
                self._recover()
            self._schedule()
            self._speed, watts = self._allocator.solve(self._budget)
            self._record.append((self._now, watts, self._budget))
        times, drawn, budgets = (np.array(column) for column in zip(*self._record, strict=True))
        return ClusterReplay(
            start=np.array(self._start),
            end=np.array(self._end),
            times=times,
            watts=drawn,
            budget_watts=budgets,
            events=self._events,
            refused=self._refused,
            pauses=self._pauses,
            trace=self._trace,
        )

    def _submit(self, job: int) -> None:
        self._events += 1
        pool = self._pool_of[job]
        if self._gpus[job] > self._capacity[pool]:
            self._refused += 1
        elif self._site.queue == "sjf":
            heapq.heappush(self._shortest[pool], (self._work[job], job))
        else:
            self._waiting[pool].append(job)

    def _finish(self, row: int) -> None:
        heap = self._heaps[row]
        while heap and heap[0][0] <= self._done[row]:
            _, job = heapq.heappop(heap)
            self._end[job] = self._now
            self._events += 1
            self._free[self._pool_of[job]] += self._gpus[job]
            self._allocator.change(row, -self._gpus[job])
        self._next_end[row] = heap[0][0] if heap else math.inf

    def _fits(self, job: int) -> bool:
        gpus = self._gpus[job]
        if gpus > self._free[self._pool_of[job]]:
            return False
        need: float = gpus * self._allocator.need_watts(self._row[job])
        return self._allocator.least_watts() + need <= self._budget

    def _begin(self, job: int) -> None:
        self._events += 1
        if math.isnan(self._start[job]):
            self._start[job] = self._now
        self._since[job] = self._now
        if self._paused.pop(job, None) is not None and not self._paused:
            self._rotate_at = math.inf
        self._free[self._pool_of[job]] -= self._gpus[job]
        self._put_in(job)

    def _schedule(self) -> None:
        for pool, waiting in enumerate(self._waiting):
            shortest = self._shortest[pool]
            while shortest and self._fits(shortest[0][1]):
                self._begin(heapq.heappop(shortest)[1])
            while waiting and self._fits(waiting[0]):
                self._begin(waiting.popleft())
            if len(waiting) > 1 and self._site.queue == "backfill" and self._free[pool]:
                self._backfill(pool, waiting)

    def _backfill(self, pool: int, waiting: deque[int]) -> None:
        """Start jobs that end before the first waiting job could start, or leave it room."""
        head = waiting[0]
        if self._reserved.get(pool, (-1, 0.0, 0))[0] != head:
            self._reserved[pool] = (head, *self._reservation(pool, self._gpus[head]))
        _, time, spare = self._reserved[pool]
        for job in list(waiting)[1:_BACKFILL_DEPTH]:
            ends_in_time = self._now + self._work[job] <= time
            if (ends_in_time or self._gpus[job] <= spare) and self._fits(job):
                waiting.remove(job)
                self._begin(job)
                if not ends_in_time:
                    spare -= self._gpus[job]
        self._reserved[pool] = (head, time, spare)

    def _reservation(self, pool: int, gpus: int) -> tuple[float, int]:
        """Start of a job of so many GPUs at present speeds, and the GPUs it then leaves."""
        ends = sorted(
            (self._now + (end - self._done[row]) / self._speed[row], job)
            for row, heap in enumerate(self._heaps)
            for end, job in heap
            if self._pool_of[job] == pool
        )
        free = self._free[pool]
        for time, job in ends:
            free += self._gpus[job]
            if free >= gpus:
                return float(time), free - gpus
        return self._now, 0

    def _pause_until_it_fits(self) -> None:
        """Stop the jobs that started last; they wait at the head of the queue."""
        while self._allocator.least_watts() > self._budget:
            running = self._running()
            if not running:
                raise InfeasibleError(
                    f"the idle cluster uses {self._allocator.least_watts():.6g} W, "
                    f"more than the budget of {self._budget:.6g} W",
                    remedy="raise the budget, or lower the overhead",
                )
            self._stop(max(running, key=lambda job: (self._start[job], job)))

    def _rotate(self) -> None:
        """Let the job that has been paused longest run in place of those that have run longest."""
        self._rotate_at = self._now + self._site.rotation_seconds
        for pool, waiting in enumerate(self._waiting):
            if not waiting or waiting[0] not in self._paused:
                continue
            job = waiting.popleft()
            rivals = [o for o in self._running() if self._pool_of[o] == pool]
            for other in sorted(rivals, key=lambda o: (self._since[o], o)):
                if self._fits(job):
                    break
                self._stop(other)
            if self._fits(job):
                self._begin(job)
            else:
                waiting.appendleft(job)

    def _recover(self) -> None:
        """Note what each job ran below the mean, and move it to the class of its credit."""
        seconds = self._site.recovery_seconds
        running = self._running()
        speeds = (self._done - self._done_before) / seconds
        jobs = [*running, *self._paused]
        gained = np.array([speeds[self._row[j]] for j in running] + [0.0] * len(self._paused))
        if jobs:
            self._ledger.add([str(job) for job in jobs], gained, seconds)
        for job in jobs:
            index = int(np.abs(self._credits - self._ledger.credit(str(job))).argmin())
            if (row := int(self._rows[index, job])) != self._row[job]:
                is_running = job not in self._paused
                if is_running:
                    self._take_out(job)
                self._row[job] = row
                if is_running:
                    self._put_in(job)
        self._recover_at = self._now + self._site.recovery_seconds
        self._done_before = self._done.copy()

    def _running(self) -> list[int]:
        return [job for heap in self._heaps for _, job in heap]

    def _stop(self, job: int) -> None:
        """Stop a job; it waits after those that were paused before, and ahead of all others."""
        self._take_out(job)
        self._events += 1
        self._free[self._pool_of[job]] += self._gpus[job]
        self._pauses += 1
        pool = self._pool_of[job]
        if self._site.queue == "sjf":
            heapq.heappush(self._shortest[pool], (self._work[job], job))
            return
        ahead = sum(self._pool_of[o] == pool and at < self._now for o, at in self._paused.items())
        self._waiting[pool].insert(ahead, job)
        if not self._paused:
            self._rotate_at = self._now + self._site.rotation_seconds
        self._paused[job] = self._now

    def _take_out(self, job: int) -> None:
        """Take a running job out of its class, with the work that is left."""
        row = self._row[job]
        heap = self._heaps[row]
        index = next(n for n, entry in enumerate(heap) if entry[1] == job)
        self._work[job] = heap.pop(index)[0] - float(self._done[row])
        heapq.heapify(heap)
        self._next_end[row] = heap[0][0] if heap else math.inf
        self._allocator.change(row, -self._gpus[job])

    def _put_in(self, job: int) -> None:
        """Let a job run in its class."""
        row = self._row[job]
        self._allocator.change(row, self._gpus[job])
        heapq.heappush(self._heaps[row], (float(self._done[row]) + self._work[job], job))
        self._next_end[row] = self._heaps[row][0][0]
