"""Groups of recurring jobs in a cluster: when each job was submitted and how long it ran."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies import CounterRng, mix
from joulery.simulate._traces import read_rows
from joulery.simulate.cluster import read_traced_jobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies import Floats

COLUMNS = ("group", "submit_seconds", "duration_seconds")
# Jobs of one owner and size whose durations agree within a factor of the square root of two are
# taken to be one job that recurs, dealt out over as many groups as keep each below this size.
_STEPS_PER_DOUBLING = 2.0
_MOST_JOBS = 200
_FEWEST_JOBS = 10


@dataclass(frozen=True, slots=True, eq=False)
class JobGroups:
    """Jobs sorted by group, and within a group by submission.

    Attributes:
        first: (groups + 1,), index of each group's first job; the last is the number of jobs.
        submit_seconds: (jobs,), submission time on the cluster's clock.
        duration_seconds: (jobs,), run time in the trace.
        remark: Source of the jobs, in words.
    """

    first: NDArray[np.int64]
    submit_seconds: Floats
    duration_seconds: Floats
    remark: str = ""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def jobs(self) -> int:
        """Number of jobs of all groups."""
        return len(self.submit_seconds)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(groups,), number of jobs of each."""
        return np.diff(self.first)

    @property
    def mean_seconds(self) -> Floats:
        """(groups,), mean duration of each group's jobs."""
        return np.asarray(np.add.reduceat(self.duration_seconds, self.first[:-1]) / self.sizes)

    @property
    def group_of_job(self) -> NDArray[np.int64]:
        """(jobs,), index of each job's group."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @classmethod
    def of(
        cls, group_of_job: NDArray[np.int64], submit: Floats, duration: Floats, remark: str = ""
    ) -> JobGroups:
        """Sort jobs into groups; ``group_of_job`` numbers the groups from 0."""
        order = np.lexsort((submit, group_of_job))
        _, counts = np.unique(group_of_job, return_counts=True)
        first = np.concatenate(([0], np.cumsum(counts)))
        return cls(first, submit[order], duration[order], remark)


def read_groups(path: Path | str) -> JobGroups:
    """Read a group trace.

    Args:
        path: CSV file with the columns ``group`` (any name), ``submit_seconds`` and
            ``duration_seconds``; further columns, such as a job's name, are ignored.

    Raises:
        FileError: The file is missing, empty or wrong, named by row and column.
    """
    path = Path(path)
    rows = read_rows(path, COLUMNS)
    number = {name: n for n, name in enumerate(dict.fromkeys(row.text("group") for row in rows))}
    return JobGroups.of(
        np.array([number[row.text("group")] for row in rows]),
        np.array([row.finite("submit_seconds") for row in rows]),
        np.array([row.positive("duration_seconds") for row in rows]),
        path.name,
    )


def generate_groups(path: Path, jobs: int, seed: int = 0) -> JobGroups:
    """Make groups with about ``jobs`` jobs from a list of jobs that does not say which recur.

    Submission times, durations, owners and sizes are those of the trace; which jobs belong
    together is synthetic, and so is every copy of the trace beyond the first, whose submissions and
    durations are varied by some per cent.

    Args:
        path: Trace of a cluster, such as Philly's (timestamp, duration, num_gpus, cluster) or PAI's
            (arrival_time, length, cpus).
        jobs: Largest number of jobs; there are fewer by those that found no group.
        seed: Seed of what is varied.

    Raises:
        FileError: The file is missing or no known trace.
    """
    rows, _ = read_traced_jobs(path)
    submit = np.array([row.submit for row in rows])
    submit -= submit.min()
    duration = np.array([row.seconds for row in rows])
    owner = np.unique([f"{row.owner} {row.gpus}" for row in rows], return_inverse=True)[1]
    label = _grouped(submit, duration, owner)
    grouped = label >= 0
    submit, duration, label = submit[grouped], duration[grouped], label[grouped]
    copies = max(1, math.ceil(jobs / max(1, len(label))))
    groups = int(label.max()) + 1
    numbers = np.concatenate([label + copy * groups for copy in range(copies)])
    rng = CounterRng.of(np.full(1, seed, dtype=np.uint64), np.zeros(1, dtype=np.int64))
    varied = rng.normal(0, 2 * copies * len(label)).reshape(2, copies, len(label))
    varied[:, 0] = 0.0
    submits = (submit + 600.0 * varied[0]).ravel()
    durations = (duration * np.exp(0.1 * varied[1])).ravel()
    # Whole groups in random order, so that few jobs show all kinds of groups.
    words = mix(np.full(1, seed, dtype=np.uint64), np.arange(copies * groups))
    chosen = np.argsort(words[numbers], kind="stable")[:jobs]
    remark = (
        f"{path.name}: submissions and durations as traced"
        + (f" and in {copies - 1} varied copies" if copies > 1 else "")
        + "; which jobs recur together is synthetic (same owner and size, similar duration)"
    )
    return JobGroups.of(numbers[chosen], submits[chosen], durations[chosen], remark)


def _grouped(submit: Floats, duration: Floats, owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """(jobs,), a group for each job, -1 where too few are alike."""
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
    labels, renumbered = np.unique(label[label >= 0], return_inverse=True)
    label[label >= 0] = renumbered
    return label if len(labels) else np.zeros_like(label)
