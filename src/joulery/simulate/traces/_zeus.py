"""The layout of the traces published with Zeus (You et al., NSDI'23).

``summary_train.csv`` has the epoch in which each run reached each value of the validation metric,
``summary_power_GPU.csv`` the seconds and watts of an epoch at each batch size and power limit. An
optional ``workloads.csv`` (or .parquet) states ``dataset, target_metric, default_batch_size,
max_epochs`` of workloads other than the published six, or other values for those.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from joulery.errors import FileError
from joulery.simulate.traces._assembly import GpuTrace, TracedModel, WorkloadSpec, assemble
from joulery.simulate.traces._rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulery.simulate._workload import TracedWorkload
    from joulery.simulate.traces._rows import TraceRow

TRAIN_FILE = "summary_train.csv"
_POWER_FILES = "summary_power_*.csv"
_MODEL = ("dataset", "network", "optimizer")
_TRAIN_COLUMNS = (*_MODEL, "batch_size", "target_metric", "target_epoch")
_POWER_COLUMNS = (*_MODEL, "batch_size", "power_limit", "time_per_epoch", "average_power")
_SPEC_COLUMNS = ("dataset", "target_metric", "default_batch_size", "max_epochs")

# Default batch size and target of each workload: You et al., NSDI'23, Table 1. Largest number of
# epochs: the paper's artifact. A GPU's trace may lack the default (too little memory).
PUBLISHED = {
    "librispeech": WorkloadSpec(40.0, 16, 192, strict=False),
    "squad": WorkloadSpec(84.0, 6, 32, strict=False),
    "sentiment140": WorkloadSpec(0.84, 10, 128, strict=False),
    "imagenet": WorkloadSpec(0.65, 100, 256, strict=False),
    "cifar100": WorkloadSpec(0.60, 100, 1024, strict=False),
    "movielens-1m": WorkloadSpec(0.41, 100, 1024, strict=False),
}

# Per model and metric: epochs of each run, by batch size.
Runs = dict[TracedModel, dict[float, dict[int, list[float]]]]


def read_zeus(folder: Path, specs: Path | None = None) -> tuple[list[TracedWorkload], list[str]]:
    """Read the workloads of a folder; and remarks about what was left out or assumed.

    Args:
        folder: Folder with the files that the module names.
        specs: Table to use instead of the folder's ``workloads.csv``.

    Raises:
        FileError: A file is missing, damaged, or fits no other; named by file, row and column.
    """
    runs = _runs(folder / TRAIN_FILE)
    paths = sorted(folder.glob(_POWER_FILES))
    if not paths:
        raise FileError(
            f"{folder} has no {_POWER_FILES}", remedy="put one file per GPU type next to the runs"
        )
    stated = _stated(folder, specs)
    workloads: list[TracedWorkload] = []
    remarks: list[str] = []
    for trace in map(_gpu_trace, paths):
        for model in sorted(set(trace.figures) & set(runs)):
            spec = stated.get(model.dataset) or PUBLISHED.get(model.dataset)
            if spec is None:
                spec = _guessed(runs[model])
                remarks.append(
                    f"{model}: not in workloads.csv; assumed target_metric {spec.target:g}, "
                    f"max_epochs {spec.max_epochs}"
                )
            workloads.append(_workload(trace, model, runs[model], spec))
            remarks += _left_out(trace, model, runs[model][spec.target])
    if not workloads:
        raise FileError(
            f"{folder}: no dataset, network and optimizer is in both kinds of files",
            remedy="see that the names in summary_train and summary_power agree",
        )
    return workloads, list(dict.fromkeys(remarks))


def _model(row: TraceRow) -> TracedModel:
    return TracedModel(*(row.text(column) for column in _MODEL))


def _runs(path: Path) -> Runs:
    runs: Runs = {}
    for row in read_rows(path, _TRAIN_COLUMNS):
        metrics = runs.setdefault(_model(row), {})
        sizes = metrics.setdefault(row.finite("target_metric"), defaultdict(list))
        sizes[row.whole("batch_size")].append(row.epochs("target_epoch"))
    return runs


def _gpu_trace(path: Path) -> GpuTrace:
    trace = GpuTrace(path.stem.removeprefix("summary_power_"), path)
    for row in read_rows(path, _POWER_COLUMNS):
        trace.add(_model(row), row, _POWER_COLUMNS[4:])
    return trace


def _stated(folder: Path, specs: Path | None) -> dict[str, WorkloadSpec]:
    paths = [specs] if specs else [*folder.glob("workloads.csv"), *folder.glob("workloads.parquet")]
    return {
        row.text("dataset"): WorkloadSpec(
            row.finite("target_metric"), row.whole("max_epochs"), row.whole("default_batch_size")
        )
        for path in paths[:1]
        for row in read_rows(path, _SPEC_COLUMNS)
    }


def _guessed(metrics: Mapping[float, Mapping[int, list[float]]]) -> WorkloadSpec:
    """The hardest target that half of the batch sizes always reach, or else the easiest."""

    def always(sizes: Mapping[int, list[float]]) -> float:
        kept = sum(not any(map(math.isnan, epochs)) for epochs in sizes.values())
        return kept / len(sizes)

    def hardness(target: float) -> float:
        reached = [e for epochs in metrics[target].values() for e in epochs if not math.isnan(e)]
        return sum(reached) / len(reached) if reached else math.inf

    fair = [target for target, sizes in metrics.items() if always(sizes) >= 0.5]
    target = max(fair, key=hardness) if fair else min(metrics, key=hardness)
    seen = [e for epochs in metrics[target].values() for e in epochs if not math.isnan(e)]
    return WorkloadSpec(target, math.ceil(max(seen, default=1.0)))


def _workload(
    trace: GpuTrace,
    model: TracedModel,
    metrics: Mapping[float, Mapping[int, list[float]]],
    spec: WorkloadSpec,
) -> TracedWorkload:
    if spec.target not in metrics:
        raise FileError(
            f"{trace.path.parent / TRAIN_FILE}: column target_metric has no {spec.target:g} "
            f"for {model}",
            remedy=f"its targets are {', '.join(f'{m:g}' for m in sorted(metrics))}",
        )
    return assemble(trace, model, metrics[spec.target], spec)


def _left_out(trace: GpuTrace, model: TracedModel, runs: Mapping[int, list[float]]) -> list[str]:
    trained = sorted(set(runs) - set(trace.figures[model]))
    if not trained:
        return []
    sizes = ", ".join(map(str, trained))
    return [f"{model} on {trace.gpu}: no power data for batch sizes {sizes}; left out"]
