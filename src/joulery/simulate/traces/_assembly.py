"""Combine training runs and power measurements into workloads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.errors import FileError
from joulery.simulate._workload import TracedWorkload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulery.jobs.policies import Floats
    from joulery.simulate.traces._rows import TraceRow


class TracedModel(NamedTuple):
    """A model by dataset, network and optimizer."""

    dataset: str
    network: str
    optimizer: str

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Target and default of a workload, as its owner states them.

    Attributes:
        target: Validation metric to reach; NaN where the trace states epochs only.
        max_epochs: Number of epochs after which a run gives up.
        default: Batch size to run without optimisation; None for the largest that always reaches
            the target.
        strict: Whether a default without data is an error, instead of taking that largest.
    """

    target: float
    max_epochs: int
    default: int | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True)
class GpuTrace:
    """The power measurements of one GPU type.

    Attributes:
        gpu: Name of the GPU type.
        path: Path of the file.
        figures: Seconds and watts of an epoch, by model, batch size and limit in watts.
    """

    gpu: str
    path: Path
    figures: dict[TracedModel, dict[int, dict[float, tuple[float, float]]]] = field(
        default_factory=dict
    )

    def add(self, model: TracedModel, row: TraceRow, columns: Sequence[str]) -> None:
        """Add a row; ``columns`` are those of the limit, the seconds and the watts."""
        limits = self.figures.setdefault(model, {}).setdefault(row.whole("batch_size"), {})
        limit, seconds, watts = (row.positive(column) for column in columns)
        if limit in limits:
            raise row.error(columns[0], "repeats an earlier row", "keep one of the two")
        limits[limit] = seconds, watts

    @property
    def max_watts(self) -> float:
        """The highest limit in the file."""
        sizes = (limits for sizes in self.figures.values() for limits in sizes.values())
        return max(max(limits) for limits in sizes)


def assemble(
    trace: GpuTrace, model: TracedModel, runs: Mapping[int, list[float]], spec: WorkloadSpec
) -> TracedWorkload:
    """Combine one workload from its parts.

    Args:
        trace: Measurements of the GPU.
        model: Model that is trained; ``trace`` has measurements of it.
        runs: Epochs to the target of each run, by batch size; NaN for runs that did not reach it.
        spec: Target and default.

    Raises:
        FileError: No batch size has both runs and power measurements, the default is none of those
            that have, or the target is out of reach.
    """
    power = trace.figures[model]
    sizes = tuple(sorted(set(runs) & set(power)))
    if not sizes:
        raise FileError(
            f"{trace.path}: no batch size of {model} with power data has training runs",
            remedy="measure the power of the batch sizes that were trained",
        )
    epochs, counts = _epochs([runs[size] for size in sizes], spec.max_epochs)
    limits = sorted({watts for size in sizes for watts in power[size]})
    seconds = np.array([_over_limits(power[size], limits, 0) for size in sizes])
    watts = np.array([_over_limits(power[size], limits, 1) for size in sizes])
    return TracedWorkload(
        gpu=trace.gpu,
        dataset=model.dataset,
        network=model.network,
        optimizer=model.optimizer,
        batch_sizes=sizes,
        epochs=epochs,
        runs=counts,
        limits_watts=np.array(limits),
        epoch_seconds=seconds,
        watts=watts,
        default=_default(f"{trace.path}: {model}", sizes, epochs, counts, spec),
        target=spec.target,
        max_epochs=spec.max_epochs,
        max_watts=trace.max_watts,
        filled=sum(len(limits) - len(power[size]) for size in sizes),
    )


def _over_limits(
    measured: Mapping[float, tuple[float, float]], limits: list[float], figure: int
) -> Floats:
    """(limits,), one figure at every limit, interpolated between those that were measured.

    A policy may choose any limit that others of the job's batch sizes were measured at.
    """
    known = sorted(measured)
    logs = np.log([measured[watts][figure] for watts in known])
    found = np.exp(np.interp(limits, known, logs))
    # What was measured stays as it was, to the last bit.
    exact = [measured[watts][figure] if watts in measured else np.nan for watts in limits]
    return np.where(np.isnan(exact), found, exact)


def _epochs(runs: list[list[float]], max_epochs: int) -> tuple[Floats, Floats]:
    epochs = np.full((len(runs), max(map(len, runs))), np.nan)
    for row, samples in zip(epochs, runs, strict=True):
        row[: len(samples)] = samples
    epochs[epochs > max_epochs] = np.nan
    return epochs, np.array([float(len(samples)) for samples in runs])


def _default(
    what: str, sizes: tuple[int, ...], epochs: Floats, counts: Floats, spec: WorkloadSpec
) -> int:
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
