"""Recurring jobs drawn at random, from other laws than the priors of any policy.

Epochs to the target are least about a critical batch size: beyond it they grow towards proportional
to the batch size (McCandlish et al. 2018), below it they grow, too, as the gradient becomes noisy.
An epoch takes a share that falls with the number of steps; a power limit slows its computing down
by a power of the watts, and the rest not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.simulate import TracedWorkload

if TYPE_CHECKING:
    from joulery.jobs.policies import Floats

RUNS, LIMITS = 12, 7


def drawn_workloads(count: int, seed: int) -> list[TracedWorkload]:
    """Jobs of four to eight batch sizes, any of which may be the default."""
    rng = np.random.default_rng(seed)
    return [_drawn_workload(rng, f"job {number}") for number in range(count)]


def _drawn_workload(rng: np.random.Generator, name: str) -> TracedWorkload:
    sizes = np.round(2.0 ** (rng.uniform(3.0, 6.0) + np.arange(rng.integers(4, 9))))
    default = int(rng.integers(len(sizes)))
    epochs = _epochs(rng, np.log2(sizes))
    max_epochs = int(np.ceil(rng.uniform(1.5, 4.0) * epochs[default].max()))
    max_watts = float(rng.choice([250.0, 300.0, 400.0, 700.0]))
    limits_watts = np.linspace(0.4, 1.0, LIMITS) * max_watts
    seconds, watts = _epoch(rng, sizes, limits_watts)
    return TracedWorkload(
        gpu="drawn",
        dataset=name,
        network="drawn",
        optimizer="drawn",
        batch_sizes=tuple(int(size) for size in sizes),
        epochs=np.where(epochs > max_epochs, np.nan, epochs),
        runs=np.full(len(sizes), float(RUNS)),
        limits_watts=limits_watts,
        epoch_seconds=seconds,
        watts=watts,
        default=int(sizes[default]),
        max_epochs=max_epochs,
        max_watts=max_watts,
    )


def _epochs(rng: np.random.Generator, octaves: Floats) -> Floats:
    """(sizes, runs), epochs to the target."""
    critical, plateau = rng.uniform(octaves[0], octaves[-1]), rng.uniform(0.0, 3.0)
    growth = rng.uniform(0.2, 1.0) * np.log1p(2.0 ** (octaves - critical))
    growth += rng.uniform(0.05, 0.6) * np.log1p(2.0 ** (critical - plateau - octaves))
    scatter = rng.uniform(0.02, 0.2) * rng.normal(size=(len(octaves), RUNS))
    return np.maximum(1.0, np.round(rng.uniform(4.0, 60.0) * np.exp(growth[:, None] + scatter)))


def _epoch(rng: np.random.Generator, sizes: Floats, limits_watts: Floats) -> tuple[Floats, Floats]:
    """(sizes, limits): seconds of an epoch, and its watts."""
    low, high = np.log2(sizes[[0, -1]])
    half_used = 2.0 ** rng.uniform(low - 2.0, high)  # batch size that uses half of the device
    seconds = rng.uniform(60.0, 1200.0) * (1.0 + half_used / sizes) / (1.0 + half_used / sizes[-1])
    idle = 0.2 * limits_watts[-1]
    busy = rng.uniform(0.85, 1.15) * limits_watts[-1] - idle
    draw = (idle + busy * (0.35 + 0.65 * sizes / (sizes + half_used)))[:, None]
    clock = np.clip((limits_watts - idle) / (draw - idle), 0.05, 1.0) ** (1 / rng.uniform(2.0, 3.0))
    computing = rng.uniform(0.3, 0.95)
    return seconds[:, None] * (1.0 - computing + computing / clock), np.minimum(draw, limits_watts)
