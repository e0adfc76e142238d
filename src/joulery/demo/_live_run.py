"""A simulated run of the demonstration's team that goes on while a server shows it.

It reports as any run does: heartbeats with its power over HTTP every few seconds, and its curves
every minute.
"""

from __future__ import annotations

import logging
import math
import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from joulery.background import PeriodicTask
from joulery.client import open_backend
from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.demo._team import TEAM_JOBS, SimulatedJob
from joulery.errors import JouleryError
from joulery.jobs import (
    JobService,
    LiveDevice,
    LiveState,
    Outcome,
    Request,
    RunCurve,
    thinned,
)
from joulery.jobs.policies import RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.client import DecisionBackend
    from joulery.clock import Clock
    from joulery.jobs import Decision, RunEntry
    from joulery.storage import Store

_log = logging.getLogger("joulery")

_BEAT_SECONDS = 5.0  # between two heartbeats (by hand: a reader sees the power change)
_PAST_BEAT_SECONDS = 60.0  # between those before the server began (by hand)
_PUT_SECONDS = 60.0  # between two reports of the whole run (by hand: as a Run)
_REFERENCE_SECONDS = 180.0  # at the original limit before the chosen one (by hand)
_MOST_BEATS = 480  # remembered; half of them after each thinning (by hand: a chart's width)
_ANSWER_SECONDS = 2.0  # for an answer of the server, which is in this process (by hand)
_POWER_SCATTER = 0.02  # of a board's power between two heartbeats, relative (by hand)


@dataclass(frozen=True, slots=True)
class _Beat:
    """Progress of the run at one moment, and the state of its boards."""

    seconds: float
    joules: float
    epochs: float
    live: LiveState


class LiveRun:
    """One recurrence after the other of the team's first job, while a server runs.

    Args:
        store: Store of the team, filled by `fill_team_store`.
        begun_seconds: Time for which the first has been under way.
        seed: Seed of scatter.
        clock: Clock of the server.

    Examples:
        >>> run = LiveRun(store, begun_seconds=3600.0)  # doctest: +SKIP
        >>> run.start("http://127.0.0.1:8420", token)  # doctest: +SKIP
        >>> run.end(store)  # doctest: +SKIP
    """

    def __init__(
        self, store: Store, begun_seconds: float = 0.0, seed: int = 0, clock: Clock = REAL_CLOCK
    ) -> None:
        self._clock = clock
        self._draw = random.Random(seed)  # noqa: S311 - not for secrets
        self._job = SimulatedJob(TEAM_JOBS[0], self._draw)
        past = VirtualClock(wall_seconds=clock.wall() - begun_seconds)
        service = JobService(store, past, team=self._job.job.team)
        self._number = service.define(self._job.definition()).id
        self._begin(service, past.wall())
        past.sleep(begun_seconds)
        service.heartbeat(self._decision)
        self._backend: DecisionBackend | None = None
        self._task: PeriodicTask | None = None

    def start(self, address: str, token: str) -> None:
        """Report to a server from a thread, until the end.

        Args:
            address: Address of the server, or path of the store.
            token: Token that may report for the job's team.
        """
        team = self._job.job.team
        self._backend = open_backend(
            address, team, token, seconds=_ANSWER_SECONDS, clock=self._clock
        )
        self._task = PeriodicTask(self._tick, seconds=0.0, clock=self._clock, name="joulery-demo")
        self._task.start()

    def end(self, store: Store) -> None:
        """End the thread, and the run in the store."""
        if self._task is not None:
            self._task.stop()
        if self._backend is not None:
            self._backend.close()
        service = JobService(store, self._clock, team=self._job.job.team)
        try:
            self._report(service, RunEnd.ABANDONED)
        except JouleryError as error:  # somebody has deleted the job
            _log.debug("joulery: the end of the simulated run is not in the store: %s", error)

    def _begin(self, service: DecisionBackend, now: float) -> None:
        self._request = Request(f"live, {uuid.uuid4().hex}", probing=False)
        self._decision: Decision = service.decide(self._number, self._request)
        self._epochs = self._job.epochs(self._decision.batch_size)
        self._began = self._put_at = now
        self._beats = [_Beat(0.0, 0.0, 0.0, LiveState(0.0))]

    def _tick(self) -> float:
        """Report what has happened since the last time."""
        assert self._backend is not None  # noqa: S101 - the task is started with it
        try:
            if not self._decision.token:  # the same decision; tokens come from the server
                self._decision = self._backend.decide(self._number, self._request)
            self._catch_up(self._backend)
            if self._beats[-1].epochs >= self._epochs:
                self._report(self._backend, RunEnd.REACHED)
                self._begin(self._backend, self._clock.wall())
            elif self._clock.wall() >= self._put_at:
                self._put_at = self._clock.wall() + _PUT_SECONDS
                self._backend.put_run(self._entry(ended=False))
        except JouleryError as error:  # a paused or deleted job, or a server that ends
            _log.debug("joulery: no report of the simulated run: %s", error)
        return _BEAT_SECONDS

    def _catch_up(self, backend: DecisionBackend) -> None:
        """Send heartbeats until now, or until the target."""
        present = self._clock.wall() - self._began
        while self._beats[-1].seconds < present and self._beats[-1].epochs < self._epochs:
            following = self._beats[-1].seconds + _PAST_BEAT_SECONDS
            is_past = following + _PAST_BEAT_SECONDS <= present
            self._beat(backend, following if is_past else present)

    def _beat(self, backend: DecisionBackend, seconds: float) -> None:
        """Simulate until a time of the run, and send a heartbeat."""
        last, size = self._beats[-1], self._decision.batch_size
        is_reference = seconds <= _REFERENCE_SECONDS
        limit = (
            float(self._job.limits[-1]) if is_reference else self._job.held_limit(self._decision)
        )
        steady, elapsed = self._job.steady(size, limit), seconds - last.seconds
        devices = tuple(
            LiveDevice(
                name,
                min(limit, steady.watts * math.exp(self._draw.gauss(0.0, _POWER_SCATTER))),
                steady.clock_hertz,
                limit,
            )
            for name in self._job.device_names()
        )
        watts = math.fsum(device.watts or 0.0 for device in devices)
        phase = "measuring at" if is_reference else "holding"
        live = LiveState(seconds, f"{phase} {limit:.0f} W, simulated", 1 / steady.seconds, devices)
        epochs = last.epochs + elapsed / self._job.epoch(size, limit)[0]
        beat = _Beat(seconds, last.joules + elapsed * watts, epochs, live)
        self._beats.append(beat)
        if len(self._beats) > _MOST_BEATS:
            del self._beats[1::2]  # every other one, so that the whole run stays in view
        backend.heartbeat(self._decision, self._outcome(RunEnd.ABANDONED), live)

    def _outcome(self, end: RunEnd) -> Outcome:
        last = self._beats[-1]
        limit = self._job.held_limit(self._decision)
        return Outcome(end, last.epochs, last.seconds, last.joules, limit)

    def _report(self, backend: DecisionBackend, end: RunEnd) -> None:
        """Report the end of the run under way."""
        outcome = self._outcome(end)
        backend.report(self._decision, outcome, "end")
        backend.add_energy(self._number, self._job.energy_entry(self._decision, outcome))
        backend.put_run(self._entry(ended=True))

    def _entry(self, *, ended: bool) -> RunEntry:
        outcome = self._outcome(RunEnd.ABANDONED)
        entry = self._job.run_entry(self._decision, outcome, self._began)
        curves = thinned(list(self._curves()))
        return msgspec.structs.replace(entry, ended=ended, curves=curves)

    def _curves(self) -> Iterator[RunCurve]:
        states = [beat.live for beat in self._beats[1:]]
        if len(states) < 2:
            return
        for index, name in enumerate(self._job.device_names()):
            for quantity in ("watts", "limit_watts", "clock_hertz"):
                points = [
                    (state.seconds, getattr(state.devices[index], quantity)) for state in states
                ]
                yield RunCurve(quantity, name, tuple(points))
        paces = tuple((state.seconds, state.steps_per_second or 0.0) for state in states)
        yield RunCurve("steps_per_second", "", paces)
