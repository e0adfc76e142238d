"""Groups of recurring jobs in a cluster: when each job was submitted and how long it ran."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats

COLUMNS = ("group", "submit_seconds", "duration_seconds")
_REMEDY = f"give a CSV file with the columns {', '.join(COLUMNS)}"


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Jobs sorted by group, and within a group by submission.

    Attributes:
        names: (groups,), of the groups.
        first: (groups + 1,), where the jobs of each group begin; the last is the number of jobs.
        submit_seconds: (jobs,), on the cluster's clock.
        duration_seconds: (jobs,), as the job ran in the trace.
        remark: Where the jobs come from, in words.
    """

    names: tuple[str, ...]
    first: NDArray[np.int64]
    submit_seconds: Floats
    duration_seconds: Floats
    remark: str = ""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def jobs(self) -> int:
        """How many jobs all groups have."""
        return len(self.submit_seconds)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(groups,), jobs of each."""
        return np.diff(self.first)

    @property
    def mean_seconds(self) -> Floats:
        """(groups,), mean duration of each group's jobs."""
        return np.asarray(np.add.reduceat(self.duration_seconds, self.first[:-1]) / self.sizes)

    @property
    def group_of_job(self) -> NDArray[np.int64]:
        """(jobs,), position of each job's group."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def overlapping(self) -> float:
        """Share of the jobs that were submitted before an earlier one of their group had ended."""
        ends = self.submit_seconds + self.duration_seconds
        overlaps = 0
        for begin, end in zip(self.first[:-1], self.first[1:], strict=True):
            latest = np.maximum.accumulate(ends[begin : end - 1])
            overlaps += int((self.submit_seconds[begin + 1 : end] < latest).sum())
        return overlaps / self.jobs

    @classmethod
    def of(
        cls, group_of_job: NDArray[np.int64], submit: Floats, duration: Floats, remark: str = ""
    ) -> Groups:
        """Sort jobs into groups; ``group_of_job`` numbers the groups from 0."""
        order = np.lexsort((submit, group_of_job))
        labels, counts = np.unique(group_of_job, return_counts=True)
        first = np.concatenate(([0], np.cumsum(counts)))
        names = tuple(f"g{label}" for label in labels.tolist())
        return cls(names, first, submit[order], duration[order], remark)


def read_groups(path: Path) -> Groups:
    """Read a group trace.

    Args:
        path: CSV with the columns ``group`` (any name), ``submit_seconds`` and
            ``duration_seconds``; further columns, such as a job's name, are ignored.

    Raises:
        FileError: The file is missing, empty or wrong, named by row and column.
    """
    numbers: dict[str, int] = {}
    labels, submits, durations = [], [], []
    for group, submit, duration in _rows(path):
        labels.append(numbers.setdefault(group, len(numbers)))
        submits.append(submit)
        durations.append(duration)
    if not labels:
        raise FileError(f"{path} has no jobs", remedy=_REMEDY)
    groups = Groups.of(np.array(labels), np.array(submits), np.array(durations), f"{path.name}")
    return Groups(
        tuple(numbers), groups.first, groups.submit_seconds, groups.duration_seconds, groups.remark
    )


def _rows(path: Path) -> Iterator[tuple[str, float, float]]:
    try:
        with path.open(newline="", encoding="utf-8") as opened:
            reader = csv.reader(opened)
            header = next(reader, [])
            missing = [column for column in COLUMNS if column not in header]
            if missing:
                raise FileError(
                    f"{path} lacks the column {missing[0]!r} in its first line", remedy=_REMEDY
                )
            places = [header.index(column) for column in COLUMNS]
            for number, row in enumerate(reader, start=2):
                if row:
                    yield _job(path, number, row, places)
    except OSError as refused:
        raise FileError(f"cannot read {path}: {refused.strerror}", remedy=_REMEDY) from None
    except (UnicodeDecodeError, csv.Error):
        raise FileError(f"{path} is no CSV text", remedy=_REMEDY) from None


def _job(path: Path, number: int, row: list[str], places: list[int]) -> tuple[str, float, float]:
    if len(row) <= max(places):
        raise FileError(f"{path}, row {number} has too few columns", remedy=_REMEDY)
    submit = _number(path, number, row[places[1]], COLUMNS[1])
    duration = _number(path, number, row[places[2]], COLUMNS[2])
    if duration <= 0:
        raise FileError(
            f"{path}, row {number}: duration_seconds must be above 0, not {duration:g}",
            remedy="leave out jobs that did not run",
        )
    return row[places[0]], submit, duration


def _number(path: Path, number: int, text: str, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FileError(
            f"{path}, row {number}: {column} {text!r} is no finite number",
            remedy="give seconds as plain numbers",
        )
    return value
