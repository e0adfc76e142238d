"""A month of a small team in a store, on simulated boards: what the dashboard looks like in use.

Decisions, reports, quarantine and leases are those of the real service; seconds and joules follow
from the physics of the simulated boards, and every figure says that it is simulated.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from joulery.clock import VirtualClock
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.hardware import catalog, settle
from joulery.jobs import (
    Definition,
    EnergyEntry,
    Job,
    JobService,
    Measured,
    Outcome,
    ProfileEntry,
    Request,
    RunCurve,
    RunDevice,
    RunEntry,
    thinned,
)
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, LeastEnergy, choose
from joulery.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.hardware import Board, Steady, Workload
    from joulery.jobs import Decision
    from joulery.storage import Store

_DAYS = 30
_SOURCE = "physics of a simulated board"
_FIXED_SHARE = 0.1  # of a step of the default batch size, whatever the batch size (by hand)
_SCATTER = 0.08  # of epochs to the target, relative (by hand: traces of You et al., NSDI'23)
_LIMITS = 6  # power limits to choose from (by hand)
_ATTEMPTS = 6  # of a night at most (by hand: probes and early stops)
_CURVE_POINTS = 120  # of a curve (by hand: as many as a chart shows well)
_PROBE_SECONDS = 60.0  # of a probe (by hand)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A recurring job of the team.

    Attributes:
        team: Team of the job.
        name: Name of the job.
        board: Boards that it runs on.
        boards: Number of them.
        workload: Work of a step of the default batch size.
        sizes: Batch sizes to choose from.
        default: Batch size that the owner would run.
        best: Batch size that needs the fewest epochs.
        epochs: Epochs that it needs with the best batch size.
        steps: Steps of an epoch of the default batch size.
        every_days: Days between two recurrences.
    """

    team: str
    name: str
    board: str
    boards: int
    workload: str
    sizes: tuple[int, ...]
    default: int
    best: int
    epochs: float
    steps: int
    every_days: int = 1


_JOBS = (
    DemoJob("vision", "resnet-nightly", "A100", 4, "resnet50", (128, 256, 512), 512, 128, 9, 2500),
    DemoJob("vision", "segmentation", "A40", 2, "resnet50", (32, 64, 128, 256), 128, 64, 12, 900),
    DemoJob("speech", "keyword-nightly", "V100", 1, "resnet50", (64, 128, 256), 256, 128, 7, 1400),
    DemoJob("speech", "wav2vec", "A100", 8, "bert", (64, 128, 256, 512), 256, 256, 6, 3000, 7),
)
_FINE_TUNES = (
    ("vision", "vit-l-food", "A100", 1, "resnet50"),
    ("vision", "detr-warehouse", "A100", 4, "resnet50"),
    ("speech", "whisper-call-centre", "A40", 2, "bert"),
    ("speech", "llama-3-8b-lora", "A100", 8, "bert"),
)
_HOSTS = ("gpu-01", "gpu-02", "gpu-03")


@cache
def _settle(board: Board, work: Workload, limit_watts: float) -> Steady:
    return settle(board, work, limit_watts)


def fill_team_store(
    store: Store,
    now_wall_seconds: float,
    on_progress: Callable[[str], None] | None = None,
    seed: int = 0,
) -> None:
    """Fill an empty store with a month of two teams.

    Args:
        store: Empty store.
        now_wall_seconds: Unix time at which the month ends.
        on_progress: Function that is called with what is being done.
        seed: Seed of scatter and of decisions.
    """
    say = on_progress or (lambda _: None)
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    for job in _JOBS:
        say(f"{_DAYS} days of {job.name}")
        _History(store, job, now_wall_seconds, draw).run()
    say("fine-tunes of the month")
    service = JobService(store, VirtualClock(wall_seconds=now_wall_seconds))
    for team, run in _fine_tunes(now_wall_seconds, draw):
        service.for_team(team).put_run(run)


class _History:
    """The recurrences of one job over the month."""

    def __init__(self, store: Store, job: DemoJob, end: float, draw: random.Random) -> None:
        self._job, self._end, self._draw = job, end, draw
        self._board = catalog.board(job.board)
        self._work = catalog.workload(job.workload, self._board)
        self._clock = VirtualClock(wall_seconds=end - _DAYS * SECONDS_PER_DAY)
        self._service = JobService(store, self._clock, team=job.team)
        low, high = self._board.min_limit_watts, self._board.default_limit_watts
        step = (high - low) / _LIMITS
        self._limits = tuple(round(low + step * number) for number in range(1, _LIMITS + 1))
        watts = job.boards * self._board.max_limit_watts
        limits = tuple(float(limit) for limit in self._limits)
        specification = Job(job.name, job.sizes, job.default, Cost(0.5, watts), None, 100, limits)
        self._number = self._service.define(
            Definition(specification, f"{job.board} × {job.boards}"), seed=draw.getrandbits(32)
        ).id

    def run(self) -> None:
        """Make all recurrences; the last may still be under way."""
        first = self._draw.uniform(0.0, 0.2) * SECONDS_PER_DAY
        start = self._end - _DAYS * SECONDS_PER_DAY + first
        for day in range(0, _DAYS, self._job.every_days):
            begin = start + day * SECONDS_PER_DAY
            self._clock.sleep(max(0.0, begin - self._clock.wall()))
            self._recur(f"day {day + 1}")
        self._put_profiles()
        if self._job.name == "resnet-nightly":
            self._begin_another()

    def _recur(self, key: str) -> None:
        after = None
        for attempt in range(_ATTEMPTS):
            request = Request(f"{key}, {attempt + 1}", after, probing=True)
            decision = self._service.decide(self._number, request)
            outcome = self._outcome(decision)
            if key == "day 27" and self._job.name == "keyword-nightly":
                outcome = Outcome(RunEnd.REACHED, 1.0, 90.0, 8000.0)  # a script that reports amiss
            began = self._clock.wall()
            self._clock.sleep(outcome.seconds + 20.0)
            self._service.report(decision, outcome, request.key)
            self._put_energy(decision, outcome)
            if decision.kind == ActionKind.TRAIN:
                self._service.put_run(self._run_entry(decision, outcome, began))
            after = decision.id
            if outcome.end == RunEnd.REACHED:
                return

    def _outcome(self, decision: Decision) -> Outcome:
        limit = decision.power_limit_watts or float(self._limits[-1])
        limits = sorted({*decision.probe_limits_watts, limit})
        measured = tuple(
            Measured(watts, *self._epoch(decision.batch_size, watts), 0.01) for watts in limits
        )
        seconds, joules = self._epoch(decision.batch_size, limit)
        if decision.kind == ActionKind.PROBE:
            share = _PROBE_SECONDS / seconds
            return Outcome(RunEnd.PROBED, 0.0, _PROBE_SECONDS, share * joules, None, measured)
        octaves = abs(math.log2(decision.batch_size / self._job.best))
        scatter = math.exp(self._draw.gauss(0.0, _SCATTER))
        epochs = max(1, round(self._job.epochs * (1.0 + 0.6 * octaves) * scatter))
        watts = self._job.boards * self._board.max_limit_watts
        affordable = decision.cost_ceiling_joules / Cost(0.5, watts).of(seconds, joules)
        end = RunEnd.REACHED
        if affordable < epochs:
            epochs, end = int(affordable), RunEnd.STOPPED
        return Outcome(end, epochs, epochs * seconds, epochs * joules, limit, measured)

    def _epoch(self, size: int, limit_watts: float) -> tuple[float, float]:
        """Seconds and joules of an epoch on all boards."""
        job = self._job
        share = _FIXED_SHARE + (1.0 - _FIXED_SHARE) * size / job.default
        steady = _settle(self._board, self._work.scaled(share), limit_watts)
        seconds = job.steps * job.default / size * steady.seconds
        return seconds, seconds * steady.watts * job.boards

    def _put_energy(self, decision: Decision, outcome: Outcome) -> None:
        entry = EnergyEntry(
            decision=decision.id,
            device=f"{self._job.board} × {self._job.boards}",
            seconds=outcome.seconds,
            joules=outcome.joules,
            origin=Origin.SIMULATED.value,
            source=_SOURCE,
            relative_error=0.02,
        )
        self._service.add_energy(self._number, entry)

    def _run_entry(self, decision: Decision, outcome: Outcome, began: float) -> RunEntry:
        limit = outcome.limit_watts or float(self._limits[-1])
        simulated = _SimulatedRun(self._board, self._work, self._job.boards, limit, self._draw)
        return simulated.entry(
            name=self._job.name,
            key=f"{decision.id}",
            started_wall_seconds=began,
            seconds=outcome.seconds,
            joules=outcome.joules,
            host=_HOSTS[len(self._job.name) % len(_HOSTS)],
            setting=f"{limit:.0f} W, batch size {decision.batch_size}",
            decision=decision.id,
        )

    def _begin_another(self) -> None:
        """A recurrence that began an hour ago and is under way."""
        self._clock.sleep(max(0.0, self._end - 3600.0 - self._clock.wall()))
        decision = self._service.decide(self._number, Request("tonight", probing=False))
        self._clock.sleep(max(0.0, self._end - self._clock.wall()))
        limit = decision.power_limit_watts or float(self._limits[-1])
        seconds, joules = self._epoch(decision.batch_size, limit)
        epochs = max(1.0, 3500.0 // seconds)
        progress = Outcome(RunEnd.ABANDONED, epochs, 3500.0, 3500.0 / seconds * joules, limit)
        self._service.heartbeat(decision, progress)
        run = self._run_entry(decision, progress, self._end - 3500.0)
        self._service.put_run(msgspec.structs.replace(run, ended=False))

    def _put_profiles(self) -> None:
        simulated = Provenance(Origin.SIMULATED, _SOURCE, 0.02)
        for size in self._job.sizes:
            points = [
                OperatingPoint(
                    *self._epoch(size, watts), Setting(float(watts), batch_size=size), simulated
                )
                for watts in self._limits
            ]
            frontier = Frontier.from_points(points, f"an epoch of batch size {size}")
            self._service.put_profile(self._number, ProfileEntry(size, self._job.board, frontier))


@dataclass(frozen=True, slots=True)
class _SimulatedRun:
    """A run on boards that hold a limit, after a minute at the original one."""

    board: Board
    work: Workload
    boards: int
    limit_watts: float
    draw: random.Random

    def entry(self, **fields: Any) -> RunEntry:
        """The run with figures and curves of its boards."""
        joules = fields["joules"] / self.boards
        names = [
            f"{self.board.name} {number}" if self.boards > 1 else self.board.name
            for number in range(self.boards)
        ]
        devices = tuple(
            RunDevice(
                *(name, joules, self.board.max_limit_watts, self.limit_watts),
                *(Origin.SIMULATED.value, 0.02),
            )
            for name in names
        )
        return RunEntry(
            **fields,
            ended=True,
            origin=Origin.SIMULATED.value,
            relative_error=0.02,
            devices=devices,
            curves=thinned(list(self._curves(names, fields["seconds"]))),
        )

    def _curves(self, names: list[str], seconds: float) -> Iterator[RunCurve]:
        times = [seconds * number / _CURVE_POINTS for number in range(1, _CURVE_POINTS + 1)]
        original = self.board.default_limit_watts
        limits = [original if time < 0.05 * seconds else self.limit_watts for time in times]
        steady = {limit: _settle(self.board, self.work, limit) for limit in set(limits)}
        for name in names:
            watts = [
                min(limit, steady[limit].watts * math.exp(self.draw.gauss(0.0, 0.02)))
                for limit in limits
            ]
            clocks = [steady[limit].clock_hertz for limit in limits]
            for quantity, values in (("watts", watts), ("limit_watts", limits)):
                yield RunCurve(quantity, name, tuple(zip(times, values, strict=True)))  # type: ignore[arg-type]
            yield RunCurve("clock_hertz", name, tuple(zip(times, clocks, strict=True)))
        pace = [math.exp(self.draw.gauss(0.0, 0.01)) / steady[limit].seconds for limit in limits]
        yield RunCurve("steps_per_second", "", tuple(zip(times, pace, strict=True)))


def _least_energy_limit(board: Board, work: Workload, slowdown: float) -> int:
    points = []
    for watts in range(round(board.min_limit_watts), round(board.default_limit_watts) + 1):
        steady = _settle(board, work, watts)
        joules = steady.seconds * steady.watts
        points.append(OperatingPoint(steady.seconds, joules, Setting(float(watts))))
    chosen = choose(LeastEnergy(slowdown), points)
    return round(chosen.setting.power_limit_watts or board.default_limit_watts)


def _fine_tunes(end: float, draw: random.Random) -> Iterator[tuple[str, RunEntry]]:
    """Runs that do not recur, one on most days, at the limit of least energy in a time to spare."""
    for day in range(_DAYS):
        team, name, board_name, boards, work_name = draw.choice(_FINE_TUNES)
        board = catalog.board(board_name)
        work = catalog.workload(work_name, board)
        original = _settle(board, work, board.default_limit_watts)
        watts = _least_energy_limit(board, work, draw.choice((0.05, 0.1)))
        steady = _settle(board, work, watts)
        seconds = draw.uniform(0.5, 6.0) * 3600.0
        run = _SimulatedRun(board, work, boards, watts, draw).entry(
            name=name,
            key=f"{name}, {day}",
            started_wall_seconds=end
            - (_DAYS - day) * SECONDS_PER_DAY
            + draw.uniform(9.0, 18.0) * 3600.0,
            seconds=seconds,
            joules=boards * steady.watts * seconds,
            host=draw.choice(_HOSTS),
            setting=f"{watts:.0f} W",
            steps=int(seconds / steady.seconds),
            energy_saving=1 - steady.seconds * steady.watts / (original.seconds * original.watts),
            tags={"lr": draw.choice(("1e-4", "3e-4", "1e-3")), "project": name.split("-")[0]},
        )
        if run.started_wall_seconds + run.seconds < end:
            yield team, run
