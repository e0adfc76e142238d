"""A batch of jobs as arrays, one row per job, which a policy decides for at once.

A server decides for one job, a simulation for thousands of seeds; both run the same code. Rows are
padded to the largest number of batch sizes; ``valid`` masks the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs import Job
    from joulery.jobs.policies._counter_rng import Floats, Seeds


@dataclass(frozen=True, slots=True)
class JobBatch:
    """The constants of each job; shapes are explained in ``joulery.jobs.policies._base``.

    Attributes:
        batch_sizes: (jobs, arms); 1 where padded.
        valid: (jobs, arms); False where padded.
        limits_watts: (jobs, limits), ascending; NaN where padded. One NaN where limits are left
            alone.
        default: (jobs,), arm that the owner would run.
        max_epochs: (jobs,), number of epochs after which a run gives up.
        joule_weight: (jobs,), eta of the cost.
        second_weight: (jobs,), (1 - eta)·MAXPOWER of the cost, in watts.
        seeds: (jobs,), seed of the job's random numbers.
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
        """One row per (job, seed) pair."""
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

    @property
    def octaves(self) -> Floats:
        """(jobs, arms), log2 of each batch size over the default one; 0 where padded."""
        octaves = np.log2(self.batch_sizes)
        default = np.take_along_axis(octaves, self.default[:, None], axis=1)
        return np.where(self.valid, octaves - default, 0.0)


def at_arm(arm: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index of one entry per row, of arrays of (rows, arms, …) or (rows, limits, …)."""
    return np.arange(len(arm)), arm
