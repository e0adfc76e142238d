"""Zeus's own simulator on the same workloads: is our ``zeus`` the same algorithm?

Two answers. Every decision that Zeus made while exploring, where nothing is left to chance, is
compared with what our policy decides after the same history. And the regrets of both are compared;
for that, attempts that reached the target count at their expected cost in both, which takes most
of the chance out.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import PEER_PYTHON, say, work

from joulery.jobs.policies import ActionKind, CounterRng, JobBatch, Outcomes, RunEnd, ZeusPolicy
from joulery.simulate import SimulationConfig, horizon, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.simulate import SimulationLog, TracedWorkload

WORKER = Path(__file__).with_name("recurring_worker.py")
PROCESSES = os.cpu_count() or 1
ETA = 0.5
# Recurrences of Zeus per workload: its short workloads get more seeds.
QUICK, FULL = 200, 10_000
# How close both must be; where chance leaves that open, Zeus gets more seeds.
TOLERANCE, MOST = 0.03, 150_000
BLOCK = 25


def compared_with_peer(
    loads: Sequence[TracedWorkload], our_seeds: int, *, quick: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Our ``zeus`` next to Zeus's own simulator, one row per workload, and what Zeus did."""
    peer: list[dict[str, Any]] = [{"runs": [], "seconds": 0.0} for _ in loads]
    if not PEER_PYTHON.exists():
        say("Zeus is not installed (`make bench` does that): its columns stay empty")
        return agreement(loads, peer, our_seeds), peer
    first = [range(max(1, (QUICK if quick else FULL) // horizon(load))) for load in loads]
    _peer_runs(loads, peer, first)
    rows = agreement(loads, peer, our_seeds)
    if not quick:
        _peer_runs(loads, peer, [_more(*each) for each in zip(loads, rows, strict=True)])
        rows = agreement(loads, peer, our_seeds)
    return rows, peer


def _more(load: TracedWorkload, row: dict[str, Any]) -> range:
    """Further seeds of a workload whose agreement is left open by chance."""
    seeds = row.get("peer_seeds", 0)
    if not seeds or abs(row["ratio"] - 1) + row["ratio_error"] <= TOLERANCE:
        return range(0)
    needed = seeds * (row["ratio_error"] / (TOLERANCE / 4)) ** 2
    return range(seeds, int(min(needed, MOST / horizon(load))))


def _peer_runs(
    loads: Sequence[TracedWorkload], peer: list[dict[str, Any]], seeds: Sequence[range]
) -> None:
    """Add every attempt of Zeus's simulator, and its CPU seconds, to ``peer``."""
    tasks = [
        (position, _task(load, list(wanted[at : at + BLOCK])))
        for position, (load, wanted) in enumerate(zip(loads, seeds, strict=True))
        for at in range(0, len(wanted), BLOCK)
    ]
    # Starting Zeus takes longer than a seed: few processes, many tasks each.
    count = PROCESSES * (8 if len(tasks) > 8 * PROCESSES else 1)
    shares = [share for at in range(count) if (share := tasks[at::count])]
    with ThreadPoolExecutor(PROCESSES) as pool:
        answers = list(pool.map(_share, shares))
    for share, found in zip(shares, answers, strict=True):
        for (position, _), answer in zip(share, found, strict=True):
            peer[position]["runs"] += answer.get("runs", [])
            peer[position]["seconds"] += answer.get("seconds", 0.0)
            if "failed" in answer:
                peer[position]["failed"] = answer["failed"]


def _share(share: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    answers = work(WORKER, dict(os.environ), [task for _, task in share])
    names = ", ".join(sorted({f"{task['dataset']} on {task['gpu']}" for _, task in share}))
    say(f"Zeus's simulator: {names}")
    return answers


def _task(load: TracedWorkload, seeds: list[int]) -> dict[str, Any]:
    runs = load.runs.astype(int)
    train = [
        [size, None if math.isnan(epochs) else epochs]
        for arm, size in enumerate(load.batch_sizes)
        for epochs in load.epochs[arm, : runs[arm]].tolist()
    ]
    power = [
        [size, watts, load.epoch_seconds[arm, limit].item(), load.watts[arm, limit].item()]
        for arm, size in enumerate(load.batch_sizes)
        for limit, watts in enumerate(load.limits_watts.tolist())
    ]
    return {
        "train": train,
        "power": power,
        "gpu": load.gpu,
        "dataset": load.dataset,
        "network": load.network or "net",
        "optimizer": load.optimizer or "adam",
        "max_epochs": load.max_epochs,
        "default": load.default,
        "recurrences": horizon(load),
        "eta": ETA,
        "seeds": seeds,
    }


def agreement(
    loads: Sequence[TracedWorkload], peer: list[dict[str, Any]], seeds: int
) -> list[dict[str, Any]]:
    """Our ``zeus`` next to Zeus's own simulator, one row per workload."""
    log = simulate(
        loads, ZeusPolicy(), None, range(seeds), SimulationConfig(eta=ETA, keep_actions=True)
    )
    rows = []
    for load, answer, (real, smooth) in zip(loads, peer, _our_regret(log), strict=True):
        row = {"gpu": load.gpu, "dataset": load.dataset, "ours": float(real.mean())}
        if answer["runs"]:
            theirs, their_smooth = _peer_regret(load, answer["runs"])
            made, same = _same_decisions(load, answer["runs"])
            row |= {
                "peer": float(theirs.mean()),
                "peer_seeds": len(theirs),
                "ratio": float(smooth.mean() / their_smooth.mean()),
                "ratio_error": math.hypot(_relative(smooth), _relative(their_smooth)),
                "exploring_decisions": made,
                "exploring_decisions_same": same,
            }
        rows.append(row)
    return rows


def _relative(values: Any) -> float:
    """Relative standard error of the mean; infinite from a single value."""
    if len(values) < 2:
        return math.inf
    return float(values.std(ddof=1) / math.sqrt(len(values)) / abs(values.mean()))


def _cost(load: TracedWorkload, joules: float, seconds: float) -> float:
    return ETA * joules + (1 - ETA) * load.max_watts * seconds


def _peer_regret(load: TracedWorkload, runs: list[Any]) -> tuple[Any, Any]:
    """Regret per seed as it happened, and with reached attempts at their expected cost."""
    best = load.optimum(ETA)[2]
    expected = load.expected_cost(ETA)
    arms = {size: arm for arm, size in enumerate(load.batch_sizes)}
    limits = {watts: at for at, watts in enumerate(load.limits_watts.tolist())}
    real, smooth = [], []
    for run in runs:
        costs = [_cost(load, joules, seconds) for _, _, joules, seconds, _ in run]
        even = [
            expected[arms[size], limits[limit]] if reached else cost
            for (size, limit, _, _, reached), cost in zip(run, costs, strict=True)
        ]
        real.append(sum(costs) / best - horizon(load))
        smooth.append(sum(even) / best - horizon(load))
    return np.array(real), np.array(smooth)


def _our_regret(log: SimulationLog) -> list[tuple[Any, Any]]:
    """The same two figures of our ``zeus``, per workload."""
    actions = log.actions
    assert actions is not None
    even = actions.cost.copy()
    for position, load in enumerate(log.workloads):
        rows = (log.workload_of[actions.job] == position) & (actions.end == RunEnd.REACHED)
        even[rows] = load.expected_cost(ETA)[actions.arm[rows], actions.limit[rows]]
    total = np.zeros(len(log.seeds))
    np.add.at(total, actions.job, even)
    real = log.final_regret()
    smooth = total / log.optimal[:, 0] - log.recurrences
    parts = [log.workload_of == position for position in range(len(log.workloads))]
    return [(real[rows], smooth[rows]) for rows in parts]


def _same_decisions(load: TracedWorkload, runs: list[Any]) -> tuple[int, int]:
    """Exploring decisions of Zeus, and how many of them our policy makes after its history."""
    policy = ZeusPolicy()
    jobs = JobBatch.of([load.job(ETA)] * len(runs), list(range(len(runs))))
    beliefs = policy.start(jobs)
    recurrence = np.zeros(len(runs), dtype=np.int64)
    made = same = 0
    for number in range(max(map(len, runs))):
        rows = np.array([row for row, run in enumerate(runs) if len(run) > number])
        entries = [runs[row][number] for row in rows]
        arm = np.array([load.batch_sizes.index(entry[0]) for entry in entries])
        actions = policy.decide(beliefs, rows, CounterRng.of(jobs.seeds[rows], rows))
        exploring = ~beliefs.exploration.over[rows]
        made += int(exploring.sum())
        same += int((exploring & (actions.arm == arm)).sum())
        policy.begin(beliefs, rows, actions)
        reached = np.array([entry[4] for entry in entries])
        policy.learn(beliefs, _outcomes(load, rows, recurrence[rows], arm, entries))
        recurrence[rows] += reached
        if beliefs.exploration.over.all():
            break
    return made, same


def _outcomes(
    load: TracedWorkload, rows: Any, recurrence: Any, arm: Any, entries: list[Any]
) -> Outcomes:
    unknown = np.full((len(rows), len(load.limits_watts)), np.nan)
    return Outcomes(
        job=rows,
        recurrence=recurrence,
        kind=np.full(len(rows), ActionKind.TRAIN),
        arm=arm,
        limit=np.full(len(rows), -1),
        end=np.array([RunEnd.REACHED if entry[4] else RunEnd.STOPPED for entry in entries]),
        epochs=np.ones(len(rows)),
        seconds=np.array([entry[3] for entry in entries]),
        joules=np.array([entry[2] for entry in entries]),
        cost=np.array([_cost(load, entry[2], entry[3]) for entry in entries]),
        epoch_seconds=unknown,
        epoch_joules=unknown,
        relative_error=unknown,
    )
