"""The agent beside the workload manager: keeps a cluster under its power budget.

Every tick it reads jobs, GPUs and meters, solves, and sets caps on the nodes: first all that fall,
then, once those are in force, all that rise, so the sum never exceeds the budget on the way.
Whatever is not known (a node that never answered, one that was lost, a meter that is silent)
counts as its worst case. Neither a workload manager, a store nor a node that hangs delays the
others' caps.
"""

from __future__ import annotations

import json
import math
import re
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from joulery.clock import REAL_CLOCK, Clock
from joulery.cluster._audit import AgentAudit
from joulery.cluster._decide import CapDecision, ClusterView, decide, devices_of
from joulery.cluster._events import PowerWindow, active_events
from joulery.cluster._history import JobHistory
from joulery.cluster._meters import PartMeters
from joulery.cluster._nodes import DeviceState
from joulery.cluster._pool import NodePool
from joulery.cluster._slurm import EngineError, EngineJob
from joulery.cluster._stops import JobStops
from joulery.errors import JouleryError, NotPossibleHereError
from joulery.files import lock, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from joulery.cluster._jobs import PowerCurve
    from joulery.cluster._meters import FeederMeter
    from joulery.cluster._nodes import NodeClient
    from joulery.cluster._settings import AgentSettings
    from joulery.cluster._slurm import Slurm, SlurmRest
    from joulery.grid import GridEvent

# An announced event is noticed within this; by hand.
_POLL_SECONDS = 0.1
# A job that the store does not know yet may be known a minute later; by hand.
_LOOK_UP_SECONDS = 60.0
# Each round comes closer by the share of GPUs that do not refuse; by hand: half of them, to 1e-9.
_MOST_ROUNDS = 30
# An event without notice is to be met within 2 s, whatever hangs.
_ENGINE_SECONDS = 0.5
# Jobs older than this are worth a message; by hand: ten ticks.
_OLD_SECONDS = 10.0
# A wall clock that moves so much more than the monotonic one has stepped; by hand: above slewing.
_STEP_SECONDS = 2.0
# An epilog reads a job's energy within this after the job's end; by hand.
_KEPT_SECONDS = 3600.0
# Power above the budget by less than this share is noise of meters; by hand.
_OVER_SHARE = 0.002


class Agent:
    """Runs decisions on a cluster.

    Args:
        settings: Settings of the administrator.
        engine: Workload manager.
        nodes: Services of the nodes by name.
        clock: Clock for ticks and events.
        find: Function that looks up a job's curve by name, such as in a store; None where
            there is none.
        meters: Meters of parts of the cluster by name.
        is_shadow: Whether to decide and report only: nothing is set, and the state is kept in the
            folder ``shadow`` of the settings' own.
    """

    def __init__(  # noqa: PLR0913 - a cluster has so many sides
        self,
        settings: AgentSettings,
        engine: Slurm | SlurmRest,
        nodes: Mapping[str, NodeClient],
        clock: Clock = REAL_CLOCK,
        find: Callable[[str], PowerCurve | None] | None = None,
        *,
        meters: Mapping[str, FeederMeter] | None = None,
        is_shadow: bool = False,
    ) -> None:
        self._settings, self._engine, self._clock = settings, engine, clock
        self._is_shadow, self._epoch = is_shadow, 0
        self._folder = settings.state / "shadow" if is_shadow else settings.state
        self._history = JobHistory(frontiers=dict(settings.frontiers))
        self._stops = JobStops(
            settings.least_running_seconds,
            settings.least_stopped_seconds,
            settings.rotation_seconds,
        )
        self._nodes = NodePool(nodes, settings.ttl_seconds)
        self._meters = PartMeters(
            meters or {},
            settings.part_watts({}),
            settings.root,
            settings.most_trim,
            settings.meter_seconds,
            clock,
        )
        self._audit_log = AgentAudit(self._folder)
        self._jobs: list[EngineJob] | None = None
        self._engine_flaw = ""
        self._jobs_at = clock.now()
        self._reading: tuple[Future[list[EngineJob]], float] | None = None
        self._acting: Future[list[str]] | None = None
        self._find = find or (lambda _: None)
        self._looked_up: dict[str, tuple[float, PowerCurve | None]] = {}
        self._look_up_task: Future[dict[str, tuple[float, PowerCurve | None]]] | None = None
        self._warned: dict[str, float] = {}
        # Joules and seconds of each job, and when they last grew.
        self._energy: dict[str, tuple[float, float, float]] = {}
        self._window = PowerWindow(settings.baseline_seconds)
        self._baseline_watts: float | None = None
        self._budget_watts = settings.budget_watts
        self._used_watts: float | None = None
        self._over_since: float | None = None
        self._is_alarmed = False
        self._last_tick = clock.now()
        self._wall_offset = clock.wall() - clock.now()
        self._store_pool = ThreadPoolExecutor(max_workers=1)
        # One by one, so that jobs are read after all that was done to them before.
        self._engine_pool = ThreadPoolExecutor(max_workers=1)
        for folder in (self._folder, settings.state / "events"):
            folder.mkdir(parents=True, exist_ok=True)
        self._recall()

    def run(
        self,
        ticks: int | None = None,
        show: Callable[[dict[str, Any]], None] | None = None,
        *,
        is_standby: bool = False,
    ) -> None:
        """Tick until interrupted, at once when an event is announced, starts or ends.

        Args:
            ticks: Number of decisions after which to stop; None for never.
            show: Function that gets the report of every tick.
            is_standby: Whether to wait while another agent leads, and to take its place when the
                nodes have not heard of it for the time that caps live.

        Raises:
            NotPossibleHereError: Another agent runs on the same state, or leads the nodes.
        """
        with ExitStack() as stack:
            self._lock_state(stack, is_standby=is_standby)
            done = 0
            while ticks is None or done < ticks:
                if (
                    not self._is_shadow
                    and not self._epoch
                    and not self._take_lead(is_standby=is_standby)
                ):
                    self._clock.sleep(self._settings.tick_seconds)
                    continue
                try:
                    report = self.tick()
                except NotPossibleHereError:
                    if not is_standby or not self._nodes.is_fenced:
                        raise
                    self._epoch = 0
                    continue
                if show is not None:
                    show(report)
                done += 1
                waited, mark = 0.0, self._mark()
                while waited < self._settings.tick_seconds and self._mark() == mark:
                    self._clock.sleep(_POLL_SECONDS)
                    waited += _POLL_SECONDS

    def check_contact(self) -> None:
        """Check that the last decision was made with the workload manager and some node.

        Raises:
            NotPossibleHereError: The workload manager, or every node, did not answer.
        """
        flaws = [self._engine_flaw] if self._engine_flaw else []
        if not self._nodes.reachable:
            flaws.append("no node answered")
        if flaws:
            raise NotPossibleHereError(
                f"the last decision was made blindly: {'; '.join(flaws)}",
                remedy="see whether Slurm's commands and the nodes' `joulery governor serve` work",
            )

    def _lock_state(self, stack: ExitStack, *, is_standby: bool) -> None:
        """Keep other agents from the same state; a standby waits until it is free."""
        while True:
            try:
                stack.enter_context(_only_one(self._folder))
            except NotPossibleHereError:
                if not is_standby:
                    raise
                self._clock.sleep(self._settings.tick_seconds)
            else:
                return

    def _take_lead(self, *, is_standby: bool) -> bool:
        """Whether this agent leads from now on."""
        self._nodes.read([])
        epoch, silent_seconds = self._nodes.leader()
        own = self._recalled_epoch()
        if silent_seconds < self._settings.ttl_seconds and (epoch > own or is_standby):
            if is_standby:
                return False
            raise NotPossibleHereError(
                f"another agent leads the nodes (epoch {epoch}, {silent_seconds:.0f} s ago)",
                remedy="stop it, or start this one with --standby",
            )
        self._epoch = max(epoch, own) + 1
        self._nodes.lead(self._epoch)
        self._recall()
        self._audit("lead", epoch=self._epoch)
        return True

    def tick(self) -> dict[str, Any]:
        """Read jobs and nodes, decide, set caps; the document of ``joulery cluster status``.

        Raises:
            NotPossibleHereError: A newer agent leads the nodes.
        """
        now, messages = self._clock.now(), list[str]()
        elapsed = min(now - self._last_tick, self._settings.tick_seconds)
        is_fresh = self._read_jobs(now, messages)
        jobs = [j for j in self._jobs or () if not j.is_suspended or j.id in self._stops.since]
        self._read_frontiers(jobs, messages)
        self._nodes.read(messages)
        self._check_leads()
        self._observe(jobs, now - self._last_tick)
        self._expect(jobs)
        self._meters.read(messages, elapsed)
        power = self._power()
        events, flaws = self._active_events(messages)
        budget = self._budget(events, power, elapsed, messages)
        self._watch(power, budget, messages)
        if self._used_watts is None:
            self._used_watts = power
        view = ClusterView(
            jobs,
            self._nodes.reachable,
            self._unreachable(messages),
            budget,
            self._used_watts + self._settings.ramp_up_watts_per_second * elapsed,
            self._meters.corrections(),
            now,
            now - self._jobs_at,
            self._boards(
                j for j in self._jobs or () if j.is_suspended and j.id not in self._stops.since
            ),
        )
        decision = self._decide(view)
        self._apply(decision, messages)
        for device in chain(*self._nodes.reachable.values()):
            self._history.draws.note_cap(device)
        self._check_leads()
        if decision.allocation is not None:
            shares = decision.allocation
            self._used_watts = shares.used_watts
            self._history.ledger.add(shares.ids, shares.performance, now - self._last_tick)
        self._pause(decision.paused, messages, may_act=is_fresh)
        self._last_tick = now
        messages += [*flaws, *decision.messages]
        return self._report(decision, budget, power, events, messages)

    def _read_jobs(self, now: float, messages: list[str]) -> bool:
        """Whether the jobs are known as they are after all that this agent did.

        A workload manager that is slow is not waited for: the last known jobs count.
        """
        if self._reading is None:
            self._reading = self._engine_pool.submit(self._engine.jobs), now
        reading, since = self._reading
        patience = _ENGINE_SECONDS if since == now else 0.0
        try:
            self._jobs = reading.result(None if self._jobs is None else patience)
        except TimeoutError:
            if now - self._jobs_at > _OLD_SECONDS:
                messages.append(f"the jobs are those of more than {_OLD_SECONDS:.0f} s ago")
            return False
        except EngineError as error:
            self._reading, self._engine_flaw = None, error.message
            messages.append(f"{error.message}; the last known jobs count")
            return False
        self._reading, self._jobs_at, self._engine_flaw = None, since, ""
        # Others may have resumed what this agent stopped.
        self._stops.forget_all_but({job.id for job in self._jobs if job.is_suspended})
        return True

    def _decide(self, view: ClusterView) -> CapDecision:
        """Decide so that others save what refusing GPUs hold beyond their shares."""
        beyond = 0.0
        boards = {d.id: d for devices in view.reachable.values() for d in devices}
        for _ in range(_MOST_ROUNDS):
            usable = replace(view, budget_watts=view.budget_watts - beyond)
            decision = decide(self._settings, usable, self._history, self._stops)
            targets = {name: w for caps in decision.caps.values() for name, w in caps.items()}
            excess = sum(
                max(0.0, boards[n].cap_watts - targets[n]) * self._history.draws.share(boards[n])
                for n in self._nodes.refusing & boards.keys()
            )
            if excess <= beyond + 1e-6:
                break
            beyond = excess
        return decision

    def _read_frontiers(self, jobs: list[EngineJob], messages: list[str]) -> None:
        """Note the curves of jobs: those of the settings, and the others as the store has them."""
        names = {job.frontier_name for job in jobs} - self._settings.frontiers.keys()
        self._looked_up = {name: self._looked_up.get(name, (-math.inf, None)) for name in names}
        self._look_up(messages)
        curves = {name: curve for name, (_, curve) in self._looked_up.items() if curve is not None}
        self._history.frontiers.update(curves)

    def _look_up(self, messages: list[str]) -> None:
        """Look up jobs by name, beside the ticks; what was found before counts meanwhile."""
        now, patience = self._clock.now(), 0.0
        due = sorted(
            n for n, (asked_at, _) in self._looked_up.items() if now - asked_at > _LOOK_UP_SECONDS
        )
        if due and self._look_up_task is None:
            self._look_up_task = self._store_pool.submit(
                lambda: {name: (now, self._find(name)) for name in due}
            )
            patience = _ENGINE_SECONDS
        if self._look_up_task is None:
            return
        try:
            self._looked_up |= self._look_up_task.result(patience)
        except TimeoutError:
            return
        except JouleryError as error:
            messages.append(f"the store does not answer: {error.message}")
        self._look_up_task = None

    def _observe(self, jobs: list[EngineJob], seconds: float) -> None:
        """Note what boards and jobs do under the caps in force."""
        reachable = self._nodes.reachable
        boards = {job.id: devices_of(job, reachable) for job in jobs if not job.is_suspended}
        states = {name: [d for _, d in devices] for name, devices in boards.items() if devices}
        self._history.observed.note(states)
        for job in self._history.promises.note(states, seconds):
            self._audit("promise broken", job=job)
        self._count_energy(states, seconds)
        busy = {device.id for devices in states.values() for device in devices}
        self._history.draws.note(chain(*reachable.values()), busy, seconds)

    def _count_energy(self, states: Mapping[str, list[DeviceState]], seconds: float) -> None:
        """Add up the energy of every job, which is kept for an hour after its end."""
        wall = self._clock.wall()
        for job, devices in states.items():
            joules, total, _ = self._energy.get(job, (0.0, 0.0, wall))
            watts = sum(device.watts for device in devices)
            self._energy[job] = joules + watts * seconds, total + seconds, wall
        self._energy = {
            job: entry for job, entry in self._energy.items() if wall - entry[2] < _KEPT_SECONDS
        }

    def _unreachable(self, messages: list[str]) -> dict[str, float]:
        """Power that nodes which do not answer may draw: under their last caps, or at most."""
        known, draws = self._nodes.devices, self._history.draws
        most = max((sum(d.most_watts for d in devices) for devices in known.values()), default=0.0)
        if self._settings.node_watts is not None:
            most = self._settings.node_watts
        if unknown := self._nodes.unknown:
            messages.append(
                f"{', '.join(unknown)} never answered: counted as drawing {most:.6g} W each"
            )
        watts = dict.fromkeys(unknown, most)
        for node in self._nodes.lost & known.keys():
            watts[node] = sum(max(d.cap_watts, draws.watts(d)) for d in known[node])
        return watts

    def _boards(self, jobs: Iterable[EngineJob]) -> frozenset[str]:
        """Ids of the GPUs of jobs."""
        reachable = self._nodes.reachable
        return frozenset(d.id for job in jobs for _, d in devices_of(job, reachable))

    def _expect(self, jobs: list[EngineJob]) -> None:
        """Tell the meters' corrections what is expected: boards as they are known, hosts as stated.

        What nodes draw that do not answer is not known, up to their worst case.
        """
        draws, busy = self._history.draws, self._boards(j for j in jobs if not j.is_suspended)
        least, most = dict.fromkeys(worst := self._unreachable([]), 0.0), worst
        for node, devices in self._nodes.reachable.items():
            ranges = [draws.range_watts(d, is_busy=d.id in busy) for d in devices]
            least[node], most[node] = (sum(column) for column in zip(*ranges, strict=True))
        self._meters.expect(self._settings.part_watts(least), self._settings.part_watts(most))

    def _power(self) -> float:
        """IT power now: of the whole's meter, else as boards and hosts add up."""
        metered = self._meters.watts(self._settings.root)
        draws = {
            node: sum(d.watts for d in devices) for node, devices in self._nodes.reachable.items()
        }
        watts = self._settings.part_watts(self._unreachable([]) | draws)[self._settings.root]
        elapsed = self._clock.now() - self._last_tick
        self._meters.note_boards(watts, elapsed)
        return watts if metered is None else metered

    def _apply(self, decision: CapDecision, messages: list[str]) -> None:
        """Lower caps, and raise the others only when all that had to fall have fallen."""
        if self._is_shadow:
            return
        in_force = {n: {d.id: d.cap_watts for d in self._nodes.devices[n]} for n in decision.caps}
        falling = {
            node: {name: min(watts, in_force[node][name]) for name, watts in caps.items()}
            for node, caps in decision.caps.items()
        }
        rest = decision.clocks, decision.targets, messages
        if self._nodes.send(falling, *rest) and decision.caps != falling:
            self._nodes.send(decision.caps, *rest)

    def _check_leads(self) -> None:
        """Stop before anything else is done once a node has heard of a newer agent."""
        if self._nodes.is_fenced:
            self._audit("fenced", epoch=self._epoch)
            raise NotPossibleHereError(
                f"a newer agent leads the nodes; this one had epoch {self._epoch}",
                remedy="nothing is to be done unless two were started by mistake",
            )

    def _pause(self, targets: frozenset[str], messages: list[str], *, may_act: bool) -> None:
        """Let jobs continue that need not wait any more, and suspend those that must."""
        actions: list[Callable[[], None]] = []
        if may_act:
            jobs, now = {job.id: job for job in self._jobs or ()}, self._clock.now()
            self._warned = {job: at for job, at in self._warned.items() if job in targets}
            for job in sorted(self._stops.since.keys() - targets):
                actions.append(partial(self._engine.resume, job))
                self._stops.go_on(job, now)
                self._audit("resume", job=job)
            for job in sorted(targets - self._stops.since.keys()):
                if self._has_saved(jobs[job], actions):
                    actions.append(partial(self._engine.suspend, job))
                    self._stops.stop(job, now)
                    self._audit("suspend", job=job)
        # Before the deed: an agent that is killed now must know whom it has stopped.
        self._remember(messages)
        if actions and not self._is_shadow:
            self._acting = self._engine_pool.submit(_done, actions)
        if self._acting is not None:
            with suppress(TimeoutError):
                messages += self._acting.result(_ENGINE_SECONDS)
                self._acting = None

    def _has_saved(self, job: EngineJob, actions: list[Callable[[], None]]) -> bool:
        """Whether a job had its time to save a checkpoint; adds the signal that asks for it."""
        name = job.preferences.get("checkpoint", "")
        if not re.fullmatch(r"[A-Z0-9+]{1,10}", name):
            return True
        if job.id not in self._warned:
            actions.append(partial(self._engine.signal, job.id, name))
            self._warned[job.id] = self._clock.now()
        return self._clock.now() - self._warned[job.id] >= self._settings.checkpoint_seconds

    def _mark(self) -> object:
        """Something that changes when an event is announced, starts or ends."""
        folder = self._settings.state / "events"
        return sorted(folder.glob("*.json")), [event.id for event in self._active_events([])[0]]

    def _active_events(self, messages: list[str]) -> tuple[list[GridEvent], list[str]]:
        """Events that lower the budget now, and flaws of others.

        After a step of the wall clock an event counts as long as it does by either time.
        """
        wall, steady = self._clock.wall(), self._clock.now() + self._wall_offset
        if abs(wall - steady) < _STEP_SECONDS:
            self._wall_offset += wall - steady  # clocks that are slewed drift apart
            steady = wall
        else:
            step = wall - steady
            messages.append(f"the clock stepped by {step:+.0f} s: events count by both times")
        lead = self._settings.lead_seconds
        lead += self._settings.budget_watts / self._settings.ramp_down_watts_per_second
        return active_events(self._settings.state, max(wall, steady) + lead, min(wall, steady))

    def _budget(
        self, events: list[GridEvent], power: float, elapsed: float, messages: list[str]
    ) -> float:
        """Power for this tick: of settings, events and series, within the ramp downwards."""
        if not events:
            self._baseline_watts = None
            self._window.note(self._clock.now(), power, self._clock.now() - self._last_tick)
        elif self._baseline_watts is None:
            self._baseline_watts = self._window.mean_watts(power)
            if any(e.reduction and e.baseline_watts is None for e in events):
                seconds, watts = self._window.seconds, self._baseline_watts
                messages.append(f"reductions are of {watts:.6g} W, the mean of {seconds:.0f} s")
        limits = [self._event_watts(event) for event in events]
        series, wall = self._settings.budget_series, self._clock.wall()
        if series is not None and series.start <= wall < series.end:
            limits.append(series.at(wall))
        elif series is not None and wall >= series.end:
            limits.append(min(series.values))
            messages.append("the budget series has ended: its lowest value counts")
        target = min([self._settings.budget_watts, *limits])
        slowest = self._budget_watts - self._settings.ramp_down_watts_per_second * elapsed
        self._budget_watts = max(target, min(slowest, self._settings.budget_watts))
        return self._budget_watts

    def _event_watts(self, event: GridEvent) -> float:
        """Power that an event allows now; before its lead, what a ramp down to it allows."""
        target = event.budget(self._baseline_watts or 0.0)
        early = event.start - self._settings.lead_seconds - self._clock.wall()
        ramp = self._settings.ramp_down_watts_per_second
        return target if early <= 0 or math.isinf(ramp) else target + ramp * early

    def _watch(self, power: float, budget: float, messages: list[str]) -> None:
        """Raise an alarm when the power has been above the budget for too long."""
        now = self._clock.now()
        if power <= budget * (1 + _OVER_SHARE):
            if self._is_alarmed:
                self._audit("alarm over", power_watts=round(power, 3))
            self._over_since, self._is_alarmed = None, False
            return
        self._over_since = now if self._over_since is None else self._over_since
        if now - self._over_since < self._settings.alarm_seconds:
            return
        limit = self._settings.alarm_seconds
        messages.append(f"ALARM: power above the budget for more than {limit:g} s")
        if not self._is_alarmed:
            self._is_alarmed = True
            self._audit("alarm", power_watts=round(power, 3), budget_watts=round(budget, 3))

    def _audit(self, what: str, **details: Any) -> None:
        """Add a line to the audit; caps matter more than a full disk."""
        with suppress(OSError):
            self._audit_log.write(self._clock.wall(), what, **details)

    def _remember(self, messages: list[str]) -> None:
        """Keep what the next agent must know should this one be killed."""
        document = {
            "epoch": self._epoch,
            "jobs": self._jobs or [],
            "stopped": sorted(self._stops.since),
            "baseline_watts": self._baseline_watts,
            "window": [self._window.mean_watts(0.0), self._window.seconds],
            "deficits": self._history.ledger.deficits,
            "draws": [self._history.draws.shares, self._history.draws.least],
            "corrections": {part: c.learned for part, c in self._meters.by_part.items()},
            "energy": self._energy,
            "node_watts": {
                node: (sum(d.cap_watts for d in devices), sum(d.watts for d in devices))
                for node, devices in self._nodes.devices.items()
            },
        }
        self._write("agent.json", document, messages)

    def _recalled_epoch(self) -> int:
        """Epoch of the last agent on this state."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            text = (self._folder / "agent.json").read_text(encoding="utf-8")
            return int(json.loads(text)["epoch"])
        return 0

    def _recall(self) -> None:
        """Restore the state of the last agent; an invalid file counts as none."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            text = (self._folder / "agent.json").read_text(encoding="utf-8")
            document = json.loads(text)
            jobs = [EngineJob(**job) for job in document["jobs"]]
            # Until a node answers, one device stands for all of its GPUs.
            devices = {
                node: [DeviceState(node, cap, cap, cap, watts)]
                for node, (cap, watts) in document["node_watts"].items()
                if node in self._settings.nodes
            }
            baseline, (mean, seconds) = document["baseline_watts"], document["window"]
            self._history.ledger.deficits = dict(document["deficits"])
            # Files of older agents lack these two.
            draws = document.get("draws", ({}, {}))
            self._history.draws.recall(*draws)
            for part, learned in document.get("corrections", {}).items():
                if part in self._meters.by_part:
                    self._meters.by_part[part].recall(learned)
            self._energy = {job: (j, s, at) for job, (j, s, at) in document["energy"].items()}
            if seconds:
                self._window.note(self._clock.now(), float(mean), float(seconds))
            self._baseline_watts = None if baseline is None else float(baseline)
            for job in document["stopped"]:
                self._stops.stop(job, self._clock.now())
            self._jobs, self._nodes.devices = jobs, devices | self._nodes.devices

    def _report(
        self,
        decision: CapDecision,
        budget: float,
        power: float,
        events: list[GridEvent],
        messages: list[str],
    ) -> dict[str, Any]:
        devices = self._nodes.devices.values()
        limits = [min(d.cap_watts, d.promised_watts or math.inf) for b in devices for d in b]
        shares, names = decision.allocation, {job.id: job.name for job in self._jobs or ()}
        rows = [] if shares is None else shares.to_dict()["jobs"]
        report = {
            "at": self._clock.wall(),
            "budget_watts": budget,
            "power_watts": power,
            "caps_watts": self._settings.overhead_watts + sum(limits),
            "policy": self._settings.policy,
            "events": [event.to_dict() for event in events],
            "is_short": decision.is_short,
            "weighted_performance": None if shares is None else shares.weighted_performance,
            "jobs": [
                row | {"name": names.get(row["id"], ""), "follows": row["id"] in decision.followers}
                for row in rows
            ],
            "paused": sorted(decision.paused),
            "nodes": len(self._settings.nodes),
            "lost_nodes": sorted({*self._nodes.lost, *self._nodes.unknown}),
            "messages": messages,
            "is_alarmed": self._is_alarmed,
            "is_metered": self._meters.watts(self._settings.root) is not None,
            "correction": self._meters.corrections()[self._settings.root] / max(budget, 1.0),
            "epoch": self._epoch,
            "ttl_seconds": self._settings.ttl_seconds,
            "loop_seconds": self._clock.now() - self._last_tick,
        }
        self._write("status.json", report, messages)
        with suppress(OSError):
            self._audit_log.note_budget(self._clock.wall(), budget, {event.id for event in events})
            # The prolog looks for this file and sends a job back to the queue.
            short = self._folder / "no-watts"
            if decision.is_short:
                short.touch()
            else:
                short.unlink(missing_ok=True)
        return report

    def _write(self, name: str, document: dict[str, Any], messages: list[str]) -> None:
        """Write a file of the state; caps matter more than a full disk."""
        try:
            write_atomic(self._folder / name, msgspec.json.encode(document))
        except OSError as error:
            messages.append(f"cannot write {name}: {error}")


@contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """Refuse a second agent on the same state, until this one ends in any way."""
    with (state / "lock").open("w") as file:
        try:
            lock(file.fileno())
        except OSError:
            raise NotPossibleHereError(
                f"another agent runs on {state}", remedy="stop it first, or give another state"
            ) from None
        yield


def _done(actions: list[Callable[[], None]]) -> list[str]:
    """Do what can be done; what the workload manager refuses, in words."""
    messages = []
    for action in actions:
        try:
            action()
        except EngineError as error:
            messages.append(error.message)
    return messages
