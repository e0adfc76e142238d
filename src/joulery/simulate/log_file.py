"""Write every action of a simulation to a CSV file, whole or not at all."""

from __future__ import annotations

import csv
import math
import os
from typing import TYPE_CHECKING

from joulery.errors import FileError
from joulery.jobs.policies.base import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from joulery.simulate.log import Deeds, SimulationLog

COLUMNS = (
    *("gpu", "dataset", "policy", "seed", "recurrence", "action", "batch_size", "limit_watts"),
    *("end", "epochs", "ceiling_joules", "seconds", "joules", "cost_joules"),
    *("recurrence_cost_over_optimal", "why"),
)


def write_log(path: Path, logs: Sequence[SimulationLog]) -> None:
    """Every action of ``logs``, which were made with ``keep_deeds``, in the order it became known.

    Raises:
        FileError: The file cannot be written; what was there before is untouched.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for log in logs:
                if log.deeds is not None:
                    writer.writerows(_rows(log, log.deeds))
        draft.replace(path)
    except OSError as refused:
        draft.unlink(missing_ok=True)
        raise FileError(
            f"cannot write {path}: {refused.strerror}", remedy="choose another file with --log"
        ) from None


def _rows(log: SimulationLog, deeds: Deeds) -> Iterator[tuple[object, ...]]:
    ratio = log.cost / log.optimal
    for i, lane in enumerate(deeds.lane.tolist()):
        load = log.workloads[int(log.of_lane[lane])]
        limit = int(deeds.limit[i])
        yield (
            load.gpu,
            load.dataset,
            log.policy,
            int(log.seeds[lane]),
            int(deeds.recurrence[i]),
            ActionKind(int(deeds.kind[i])).name.lower(),
            load.batch_sizes[int(deeds.arm[i])],
            f"{load.limits_watts[limit]:g}" if limit >= 0 else "",
            RunEnd(int(deeds.end[i])).name.lower(),
            f"{deeds.epochs[i]:g}",
            f"{deeds.ceiling[i]:.6g}" if math.isfinite(deeds.ceiling[i]) else "",
            f"{deeds.seconds[i]:.6g}",
            f"{deeds.joules[i]:.6g}",
            f"{deeds.cost[i]:.6g}",
            f"{ratio[lane, deeds.recurrence[i]]:.6g}",
            log.reasons[int(deeds.why[i])],
        )
