"""A store as a small team has it after a month: jobs that save, and some that need attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from sqlalchemy import func, literal, select, true

from joulery.clock import VirtualClock
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.jobs import (
    Definition,
    EnergyEntry,
    JobService,
    Measured,
    Outcome,
    ProfileEntry,
    Request,
)
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.storage._schema import decisions, events, jobs, outcomes
from joulery.testing.workloads import made_up_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs import Decision
    from joulery.simulate import TracedWorkload
    from joulery.storage import Store, Transaction

_DAY = 86_400.0
_SOURCE = "NVML energy counter"

# As an agent writes it; its unit tests compare the names with those of a real one.
AGENT_STATUS: dict[str, Any] = {
    "at": 1.8e9,
    "budget_watts": 10_000.0,
    "power_watts": 9_200.0,
    "caps_watts": 9_900.0,
    "policy": "fair",
    "events": [{"id": "peak", "start": 1.8e9, "end": 1.8e9 + 3600, "reduction": 0.25}],
    "is_short": False,
    "weighted_performance": 0.91,
    "jobs": [
        {"id": "17", "watts": 3000.0, "performance": 0.95, "name": "llama"},
        {"id": "18", "watts": 5000.0, "performance": 0.88, "name": "bert"},
    ],
    "paused": ["19"],
    "nodes": 4,
    "lost_nodes": ["node3"],
    "messages": ["node3 does not answer"],
    "is_alarmed": False,
    "is_metered": True,
    "correction": 0.01,
    "epoch": 2,
    "ttl_seconds": 10.0,
    "loop_seconds": 0.02,
}


class TeamHistory:
    """Runs the jobs of teams on made-up workloads.

    Args:
        store: Empty store.
        now_wall_seconds: Unix time at which the history ends.
    """

    def __init__(self, store: Store, now_wall_seconds: float) -> None:
        self._store = store
        self._end = now_wall_seconds
        self.go_back(5 * _DAY)
        self._luck = np.random.default_rng(7)

    def go_back(self, seconds: float) -> None:
        """Continue so long before the end."""
        self._clock = VirtualClock(wall_seconds=self._end - seconds)
        self.service = JobService(self._store, self._clock)

    def define(
        self, team: str, name: str, device: str, workload: TracedWorkload, policy: str = "joulery"
    ) -> int:
        """The number of a new job."""
        job = structs.replace(workload.job(), name=name)
        return (
            self.service.for_team(team).define(Definition(job, device, policy), seed=len(name)).id
        )

    def run(
        self, job: int, workload: TracedWorkload, times: int, *, origin: str = "measured"
    ) -> None:
        """Recurrences of a job until it reaches its target, each with its energy by device."""
        self.go_back(times * _DAY / 2)
        for number in range(times):
            key, after = f"night {number}", None
            start = self._end - (times - number) * _DAY / 2
            self._clock.sleep(max(0.0, start - self._clock.wall()))
            for attempt in range(8):
                request = Request(f"{key}.{attempt}", after, probing=True)
                decision = self.service.decide(job, request)
                outcome = self.outcome(workload, decision)
                self._clock.sleep(outcome.seconds + 1.0)
                self.service.report(decision, outcome, f"{key}.{attempt}")
                energy = EnergyEntry(
                    decision.id, "GPU-0", outcome.seconds, outcome.joules, origin, _SOURCE, 0.05
                )
                self.service.add_energy(job, energy)
                after = decision.id
                if outcome.end == RunEnd.REACHED:
                    break
        self._put_profiles(job, workload)

    def outcome(self, workload: TracedWorkload, decision: Decision) -> Outcome:
        """How a run of the workload ends, with some scatter; it obeys its cost ceiling."""
        arm = workload.batch_sizes.index(decision.batch_size)
        limits = list(workload.limits_watts)
        limit = decision.power_limit_watts or limits[-1]
        measured = tuple(
            Measured(
                watts,
                float(workload.epoch_seconds[arm, limits.index(watts)]),
                float(workload.epoch_joules[arm, limits.index(watts)]),
                0.01,
            )
            for watts in {*decision.probe_limits_watts, limit}
        )
        if decision.kind == ActionKind.PROBE:
            return Outcome(RunEnd.PROBED, 0.0, 10.0, 1500.0, None, measured)
        at = limits.index(limit)
        scatter = float(np.exp(0.05 * self._luck.standard_normal()))
        epochs = round(float(self._luck.choice(workload.epochs[arm])) * scatter)
        seconds, joules = workload.epoch_seconds[arm, at], workload.epoch_joules[arm, at]
        cost = workload.job().cost.of(seconds, joules)
        affordable = decision.cost_ceiling_joules / cost
        end = RunEnd.REACHED
        if affordable < epochs:
            epochs, end = int(affordable), RunEnd.STOPPED
        return Outcome(
            end, epochs, float(epochs * seconds), float(epochs * joules), limit, measured
        )

    def _put_profiles(self, job: int, workload: TracedWorkload) -> None:
        measured = Provenance(Origin.MEASURED, _SOURCE, 0.01)
        for arm, size in enumerate(workload.batch_sizes):
            points = [
                OperatingPoint(
                    float(workload.epoch_seconds[arm, at]),
                    float(workload.epoch_joules[arm, at]),
                    Setting(float(watts), batch_size=size),
                    measured,
                )
                for at, watts in enumerate(workload.limits_watts)
            ]
            entry = ProfileEntry(size, "A100", Frontier.from_points(points, f"an epoch of {size}"))
            self.service.put_profile(job, entry)

    def catch_up(self) -> None:
        """Move the clock to the end of the history."""
        self._clock.sleep(max(0.0, self._end - self._clock.wall()))


def fill_for_dashboard(store: Store, now_wall_seconds: float) -> dict[str, int]:
    """Jobs of two teams; their numbers by name."""
    history = TeamHistory(store, now_wall_seconds)
    plain, steep = made_up_workload(), made_up_workload(best=128, default=512)
    numbers = {}
    for team, name, device, workload, times, policy in (
        ("vision", "resnet-nightly", "A100", plain, 60, "joulery"),
        ("vision", "segmentation", "V100", steep, 30, "joulery"),
        ("vision", "detector-zeus", "A100", plain, 30, "zeus"),
        ("speech", "wav2vec-weekly", "A40", steep, 12, "joulery"),
        ("speech", "brand-new", "A40", plain, 0, "joulery"),
        ("speech", "first-run", "A40", plain, 1, "joulery"),
    ):
        numbers[name] = history.define(team, name, device, workload, policy)
        history.run(numbers[name], workload, times)
    history.go_back(3 * _DAY)
    service = history.service
    service.pause(numbers["segmentation"])
    odd = service.decide(numbers["wav2vec-weekly"], Request("odd"))
    wrong = Outcome(RunEnd.STOPPED, 1.0, 1.0, 20.0, None)
    service.report(odd, wrong, "odd")
    service.decide(numbers["detector-zeus"], Request("lost"))
    history.catch_up()
    service.expire()
    running = service.decide(numbers["resnet-nightly"], Request("running"))
    progress = history.outcome(plain, running)
    half = structs.replace(
        progress,
        end=RunEnd.ABANDONED,
        epochs=progress.epochs // 2,
        seconds=0.5 * progress.seconds,
        joules=0.5 * progress.joules,
        measured=(),
    )
    service.heartbeat(running, half)
    return numbers


def copy_job(job: int, count: int) -> Callable[[Transaction], None]:
    """An operation that adds copies of a job with all that happened to it, at once."""

    def copy(transaction: Transaction) -> None:
        first = transaction.query(select(func.max(jobs.c.id))).scalar_one() + 1
        numbers = select(literal(0).label("n")).cte("numbers", recursive=True)
        numbers = numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n < count - 1))
        new = {"id": numbers.c.n + first, "name": func.printf("copy %05d", numbers.c.n)}
        for table in (jobs, events, decisions, outcomes):
            key = "id" if table is jobs else "job"
            changes = {key: new["id"]} | ({"name": new["name"]} if table is jobs else {})
            columns = [changes.get(column.name, column) for column in table.columns]
            names = [column.name for column in table.columns]
            beside = table.join(numbers, true())
            copied = select(*columns).select_from(beside).where(table.c[key] == job)
            transaction.change(table.insert().from_select(names, copied))

    return copy
