"""Match groups of jobs to workloads by their run time (You et al., NSDI'23, §6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.cluster_groups import Groups
    from joulery.simulate.workload import TracedWorkload

_MOST_TURNS = 300


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Which workload each group stands for.

    Attributes:
        workload: (groups,), position of the group's workload.
        ratio: (jobs,), the job's duration over the mean duration of its cluster's jobs.
    """

    workload: NDArray[np.int64]
    ratio: Floats


def matched(groups: Groups, workloads: Sequence[TracedWorkload]) -> Match:
    """Cluster the groups by mean run time, and give the longest cluster the longest workload.

    Raises:
        InvalidValueError: There are fewer groups than workloads.
    """
    if len(groups) < len(workloads):
        raise InvalidValueError(
            f"{len(groups)} groups cannot be matched to {len(workloads)} workloads",
            remedy="give at least as many groups as there are workloads, or choose fewer of these",
        )
    # Group means span five orders of magnitude: on plain seconds nearly all jobs would fall into
    # the shortest cluster, and the longest would be one or two groups.
    cluster = k_means(np.log(groups.mean_seconds), len(workloads))
    by_time = np.argsort([default_seconds(load) for load in workloads], kind="stable")
    of_job = cluster[groups.group_of_job]
    counts = np.bincount(of_job, minlength=len(workloads))
    sums = np.bincount(of_job, groups.duration_seconds, minlength=len(workloads))
    mean = sums / np.maximum(counts, 1)
    return Match(by_time[cluster], groups.duration_seconds / mean[of_job])


def default_seconds(load: TracedWorkload) -> float:
    """Expected time to accuracy with the default setting."""
    arm, limit = load.default_setting()
    return float(load.mean_epochs()[arm] * load.epoch_seconds[arm, limit])


def k_means(values: Floats, clusters: int) -> NDArray[np.int64]:
    """Lloyd's algorithm on one dimension: the cluster of each value, numbered from the least.

    It starts from the quantiles' middles, so that the result does not depend on chance.
    """
    ordered = np.sort(values)
    pieces = np.array_split(ordered, clusters)
    centres = np.array([piece.mean() for piece in pieces])
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    bounds = np.zeros(clusters + 1, dtype=np.int64)
    for _ in range(_MOST_TURNS):
        middles = (centres[1:] + centres[:-1]) / 2
        found = np.concatenate(([0], np.searchsorted(ordered, middles), [len(ordered)]))
        if np.array_equal(found, bounds):
            break
        bounds = found
        sizes = np.diff(bounds)
        means = np.diff(sums[bounds]) / np.maximum(sizes, 1)
        centres = np.sort(np.where(sizes > 0, means, centres))
    return np.searchsorted((centres[1:] + centres[:-1]) / 2, values, side="right")
