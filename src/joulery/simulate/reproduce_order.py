"""The order in which the publication lists its GPUs and workloads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.simulate.workload import TracedWorkload

GPUS = ("v100", "a40", "rtx6000", "p100")
DATASETS = ("librispeech", "squad", "sentiment140", "imagenet", "cifar100", "movielens-1m")


def in_their_order(workloads: Sequence[TracedWorkload]) -> tuple[TracedWorkload, ...]:
    """As the publication lists GPUs and workloads; others follow by name."""

    def place(names: tuple[str, ...], name: str) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    return tuple(
        sorted(workloads, key=lambda load: (place(GPUS, load.gpu), place(DATASETS, load.dataset)))
    )


def told_apart(workloads: Sequence[TracedWorkload]) -> tuple[TracedWorkload, ...]:
    """With the network and optimizer in the name of those that share GPU and data set."""
    named = Counter((load.gpu, load.dataset) for load in workloads)
    return tuple(
        replace(load, dataset=f"{load.dataset} {load.network} {load.optimizer}")
        if named[load.gpu, load.dataset] > 1
        else load
        for load in workloads
    )
