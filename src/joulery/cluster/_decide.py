"""One decision of the agent: caps of all GPUs from jobs, nodes and a budget, without any I/O."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.cluster._allocate import Allocation, allocate
from joulery.cluster._budget import Budget, Cap
from joulery.cluster._jobs import ClusterJob, PowerCurve, flexibility_floor
from joulery.errors import InfeasibleError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.cluster._history import JobHistory
    from joulery.cluster._nodes import DeviceState
    from joulery.cluster._settings import AgentSettings
    from joulery.cluster._slurm import EngineJob


@dataclass(frozen=True, slots=True)
class CapDecision:
    """Caps of all GPUs, and how they came about.

    Attributes:
        caps: Watts of every reachable GPU, by node and id.
        clocks: Clock to lock on GPUs whose jobs' frontiers were measured under locked clocks: that
            of the point at or above the share, of which the cap holds the watts.
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


def decide(
    settings: AgentSettings,
    budget_watts: float,
    jobs: Sequence[EngineJob],
    reachable: Mapping[str, Sequence[DeviceState]],
    lost: Mapping[str, Sequence[DeviceState]],
    history: JobHistory,
) -> CapDecision:
    """Share a budget of IT power over the jobs on reachable nodes.

    GPUs of lost nodes are those known last; their caps count as used.
    """
    caps = {node: {d.id: d.least_watts for d in devices} for node, devices in reachable.items()}
    messages: list[str] = []
    shared, boards = [], {}
    for job in jobs:
        devices = devices_of(job, reachable)
        if len(devices) < job.gpu_count:
            messages.append(
                f"GPUs of job {job.id} do not answer: {len(devices)} of its "
                f"{job.gpu_count} get their share"
            )
        if devices:
            shared.append(_cluster_job(job, devices, settings, history, messages))
            boards[job.id] = devices
    busy = {(node, device.id) for devices in boards.values() for node, device in devices}
    reserved = {node: sum(d.cap_watts for d in devices) for node, devices in lost.items()}
    reserved |= {
        node: sum(d.least_watts for d in devices if (node, d.id) not in busy)
        for node, devices in reachable.items()
    }
    if not shared:
        need = settings.overhead_watts + sum(reserved.values())
        if short := budget_watts < need:
            messages.append(f"GPUs without a job may draw {need:.6g} W, more than the budget")
        return CapDecision(caps, {}, frozenset(), None, is_short=short, messages=tuple(messages))
    budget, shared = _place_jobs(settings, budget_watts, shared, boards, reserved)
    try:
        shares = allocate(shared, None, settings.policy, budget=budget, may_pause=True)
    except InfeasibleError as error:
        messages.append(error.message)
        return CapDecision(
            caps, {}, frozenset(boards), None, is_short=True, messages=tuple(messages)
        )
    clocks: dict[str, dict[str, float]] = {node: {} for node in caps}
    for share, watts in zip(
        shared, (shares.watts / [j.gpus for j in shared]).tolist(), strict=True
    ):
        hertz = share.curve.clock_for(watts)
        for node, device in boards[share.id]:
            caps[node][device.id] = max(caps[node][device.id], watts)
            if hertz is not None:
                clocks[node][device.id] = hertz
    paused = frozenset(shares.paused_ids)
    return CapDecision(
        caps, clocks, paused, shares, is_short=bool(paused), messages=tuple(messages)
    )


def _place_jobs(
    settings: AgentSettings,
    watts: float,
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
    limits = {cap.name: cap.watts - inside[cap.name] for cap in tree.caps}
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
        for cap in tree.caps
    ]
    caps[0] = replace(caps[0], watts=min(watts, tree.caps[0].watts))
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
        (node, reachable[node][index])
        for node, indices in job.gpus.items()
        for index in indices
        if index < len(reachable.get(node, ())) and reachable[node][index].most_watts > 0
    ]


def _cluster_job(
    job: EngineJob,
    devices: list[tuple[str, DeviceState]],
    settings: AgentSettings,
    history: JobHistory,
    messages: list[str],
) -> ClusterJob:
    """A job as the allocator takes it, by its comment within what users may ask for."""
    least = max(device.least_watts for _, device in devices)
    largest = max(least, min(device.most_watts for _, device in devices))
    curve = history.curve(job)
    if curve is not None:
        curve = curve.above(least)
        limit = max(largest, curve.least_watts)
    else:
        share = history.observed.next_share(job.id)
        messages.append(f"job {job.id} ({job.name}) has no frontier: capped at {share:.0%}")
        assumed = (
            ((least, largest), (least / largest, 1.0)) if largest > least else ((largest,), (1.0,))
        )
        curve, limit = PowerCurve(*assumed), max(least, share * largest)
    wishes, floor, weight = job.preferences, 0.0, 1.0
    try:
        if "tier" in wishes:
            floor = flexibility_floor(wishes["tier"])
        floor = float(wishes.get("floor", floor))
        weight = finite(float(wishes.get("weight", 1.0)), "weight", minimum=0.0)
        floor = finite(floor, "floor", minimum=0.0)
    except ValueError as error:
        messages.append(f"job {job.id}: {error}; its comment is ignored")
    return ClusterJob(
        id=job.id,
        curve=replace(curve, idle_watts=least),
        gpus=len(devices),
        weight=min(weight, settings.most_weight) * len(devices),
        floor=min(floor, settings.most_floor),
        limit_watts=limit,
        credit=history.ledger.credit(job.id),
    )
