"""Make a group trace from a list of jobs that does not say which of them recur."""

from __future__ import annotations

import csv
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import FileError
from joulery.jobs.policies.counter_rng import CounterRng, mix
from joulery.simulate.cluster_groups import Groups

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats

# Jobs of one owner and size whose durations agree within a factor of the square root of two are
# taken to be one job that recurs, dealt out over as many groups as keep each below this size.
_STEPS_PER_DOUBLING = 2.0
_MOST_JOBS = 200
_FEWEST_JOBS = 10
_SECONDS_PER_HOUR = 3600.0
# Hours reach 100 in no sample of a month, seconds pass it at once.
_HOURS_BELOW = 100.0


def generated(path: Path, jobs: int, seed: int = 0) -> Groups:
    """Groups with about ``jobs`` jobs in all.

    Submission times, durations, owners and sizes are those of the trace; which jobs belong
    together is made up, and so is every copy of the trace beyond the first, whose submissions and
    durations are shaken by some per cent.

    Args:
        path: Philly (timestamp, duration, num_gpus, cluster) or PAI (arrival_time, length, cpus).
        jobs: At most this many; fewer by those that found no group.
        seed: Decides what is shaken.

    Raises:
        FileError: The file is missing or neither of the two.
    """
    submit, duration, owner = _jobs(path)
    label = _grouped(submit, duration, owner)
    kept = label >= 0
    submit, duration, label = submit[kept], duration[kept], label[kept]
    copies = max(1, -(-jobs // max(1, len(label))))
    groups = int(label.max()) + 1
    numbers = np.concatenate([label + copy * groups for copy in range(copies)])
    words = CounterRng.of(np.full(1, seed, dtype=np.uint64), np.zeros(1, dtype=np.int64))
    shaken = words.normal(0, 2 * copies * len(label)).reshape(2, copies, len(label))
    shaken[:, 0] = 0.0
    submits = (submit + 600.0 * shaken[0]).ravel()
    durations = (duration * np.exp(0.1 * shaken[1])).ravel()
    # Whole groups in random order, so that few jobs show all kinds of groups.
    luck = mix(np.full(1, seed, dtype=np.uint64), np.arange(copies * groups))
    chosen = np.argsort(luck[numbers], kind="stable")[:jobs]
    remark = (
        f"{path.name}: submissions and durations as traced"
        + (f" and in {copies - 1} shaken copies" if copies > 1 else "")
        + "; which jobs recur together is synthetic (same owner and size, similar duration)"
    )
    return Groups.of(numbers[chosen], submits[chosen], durations[chosen], remark)


def _grouped(submit: Floats, duration: Floats, owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """A group for each job, -1 where too few are alike."""
    step = np.round(_STEPS_PER_DOUBLING * np.log2(duration)).astype(np.int64)
    _, alike, sizes = np.unique(
        np.stack((owner, step)), axis=1, return_inverse=True, return_counts=True
    )
    alike = alike.ravel()
    parts = -(-sizes // _MOST_JOBS)
    offset = np.concatenate(([0], np.cumsum(parts)))[:-1]
    order = np.lexsort((submit, alike))
    rank = np.empty(len(order), dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)))[:-1]
    rank[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    label = offset[alike] + rank % parts[alike]
    label[sizes[alike] < _FEWEST_JOBS] = -1
    kept, renumbered = np.unique(label[label >= 0], return_inverse=True)
    label[label >= 0] = renumbered
    return label if len(kept) else np.zeros_like(label)


def _jobs(path: Path) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Submission and duration in seconds, and a number for the owner and size of each job."""
    remedy = "give philly.csv or an Alibaba PAI sample with arrival_time, length and cpus"
    try:
        with path.open(newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
        if rows and {"timestamp", "duration", "num_gpus", "cluster"} <= set(rows[0]):
            moments = [datetime.fromisoformat(row["timestamp"]) for row in rows]
            start = min(moments)
            submit = np.array([(moment - start).total_seconds() for moment in moments])
            duration = np.array([float(row["duration"]) for row in rows])
            names = [f"{row['cluster']} {row['num_gpus']}" for row in rows]
        elif rows and {"arrival_time", "length", "cpus"} <= set(rows[0]):
            submit = np.array([float(row["arrival_time"]) for row in rows])
            duration = np.array([float(row["length"]) for row in rows])
            names = [row["cpus"] for row in rows]
            if duration.max() < _HOURS_BELOW:
                submit, duration = submit * _SECONDS_PER_HOUR, duration * _SECONDS_PER_HOUR
        else:
            raise FileError(f"{path} is no list of jobs that is known here", remedy=remedy)
    except OSError as refused:
        raise FileError(f"cannot read {path}: {refused.strerror}", remedy=remedy) from None
    except (ValueError, TypeError) as wrong:
        raise FileError(f"{path} does not parse: {wrong}", remedy=remedy) from None
    owner = np.unique(names, return_inverse=True)[1]
    ran = duration > 0
    return submit[ran], duration[ran], owner[ran].astype(np.int64)
