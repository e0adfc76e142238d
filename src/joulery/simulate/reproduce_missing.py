"""What a reproduction lacks, and where to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.errors import FileError
from joulery.simulate.reproduce_order import DATASETS, GPUS
from joulery.simulate.traces import read_traces
from joulery.simulate.traces_zeus import TRAIN_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.simulate.traces import Traces
    from joulery.simulate.workload import TracedWorkload

SOURCE = (
    "take it from the public artifact of Zeus (NSDI'23): folder trace of github.com/ml-energy/zeus"
)


def found_traces(folder: Path) -> Traces:
    """The traces of ``folder``, in the layout of the artifact.

    Raises:
        FileError: The training trace or all power traces are missing, or one is wrong.
    """
    nested = folder / "zeus"
    place = nested if (nested / TRAIN_FILE).exists() else folder
    if not (place / TRAIN_FILE).exists():
        raise FileError(f"{place / TRAIN_FILE} is missing (epochs to the target)", remedy=SOURCE)
    if not list(place.glob("summary_power_*.csv")):
        missing = place / f"summary_power_{GPUS[0]}.csv"
        raise FileError(f"{missing} is missing (time and power; any GPU will do)", remedy=SOURCE)
    return read_traces(place)


def missing_parts(
    workloads: Sequence[TracedWorkload], *, own_groups: bool, some_groups: bool
) -> list[str]:
    """One line per missing trace.

    Args:
        workloads: That are there.
        own_groups: Whether a cluster's groups were given.
        some_groups: Whether there are any groups at all.
    """
    here = list(dict.fromkeys(load.gpu for load in workloads))
    lines = [
        f"{gpu.upper()} (Fig. 14, 15, 23): summary_power_{gpu}.csv; {SOURCE}"
        for gpu in GPUS
        if gpu not in here
    ]
    for gpu in here:
        traced = {load.dataset for load in workloads if load.gpu == gpu}
        absent = [dataset for dataset in DATASETS if dataset not in traced]
        if absent:
            lines.append(
                f"{gpu.upper()}: {', '.join(absent)} in {TRAIN_FILE} or summary_power_{gpu}.csv; "
                f"{SOURCE}"
            )
    lines.append(
        "Capriccio (Fig. 10): traces of training on its slices; drift is synthetic here instead"
    )
    if not own_groups:
        instead = "groups are synthetic here instead" if some_groups else "Fig. 9 is left out"
        lines.append(
            "Alibaba (Fig. 9): a table of its recurring groups (group, submit_seconds, "
            f"duration_seconds) for --groups; {instead}"
        )
    return lines
