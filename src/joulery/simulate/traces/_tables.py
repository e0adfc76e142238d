"""The layout of three small tables, as CSV or Parquet, for traces of one's own.

``runs``: job, batch_size, epochs (empty where the target was not reached); one row per run.
``power``: gpu, job, batch_size, limit_watts, epoch_seconds, watts.
``jobs``: job, default_batch_size, max_epochs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from joulery.errors import FileError
from joulery.simulate.traces._assembly import GpuTrace, TracedModel, WorkloadSpec, assemble
from joulery.simulate.traces._rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.simulate._workload import TracedWorkload
    from joulery.simulate.traces._rows import TraceRow

_RUN_COLUMNS = ("job", "batch_size", "epochs")
_POWER_COLUMNS = ("gpu", "job", "batch_size", "limit_watts", "epoch_seconds", "watts")
_JOB_COLUMNS = ("job", "default_batch_size", "max_epochs")


def read_tables(folder: Path) -> list[TracedWorkload]:
    """Read the workloads of a folder.

    Raises:
        FileError: A table is missing, damaged, or does not fit the others.
    """
    runs: dict[str, dict[int, list[TraceRow]]] = {}
    for row in read_rows(_required(folder, "runs"), _RUN_COLUMNS):
        sizes = runs.setdefault(row.text("job"), defaultdict(list))
        sizes[row.whole("batch_size")].append(row)
    traces = _gpu_traces(_required(folder, "power"))
    specs = {
        row.text("job"): WorkloadSpec(
            math.nan, row.whole("max_epochs"), row.whole("default_batch_size")
        )
        for row in read_rows(_required(folder, "jobs"), _JOB_COLUMNS)
    }
    workloads = [
        _workload(trace, model, runs, specs)
        for trace in traces.values()
        for model in sorted(trace.figures)
    ]
    _check_all_used(runs, workloads)
    return workloads


def _required(folder: Path, name: str) -> Path:
    """The path of the table ``name``, as CSV or Parquet."""
    for suffix in (".csv", ".parquet"):
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    raise FileError(
        f"{folder} lacks {name}.csv",
        remedy="give summary_train.csv and summary_power_GPU.csv, or runs, power and jobs",
    )


def _gpu_traces(path: Path) -> dict[str, GpuTrace]:
    traces: dict[str, GpuTrace] = {}
    for row in read_rows(path, _POWER_COLUMNS):
        trace = traces.setdefault(row.text("gpu"), GpuTrace(row.text("gpu"), path))
        trace.add(TracedModel(row.text("job"), "", ""), row, _POWER_COLUMNS[3:])
    return traces


def _workload(
    trace: GpuTrace,
    model: TracedModel,
    runs: dict[str, dict[int, list[TraceRow]]],
    specs: dict[str, WorkloadSpec],
) -> TracedWorkload:
    if model.dataset not in specs:
        raise FileError(
            f"{trace.path}: job {model.dataset!r} is not in the table of jobs",
            remedy="add a row with its default_batch_size and max_epochs",
        )
    if model.dataset not in runs:
        raise FileError(
            f"{trace.path}: job {model.dataset!r} has no runs",
            remedy="add its runs to runs.csv, or drop its power data",
        )
    epochs = {
        size: [row.epochs("epochs") for row in rows] for size, rows in runs[model.dataset].items()
    }
    return assemble(trace, model, epochs, specs[model.dataset])


def _check_all_used(
    runs: dict[str, dict[int, list[TraceRow]]], workloads: list[TracedWorkload]
) -> None:
    used = {(load.dataset, size) for load in workloads for size in load.batch_sizes}
    for job, sizes in runs.items():
        for size, rows in sizes.items():
            if (job, size) not in used:
                raise rows[0].error(
                    "batch_size", f"{size} of job {job!r} has no power data", "measure or drop it"
                )
