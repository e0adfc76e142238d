"""The agent beside the workload manager: keeps a cluster under its power budget.

Every tick it reads jobs and GPUs, solves, and sets caps on the nodes: first all that fall, then,
once those are in force, all that rise, so the sum never exceeds the budget on the way. GPUs
without a job stay at their least cap, which is reserved for them: a job may start at any moment.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from joulery.clock import REAL_CLOCK, Clock
from joulery.cluster._allocate import POLICIES, Allocation, allocate
from joulery.cluster._budget import Budget, Cap, read_budget
from joulery.cluster._fairness import DeficitLedger, ramped
from joulery.cluster._jobs import (
    ClusterJob,
    PowerCurve,
    flexibility_floor,
    read_frontiers,
    read_jobs,
)
from joulery.cluster._nodes import DeviceState, NodeUnreachableError
from joulery.cluster._observed import JobHistory, ObservedJobs
from joulery.cluster._slurm import EngineError, EngineJob
from joulery.errors import FileError, InfeasibleError, InvalidValueError, JouleryError
from joulery.files import write_atomic
from joulery.grid import GridEvent, Signal, read_signal
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_POLL_SECONDS = 0.1
# A job that the store does not know yet may be known a minute later.
_LOOK_UP_SECONDS = 60.0
_PATHS = (
    "state", "token_file", "ca_file", "frontiers", "frontier_folder", "tree", "budget_series",
)  # fmt: skip
# Boards round caps to their own steps.
_TOLERANCE_WATTS = 1.0
# Each round comes closer by the share of GPUs that do not refuse.
_MOST_ROUNDS = 30


class Engine(Protocol):
    """A workload manager."""

    def jobs(self) -> list[EngineJob]:
        """Jobs that hold GPUs."""
        ...

    def suspend(self, job: str) -> None:
        """Stop a job for now."""
        ...

    def resume(self, job: str) -> None:
        """Let it go on."""
        ...

    def signal(self, job: str, name: str) -> None:
        """Send a signal to all its processes."""
        ...


class Node(Protocol):
    """A node whose GPUs can be capped."""

    def status(self) -> list[DeviceState]:
        """GPUs of the node."""
        ...

    def set_caps(self, caps: Mapping[str, float], ttl_seconds: float) -> list[DeviceState]:
        """Put caps in force for a time."""
        ...


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an administrator decides.

    Attributes:
        budget_watts: Most IT power of the cluster.
        nodes: Address of each node's service, as ``host:port``.
        state: Folder for the status and announced events.
        policy: Name of the allocation policy.
        overhead_watts: Power of hosts and network, which is not capped.
        tick_seconds: Time between two decisions.
        ttl_seconds: Time after which nodes lower their caps when the agent is silent.
        lead_seconds: How long before an announced event the caps fall.
        ramp_up_watts_per_second: Most increase of the sum of caps.
        budget_series: Budget over time; where it is lower than ``budget_watts`` it counts.
        tree: Caps on parts of the cluster, whose leaves are named like the nodes.
        frontiers: Curves by name of a job or of a preference ``frontier=``.
        frontier_folder: Folder of frontier documents by such names, looked at in every tick, so
            that a job is known as soon as its frontier was measured.
        token_file: File with the secret of the nodes' services.
        ca_file: Authority that signed the nodes' certificates; None only on loopback.
        store: Store or server of recurring jobs, whose profiles give frontiers by job name.
        overshoot_risk: Largest probability that the power exceeds the budget at any one time,
            for handing out more watts than the budget while jobs draw less than their caps; 0
            for never. Not used while a grid event asks for less.
        checkpoint_seconds: Time between the signal to save a checkpoint and a pause, for jobs
            whose comment asks for one (``checkpoint=USR1``).
    """

    budget_watts: float
    nodes: Mapping[str, str]
    state: Path
    policy: str = "fair"
    overhead_watts: float = 0.0
    tick_seconds: float = 1.0
    ttl_seconds: float = 10.0
    lead_seconds: float = 3.0
    ramp_up_watts_per_second: float = float("inf")
    budget_series: Signal | None = None
    tree: Budget | None = None
    frontiers: Mapping[str, PowerCurve] = field(default_factory=dict)
    frontier_folder: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    store: str | None = None
    overshoot_risk: float = 0.0
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        finite(self.budget_watts, "budget in watts", minimum=0.0)
        finite(self.checkpoint_seconds, "checkpoint_seconds", minimum=0.0)
        if not 0.0 <= finite(self.overshoot_risk, "overshoot_risk") < 1.0:
            flaw = f"overshoot_risk {self.overshoot_risk:g}"
            raise InvalidValueError(flaw, remedy="give a probability such as 1e-4, or 0")
        if self.policy not in POLICIES or not self.nodes:
            raise InvalidValueError(
                f"policy {self.policy!r} with {len(self.nodes)} nodes",
                remedy=f"name at least one node, and a policy of {', '.join(POLICIES)}",
            )


def read_agent_settings(path: Path) -> AgentSettings:
    """Read an agent's settings from TOML; paths in it are relative to the file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for name in _PATHS:
            if name in document:
                document[name] = path.parent / document[name]
        if "frontiers" in document:
            jobs = read_jobs(document["frontiers"])
            document["frontiers"] = {job.id: job.curve for job in jobs}
        if "tree" in document:
            document["tree"] = read_budget(document["tree"])
        if "budget_series" in document:
            document["budget_series"] = read_signal(document["budget_series"])
        return AgentSettings(**document)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, JouleryError):
            raise
        raise FileError(
            f"cannot read settings {path}: {error}", remedy="see docs/cluster.md for an example"
        ) from None


@dataclass(frozen=True, slots=True)
class CapDecision:
    """What the caps should be.

    Attributes:
        caps: Watts of every reachable GPU, by node and id.
        paused: Jobs that must stop for now.
        allocation: Shares of the jobs; None when there are none or nothing fits.
        is_short: Whether there are no watts for further jobs.
        messages: What was odd about the input.
    """

    caps: dict[str, dict[str, float]]
    paused: frozenset[str]
    allocation: Allocation | None
    is_short: bool
    messages: tuple[str, ...]


def decide(
    settings: AgentSettings,
    budget_watts: float,
    jobs: Sequence[EngineJob],
    reachable: Mapping[str, Sequence[DeviceState]],
    lost: Mapping[str, Sequence[DeviceState]],
    history: JobHistory,
) -> CapDecision:
    """Share the budget over the jobs on reachable nodes.

    Args:
        settings: What the administrator decided.
        budget_watts: Most IT power now.
        jobs: Jobs that hold GPUs.
        reachable: GPUs of every node that answers.
        lost: Last known GPUs of nodes that do not; their caps count as used.
        history: What is known of the jobs from earlier ticks.
    """
    caps = {node: {d.id: d.least_watts for d in devices} for node, devices in reachable.items()}
    messages: list[str] = []
    shared, held = [], {}
    for job in jobs:
        devices = _devices(job, reachable)
        if devices is None:
            messages.append(f"job {job.id} is on a node that does not answer; its caps stay low")
            continue
        curve, limit = _curve(job, devices, settings.frontiers, history.observed, messages)
        shared.append(_allocator_job(job, devices, curve, limit, history.ledger, messages))
        held[job.id] = devices
    kept = {node: sum(d.cap_watts for d in devices) for node, devices in lost.items()}
    kept |= {node: sum(each.values()) for node, each in caps.items()}
    for devices in held.values():
        for node, device in devices:
            kept[node] -= device.least_watts
    if not shared:
        short = budget_watts < settings.overhead_watts + sum(kept.values())
        return CapDecision(caps, frozenset(), None, is_short=short, messages=tuple(messages))
    budget, shared = _placed(settings, budget_watts, shared, held, kept)
    try:
        shares = allocate(shared, None, settings.policy, budget=budget, may_pause=True)
    except InfeasibleError as error:
        messages.append(error.message)
        return CapDecision(caps, frozenset(held), None, is_short=True, messages=tuple(messages))
    for name, watts in zip(shares.ids, shares.watts.tolist(), strict=True):
        for node, device in held[name]:
            caps[node][device.id] = max(device.least_watts, watts / len(held[name]))
    paused = frozenset(n for n, stop in zip(shares.ids, shares.paused, strict=True) if stop)
    return CapDecision(caps, paused, shares, is_short=bool(paused), messages=tuple(messages))


def _placed(
    settings: AgentSettings,
    watts: float,
    jobs: list[ClusterJob],
    held: Mapping[str, list[tuple[str, DeviceState]]],
    kept: Mapping[str, float],
) -> tuple[Budget, list[ClusterJob]]:
    """The budget's tree with what is not shared as overhead, and each job's place in it.

    A job belongs to the smallest part that holds all its GPUs. Where a smaller part with a cap
    holds some of them, those get an equal share of that cap by GPUs, set aside for them.
    """
    tree = settings.tree or Budget((Cap("cluster"),))
    root = tree.names[0]
    above = {cap.name: cap.parent for cap in tree.caps}
    overhead = dict.fromkeys(tree.names, 0.0)
    overhead[root] += settings.overhead_watts
    for node, used in kept.items():
        overhead[node if node in overhead else root] += used
    paths = {node: list(_path(node if node in above else root, above)) for node in kept}
    busy = Counter(part for d in held.values() for node, _ in d for part in paths[node])
    inside = dict.fromkeys(tree.names, 0.0)
    for name, used in overhead.items():
        for part in _path(name, above):
            inside[part] += used
    limits = {cap.name: cap.watts - inside[cap.name] for cap in tree.caps}
    placed = []
    for job in jobs:
        nodes = [node for node, _ in held[job.id]]
        common = set.intersection(*(set(paths[node]) for node in nodes))
        home = next(part for part in paths[nodes[0]] if part in common)
        split = Counter(p for n in nodes for p in paths[n] if p not in common)
        each = [limits[part] / busy[part] for part in split if math.isfinite(limits[part])]
        limit = max(min([job.limit_watts or math.inf, *each]), job.curve.least_watts)
        for part, gpus in split.items():
            # Its watts count at home; below, they are only out of reach of the others.
            limits[part] -= gpus * limit
            busy[part] -= gpus
        placed.append(replace(job, node=home, limit_watts=limit))
    caps = [
        replace(
            cap,
            watts=limits[cap.name] + inside[cap.name],
            overhead_watts=cap.overhead_watts + overhead[cap.name],
        )
        for cap in tree.caps
    ]
    caps[0] = replace(caps[0], watts=min(watts, tree.caps[0].watts))
    return Budget(tuple(caps)), placed


def _path(part: str, above: Mapping[str, str | None]) -> Iterator[str]:
    """A part and all that contain it, smallest first."""
    place: str | None = part
    while place is not None:
        yield place
        place = above[place]


def _devices(
    job: EngineJob, reachable: Mapping[str, Sequence[DeviceState]]
) -> list[tuple[str, DeviceState]] | None:
    """GPUs of a job; None when one of them cannot be reached."""
    found = []
    for node, indices in job.gpus.items():
        devices = reachable.get(node, ())
        if any(index >= len(devices) for index in indices):
            return None
        found += [(node, devices[index]) for index in indices]
    return found


def _curve(
    job: EngineJob,
    devices: list[tuple[str, DeviceState]],
    frontiers: Mapping[str, PowerCurve],
    observed: ObservedJobs,
    messages: list[str],
) -> tuple[PowerCurve, float]:
    """Curve of a job on its GPUs, and the most watts of each: known, observed or assumed."""
    least, most = _range(devices)
    known = frontiers.get(job.frontier_name) or observed.curve(job.id)
    if known is not None:
        curve = _between(known, least)
        return curve, max(most, curve.least_watts)
    share = observed.next_share(job.id)
    messages.append(f"job {job.id} ({job.name}) has no frontier: capped at {share:.0%}")
    assumed = ((least, most), (least / most, 1.0)) if most > least else ((most,), (1.0,))
    return PowerCurve(*assumed), max(least, share * most)


def _range(devices: list[tuple[str, DeviceState]]) -> tuple[float, float]:
    """Least and most cap that all of some GPUs accept."""
    least = max(device.least_watts for _, device in devices)
    return least, max(least, min(device.most_watts for _, device in devices))


def _allocator_job(
    job: EngineJob,
    devices: list[tuple[str, DeviceState]],
    curve: PowerCurve,
    limit_watts: float,
    ledger: DeficitLedger,
    messages: list[str],
) -> ClusterJob:
    least, wishes = _range(devices)[0], job.preferences
    floor, weight = 0.0, 1.0
    try:
        if "tier" in wishes:
            floor = flexibility_floor(wishes["tier"])
        floor = float(wishes.get("floor", floor))
        weight = finite(float(wishes.get("weight", 1.0)), "weight", minimum=0.0)
        floor = min(1.0, finite(floor, "floor", minimum=0.0))
    except ValueError as error:
        messages.append(f"job {job.id}: {error}; its comment is ignored")
    return ClusterJob(
        id=job.id,
        curve=replace(curve, idle_watts=least),
        gpus=len(devices),
        weight=weight * len(devices),
        floor=floor,
        limit_watts=limit_watts,
        credit=ledger.credit(job.id),
    )


def _between(curve: PowerCurve, least: float) -> PowerCurve:
    """The part of a curve that a GPU's least cap leaves."""
    if curve.least_watts >= least:
        return curve
    kept = [(w, p) for w, p in zip(curve.watts, curve.performance, strict=True) if w > least]
    watts, performance = zip((least, curve.at(least)), *kept, strict=True)
    return PowerCurve(watts, performance)


class Agent:
    """Runs decisions on a cluster.

    Args:
        settings: What the administrator decided.
        engine: Workload manager.
        nodes: Services of the nodes by name.
        clock: Clock for ticks and events.
        find: Function that looks up a job's curve by name, such as in a store; None where
            there is none.
    """

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        nodes: Mapping[str, Node],
        clock: Clock = REAL_CLOCK,
        find: Callable[[str], PowerCurve | None] = lambda _: None,
    ) -> None:
        self._settings, self._engine, self._nodes = settings, engine, nodes
        self._clock = clock
        self._history = JobHistory()
        self._jobs: list[EngineJob] = []
        self._devices: dict[str, list[DeviceState]] = {}
        self._stopped: set[str] = set()
        self._given_frontiers = settings.frontiers
        self._find = find
        self._found: dict[str, tuple[float, PowerCurve | None]] = {}
        self._warned: dict[str, float] = {}
        self._refusing: set[str] = set()
        self._baseline_watts = settings.budget_watts
        self._last_tick = clock.now()
        self._pool = ThreadPoolExecutor(max_workers=min(64, len(nodes)))
        self._events = settings.state / "events"
        self._events.mkdir(parents=True, exist_ok=True)

    def run(self, ticks: int | None = None) -> None:
        """Tick until interrupted, at once when an event is announced, starts or ends."""
        done = 0
        while ticks is None or done < ticks:
            self.tick()
            done += 1
            waited, mark = 0.0, self._mark()
            while waited < self._settings.tick_seconds and self._mark() == mark:
                self._clock.sleep(_POLL_SECONDS)
                waited += _POLL_SECONDS

    def tick(self) -> dict[str, Any]:
        """Look, decide, act; what ``joulery cluster status`` shows."""
        now = self._clock.now()
        messages: list[str] = []
        try:
            self._jobs = self._engine.jobs()
        except EngineError as error:
            messages.append(f"{error.message}; the last known jobs count")
        self._read_frontiers(messages)
        lost = self._look(messages)
        events = self._active_events(messages)
        budget = self._budget(events)
        reachable = {node: d for node, d in self._devices.items() if node not in lost}
        gone = {node: self._devices[node] for node in lost if node in self._devices}
        self._observe(reachable)
        over = self._power() > budget or bool(events)
        risk = 0.0 if over else self._settings.overshoot_risk
        overhead = self._settings.overhead_watts
        usable = overhead + self._history.drawn.handed_out(budget - overhead, self._caps(), risk)
        decision = self._decide(usable, reachable, gone)
        self._apply(decision, now - self._last_tick, messages)
        self._pause(decision.paused, messages)
        if decision.allocation is not None:
            self._history.ledger.record(decision.allocation, now - self._last_tick)
        self._last_tick = now
        return self._report(decision, budget, events, [*messages, *decision.messages])

    def _decide(
        self,
        budget: float,
        reachable: Mapping[str, list[DeviceState]],
        lost: Mapping[str, list[DeviceState]],
    ) -> CapDecision:
        """Decide so that others save what refusing GPUs hold beyond their shares."""
        beyond = 0.0
        for _ in range(_MOST_ROUNDS):
            usable = budget - beyond
            decision = decide(self._settings, usable, self._jobs, reachable, lost, self._history)
            wanted = {name: w for caps in decision.caps.values() for name, w in caps.items()}
            held = {d.id: d.cap_watts for devices in reachable.values() for d in devices}
            now = sum(max(0.0, held[n] - wanted[n]) for n in self._refusing & held.keys())
            if now <= beyond + 1e-6:
                break
            beyond = now
        return decision

    def _read_frontiers(self, messages: list[str]) -> None:
        """Curves of jobs: from the folder first, then as given, then looked up by name."""
        folder, found = self._settings.frontier_folder, dict[str, PowerCurve]()
        if folder is not None:
            found, flaws = read_frontiers(folder)
            messages += flaws
        known = {**self._given_frontiers, **found}
        names = {job.frontier_name for job in self._jobs} - known.keys()
        self._found = {name: self._found.get(name, (-math.inf, None)) for name in names}
        try:
            self._look_up()
        except JouleryError as error:  # what was found before still counts
            messages.append(f"the store does not answer: {error.message}")
        known |= {name: curve for name, (_, curve) in self._found.items() if curve is not None}
        self._settings = replace(self._settings, frontiers=known)

    def _look_up(self) -> None:
        now = self._clock.now()
        for name, (asked_at, _) in sorted(self._found.items()):
            if now - asked_at > _LOOK_UP_SECONDS:
                self._found[name] = now, self._find(name)

    def _observe(self, reachable: Mapping[str, list[DeviceState]]) -> None:
        """Note what jobs do under the caps in force."""
        held = {job.id: _devices(job, reachable) for job in self._jobs if not job.is_suspended}
        seen = {name: [d for _, d in devices] for name, devices in held.items() if devices}
        self._history.observed.note(seen)
        self._history.drawn.note(seen)

    def _caps(self) -> dict[str, float]:
        """Sum of the caps of each job, and of GPUs without one under their own names."""
        owner = {
            device.id: job.id
            for job in self._jobs
            for _, device in _devices(job, self._devices) or ()
        }
        found: defaultdict[str, float] = defaultdict(float)
        for devices in self._devices.values():
            for device in devices:
                found[owner.get(device.id, device.id)] += device.cap_watts
        return found

    def _look(self, messages: list[str]) -> set[str]:
        """Read all nodes; names of those that do not answer."""
        answers = self._pool.map(self._status, self._nodes)
        lost = set()
        for node, answer in zip(self._nodes, answers, strict=True):
            if isinstance(answer, str):
                lost.add(node)
                messages.append(answer)
            else:
                self._devices[node] = answer
        return lost

    def _status(self, node: str) -> list[DeviceState] | str:
        try:
            return self._nodes[node].status()
        except NodeUnreachableError as error:
            return error.message

    def _apply(self, decision: CapDecision, elapsed: float, messages: list[str]) -> None:
        """Lower caps, and raise the others only when all that had to fall have fallen."""
        now = {n: {d.id: d.cap_watts for d in self._devices[n]} for n in decision.caps}
        falling = {
            node: {name: min(watts, now[node][name]) for name, watts in caps.items()}
            for node, caps in decision.caps.items()
        }
        if not self._send(falling, messages):
            return
        places = [(node, name) for node, caps in decision.caps.items() for name in caps]
        rising = ramped(
            np.array([falling[node][name] for node, name in places]),
            np.array([decision.caps[node][name] for node, name in places]),
            max(elapsed, self._settings.tick_seconds),
            up_watts_per_second=self._settings.ramp_up_watts_per_second,
        )
        wanted: dict[str, dict[str, float]] = {node: {} for node in decision.caps}
        for (node, name), watts in zip(places, rising.tolist(), strict=True):
            wanted[node][name] = watts
        if wanted != falling:
            self._send(wanted, messages)

    def _send(self, caps: dict[str, dict[str, float]], messages: list[str]) -> bool:
        """Whether every node has the caps in force."""

        def send(node: str) -> str:
            try:
                self._devices[node] = self._nodes[node].set_caps(
                    caps[node], self._settings.ttl_seconds
                )
            except NodeUnreachableError as error:
                return error.message
            return ""

        failures = [failure for failure in self._pool.map(send, caps) if failure]
        held = {d.id: d.cap_watts for node in caps for d in self._devices[node]}
        self._refusing = {
            name
            for wanted in caps.values()
            for name, watts in wanted.items()
            if held[name] > watts + _TOLERANCE_WATTS
        }
        failures += [f"GPU {name} refuses to lower its cap" for name in sorted(self._refusing)]
        messages += failures
        return not failures

    def _pause(self, wanted: frozenset[str], messages: list[str]) -> None:
        running = {job.id: job for job in self._jobs}
        self._stopped &= running.keys()
        self._warned = {job: at for job, at in self._warned.items() if job in wanted}
        actions = [(job, self._engine.resume) for job in sorted(self._stopped - wanted)]
        for job in sorted(wanted - self._stopped):
            try:
                if self._has_saved(running[job]):
                    actions.append((job, self._engine.suspend))
            except EngineError as error:
                messages.append(error.message)
        for job, action in actions:
            try:
                action(job)
                self._stopped ^= {job}
            except EngineError as error:
                messages.append(error.message)

    def _has_saved(self, job: EngineJob) -> bool:
        """Whether a job had its time to save a checkpoint; sends the signal that asks for it."""
        name = job.preferences.get("checkpoint", "")
        if not re.fullmatch(r"[A-Z0-9+]{1,10}", name):
            return True
        if job.id not in self._warned:
            self._engine.signal(job.id, name)
            self._warned[job.id] = self._clock.now()
        return self._clock.now() - self._warned[job.id] >= self._settings.checkpoint_seconds

    def _mark(self) -> object:
        """Something that changes when an event is announced, starts or ends."""
        names = sorted(self._events.glob("*.json"))
        active = [e.id for e in self._active_events([])] if names else []
        return names, active

    def _active_events(self, messages: list[str]) -> list[GridEvent]:
        now, found = self._clock.wall(), []
        for file in sorted(self._events.glob("*.json")):
            try:
                event = GridEvent(**json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                messages.append(f"event {file.name} makes no sense and is ignored: {error}")
                continue
            if event.end <= now:
                file.unlink(missing_ok=True)
            elif event.start - self._settings.lead_seconds <= now:
                found.append(event)
        return found

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
        drawn = sum(d.watts for devices in self._devices.values() for d in devices)
        return self._settings.overhead_watts + drawn

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
            "messages": messages,
        }
        write_atomic(self._settings.state / "status.json", json.dumps(report).encode())
        # The prolog looks for this file and sends a job back to the queue.
        short = self._settings.state / "no-watts"
        if decision.is_short:
            short.touch()
        else:
            short.unlink(missing_ok=True)
        return report


def announce(state: Path, event: GridEvent, clock: Clock = REAL_CLOCK) -> None:
    """Make an event known to the agent; needs the right to write its ``events`` folder."""
    event.check_not_past(clock.wall())
    folder = state / "events"
    if not folder.is_dir():
        raise FileError(f"no agent's state in {state}", remedy="start `joulery cluster agent`")
    if "/" in event.id or event.id.startswith("."):
        raise InvalidValueError(f"event id {event.id!r}", remedy="use letters, digits and dashes")
    write_atomic(folder / f"{event.id}.json", json.dumps(event.to_dict()).encode())
