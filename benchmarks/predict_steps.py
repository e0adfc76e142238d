"""Training steps of language models on another device from one probe there (gpu_power_benchmark).

Sequences of eleven tokens: steps are bound by launches and by the traffic of weights, which is
what a large share of fine-tuning looks like.
"""

from __future__ import annotations

import csv
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from predict_fitting import population
from predict_kernels import known_device
from predict_scores import Score, prior_of, scored

from joulery.prediction.models import (
    Belief,
    probe_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from joulery.prediction import Accelerator

    Array = NDArray[np.float64]

CONSTANTS = (
    "compute16",  # share of the peak in 16-bit formats
    "compute32",  # share of the TF32 peak, or of FP32 where there is none
    "bandwidth",  # share of the memory's bandwidth
    "passes",  # times that forward and backward move every parameter
    "update",  # times that the optimizer does, while the host waits
    "fixed",  # milliseconds of the host per step
    "host",  # milliseconds of the host per layer
    "gated_host",  # factor for layers with gates and rotary embedding
    "bf16_host",  # factor for BF16
    "fp16_host",  # factor for FP16
    "awake",  # watts while waiting, as a share of the default limit
    "compute_watts",  # watts of arithmetic at its reachable peak, likewise
    "traffic_watts",  # watts of memory traffic at its peak, likewise
    "fp16_watts",  # factor of both for FP16
    "fp32_watts",  # factor of both for FP32
)
START = Belief.independent(
    np.log([0.33, 0.45, 0.8, 3.0, 6.5, 5.0, 2.4, 1.4, 1.1, 1.05, 0.3, 0.55, 0.5, 0.72, 1.1]),
    1.5
    * np.array([0.2, 0.2, 0.08, 0.15, 0.12, 1, 0.35, 0.1, 0.08, 0.08, 0.25, 0.2, 0.2, 0.1, 0.15]),
)
TIME_NOISE, POWER_NOISE = 0.06, 0.06
_GATED = ("qwen", "llama", "mistral", "gemma", "phi")


class Steps(NamedTuple):
    """Measured steps on one device."""

    device: Accelerator
    operations: Array
    weight_bytes: Array
    layers: Array
    wide: Array
    gated: Array
    bf16: Array
    seconds: Array
    watts: Array
    wall: Array

    def model(self) -> Callable[[Array], Array]:
        """Log-seconds, then log-watts."""
        return lambda constants: np.log(np.concatenate(self._predicted(np.exp(constants))))

    def _predicted(self, value: Array) -> tuple[Array, Array]:
        c16, c32, bandwidth, passes, update, fixed, host, gated, bf16, fp16 = value[:10]
        awake, arithmetic, memory, fp16_watts, fp32_watts = value[10:]
        board, wide = self.device, self.wide > 0
        narrow = "tf32" if "tf32" in board.peaks else "fp32"
        reached = np.where(wide, c32 * board.sustained(narrow), c16 * board.sustained("bf16"))
        moved = self.weight_bytes / (bandwidth * board.bytes_per_second)
        busy = self.operations / reached + passes * moved
        factor = np.where(wide, 1.0, np.where(self.bf16 > 0, bf16, fp16))
        layers = self.layers * np.where(self.gated > 0, gated, 1.0)
        launches = 1e-3 * factor * (fixed + host * layers)
        seconds = (busy**4 + launches**4) ** 0.25 + update * moved
        rate = self.operations / reached / seconds
        traffic = (passes + update) * moved / seconds
        scale = np.where(wide, fp32_watts, np.where(self.bf16 > 0, 1.0, fp16_watts))
        wanted = awake + scale * (arithmetic * rate + memory * traffic)
        return seconds, board.limit_watts * (wanted**-8 + 1.1**-8) ** (-1 / 8)

    def measured(self) -> Array:
        """What the model predicts, measured."""
        return np.log(np.concatenate([self.seconds, self.watts]))

    def take(self, rows: Array) -> Steps:
        """Some of the steps."""
        return Steps(self.device, *(part[rows] for part in self[1:]))


def step_tables(data: Path) -> dict[str, Steps]:
    """Steps per device, averaged over repetitions; those that ran out of memory left out."""
    found = {}
    for file in sorted(data.glob("devices/gpu_power_benchmark/*.csv")):
        board = known_device(file.stem)
        if board is None:
            continue
        cases: dict[tuple[str, ...], list[list[float]]] = {}
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row["io_latency_enabled"] != "True" and float(row["batch_size"] or 0) > 0:
                    key = row["model_name"], row["dtype"], row["batch_size"]
                    cases.setdefault(key, []).append(_row(row))
        columns = np.array([np.mean(rows, axis=0) for rows in cases.values()]).T
        memory, *rest = columns
        fits = np.flatnonzero(memory < 0.97 * board.memory_bytes)
        found[file.stem] = Steps(board, *rest).take(fits)
    return found


def _row(row: dict[str, str]) -> list[float]:
    tokens = float(row["batch_size"]) * float(row["sequence_length_mean"])
    # The counted operations of a step; the table's formula leaves out embeddings and gates.
    parameters = float(row["calflops_total_mean"]) / (6 * tokens)
    wide = row["dtype"] == "float32"
    name = row["model_name"].lower()
    return [
        float(row["memory_used_mb_mean"]) * 2**20,
        6 * parameters * tokens,
        parameters * (4.0 if wide else 2.0),
        float(row["num_layers_mean"]),
        float(wide),
        float(any(word in name for word in _GATED)),
        float(row["dtype"] == "bfloat16"),
        tokens / float(row["tokens_per_second_mean"]),
        float(row["power_draw_watts_mean"]),
        float(row["power_meter_active_power_w_mean"] or "nan"),
    ]


def training_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Time, power and wall power of every step of a device from one probe on it."""
    del quick
    tables = step_tables(data)
    for name, table in tables.items():
        fit = partial(fit_steps, tables, name)
        belief = prior_of("short steps", table.device.name, fit)
        yield from _device_scores(name, table, belief, tables)


def fit_steps(tables: dict[str, Steps], without: str = "") -> Belief:
    """Belief in the constants of a further device and its host."""
    members = [(one.model(), one.measured()) for key, one in tables.items() if key != without]
    return population(members, START, TIME_NOISE)


def _device_scores(
    name: str, table: Steps, belief: Belief, tables: dict[str, Steps]
) -> Iterator[Score]:
    size = len(table.seconds)
    pairs = [(row, size + row) for row in range(size)]
    left = probe_values(belief.covariance_of(table.model()), pairs, list(range(2 * size)), 0.03)
    chosen = int(np.argmin(left))
    probe = table.take(np.array([chosen]))
    after = belief.update(probe.model(), probe.measured(), 0.03)
    rest = np.delete(np.arange(size), chosen)
    for level, now in (("specs", belief), ("1 probe", after)):
        predicted, spread = table.model()(now.mean), now.spread(table.model())
        for kind, offset, noise in (("time", 0, TIME_NOISE), ("power", size, POWER_NOISE)):
            yield scored(
                (f"training step, {kind}", level, name, "ours"),
                predicted[offset + rest],
                table.measured()[offset + rest],
                np.hypot(spread[offset + rest], noise),
            )
    if np.isfinite(table.wall).all() and table.wall.max() > 1.1 * table.wall.min():
        beside = table.wall[chosen] - table.watts[chosen]
        wall = np.log(beside + np.exp(table.model()(after.mean)[size:])[rest])
        labels = ("training step, wall power", "1 probe", name, "ours")
        yield scored(labels, wall, np.log(table.wall[rest]), 0.05)
    if len(tables) > 1:
        yield from _ratio(name, table, tables)


def _ratio(name: str, table: Steps, tables: dict[str, Steps]) -> Iterator[Score]:
    """Tokens per second by the ratio of peak rates, from the first other device's mean rate."""
    other = next(one for key, one in tables.items() if key != name)
    rate = np.median(np.log(other.operations / other.seconds / other.device.peak("bf16")))
    simple = np.log(table.operations / table.device.peak("bf16")) - rate
    yield scored(
        ("training step, time", "specs", name, "FLOPS ratio"), simple, np.log(table.seconds)
    )
