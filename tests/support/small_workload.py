"""A workload small enough to reckon by hand."""

from __future__ import annotations

import numpy as np

from joulery.simulate import TracedWorkload


def small_workload(
    gpu: str = "v100", dataset: str = "cifar100", scale: float = 1.0
) -> TracedWorkload:
    """A workload of four batch sizes and three limits.

    The default is 32, 64 at 150 W is best, 128 fails at times. Seconds grow with ``scale``.
    """
    seconds = np.array([[40.0, 30.0, 29.0], [24.0, 16.0, 15.5], [14.0, 9.0, 8.8], [10.0, 6.0, 5.0]])
    watts = np.array(
        [[80.0, 110.0, 115.0], [85.0, 130.0, 150.0], [90.0, 140.0, 190.0], [95.0, 145.0, 240.0]]
    )
    return TracedWorkload(
        gpu=gpu,
        dataset=dataset,
        network="net",
        optimizer="sgd",
        batch_sizes=(16, 32, 64, 128),
        epochs=np.array([[8.0, 9.0], [8.0, 8.0], [9.0, 11.0], [np.nan, 30.0]]),
        runs=np.full(4, 2.0),
        limits_watts=np.array([100.0, 150.0, 250.0]),
        epoch_seconds=scale * seconds,
        watts=watts,
        default=32,
        max_epochs=40,
        max_watts=250.0,
    )
