"""Savings of jobs by day, week or month, and the runs that are under way."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from joulery.jobs._models import decision_id
from joulery.storage import open_decisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from joulery.jobs._totals import EndedRecurrence, JobTotals
    from joulery.storage import OtherEnergy, Transaction

PeriodUnit = Literal["day", "week", "month"]
_MOST_PERIODS = 400  # by hand: more bars than pixels of a phone say nothing
_MOST_JOBS = 500  # by hand: below the number of variables of a query


@dataclass(frozen=True, slots=True)
class PeriodSavings:
    """What jobs used and saved in a period.

    Attributes:
        start_wall_seconds: Unix time at which it began.
        end_wall_seconds: Unix time at which it ended.
        recurrences: Number of recurrences that ended in it.
        joules: Energy that they used.
        saved_joules: Energy that they saved against the default.
        default_joules: Energy that the default would have used, of jobs that have a baseline.
        saved_error_joules: One standard error of what was saved, where it is known.
        other_joules: Energy of runs that do not recur, which began in it.
    """

    start_wall_seconds: float
    end_wall_seconds: float
    recurrences: int = 0
    joules: float = 0.0
    saved_joules: float = 0.0
    default_joules: float = 0.0
    saved_error_joules: float = 0.0
    other_joules: float = 0.0

    @property
    def all_joules(self) -> float:
        """Energy of all runs."""
        return self.joules + self.other_joules


@dataclass(frozen=True, slots=True)
class SavingsHistory:
    """What jobs used and saved over time.

    Attributes:
        total: Sum over all periods.
        periods: Days, weeks or months in order.
    """

    total: PeriodSavings
    periods: tuple[PeriodSavings, ...]


def savings_history(
    jobs: Sequence[JobTotals],
    start_wall_seconds: float,
    end_wall_seconds: float,
    unit: PeriodUnit,
    zone: tzinfo,
    others: Sequence[OtherEnergy] = (),
) -> SavingsHistory:
    """What jobs used and saved in each day, week or month between two moments.

    Args:
        jobs: Figures of jobs.
        start_wall_seconds: Unix time from which recurrences count.
        end_wall_seconds: Unix time until which they count.
        unit: Length of the periods; weeks begin on Mondays.
        zone: Time zone of the calendar.
        others: Energy of runs that do not recur, of that time.
    """
    edges = list(_edges(start_wall_seconds, end_wall_seconds, unit, zone))
    sums, squares = [_Sums() for _ in edges[1:]], 0.0
    for job in jobs:
        first = bisect.bisect_left(job.ended, start_wall_seconds, key=_wall_seconds)
        last = bisect.bisect_left(job.ended, end_wall_seconds, key=_wall_seconds)
        error = (job.saved_error_joules or 0.0) / (job.recurrences or 1)
        by_period: dict[int, list[EndedRecurrence]] = defaultdict(list)
        for recurrence in job.ended[first:last]:
            by_period[bisect.bisect_right(edges, recurrence.wall_seconds) - 1].append(recurrence)
        count = 0
        for at, recurrences in by_period.items():
            count += sums[min(at, len(sums) - 1)].add(recurrences, error)
        squares += (count * error) ** 2
    for other in others:
        at = bisect.bisect_right(edges, other.wall_seconds) - 1
        sums[min(at, len(sums) - 1)].other_joules += other.joules
    total = _Sums(
        sum(part.recurrences for part in sums),
        sum(part.joules for part in sums),
        sum(part.saved_joules for part in sums),
        sum(part.default_joules for part in sums),
        squares,
        sum(part.other_joules for part in sums),
    )
    periods = (part.savings(*ends) for part, ends in zip(sums, pairwise(edges), strict=True))
    return SavingsHistory(total.savings(start_wall_seconds, end_wall_seconds), tuple(periods))


def _wall_seconds(recurrence: EndedRecurrence) -> float:
    return recurrence.wall_seconds


@dataclass(slots=True)
class _Sums:
    """Sums over the recurrences of a period."""

    recurrences: int = 0
    joules: float = 0.0
    saved_joules: float = 0.0
    default_joules: float = 0.0
    squares: float = 0.0
    other_joules: float = 0.0

    def add(self, recurrences: Sequence[EndedRecurrence], error_joules: float) -> int:
        """Add recurrences of a job, which share the error of their baseline; give their number."""
        count = 0
        for recurrence in recurrences:
            count += recurrence.counts
            self.joules += recurrence.joules
            self.saved_joules += recurrence.saved_joules
            self.default_joules += recurrence.default_joules
        self.recurrences += count
        self.squares += (count * error_joules) ** 2
        return count

    def savings(self, start: float, end: float) -> PeriodSavings:
        energy = self.joules, self.saved_joules, self.default_joules
        error = math.sqrt(self.squares)
        return PeriodSavings(start, end, self.recurrences, *energy, error, self.other_joules)


def _edges(start: float, end: float, unit: PeriodUnit, zone: tzinfo) -> Iterator[float]:
    """Ends of periods, from the one that holds the start to the one that holds the end."""
    moment = datetime.fromtimestamp(start, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        moment -= timedelta(days=moment.weekday())
    elif unit == "month":
        moment = moment.replace(day=1)
    for _ in range(_MOST_PERIODS):
        yield moment.timestamp()
        if moment.timestamp() >= end:
            return
        moment = _next(moment, unit)


def _next(moment: datetime, unit: PeriodUnit) -> datetime:
    if unit == "month":
        return (moment.replace(day=28) + timedelta(days=4)).replace(day=1)
    return moment + timedelta(days=7 if unit == "week" else 1)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is under way.

    Attributes:
        job: Figures of its job.
        decision: Id of the decision that it carries out.
        batch_size: Batch size that it runs.
        limit_watts: Power limit that was decided; None where the run finds it.
        issued_wall_seconds: Unix time at which it began.
        heartbeat_wall_seconds: Unix time of its latest heartbeat; None for none.
        joules: Energy that it has reported.
    """

    job: JobTotals
    decision: str
    batch_size: int
    limit_watts: float | None
    issued_wall_seconds: float
    heartbeat_wall_seconds: float | None
    joules: float


def open_runs(
    transaction: Transaction, jobs: Sequence[JobTotals], limit: int = 20
) -> list[OpenRun]:
    """Runs of some hundred jobs that are under way, the latest first.

    Args:
        transaction: Transaction to read with.
        jobs: Figures of jobs.
        limit: Most runs to give.
    """
    by_number = {job.head.id: job for job in jobs if job.open}
    numbers = list(by_number)[:_MOST_JOBS]
    return [
        OpenRun(
            by_number[record.job],
            decision_id(record.job, record.sequence),
            record.action["batch_size"],
            record.action.get("power_limit_watts"),
            record.issued_wall_seconds,
            record.heartbeat_wall_seconds,
            (record.progress or {}).get("joules", 0.0),
        )
        for record in open_decisions(transaction, numbers, limit)
    ]
