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


TEAM_JOBS = (
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
    for job in TEAM_JOBS:
        say(f"{_DAYS} days of {job.name}")
        _History(store, job, now_wall_seconds, draw).run()
    say("fine-tunes of the month")
    service = JobService(store, VirtualClock(wall_seconds=now_wall_seconds))
    for team, run in _fine_tunes(now_wall_seconds, draw):
        service.for_team(team).put_run(run)


class SimulatedJob:
    """A job of the team on its simulated boards.

    Args:
        job: The job.
        draw: Source of scatter.
    """

    def __init__(self, job: DemoJob, draw: random.Random) -> None:
        self.job, self._draw = job, draw
        self._board = catalog.board(job.board)
        self._work = catalog.workload(job.workload, self._board)
        low, high = self._board.min_limit_watts, self._board.default_limit_watts
        step = (high - low) / _LIMITS
        self.limits = tuple(round(low + step * number) for number in range(1, _LIMITS + 1))

    def definition(self) -> Definition:
        """What the service has to know about the job."""
        job = self.job
        cost = Cost(0.5, job.boards * self._board.max_limit_watts)
        limits = tuple(float(limit) for limit in self.limits)
        specification = Job(job.name, job.sizes, job.default, cost, None, 100, limits)
        return Definition(specification, f"{job.board} × {job.boards}")

    def held_limit(self, decision: Decision) -> float:
        """Power limit that a run of a decision holds."""
        return decision.power_limit_watts or float(self.limits[-1])

    def epoch(self, size: int, limit_watts: float) -> tuple[float, float]:
        """Seconds and joules of an epoch on all boards."""
        job, steady = self.job, self.steady(size, limit_watts)
        seconds = job.steps * job.default / size * steady.seconds
        return seconds, seconds * steady.watts * job.boards

    def steady(self, size: int, limit_watts: float) -> Steady:
        """State of a board that steps with a batch size under a limit."""
        share = _FIXED_SHARE + (1.0 - _FIXED_SHARE) * size / self.job.default
        return _settle(self._board, self._work.scaled(share), limit_watts)

    def epochs(self, size: int) -> int:
        """Epochs to the target with a batch size, another number each time."""
        octaves = abs(math.log2(size / self.job.best))
        scatter = math.exp(self._draw.gauss(0.0, _SCATTER))
        return max(1, round(self.job.epochs * (1.0 + 0.6 * octaves) * scatter))

    def device_names(self) -> list[str]:
        """Names of the boards."""
        return _device_names(self._board, self.job.boards)

    def energy_entry(self, decision: Decision, outcome: Outcome) -> EnergyEntry:
        """Energy of a run, as simulated."""
        return EnergyEntry(
            decision=decision.id,
            device=f"{self.job.board} × {self.job.boards}",
            seconds=outcome.seconds,
            joules=outcome.joules,
            origin=Origin.SIMULATED.value,
            source=_SOURCE,
            relative_error=0.02,
        )

    def run_entry(self, decision: Decision, outcome: Outcome, began: float) -> RunEntry:
        """A run of a decision with its boards and their curves, as simulated."""
        limit = self.held_limit(decision)
        simulated = _SimulatedRun(self._board, self._work, self.job.boards, limit, self._draw)
        return simulated.entry(
            name=self.job.name,
            key=f"{decision.id}",
            started_wall_seconds=began,
            seconds=outcome.seconds,
            joules=outcome.joules,
            host=_HOSTS[len(self.job.name) % len(_HOSTS)],
            setting=f"{limit:.0f} W, batch size {decision.batch_size}",
            decision=decision.id,
        )


class _History:
    """The recurrences of one job over the month."""

    def __init__(self, store: Store, job: DemoJob, end: float, draw: random.Random) -> None:
        self._job, self._end, self._draw = job, end, draw
        self._simulated = SimulatedJob(job, draw)
        self._clock = VirtualClock(wall_seconds=end - _DAYS * SECONDS_PER_DAY)
        self._service = JobService(store, self._clock, team=job.team)
        definition = self._simulated.definition()
        self._number = self._service.define(definition, seed=draw.getrandbits(32)).id

    def run(self) -> None:
        """Make all recurrences."""
        first = self._draw.uniform(0.0, 0.2) * SECONDS_PER_DAY
        start = self._end - _DAYS * SECONDS_PER_DAY + first
        for day in range(0, _DAYS, self._job.every_days):
            begin = start + day * SECONDS_PER_DAY
            self._clock.sleep(max(0.0, begin - self._clock.wall()))
            self._recur(f"day {day + 1}")
        self._put_profiles()

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
            self._service.add_energy(self._number, self._simulated.energy_entry(decision, outcome))
            if decision.kind == ActionKind.TRAIN:
                self._service.put_run(self._simulated.run_entry(decision, outcome, began))
            after = decision.id
            if outcome.end == RunEnd.REACHED:
                return

    def _outcome(self, decision: Decision) -> Outcome:
        epoch, limit = self._simulated.epoch, self._simulated.held_limit(decision)
        limits = sorted({*decision.probe_limits_watts, limit})
        measured = tuple(
            Measured(watts, *epoch(decision.batch_size, watts), 0.01) for watts in limits
        )
        seconds, joules = epoch(decision.batch_size, limit)
        if decision.kind == ActionKind.PROBE:
            share = _PROBE_SECONDS / seconds
            return Outcome(RunEnd.PROBED, 0.0, _PROBE_SECONDS, share * joules, None, measured)
        epochs = self._simulated.epochs(decision.batch_size)
        cost = self._simulated.definition().job.cost
        affordable = decision.cost_ceiling_joules / cost.of(seconds, joules)
        end = RunEnd.REACHED
        if affordable < epochs:
            epochs, end = int(affordable), RunEnd.STOPPED
        return Outcome(end, epochs, epochs * seconds, epochs * joules, limit, measured)

    def _put_profiles(self) -> None:
        simulated = Provenance(Origin.SIMULATED, _SOURCE, 0.02)
        for size in self._job.sizes:
            points = [
                OperatingPoint(
                    *self._simulated.epoch(size, watts),
                    Setting(float(watts), batch_size=size),
                    simulated,
                )
                for watts in self._simulated.limits
            ]
            frontier = Frontier.from_points(points, f"an epoch of batch size {size}")
            self._service.put_profile(self._number, ProfileEntry(size, self._job.board, frontier))


def _device_names(board: Board, count: int) -> list[str]:
    return [board.name] if count == 1 else [f"{board.name} {number}" for number in range(count)]


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
        names = _device_names(self.board, self.boards)
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
        bound = draw.choice((0.05, 0.1))
        watts = _least_energy_limit(board, work, bound)
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
            objective=f"least-energy:slowdown={bound:.0%}",
            slowdown=steady.seconds / original.seconds - 1,
            energy_saving=1 - steady.seconds * steady.watts / (original.seconds * original.watts),
            tags={"lr": draw.choice(("1e-4", "3e-4", "1e-3")), "project": name.split("-")[0]},
        )
        if run.started_wall_seconds + run.seconds < end:
            yield team, run
