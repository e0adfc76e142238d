"""Read a folder of traces, which becomes workloads to simulate.

Either as published with Zeus (You et al., NSDI'23): ``summary_train.csv`` has the epoch in which
each run reached each value of the validation metric, ``summary_power_GPU.csv`` the seconds and
watts of an epoch at each batch size and power limit. An optional ``workloads.csv`` states
``dataset, target_metric, default_batch_size, max_epochs`` of workloads other than the published
six, or other values for those.

Or three tables of one's own, CSV or Parquet. ``runs``: job, batch_size, epochs (empty where the
target was not reached); one row per run. ``power``: gpu, job, batch_size, limit_watts,
epoch_seconds, watts. ``jobs``: job, default_batch_size, max_epochs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.errors import FileError, InvalidValueError
from joulery.grid import read_table
from joulery.simulate._workload import TracedWorkload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.jobs.policies import Floats

_TRAIN_FILE, _POWER_FILES = "summary_train.csv", "summary_power_*.csv"
_MODEL = ("dataset", "network", "optimizer")
# The line of a table's first row of figures: below the header.
_FIRST_LINE = 2
_NOT_REACHED = ("", "nan", "none", "null", "inf")


@dataclass(frozen=True, slots=True)
class Traces:
    """The content of a folder of traces.

    Attributes:
        workloads: One workload per GPU type and model, in order of GPU and dataset.
    """

    workloads: tuple[TracedWorkload, ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on what was left out or assumed."""
        return tuple(dict.fromkeys(remark for load in self.workloads for remark in load.remarks))

    def select(self, gpus: Sequence[str] = (), datasets: Sequence[str] = ()) -> Traces:
        """Keep only those GPUs and datasets; an empty choice takes all.

        Raises:
            InvalidValueError: One of them is not there.
        """
        _check_known("GPU", gpus, [load.gpu for load in self.workloads])
        _check_known("dataset", datasets, [load.dataset for load in self.workloads])
        workloads = tuple(
            load
            for load in self.workloads
            if (not gpus or load.gpu in gpus) and (not datasets or load.dataset in datasets)
        )
        if not workloads:
            raise InvalidValueError(
                f"no trace has {', '.join(datasets)} on {', '.join(gpus)}",
                remedy="leave one of the two choices out",
            )
        return Traces(workloads)


def _check_known(kind: str, names: Sequence[str], available: Sequence[str]) -> None:
    for name in names:
        if name not in available:
            raise InvalidValueError(
                f"no {kind} {name!r} in the traces",
                remedy=f"choose from {', '.join(dict.fromkeys(available))}",
            )


def read_traces(folder: Path | str) -> Traces:
    """Read every workload of ``folder``.

    Args:
        folder: Folder with ``summary_train.csv`` and ``summary_power_GPU.csv`` (or a folder
            ``zeus`` that has them), or with the tables ``runs``, ``power`` and ``jobs``.

    Raises:
        FileError: Something is missing or wrong, named by file, row and column.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(
            f"{folder} is no folder of traces",
            remedy="give a folder with summary_train.csv, or with runs.csv, power.csv and jobs.csv",
        )
    if not (folder / _TRAIN_FILE).exists() and (folder / "zeus" / _TRAIN_FILE).exists():
        folder = folder / "zeus"
    published = (folder / _TRAIN_FILE).exists()
    workloads = _read_published(folder) if published else _read_own(folder)
    workloads.sort(key=lambda load: (load.gpu, load.dataset, load.network, load.optimizer))
    return Traces(tuple(workloads))


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row of a file, whose cells are checked as they are read.

    Attributes:
        path: Path of the file.
        line: Number of the line, counted from 1, the header included.
        cells: Cells by column.
    """

    path: Path
    line: int
    cells: dict[str, Any]

    def text(self, column: str) -> str:
        """The text of a cell that is not empty."""
        value = self.cells.get(column)
        if value is None or not str(value).strip():
            raise self.error(column, "is empty", "fill it in, or leave the row out")
        return str(value).strip()

    def finite(self, column: str) -> float:
        """A finite number of any sign."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"is no number: {text!r}") from None
        if not math.isfinite(value):
            raise self.error(column, f"must be finite, not {value}")
        return value

    def positive(self, column: str) -> float:
        """A positive, finite number."""
        value = self.finite(column)
        if value <= 0:
            raise self.error(column, f"must be positive, not {value:g}")
        return value

    def whole(self, column: str) -> int:
        """A positive whole number."""
        value = self.positive(column)
        if value != int(value):
            raise self.error(column, f"must be whole, not {value:g}")
        return int(value)

    def epochs(self, column: str) -> float:
        """A positive number of epochs, or NaN where the cell says that there is none."""
        value = self.cells.get(column)
        if value is None or str(value).strip().lower() in _NOT_REACHED:
            return math.nan
        return self.positive(column)

    def error(self, column: str, wrong: str, remedy: str = "correct or drop the row") -> FileError:
        """An error that names this row and ``column``."""
        return FileError(f"{self.path}, row {self.line}: {column} {wrong}", remedy=remedy)


def read_rows(path: Path, columns: Sequence[str]) -> list[TraceRow]:
    """All rows of a CSV or Parquet file that has at least ``columns``.

    Raises:
        FileError: The file cannot be read, lacks a column, or has no rows.
        MissingExtraError: It is a Parquet file and pyarrow is not installed.
    """
    header, records = read_table(path)
    for column in columns:
        if column not in header:
            raise FileError(
                f"{path}, row 1: column {column} is missing",
                remedy=f"the columns are {', '.join(columns)}",
            )
    if not records:
        raise FileError(f"{path} has no rows", remedy=f"its columns are {', '.join(columns)}")
    return [TraceRow(path, line, record) for line, record in enumerate(records, _FIRST_LINE)]


class _Model(NamedTuple):
    """A model by dataset, network and optimizer; in tables of one's own, a job."""

    dataset: str
    network: str = ""
    optimizer: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, self))


# Epochs to the target of each run, NaN for runs that did not reach it, by batch size.
_Runs = dict[int, list[float]]
# Seconds and watts of an epoch, by batch size and limit in watts.
_Power = dict[int, dict[float, tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class _Spec:
    """Target and default of a workload, as its owner states them.

    Attributes:
        target: Validation metric to reach; NaN where the trace states epochs only.
        max_epochs: Number of epochs after which a run gives up.
        default: Batch size to run without optimisation; None for the largest that always reaches
            the target.
        strict: Whether a default without data is an error, instead of taking that largest.
        remark: Note on what was assumed.
    """

    target: float
    max_epochs: int
    default: int | None = None
    strict: bool = True
    remark: str = ""


# Default batch size and target of each workload: You et al., NSDI'23, Table 1. Largest number of
# epochs: the paper's artifact. A GPU's trace may lack the default (too little memory).
_PUBLISHED = {
    "librispeech": _Spec(40.0, 16, 192, strict=False),
    "squad": _Spec(84.0, 6, 32, strict=False),
    "sentiment140": _Spec(0.84, 10, 128, strict=False),
    "imagenet": _Spec(0.65, 100, 256, strict=False),
    "cifar100": _Spec(0.60, 100, 1024, strict=False),
    "movielens-1m": _Spec(0.41, 100, 1024, strict=False),
}


def _read_published(folder: Path) -> list[TracedWorkload]:
    """Workloads of traces laid out as Zeus's."""
    runs = _read_targets(folder / _TRAIN_FILE)
    paths = sorted(folder.glob(_POWER_FILES))
    if not paths:
        raise FileError(
            f"{folder} has no {_POWER_FILES}", remedy="put one file per GPU type next to the runs"
        )
    specs = _PUBLISHED | _read_specs(folder)
    workloads = []
    for gpu in map(_read_gpu, paths):
        for model in sorted(set(gpu.power) & set(runs)):
            spec = specs.get(model.dataset) or _guessed(model, runs[model])
            if spec.target not in runs[model]:
                raise FileError(
                    f"{folder / _TRAIN_FILE}: column target_metric has no {spec.target:g} "
                    f"for {model}",
                    remedy=f"its targets are {', '.join(f'{m:g}' for m in sorted(runs[model]))}",
                )
            workloads.append(gpu.workload(model, runs[model][spec.target], spec))
    if not workloads:
        raise FileError(
            f"{folder}: no dataset, network and optimizer is in both kinds of files",
            remedy="see that the names in summary_train and summary_power agree",
        )
    return workloads


def _read_gpu(path: Path) -> _Gpu:
    gpu = _Gpu(path.stem.removeprefix("summary_power_"), path)
    columns = ("power_limit", "time_per_epoch", "average_power")
    for row in read_rows(path, (*_MODEL, "batch_size", *columns)):
        gpu.add(_Model(*(row.text(column) for column in _MODEL)), row, columns)
    return gpu


def _read_targets(path: Path) -> dict[_Model, dict[float, _Runs]]:
    """Runs by model and target."""
    runs: dict[_Model, dict[float, _Runs]] = {}
    for row in read_rows(path, (*_MODEL, "batch_size", "target_metric", "target_epoch")):
        targets = runs.setdefault(_Model(*(row.text(column) for column in _MODEL)), {})
        sizes = targets.setdefault(row.finite("target_metric"), defaultdict(list))
        sizes[row.whole("batch_size")].append(row.epochs("target_epoch"))
    return runs


def _read_specs(folder: Path) -> dict[str, _Spec]:
    path = folder / "workloads.csv"
    if not path.exists():
        return {}
    columns = ("dataset", "target_metric", "default_batch_size", "max_epochs")
    return {
        row.text("dataset"): _Spec(
            row.finite("target_metric"), row.whole("max_epochs"), row.whole("default_batch_size")
        )
        for row in read_rows(path, columns)
    }


def _guessed(model: _Model, targets: Mapping[float, _Runs]) -> _Spec:
    """The hardest target that half of the batch sizes always reach, or else the easiest."""
    reached = {
        target: [e for epochs in sizes.values() for e in epochs if not math.isnan(e)]
        for target, sizes in targets.items()
    }

    def is_fair(sizes: _Runs) -> bool:
        return sum(not any(map(math.isnan, e)) for e in sizes.values()) >= 0.5 * len(sizes)

    def hardness(target: float) -> float:
        runs = reached[target]
        return sum(runs) / len(runs) if runs else math.inf

    fair = [target for target, sizes in targets.items() if is_fair(sizes)]
    target = max(fair, key=hardness) if fair else min(targets, key=hardness)
    epochs = math.ceil(max(reached[target], default=1.0))
    assumed = f"assumed target_metric {target:g}, max_epochs {epochs}"
    return _Spec(target, epochs, remark=f"{model}: not in workloads.csv; {assumed}")


def _read_own(folder: Path) -> list[TracedWorkload]:
    """Workloads of three tables, which have to fit each other."""
    rows: dict[tuple[str, int], list[TraceRow]] = defaultdict(list)
    for row in read_rows(_table(folder, "runs"), ("job", "batch_size", "epochs")):
        rows[row.text("job"), row.whole("batch_size")].append(row)
    runs: dict[str, _Runs] = defaultdict(dict)
    for (job, size), own_rows in rows.items():
        runs[job][size] = [row.epochs("epochs") for row in own_rows]
    path = _table(folder, "power")
    specs = {
        row.text("job"): _Spec(math.nan, row.whole("max_epochs"), row.whole("default_batch_size"))
        for row in read_rows(_table(folder, "jobs"), ("job", "default_batch_size", "max_epochs"))
    }
    workloads = []
    for gpu in _read_own_gpus(path):
        for model in sorted(gpu.power):
            job = model.dataset
            if job not in specs:
                raise FileError(
                    f"{path}: job {job!r} is not in the table of jobs",
                    remedy="add a row with its default_batch_size and max_epochs",
                )
            if job not in runs:
                raise FileError(
                    f"{path}: job {job!r} has no runs",
                    remedy="add its runs to runs.csv, or drop its power data",
                )
            workloads.append(gpu.workload(model, runs[job], specs[job]))
    used = {(load.dataset, size) for load in workloads for size in load.batch_sizes}
    for (job, size), own_rows in rows.items():
        if (job, size) not in used:
            raise own_rows[0].error(
                "batch_size", f"{size} of job {job!r} has no power data", "measure or drop it"
            )
    return workloads


def _read_own_gpus(path: Path) -> list[_Gpu]:
    gpus: dict[str, _Gpu] = {}
    columns = ("limit_watts", "epoch_seconds", "watts")
    for row in read_rows(path, ("gpu", "job", "batch_size", *columns)):
        gpu = gpus.setdefault(row.text("gpu"), _Gpu(row.text("gpu"), path))
        gpu.add(_Model(row.text("job")), row, columns)
    return list(gpus.values())


def _table(folder: Path, name: str) -> Path:
    """The path of the table ``name``, as CSV or Parquet."""
    for suffix in (".csv", ".parquet"):
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    raise FileError(
        f"{folder} lacks {name}.csv",
        remedy="give summary_train.csv and summary_power_GPU.csv, or runs, power and jobs",
    )


class _Gpu:
    """The power measurements of one GPU type by model, which runs of models make workloads."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self._path = name, path
        self.power: dict[_Model, _Power] = {}
        self._max_watts = 0.0

    def add(self, model: _Model, row: TraceRow, columns: Sequence[str]) -> None:
        """Add a row; ``columns`` are those of the limit, the seconds and the watts."""
        limits = self.power.setdefault(model, {}).setdefault(row.whole("batch_size"), {})
        limit, seconds, watts = (row.positive(column) for column in columns)
        if limit in limits:
            raise row.error(columns[0], "repeats an earlier row", "keep one of the two")
        limits[limit] = seconds, watts
        self._max_watts = max(limit, self._max_watts)

    def workload(
        self, model: _Model, runs: Mapping[int, list[float]], spec: _Spec
    ) -> TracedWorkload:
        """Combine one workload from its parts, which have to fit each other."""
        power = self.power[model]
        sizes = tuple(sorted(set(runs) & set(power)))
        if not sizes:
            raise FileError(
                f"{self._path}: no batch size of {model} with power data has training runs",
                remedy="measure the power of the batch sizes that were trained",
            )
        counts = np.array([float(len(runs[size])) for size in sizes])
        epochs = np.full((len(sizes), int(counts.max())), np.nan)
        for row, size in zip(epochs, sizes, strict=True):
            row[: len(runs[size])] = runs[size]
        epochs[epochs > spec.max_epochs] = np.nan
        limits = sorted({watts for size in sizes for watts in power[size]})
        figures = np.array([_over_limits(power[size], limits) for size in sizes])
        default = _default(f"{self._path}: {model}", sizes, epochs, counts, spec)
        if not np.isfinite(epochs[sizes.index(default)]).any():
            raise InvalidValueError(
                f"{model.dataset} on {self.name}: the default batch size {default} never reaches "
                "the target",
                remedy="choose another default, target or max_epochs in workloads.csv",
            )
        what = f"{model} on {self.name}"
        left_out = sorted(set(runs) - set(power))
        filled = sum(len(limits) - len(power[size]) for size in sizes)
        remarks = [spec.remark] if spec.remark else []
        if left_out:
            missing = ", ".join(map(str, left_out))
            remarks.append(f"{what}: no power data for batch sizes {missing}; left out")
        if filled:
            remarks.append(
                f"{what}: {filled} settings without power data are interpolated between limits"
            )
        return TracedWorkload(
            gpu=self.name,
            **model._asdict(),
            batch_sizes=sizes,
            epochs=epochs,
            runs=counts,
            limits_watts=np.array(limits),
            epoch_seconds=figures[:, :, 0],
            watts=figures[:, :, 1],
            default=default,
            max_epochs=spec.max_epochs,
            max_watts=self._max_watts,
            remarks=tuple(remarks),
        )


def _over_limits(measured: Mapping[float, tuple[float, float]], limits: Sequence[float]) -> Floats:
    """(limits, 2), seconds and watts at every limit, interpolated between those measured.

    A policy may choose any limit that others of the job's batch sizes were measured at.
    """
    points = sorted(measured)
    logs = np.log([measured[watts] for watts in points])
    between = [np.exp(np.interp(limits, points, column)) for column in logs.T]
    # What was measured stays as it was, to the last bit.
    exact = np.array([measured.get(watts, (np.nan, np.nan)) for watts in limits])
    return np.where(np.isnan(exact), np.stack(between, axis=1), exact)


def _default(what: str, sizes: tuple[int, ...], epochs: Floats, counts: Floats, spec: _Spec) -> int:
    if spec.default in sizes:
        return spec.default
    if spec.default is not None and spec.strict:
        raise FileError(
            f"{what}: default_batch_size {spec.default} lacks training runs or power data",
            remedy=f"choose one of {', '.join(map(str, sizes))}",
        )
    reached = np.isfinite(epochs).sum(axis=1)
    if not reached.any():
        raise FileError(
            f"{what}: no run reaches target_metric {spec.target:g} within {spec.max_epochs} epochs",
            remedy="choose a target that was reached, or more epochs, in workloads.csv",
        )
    always = np.flatnonzero(reached == counts)
    return sizes[always[-1]] if always.size else sizes[int(np.argmax(reached / counts))]
