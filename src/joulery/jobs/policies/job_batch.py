"""Jobs side by side: the arrays that a policy decides on, one row (lane) per job.

A server decides for one lane or a handful, a simulation for thousands of seeds at once; both run
the same code. Rows are padded to the largest number of batch sizes; ``valid`` masks the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs.job import Job
    from joulery.jobs.policies.counter_rng import Floats, Seeds

    Rows = slice | NDArray[np.int64]
    Places = tuple[slice | NDArray[np.int64], int | NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class JobBatch:
    """What does not change over the recurrences of each job.

    ``Arm`` is the position of a batch size in a job's sorted set, ``limit`` that of a power limit
    in its sorted list.

    Attributes:
        batch_sizes: (lanes, arms); 1 where padded.
        valid: (lanes, arms); False where padded.
        limits_watts: (lanes, limits), ascending; NaN where padded. One NaN where limits are left
            alone.
        default: (lanes,), arm that the user would run.
        max_epochs: (lanes,), after which a run gives up.
        joule_weight: (lanes,), eta of the cost.
        second_weight: (lanes,), (1 - eta)·MAXPOWER of the cost, in watts.
        seeds: (lanes,), what random draws are keyed by.
    """

    batch_sizes: Floats
    valid: NDArray[np.bool_]
    limits_watts: Floats
    default: NDArray[np.int64]
    max_epochs: Floats
    joule_weight: Floats
    second_weight: Floats
    seeds: Seeds

    def __len__(self) -> int:
        return len(self.default)

    @classmethod
    def of(cls, jobs: Sequence[Job], seeds: Sequence[int]) -> JobBatch:
        """One lane per (job, seed) pair."""
        arms = max(len(job.batch_sizes) for job in jobs)
        limits = max(1, *(len(job.limits_watts) for job in jobs))
        shape = (len(jobs), arms)
        batch_sizes = np.ones(shape)
        valid = np.zeros(shape, dtype=bool)
        limits_watts = np.full((len(jobs), limits), np.nan)
        for row, job in enumerate(jobs):
            batch_sizes[row, : len(job.batch_sizes)] = job.batch_sizes
            valid[row, : len(job.batch_sizes)] = True
            limits_watts[row, : len(job.limits_watts)] = job.limits_watts
        return cls(
            batch_sizes=batch_sizes,
            valid=valid,
            limits_watts=limits_watts,
            default=np.array([job.batch_sizes.index(job.default) for job in jobs]),
            max_epochs=np.array([float(job.max_epochs) for job in jobs]),
            joule_weight=np.array([job.cost.eta for job in jobs]),
            second_weight=np.array([(1 - job.cost.eta) * job.cost.max_watts for job in jobs]),
            seeds=np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64),
        )

    def cost(self, seconds: Floats, joules: Floats) -> Floats:
        """The running cost in joules (You et al., NSDI'23, Eq. 2); leading axis is the lane."""
        tail = (slice(None),) + (None,) * (seconds.ndim - 1)
        return np.asarray(self.joule_weight[tail] * joules + self.second_weight[tail] * seconds)


def rows_of(lane: NDArray[np.int64]) -> Rows:
    """``lane`` as an index of arrays whose first axis is the lane.

    A single one becomes a slice: the same figures in the same shape, but a view that costs a tenth
    of a look-up by array. A server decides for one lane at a time.
    """
    if len(lane) != 1:
        return lane
    only = int(lane[0])
    return slice(only, only + 1)


def places_of(lane: NDArray[np.int64], arm: NDArray[np.int64]) -> Places:
    """An index of one arm per lane, ``lane`` and ``arm`` side by side; see :func:`rows_of`."""
    if len(lane) != 1:
        return lane, arm
    only = int(lane[0])
    return slice(only, only + 1), int(arm[0])


def own_places(arm: NDArray[np.int64]) -> Places:
    """An index of one arm per row, of arrays that hold these rows only."""
    if len(arm) != 1:
        return np.arange(len(arm)), arm
    return slice(0, 1), int(arm[0])


def only(mask: NDArray[np.bool_], *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The entries of each array where ``mask`` is true; the arrays themselves where it all is."""
    if np.count_nonzero(mask) == len(mask):
        return arrays
    return tuple(array[mask] for array in arrays)


def single(*arrays: NDArray[Any]) -> tuple[Any, ...]:
    """Of arrays of one entry the entries, arrays of more as they are.

    The same sums can be done on either, bit for bit; on a number they cost a tenth.
    """
    if len(arrays[0]) != 1:
        return arrays
    return tuple(array[0] for array in arrays)
