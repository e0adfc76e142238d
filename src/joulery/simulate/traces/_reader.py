"""Read a folder of traces, in either layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import FileError, InvalidValueError
from joulery.simulate.traces._tables import read_tables
from joulery.simulate.traces._zeus import TRAIN_FILE, read_zeus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.simulate._workload import TracedWorkload


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
        workloads, remarks = read_tables(folder), []
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
