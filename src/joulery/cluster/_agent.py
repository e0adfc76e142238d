"""The agent beside the workload manager: keeps a cluster under its power budget.

Every tick it reads jobs and GPUs, solves, and sets caps on the nodes: first all that fall, then,
once those are in force, all that rise, so the sum never exceeds the budget on the way. GPUs
without a job stay at their least cap, which is reserved for them: a job may start at any moment.
Neither a workload manager, a store nor a node that hangs delays the others' caps.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.clock import REAL_CLOCK, Clock
from joulery.cluster._decide import CapDecision, decide, devices_of
from joulery.cluster._events import active_events
from joulery.cluster._history import JobHistory, ramp
from joulery.cluster._nodes import DeviceState
from joulery.cluster._slurm import EngineError, EngineJob
from joulery.errors import JouleryError, NotPossibleHereError
from joulery.files import lock, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from joulery.cluster._jobs import PowerCurve
    from joulery.cluster._nodes import NodeClient
    from joulery.cluster._settings import AgentSettings
    from joulery.cluster._slurm import Slurm, SlurmRest
    from joulery.grid import GridEvent

# An announced event is noticed within this; by hand.
_POLL_SECONDS = 0.1
# A job that the store does not know yet may be known a minute later; by hand.
_LOOK_UP_SECONDS = 60.0
# Boards round caps to their own steps, a watt at most.
_TOLERANCE_WATTS = 1.0
# Each round comes closer by the share of GPUs that do not refuse; by hand: half of them, to 1e-9.
_MOST_ROUNDS = 30
# An event without notice is to be met within 2 s, whatever hangs.
_ENGINE_SECONDS, _NODE_SECONDS, _LOST_NODE_SECONDS = 0.5, 1.0, 0.1
# Jobs older than this are worth a message; by hand: ten ticks.
_OLD_SECONDS = 10.0


class Agent:
    """Runs decisions on a cluster.

    Args:
        settings: Settings of the administrator.
        engine: Workload manager.
        nodes: Services of the nodes by name.
        clock: Clock for ticks and events.
        find: Function that looks up a job's curve by name, such as in a store; None where
            there is none.
    """

    def __init__(
        self,
        settings: AgentSettings,
        engine: Slurm | SlurmRest,
        nodes: Mapping[str, NodeClient],
        clock: Clock = REAL_CLOCK,
        find: Callable[[str], PowerCurve | None] = lambda _: None,
    ) -> None:
        self._settings, self._engine, self._nodes = settings, engine, nodes
        self._clock = clock
        self._history = JobHistory(frontiers=dict(settings.frontiers))
        self._jobs: list[EngineJob] | None = None
        self._jobs_at = clock.now()
        self._reading: tuple[Future[list[EngineJob]], float] | None = None
        self._acting: Future[list[str]] | None = None
        self._devices: dict[str, list[DeviceState]] = {}
        self._pending: dict[str, Future[list[DeviceState]]] = {}
        self._lost: set[str] = set()
        self._stopped: set[str] = set()
        self._find = find
        self._looked_up: dict[str, tuple[float, PowerCurve | None]] = {}
        self._look_up_task: Future[dict[str, tuple[float, PowerCurve | None]]] | None = None
        self._warned: dict[str, float] = {}
        self._refusing: set[str] = set()
        self._baseline_watts = settings.budget_watts
        self._last_tick = clock.now()
        # Nodes that hang must not take the threads of others.
        self._pool = ThreadPoolExecutor(max_workers=len(nodes) + 1)
        # One by one, so that jobs are read after all that was done to them before.
        self._engine_pool = ThreadPoolExecutor(max_workers=1)
        (settings.state / "events").mkdir(parents=True, exist_ok=True)
        self._recall()

    def run(
        self, ticks: int | None = None, show: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> None:
        """Tick until interrupted, at once when an event is announced, starts or ends.

        Args:
            ticks: Number of decisions after which to stop; None for never.
            show: Function that gets the report of every tick.

        Raises:
            NotPossibleHereError: Another agent runs on the same state.
        """
        with _only_one(self._settings.state):
            done = 0
            while ticks is None or done < ticks:
                show(self.tick())
                done += 1
                waited, mark = 0.0, self._mark()
                while waited < self._settings.tick_seconds and self._mark() == mark:
                    self._clock.sleep(_POLL_SECONDS)
                    waited += _POLL_SECONDS

    def tick(self) -> dict[str, Any]:
        """Read jobs and nodes, decide, set caps; the document of ``joulery cluster status``."""
        now = self._clock.now()
        messages: list[str] = []
        is_fresh = self._read_jobs(now, messages)
        jobs = [j for j in self._jobs or () if not j.is_suspended or j.id in self._stopped]
        self._read_frontiers(jobs, messages)
        self._lost = self._ask({name: node.status for name, node in self._nodes.items()}, messages)
        unknown = sorted(self._lost - self._devices.keys())
        messages += [
            f"node {node} has never answered: its power is not counted" for node in unknown
        ]
        events, flaws = self._active_events()
        budget = self._budget(events)
        reachable = {node: d for node, d in self._devices.items() if node not in self._lost}
        lost = {node: d for node, d in self._devices.items() if node in self._lost}
        self._observe(jobs, reachable)
        over = self._power() > budget or bool(events)
        risk = 0.0 if over else self._settings.overshoot_risk
        overhead = self._settings.overhead_watts
        caps = self._caps(jobs)
        usable = overhead + self._history.drawn.handed_out(budget - overhead, caps, risk)
        decision = self._decide(usable, jobs, reachable, lost)
        self._apply(decision, now - self._last_tick, messages)
        if decision.allocation is not None:
            shares = decision.allocation
            elapsed = now - self._last_tick
            self._history.ledger.add(shares.ids, shares.performance, elapsed)
        self._pause(decision.paused, messages, may_act=is_fresh)
        self._last_tick = now
        messages += [*flaws, *decision.messages]
        return self._report(decision, budget, events, messages)

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
                messages.append(f"the jobs are those of {now - self._jobs_at:.0f} s ago")
            return False
        except EngineError as error:
            self._reading = None
            messages.append(f"{error.message}; the last known jobs count")
            return False
        self._reading, self._jobs_at = None, since
        # Others may have resumed what this agent stopped.
        self._stopped &= {job.id for job in self._jobs if job.is_suspended}
        return True

    def _decide(
        self,
        budget: float,
        jobs: list[EngineJob],
        reachable: Mapping[str, list[DeviceState]],
        lost: Mapping[str, list[DeviceState]],
    ) -> CapDecision:
        """Decide so that others save what refusing GPUs hold beyond their shares."""
        beyond = 0.0
        for _ in range(_MOST_ROUNDS):
            usable = budget - beyond
            decision = decide(self._settings, usable, jobs, reachable, lost, self._history)
            targets = {name: w for caps in decision.caps.values() for name, w in caps.items()}
            caps_before = {d.id: d.cap_watts for devices in reachable.values() for d in devices}
            now = sum(
                max(0.0, caps_before[n] - targets[n]) for n in self._refusing & caps_before.keys()
            )
            if now <= beyond + 1e-6:
                break
            beyond = now
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
            self._look_up_task = self._pool.submit(
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

    def _observe(self, jobs: list[EngineJob], reachable: Mapping[str, list[DeviceState]]) -> None:
        """Note what jobs do under the caps in force."""
        boards = {job.id: devices_of(job, reachable) for job in jobs if not job.is_suspended}
        states = {name: [d for _, d in devices] for name, devices in boards.items() if devices}
        self._history.observed.note(states)
        self._history.drawn.note(states)

    def _caps(self, jobs: list[EngineJob]) -> dict[str, float]:
        """Sum of the caps of each job, and of GPUs without one under their own names."""
        owner = {device.id: job.id for job in jobs for _, device in devices_of(job, self._devices)}
        caps: defaultdict[str, float] = defaultdict(float)
        for devices in self._devices.values():
            for device in devices:
                caps[owner.get(device.id, device.id)] += device.cap_watts
        return caps

    def _ask(
        self, calls: Mapping[str, Callable[[], list[DeviceState]]], messages: list[str]
    ) -> set[str]:
        """Ask nodes all at once; names of those that do not answer in time.

        A call that hangs goes on, and the node counts as lost until it has ended.
        """
        for node, call in calls.items():
            if node not in self._pending:
                self._pending[node] = self._pool.submit(call)
        wait((self._pending[n] for n in calls if n not in self._lost), _NODE_SECONDS)
        wait((self._pending[n] for n in calls if n in self._lost), _LOST_NODE_SECONDS)
        failed = set()
        for node in calls:
            if not self._pending[node].done():
                failed.add(node)
                messages.append(f"node {node} does not answer")
                continue
            try:
                self._devices[node] = self._pending.pop(node).result()
            except JouleryError as error:
                failed.add(node)
                messages.append(error.message)
        return failed

    def _apply(self, decision: CapDecision, elapsed: float, messages: list[str]) -> None:
        """Lower caps, and raise the others only when all that had to fall have fallen."""
        now = {n: {d.id: d.cap_watts for d in self._devices[n]} for n in decision.caps}
        falling = {
            node: {name: min(watts, now[node][name]) for name, watts in caps.items()}
            for node, caps in decision.caps.items()
        }
        if not self._send(falling, decision.clocks, messages):
            return
        devices = [(node, name) for node, caps in decision.caps.items() for name in caps]
        rising = ramp(
            np.array([falling[node][name] for node, name in devices]),
            np.array([decision.caps[node][name] for node, name in devices]),
            max(elapsed, self._settings.tick_seconds),
            up_watts_per_second=self._settings.ramp_up_watts_per_second,
        )
        targets: dict[str, dict[str, float]] = {node: {} for node in decision.caps}
        for (node, name), watts in zip(devices, rising.tolist(), strict=True):
            targets[node][name] = watts
        if targets != falling:
            self._send(targets, decision.clocks, messages)

    def _send(
        self,
        caps: dict[str, dict[str, float]],
        clocks: dict[str, dict[str, float]],
        messages: list[str],
    ) -> bool:
        """Whether every node has the caps in force."""
        calls = {
            node: partial(
                self._nodes[node].set_caps,
                devices,
                clocks.get(node, {}),
                self._settings.ttl_seconds,
            )
            for node, devices in caps.items()
        }
        failed = self._ask(calls, messages)
        for node in failed:  # what was sent may be in force, or come into force later
            self._devices[node] = [
                replace(d, cap_watts=max(d.cap_watts, caps[node][d.id]))
                for d in self._devices[node]
            ]
        caps_before = {d.id: d.cap_watts for node in caps for d in self._devices[node]}
        self._refusing = {
            name
            for watts_by_device in caps.values()
            for name, watts in watts_by_device.items()
            if caps_before[name] > watts + _TOLERANCE_WATTS
        }
        messages += [f"GPU {name} refuses to lower its cap" for name in sorted(self._refusing)]
        return not failed and not self._refusing

    def _pause(self, targets: frozenset[str], messages: list[str], *, may_act: bool) -> None:
        """Resume jobs that need not wait any more, and suspend those that must."""
        actions: list[Callable[[], None]] = []
        if may_act:
            jobs = {job.id: job for job in self._jobs or ()}
            self._warned = {job: at for job, at in self._warned.items() if job in targets}
            actions += [
                partial(self._engine.resume, job) for job in sorted(self._stopped - targets)
            ]
            for job in sorted(targets - self._stopped):
                if self._has_saved(jobs[job], actions):
                    actions.append(partial(self._engine.suspend, job))
                    self._stopped.add(job)
        # Before the deed: an agent that is killed now must know whom it has stopped.
        self._remember(messages)
        if actions:
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
        return sorted(folder.glob("*.json")), [event.id for event in self._active_events()[0]]

    def _active_events(self) -> tuple[list[GridEvent], list[str]]:
        now = self._clock.wall()
        return active_events(self._settings.state, now + self._settings.lead_seconds, now)

    def _budget(self, events: list[GridEvent]) -> float:
        if not events:
            self._baseline_watts = self._power()
        limits = [event.budget(self._baseline_watts) for event in events]
        series = self._settings.budget_series
        if series is not None and series.start <= self._clock.wall() < series.end:
            limits.append(series.at(self._clock.wall()))
        return min([self._settings.budget_watts, *limits])

    def _power(self) -> float:
        """IT power as the nodes report it."""
        draw_watts = sum(d.watts for devices in self._devices.values() for d in devices)
        return self._settings.overhead_watts + draw_watts

    def _remember(self, messages: list[str]) -> None:
        """Keep what the next agent must know should this one be killed."""
        document = {
            "jobs": [asdict(job) for job in self._jobs or ()],
            "stopped": sorted(self._stopped),
            "baseline_watts": self._baseline_watts,
            "deficits": self._history.ledger.deficits,
            "node_watts": {
                node: (sum(d.cap_watts for d in devices), sum(d.watts for d in devices))
                for node, devices in self._devices.items()
            },
        }
        self._write("agent.json", document, messages)

    def _recall(self) -> None:
        """Restore the state of the last agent; an invalid file counts as none."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            text = (self._settings.state / "agent.json").read_text(encoding="utf-8")
            document = json.loads(text)
            jobs = [EngineJob(**job) for job in document["jobs"]]
            # Until a node answers, one device stands for all of its GPUs.
            devices = {
                node: [DeviceState(node, cap, cap, cap, watts)]
                for node, (cap, watts) in document["node_watts"].items()
                if node in self._nodes
            }
            self._baseline_watts = float(document["baseline_watts"])
            self._history.ledger.deficits = dict(document["deficits"])
            self._jobs, self._stopped, self._devices = jobs, set(document["stopped"]), devices

    def _report(
        self, decision: CapDecision, budget: float, events: list[GridEvent], messages: list[str]
    ) -> dict[str, Any]:
        caps = sum(d.cap_watts for devices in self._devices.values() for d in devices)
        shares = decision.allocation
        report = {
            "at": self._clock.wall(),
            "budget_watts": budget,
            "power_watts": self._power(),
            "caps_watts": self._settings.overhead_watts + caps,
            "policy": self._settings.policy,
            "events": [event.to_dict() for event in events],
            "is_short": decision.is_short,
            "weighted_performance": None if shares is None else shares.weighted_performance,
            "jobs": [] if shares is None else shares.to_dict()["jobs"],
            "paused": sorted(decision.paused),
            "nodes": len(self._nodes),
            "lost_nodes": sorted(self._lost),
            "messages": messages,
        }
        self._write("status.json", report, messages)
        # The prolog looks for this file and sends a job back to the queue.
        short = self._settings.state / "no-watts"
        with suppress(OSError):
            if decision.is_short:
                short.touch()
            else:
                short.unlink(missing_ok=True)
        return report

    def _write(self, name: str, document: dict[str, Any], messages: list[str]) -> None:
        """Write a file of the state; caps matter more than a full disk."""
        try:
            write_atomic(self._settings.state / name, json.dumps(document).encode())
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
