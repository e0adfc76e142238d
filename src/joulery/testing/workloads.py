"""Small made-up workloads whose best setting is known, for tests of policies and simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate import TracedWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.jobs.policies import Floats

LIMITS_WATTS = (100.0, 150.0, 200.0, 250.0)  # those of the published V100 traces


def made_up_workload(
    batch_sizes: Sequence[int] = (16, 32, 64, 128, 256, 512),
    best: int = 64,
    default: int = 256,
    *,
    limits_watts: Sequence[float] = LIMITS_WATTS,
    runs: int = 5,
    never: Sequence[int] = (),
) -> TracedWorkload:
    """A workload whose epochs grow with the distance from ``best``.

    Time falls with batch size and limit.

    Args:
        batch_sizes: Batch sizes, ascending.
        best: Batch size of least cost at eta 0.5.
        default: Batch size that the owner would run.
        limits_watts: Power limits, ascending.
        runs: Number of runs per batch size, each a little longer than the one before.
        never: Batch sizes that never reach the target.
    """
    sizes = np.array(batch_sizes, dtype=float)
    octaves = np.abs(np.log2(sizes / best))
    epochs = np.round(10.0 * (1.0 + octaves)[:, None] + np.arange(runs)[None, :])
    epochs[np.isin(sizes, never)] = np.nan
    return TracedWorkload(
        gpu="made-up",
        dataset="set",
        network="net",
        optimizer="sgd",
        batch_sizes=tuple(batch_sizes),
        epochs=epochs,
        runs=np.full(len(sizes), float(runs)),
        limits_watts=np.array(limits_watts),
        epoch_seconds=_seconds(sizes, np.array(limits_watts)),
        watts=np.minimum(0.9 * np.array(limits_watts), 190.0)[None, :] * np.ones((len(sizes), 1)),
        default=default,
        max_epochs=100,
        max_watts=max(limits_watts),
    )


def _seconds(sizes: Floats, limits_watts: Floats) -> Floats:
    return np.asarray(sizes[:, None] ** -0.1 * (60.0 + 4000.0 / limits_watts[None, :]))
