"""Stores with long histories of many jobs, made quickly, to measure what they cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs
from sqlalchemy import literal, select

from joulery.clock import VirtualClock
from joulery.jobs import Definition, JobService, Measured, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.storage._schema import decisions, events, jobs, outcomes, snapshots
from joulery.testing.workloads import made_up_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Table

    from joulery.jobs import Decision
    from joulery.storage import Store

_GROUP = 64
_TEAM = "team"
# A lease that outlasts the virtual time of any history.
LONG_LEASE_SECONDS = 1e12


def plain_outcome(decision: Decision) -> Outcome:
    """What an honest client might tell, whatever was decided."""
    if decision.kind == ActionKind.PROBE:
        measured = tuple(Measured(watts, 3.0, 300.0, 0.02) for watts in decision.probe_limits_watts)
        return Outcome(RunEnd.PROBED, 0.0, 5.0, 500.0, None, measured)
    watts = decision.power_limit_watts or 200.0
    epochs = 20.0 + decision.batch_size % 7
    epoch = Measured(watts, 3.0 - decision.batch_size / 1000, 300.0, 0.005)
    return Outcome(
        RunEnd.REACHED, epochs, epochs * epoch.epoch_seconds, epochs * 300.0, watts, (epoch,)
    )


def run(service: JobService, clock: VirtualClock, job: int, times: int, key: str) -> None:
    """Decide and report so many times, in groups."""
    for first in range(0, times, _GROUP):
        names = [f"{key}.{number}" for number in range(first, min(first + _GROUP, times))]
        decisions_made = [
            future.result()
            for future in [service.decide_soon(job, Request(name, probing=True)) for name in names]
        ]
        clock.sleep(100.0)
        reports = [
            service.report_soon(decision.id, plain_outcome(decision), name)
            for decision, name in zip(decisions_made, names, strict=True)
        ]
        for future in reports:
            future.result()


def fill(store: Store, policy: str, count: int, recurrences: int) -> list[int]:
    """Jobs with equal histories: one is run, the others are copies of its rows.

    Returns:
        Their numbers.
    """
    clock = VirtualClock()
    service = JobService(store, clock, LONG_LEASE_SECONDS)
    job = made_up_workload().job()
    names = [f"job {number:06}" for number in range(count)]
    first = (
        service.for_team(_TEAM)
        .define(Definition(structs.replace(job, name=names[0]), policy=policy), seed=1)
        .id
    )
    run(service, clock, first, recurrences, "old")
    return [first, *(store.write(_copier(first, name)) for name in names[1:])]


def _copier(first: int, name: str) -> Callable[..., int]:
    def copy(transaction: object) -> int:
        connection: Connection = transaction._connection  # type: ignore[attr-defined]
        columns = [column for column in jobs.columns if column.name not in ("id", "name")]
        copied = select(literal(name), *columns).where(jobs.c.id == first)
        insert = jobs.insert().from_select(["name", *(column.name for column in columns)], copied)
        number: int = connection.execute(insert.returning(jobs.c.id)).scalar_one()
        for table in (decisions, events, outcomes, snapshots):
            _copy_rows(connection, table, first, number)
        return number

    return copy


def _copy_rows(connection: Connection, table: Table, first: int, number: int) -> None:
    columns = [column for column in table.columns if column.name != "job"]
    copied = select(literal(number), *columns).where(table.c.job == first)
    names = ["job", *(column.name for column in columns)]
    connection.execute(table.insert().from_select(names, copied))


@dataclass(frozen=True, slots=True)
class Costs:
    """What operations take, in CPU seconds of this process, each a mean.

    Attributes:
        cold: First decision of a job after a restart.
        warm: A decision with its report.
        listing: A page of a hundred jobs.
        showing: A page of a hundred decisions, and the job by its name.
        changing: Defining a changed job.
        silence: Looking for silent holders.
    """

    cold: float
    warm: float
    listing: float
    showing: float
    changing: float
    silence: float


def measure(store: Store, numbers: list[int], policy: str, tries: int = 20) -> Costs:
    """Operations on a filled store, by a service that was just started."""
    clock = VirtualClock()
    service = JobService(store, clock, LONG_LEASE_SECONDS)
    step = max(1, len(numbers) // tries)
    sample = numbers[::step][:tries]
    middle = numbers[len(numbers) // 2]
    with store.reading() as transaction:
        names = [transaction.job(number).name for number in sample]
    job = made_up_workload().job()
    changed_jobs = [structs.replace(job, name=name, max_epochs=77) for name in names]

    def list_jobs() -> int:
        with store.reading() as transaction:
            return len(transaction.jobs(_TEAM, middle, 100))

    def show() -> int:
        record = service.for_team(_TEAM).job(names[-1])
        with store.reading() as transaction:
            return len(transaction.decisions(record.id, max(0, record.events - 200), 100))

    mark = f"{time.time_ns()}"
    return Costs(
        cold=_mean(
            lambda: [service.decide(number, Request(mark, probing=True)) for number in sample],
            len(sample),
        ),
        warm=_mean(lambda: run(service, clock, sample[0], 5 * _GROUP, f"{mark}w"), 5 * _GROUP),
        listing=_mean(lambda: [list_jobs() for _ in range(tries)], tries),
        showing=_mean(lambda: [show() for _ in range(tries)], tries),
        changing=_mean(
            lambda: [
                service.for_team(_TEAM).define(Definition(changed_job, policy=policy))
                for changed_job in changed_jobs
            ],
            len(changed_jobs),
        ),
        silence=_mean(lambda: [service.expire(0.0) for _ in range(tries)], tries),
    )


def _mean(work: Callable[[], object], count: int) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) / count
