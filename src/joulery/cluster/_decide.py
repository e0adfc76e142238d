"""One decision of the agent: caps of all GPUs from jobs, nodes and a budget, without any I/O."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster._allocate import Allocation, allocate, lower_floors, pause
from joulery.cluster._budget import Budget, Cap
from joulery.cluster._history import promised_watts
from joulery.cluster._jobs import ClusterJob, PowerCurve, flexibility_floor
from joulery.cluster._slurm import ALL_BOARDS
from joulery.cluster._stops import RESUME_ROOM
from joulery.errors import InfeasibleError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.cluster._history import JobHistory
    from joulery.cluster._nodes import DeviceState
    from joulery.cluster._settings import AgentSettings
    from joulery.cluster._slurm import EngineJob
    from joulery.cluster._stops import JobStops

# A stopped job's GPU draws this share of its least cap until it was measured; by hand: an A100
# with an idle context draws 50 to 65 W, and its least cap is 100 W. Wrong guesses cost a tick.
_USUAL_REST = 0.65
# Performance below a floor by less than this is rounding; by hand.
_FLOOR_TOLERANCE = 1e-6
# A promise may exceed its share by this much; by hand: pipelines plan in steps of 1 %, and promise
# 2 % more than they plan.
_PROMISE_ROUNDING = 0.01
# A job needs this time before its boards draw more than at rest; by hand: processes start, and load
# libraries for seconds, but a small program may begin sooner.
_START_SECONDS = 2.0
# Jobs that a message names; by hand: a line of a terminal.
_NAMED_JOBS = 8


@dataclass(frozen=True, slots=True)
class CapDecision:
    """Caps of all GPUs, and how they came about.

    Attributes:
        caps: Watts of every reachable GPU, by node and id.
        clocks: Clock to lock on GPUs whose jobs' frontiers were measured under locked clocks: that
            of the point at or above the share, of which the cap holds the watts.
        targets: Mean power of GPUs whose jobs promise to keep to one.
        followers: Jobs that do, so that their caps leave them room.
        paused: Jobs that must stop for now.
        allocation: Shares of the jobs; None when there are none or nothing fits.
        is_short: Whether there are no watts for further jobs.
        messages: Warnings about the input.
    """

    caps: dict[str, dict[str, float]]
    clocks: dict[str, dict[str, float]]
    paused: frozenset[str]
    allocation: Allocation | None
    is_short: bool
    messages: tuple[str, ...]
    targets: dict[str, dict[str, float]] = field(default_factory=dict)
    followers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a decision is made on.

    Attributes:
        jobs: Jobs that hold GPUs, also those that this agent has stopped.
        reachable: GPUs by node.
        unreachable_watts: Power that nodes which cannot be reached may draw.
        budget_watts: IT power of the whole cluster.
        rise_watts: IT power up to which the total may rise in this tick.
        corrections: Watts that parts draw beyond their boards' and hosts' sum.
        now: Time of the monotonic clock.
        jobs_age_seconds: Time since the jobs were those of the workload manager.
        waiting: Ids of GPUs whose job somebody else has suspended, and may resume at any time.
    """

    jobs: Sequence[EngineJob]
    reachable: Mapping[str, Sequence[DeviceState]]
    unreachable_watts: Mapping[str, float]
    budget_watts: float
    rise_watts: float
    corrections: Mapping[str, float]
    now: float
    jobs_age_seconds: float = 0.0
    waiting: frozenset[str] = frozenset()


def decide(
    settings: AgentSettings, view: ClusterView, history: JobHistory, stops: JobStops
) -> CapDecision:
    """Share a budget of IT power over the jobs on reachable nodes.

    Shares are watts drawn; a board's cap is the one under which it draws its share.
    """
    reachable = view.reachable
    caps = {node: {d.id: d.least_watts for d in devices} for node, devices in reachable.items()}
    messages: list[str] = []
    boards = {job.id: devices_of(job, reachable) for job in view.jobs}
    boards = {name: devices for name, devices in boards.items() if devices}
    shared = [
        _cluster_job(job, boards[job.id], settings, history, messages)
        for job in view.jobs
        if job.id in boards
    ]
    messages += [
        f"GPUs of job {job.id} do not answer: {len(boards.get(job.id, ()))} of its "
        f"{job.gpu_count} get their share"
        for job in view.jobs
        if len(boards.get(job.id, ())) < job.gpu_count
    ]
    busy = {device.id for devices in boards.values() for _, device in devices}
    is_late = view.jobs_age_seconds + settings.tick_seconds > _START_SECONDS
    reserved = _reserved_watts(view, busy, history, is_late=is_late)
    if not shared:
        need = settings.overhead_watts + sum(reserved.values())
        if short := view.budget_watts < need:
            messages.append("hosts and GPUs without a job may draw more than the budget")
        return CapDecision(caps, {}, frozenset(), None, is_short=short, messages=tuple(messages))
    budget, shared = _place_jobs(settings, view, shared, boards, reserved)
    without_floors = [replace(job, floor=0.0) for job in shared]
    paused = stops.choose(without_floors, budget, view.now)
    shares = _shares(settings, view, budget, shared, paused, _stopped_watts(view, boards, history))
    if shares is None:
        if len(paused) == len(shared):
            messages.append("hosts, lost nodes and boards at rest may draw more than the budget")
        return CapDecision(caps, {}, paused, None, is_short=True, messages=tuple(messages))
    messages += _floor_messages(shared, shares, settings.floor_slack)
    clocks: dict[str, dict[str, float]] = {node: {} for node in caps}
    board_watts = (shares.watts / [share.gpus for share in shared]).tolist()
    # A job that continues begins at its least caps, which show what its boards draw of them.
    at_least_caps = paused | {job.id for job in view.jobs if job.is_suspended}
    for share, watts in zip(shared, board_watts, strict=True):
        hertz = share.curve.clock_for(watts)
        for node, device in () if share.id in at_least_caps else boards[share.id]:
            least_share = 1.0 - settings.most_trim
            caps[node][device.id] = history.draws.cap_for(device, watts, least_share)
            if hertz is not None:
                clocks[node][device.id] = hertz
    # Jobs that rest for a while after a stop do not keep others from watts that are free.
    is_short = bool(paused) and shares.used_watts > (1 - RESUME_ROOM) * shares.budget_watts
    decision = CapDecision(
        caps, clocks, paused, shares, is_short=is_short, messages=tuple(messages)
    )
    job_watts = {
        share.id: watts
        for share, watts in zip(shared, board_watts, strict=True)
        if share.id not in at_least_caps | history.promises.broken
        and promised_watts([device for _, device in boards[share.id]])
    }
    return _with_targets(settings, decision, job_watts, boards, shares) if job_watts else decision


def _with_targets(
    settings: AgentSettings,
    decision: CapDecision,
    job_watts: Mapping[str, float],
    boards: Mapping[str, list[tuple[str, DeviceState]]],
    shares: Allocation,
) -> CapDecision:
    """The decision with targets for jobs that promise a power, and room for those that keep it.

    Such a job has its share for every second, and what is left of the budget, since its curve says
    what it draws on average. Until its promise is within that, and where parts of the cluster have
    caps of their own, caps hold it.
    """
    count = sum(len(boards[name]) for name in job_watts)
    left = shares.budget_watts - shares.used_watts if settings.tree is None else 0.0
    followers = set()
    for name, watts in job_watts.items():
        devices, target = boards[name], watts + max(0.0, left) / count
        promised = promised_watts([device for _, device in devices]) or math.inf
        if settings.tree is None and promised <= (1 + _PROMISE_ROUNDING) * target * len(devices):
            followers.add(name)
        for node, device in devices:
            decision.targets.setdefault(node, {})[device.id] = target
            if name in followers:
                decision.caps[node][device.id] = device.most_watts
                decision.clocks[node].pop(device.id, None)
    return replace(decision, followers=frozenset(followers))


def _floor_messages(jobs: Sequence[ClusterJob], shares: Allocation, slack: float) -> list[str]:
    """What jobs get less than their floors, which users and accounts were promised."""
    rows = zip(jobs, shares.performance.tolist(), shares.watts.tolist(), strict=True)
    # A job at its own limit, such as one that is being profiled, is not short of watts.
    running = [
        (job, level)
        for (job, level, watts), is_paused in zip(rows, shares.paused.tolist(), strict=True)
        if not is_paused and watts < job.gpus * (job.limit_watts or math.inf) * (1 - 1e-9)
    ]
    if all(level >= job.floor - _FLOOR_TOLERANCE for job, level in running):
        return []
    below = [job.id for job, level in running if level < (1 - slack) * job.floor - _FLOOR_TOLERANCE]
    if not below:
        return [f"the jobs' floors do not fit: all are lowered, by up to {slack:.0%}"]
    names = ", ".join(below[:_NAMED_JOBS]) + ", …" * (len(below) > _NAMED_JOBS)
    return [f"the jobs' floors do not fit: {len(below)} of {len(jobs)} jobs run below ({names})"]


def _stopped_watts(
    view: ClusterView, boards: Mapping[str, list[tuple[str, DeviceState]]], history: JobHistory
) -> dict[str, float]:
    """Power of one GPU of each suspended job, as measured."""
    return {
        job.id: sum(history.draws.rest_watts(d) for _, d in boards[job.id]) / len(boards[job.id])
        for job in view.jobs
        if job.is_suspended and job.id in boards
    }


def _shares(
    settings: AgentSettings,
    view: ClusterView,
    budget: Budget,
    jobs: Sequence[ClusterJob],
    paused: frozenset[str],
    stopped_watts: Mapping[str, float],
) -> Allocation | None:
    """Shares of all jobs, of which paused ones count as running until they are suspended."""
    resting = [
        pause(job, stopped_watts.get(job.id, job.curve.least_watts))
        for job in jobs
        if job.id in paused
    ]
    running = [job for job in jobs if job.id not in paused]
    least = sum(cap.overhead_watts for cap in budget.caps) + sum(
        job.gpus * job.curve.least_watts for job in [*running, *resting]
    )
    root = budget.caps[0]
    root = replace(root, watts=min(root.watts, max(view.rise_watts, least)))
    budget = Budget((root, *budget.caps[1:]))
    lowered = lower_floors([*running, *resting], budget, settings.floor_slack)
    by_id = {job.id: job for job in lowered}
    try:
        shares = allocate([by_id[job.id] for job in jobs], None, settings.policy, budget=budget)
    except InfeasibleError:
        return None
    return replace(shares, paused=np.array([job.id in paused for job in jobs]))


def _reserved_watts(
    view: ClusterView, busy: set[str], history: JobHistory, *, is_late: bool
) -> dict[str, float]:
    """Power of nodes that is not shared: boards without a job, and nodes out of reach.

    Boards without a job count as they draw, those of a job that others suspended as if it ran.
    Where a new job would be known too late, those of one node, the one with most to gain, count as
    if a job began on them now.
    """
    draws = history.draws
    reserved = dict(view.unreachable_watts)
    starts: dict[str, float] = {}
    for node, devices in view.reachable.items():
        free = [device for device in devices if device.id not in busy]
        reserved[node] = sum(
            draws.least_watts(d) if d.id in view.waiting else draws.rest_watts(d) for d in free
        )
        least = sum(draws.least_watts(device) for device in free)
        starts[node] = max(0.0, least - reserved[node])
    if starts and is_late:
        node = max(starts, key=lambda name: starts[name])
        reserved[node] += starts[node]
    return reserved


def _place_jobs(
    settings: AgentSettings,
    view: ClusterView,
    jobs: list[ClusterJob],
    boards: Mapping[str, list[tuple[str, DeviceState]]],
    reserved: Mapping[str, float],
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
    for node, reserve in reserved.items():
        overhead[node if node in overhead else root] += reserve
    paths = {node: list(_path(node if node in above else root, above)) for node in reserved}
    busy = Counter(part for d in boards.values() for node, _ in d for part in paths[node])
    inside = dict.fromkeys(tree.names, 0.0)
    for name, reserve in overhead.items():
        for part in _path(name, above):
            inside[part] += reserve
    parts = [
        replace(cap, watts=cap.watts - view.corrections.get(cap.name, 0.0)) for cap in tree.caps
    ]
    limits = {cap.name: cap.watts - inside[cap.name] for cap in parts}
    placed = []
    for job in jobs:
        nodes = [node for node, _ in boards[job.id]]
        common = set.intersection(*(set(paths[node]) for node in nodes))
        home = next(part for part in paths[nodes[0]] if part in common)
        split = Counter(p for n in nodes for p in paths[n] if p not in common)
        per_device = [limits[part] / busy[part] for part in split if math.isfinite(limits[part])]
        limit = max(min([job.limit_watts or math.inf, *per_device]), job.curve.least_watts)
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
        for cap in parts
    ]
    whole = view.budget_watts - view.corrections.get(root, 0.0)
    caps[0] = replace(caps[0], watts=min(whole, parts[0].watts))
    return Budget(tuple(caps)), placed


def _path(part: str, above: Mapping[str, str | None]) -> Iterator[str]:
    """A part and all that contain it, smallest first."""
    node: str | None = part
    while node is not None:
        yield node
        node = above[node]


def devices_of(
    job: EngineJob, reachable: Mapping[str, Sequence[DeviceState]]
) -> list[tuple[str, DeviceState]]:
    """GPUs of a job that can be reached."""
    return [
        (node, device)
        for node, indices in job.gpus.items()
        for index, device in enumerate(reachable.get(node, ()))
        if (index in indices or ALL_BOARDS in indices) and device.most_watts > 0
    ]


def _cluster_job(
    job: EngineJob,
    devices: list[tuple[str, DeviceState]],
    settings: AgentSettings,
    history: JobHistory,
    messages: list[str],
) -> ClusterJob:
    """A job as the allocator takes it, by its comment within what users may ask for."""
    least = max(history.draws.least_watts(device) for _, device in devices)
    watts = [d.most_watts * max(1 - settings.most_trim, history.draws.share(d)) for _, d in devices]
    largest = max(least, min(watts))
    curve = history.curve(job)
    if curve is not None:
        curve = curve.above(least)
        limit = max(largest, curve.least_watts)
    else:
        share = history.observed.next_share(job.id)
        messages.append(f"job {job.id} ({job.name}) has no frontier: profiled up to {share:.0%}")
        assumed = (
            ((least, largest), (least / largest, 1.0)) if largest > least else ((largest,), (1.0,))
        )
        curve, limit = PowerCurve(*assumed), max(least, share * largest)
    account = settings.account(job.account)
    wishes, floor, weight = job.preferences, account.floor, account.weight
    try:
        if "tier" in wishes:
            floor = flexibility_floor(wishes["tier"])
        floor = float(wishes.get("floor", floor))
        weight = finite(float(wishes.get("weight", weight)), "weight", minimum=0.0)
        floor = finite(floor, "floor", minimum=0.0)
    except ValueError as error:
        messages.append(f"job {job.id}: {error}; its comment is ignored")
    return ClusterJob(
        id=job.id,
        curve=replace(curve, idle_watts=_idle_watts(devices, history, least)),
        gpus=len(devices),
        weight=min(weight, account.most_weight) * len(devices),
        floor=min(floor, account.most_floor),
        limit_watts=limit,
        credit=history.ledger.credit(job.id),
    )


def _idle_watts(devices: list[tuple[str, DeviceState]], history: JobHistory, least: float) -> float:
    """Power that one of a job's GPUs would draw while it is stopped."""
    rests = [history.draws.usual_rest_watts(device) for _, device in devices]
    watts = [_USUAL_REST * least if rest is None else rest for rest in rests]
    return min(least, sum(watts) / len(watts))
