"""Read traces of one's own: three small tables, as CSV or Parquet.

``runs``: job, batch_size, epochs (empty where the target was not reached); one row per run.
``power``: gpu, job, batch_size, limit_watts, epoch_seconds, watts.
``jobs``: job, default_batch_size, max_epochs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from joulery.errors import FileError
from joulery.simulate.trace_assembly import EpochMeasurement, Model, Spec, TraceBoard, assembled
from joulery.simulate.trace_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.simulate.trace_rows import Row
    from joulery.simulate.workload import TracedWorkload

_RUN_COLUMNS = ("job", "batch_size", "epochs")
_POWER_COLUMNS = ("gpu", "job", "batch_size", "limit_watts", "epoch_seconds", "watts")
_JOB_COLUMNS = ("job", "default_batch_size", "max_epochs")


def table_path(folder: Path, name: str) -> Path | None:
    """Where the table ``name`` is, as CSV or Parquet; None where it is not."""
    for suffix in (".csv", ".parquet"):
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    return None


def read_own(folder: Path) -> list[TracedWorkload]:
    """The workloads of a folder.

    Raises:
        FileError: A table is missing, damaged, or does not fit the others.
    """
    runs: dict[str, dict[int, list[Row]]] = {}
    for row in read_rows(_required(folder, "runs"), _RUN_COLUMNS):
        sizes = runs.setdefault(row.text("job"), defaultdict(list))
        sizes[row.whole("batch_size")].append(row)
    boards = _boards(_required(folder, "power"))
    specs = {
        row.text("job"): (
            row,
            Spec(math.nan, row.whole("max_epochs"), row.whole("default_batch_size")),
        )
        for row in read_rows(_required(folder, "jobs"), _JOB_COLUMNS)
    }
    workloads = [
        _workload(board, model, runs, specs)
        for board in boards.values()
        for model in sorted(board.figures)
    ]
    _check_all_used(runs, workloads)
    return workloads


def _required(folder: Path, name: str) -> Path:
    path = table_path(folder, name)
    if path is None:
        raise FileError(
            f"{folder} lacks {name}.csv",
            remedy="give summary_train.csv and summary_power_GPU.csv, or runs, power and jobs",
        )
    return path


def _boards(path: Path) -> dict[str, TraceBoard]:
    boards: dict[str, TraceBoard] = {}
    for row in read_rows(path, _POWER_COLUMNS):
        board = boards.setdefault(row.text("gpu"), TraceBoard(row.text("gpu"), path))
        sizes = board.figures.setdefault(Model(row.text("job"), "", ""), {})
        limits = sizes.setdefault(row.whole("batch_size"), {})
        watts = row.number("limit_watts")
        if watts in limits:
            raise row.complaint("limit_watts", "repeats an earlier row", "keep one of the two")
        limits[watts] = EpochMeasurement(row.number("epoch_seconds"), row.number("watts"))
    return boards


def _workload(
    board: TraceBoard,
    model: Model,
    runs: dict[str, dict[int, list[Row]]],
    specs: dict[str, tuple[Row, Spec]],
) -> TracedWorkload:
    if model.dataset not in specs:
        raise FileError(
            f"{board.path}: job {model.dataset!r} is not in the table of jobs",
            remedy="add a row with its default_batch_size and max_epochs",
        )
    if model.dataset not in runs:
        raise FileError(
            f"{board.path}: job {model.dataset!r} has no runs",
            remedy="add its runs to runs.csv, or drop its power data",
        )
    epochs = {
        size: [row.epochs("epochs") for row in rows] for size, rows in runs[model.dataset].items()
    }
    return assembled(board, model, epochs, specs[model.dataset][1])


def _check_all_used(runs: dict[str, dict[int, list[Row]]], workloads: list[TracedWorkload]) -> None:
    used = {(load.dataset, size) for load in workloads for size in load.batch_sizes}
    for job, sizes in runs.items():
        for size, rows in sizes.items():
            if (job, size) not in used:
                raise rows[0].complaint(
                    "batch_size", f"{size} of job {job!r} has no power data", "measure or drop it"
                )
