"""Read a folder of traces: as published with Zeus, or three small tables of one's own.

The tables are CSV or Parquet files. ``runs``: job, batch_size, epochs (empty where the target was
not reached); one row per run. ``power``: gpu, job, batch_size, limit_watts, epoch_seconds, watts.
``jobs``: job, default_batch_size, max_epochs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import FileError, InvalidValueError
from joulery.simulate.traces._assembly import GpuTrace, TracedModel, WorkloadSpec, assemble
from joulery.simulate.traces._rows import read_rows
from joulery.simulate.traces._zeus import TRAIN_FILE, read_zeus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.simulate._workload import TracedWorkload
    from joulery.simulate.traces._rows import TraceRow

_RUN_COLUMNS = ("job", "batch_size", "epochs")
_POWER_COLUMNS = ("gpu", "job", "batch_size", "limit_watts", "epoch_seconds", "watts")
_JOB_COLUMNS = ("job", "default_batch_size", "max_epochs")


@dataclass(frozen=True, slots=True)
class Traces:
    """The content of a folder of traces.

    Attributes:
        workloads: One workload per GPU type and model, in order of GPU and dataset.
        remarks: Notes on what was left out or assumed.
    """

    workloads: tuple[TracedWorkload, ...]
    remarks: tuple[str, ...] = ()

    def select(self, gpus: Sequence[str] = (), datasets: Sequence[str] = ()) -> Traces:
        """Keep only those GPUs and datasets; an empty choice takes all.

        Raises:
            InvalidValueError: One of them is not there.
        """
        _check_known("GPU", gpus, [load.gpu for load in self.workloads])
        _check_known("dataset", datasets, [load.dataset for load in self.workloads])
        kept = tuple(
            load
            for load in self.workloads
            if (not gpus or load.gpu in gpus) and (not datasets or load.dataset in datasets)
        )
        if not kept:
            raise InvalidValueError(
                f"no trace has {', '.join(datasets)} on {', '.join(gpus)}",
                remedy="leave one of the two choices out",
            )
        gone = [f"{load.model} on {load.gpu}:" for load in self.workloads if load not in kept]
        return Traces(kept, tuple(one for one in self.remarks if not one.startswith(tuple(gone))))


def read_traces(folder: Path, specs: Path | None = None) -> Traces:
    """Read every workload of ``folder``.

    Args:
        folder: Folder with ``summary_train.csv`` and ``summary_power_GPU.csv`` (or a folder
            ``zeus`` that has them), or with the tables ``runs``, ``power`` and ``jobs``.
        specs: Table of targets and defaults for the first layout.

    Raises:
        FileError: Something is missing or wrong, named by file, row and column.
    """
    if not folder.is_dir():
        raise FileError(
            f"{folder} is no folder of traces",
            remedy="give a folder with summary_train.csv, or with runs.csv, power.csv and jobs.csv",
        )
    if not (folder / TRAIN_FILE).exists() and (folder / "zeus" / TRAIN_FILE).exists():
        folder = folder / "zeus"
    if (folder / TRAIN_FILE).exists():
        workloads, remarks = read_zeus(folder, specs)
    else:
        workloads, remarks = _read_tables(folder), []
    workloads.sort(key=lambda load: (load.gpu, load.dataset, load.network, load.optimizer))
    remarks += [
        f"{load.model} on {load.gpu}: {load.filled} settings without power data are interpolated "
        "between limits"
        for load in workloads
        if load.filled
    ]
    return Traces(tuple(workloads), tuple(remarks))


def _check_known(kind: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            raise InvalidValueError(
                f"no {kind} {name!r} in the traces",
                remedy=f"choose from {', '.join(dict.fromkeys(known))}",
            )


def _read_tables(folder: Path) -> list[TracedWorkload]:
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
        _table_workload(trace, model, runs, specs)
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


def _table_workload(
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
