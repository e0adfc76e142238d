"""Kernel times and power on devices that the fit has not seen (AIConfigurator, NeuSight)."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from predict_ablations import gemm_ablations
from predict_fitting import best_probes, joined, kernel_power, matmuls, population, streams
from predict_scores import Score, prior_of, scored

from joulery.errors import UnknownDeviceError
from joulery.prediction import Accelerator, accelerator
from joulery.prediction.models import (
    Belief,
    Kernels,
    in_step,
    kernel_times,
    krige,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PROBES = 30
SEEDS = 3
# AIConfigurator's loop uses some weight matrices in turn: L40S, whose cache is large and memory
# slow, shows the change at a fifth of its cache.
WEIGHT_COPIES = 5
# Power readings of shorter kernels are averages over whatever ran around them.
LONG_SECONDS = 1e-4
NOISE = 0.1
# Noise of one measurement, and what the constants leave unexplained of a product's time, in common
# with shapes so many octaves away; chosen leaving one device out at a time.
PROBE_NOISE, _SHAPES = 0.07, 3.0
_UNEXPLAINED = {"bf1": 0.08, "fp8": 0.15}

# First guesses of the constants, in the order of CONSTANTS, and the smallest spread between
# devices to believe in; chosen on the devices in shared/data, leaving one out at a time.
TENSOR_START = Belief.independent(
    np.log([0.95, 0.8, 2.3, 0.12, 120, 0.9, 3.1, 2.5, 1.2, 0.6]),
    np.array([0.06, 0.06, 0.15, 0.1, 0.2, 0.08, 0.1, 0.2, 0.15, 0.3]),
)
FP8_START = Belief.independent(
    np.log([0.7, 0.8, 5.0, 0.12, 200, 0.9, 3.1, 2.5, 1.0, 0.6]),
    np.array([0.3, 0.15, 0.5, 0.2, 0.5, 0.2, 0.2, 0.4, 0.3, 0.3]),
)
VECTOR_START = Belief.independent(
    np.log([0.9, 0.85, 30, 0.12, 10, 0.9, 2.7, 15, 1.8, 0.6]),
    np.array([0.06, 0.08, 0.2, 0.3, 0.3, 0.2, 0.15, 0.3, 0.2, 0.3]),
)
POWER_START = Belief.independent(np.log([0.5, 0.75, 0.1, 0.5]), np.array([0.15, 0.15, 0.3, 0.3]))


class Table(NamedTuple):
    """Measured kernels of one device."""

    device: Accelerator
    kernels: Kernels
    seconds: Array
    watts: Array | None = None

    def model(self) -> Callable[[Array], Array]:
        """Log-seconds from log-constants."""
        return lambda constants: np.log(kernel_times(constants, self.device, self.kernels)[0])

    def power_model(self) -> Callable[[Array], Array]:
        """Log-watts from log-constants, at the measured times."""
        return lambda constants: np.log(
            kernel_power(constants, self.device, self.kernels, self.seconds)
        )

    def take(self, rows: Array) -> Table:
        """Some of the kernels."""
        watts = None if self.watts is None else self.watts[rows]
        return Table(self.device, self.kernels.take(rows), self.seconds[rows], watts)


def gemm_tables(data: Path, precision: str, rows: int) -> dict[str, Table]:
    """Matrix products per device folder, as many as asked for, drawn at random."""
    from pyarrow import parquet

    kinds = {"bf16": ("bfloat16",), "fp8": ("fp8", "fp8_block")}[precision]
    found: dict[str, Table] = {}
    for file in sorted(data.glob("devices/aiconfigurator/*/gemm_perf.parquet")):
        board = known_device(file.parent.name)
        if board is None or precision not in board.peaks:
            continue
        table = parquet.read_table(file)
        column = {name: table[name].to_numpy() for name in table.column_names}
        for kind in kinds:
            mine = np.flatnonzero(column["gemm_dtype"] == kind)
            if not len(mine):
                continue
            mine = mine[np.argsort(_scramble(*(column[letter][mine] for letter in "mnk")))][:rows]
            name = file.parent.name + ("" if len(kinds) == 1 else f" {kind}")
            shape = [np.ones(len(mine)), *(column[letter][mine] for letter in "mnk")]
            element = 2.0 if precision == "bf16" else 1.0
            kernels = matmuls(shape, element, board.rates(precision), WEIGHT_COPIES)
            watts = column["power"][mine].astype(float) if "power" in column else None
            found[name] = Table(board, kernels, column["latency"][mine] * 1e-3, watts)
    return found


def _scramble(m: Array, n: Array, k: Array) -> Array:
    """A key that orders shapes at random, but alike on every device."""
    return (m * 73856093 ^ n * 19349663 ^ k * 83492791) * 2654435761 % 2**32


def known_device(name: str) -> Accelerator | None:
    """The catalog's device of a folder or column, or None where it knows no such thing."""
    for spelling in (name, re.sub(r"[_-](sxm|nvl\d*|server|oam)$", "", name.lower())):
        try:
            return accelerator(spelling)
        except UnknownDeviceError:
            continue
    return None


def fit_times(tables: dict[str, Table], start: Belief, without: str = "") -> Belief:
    """Belief in the constants of a further device."""
    members = [
        (table.model(), np.log(table.seconds)) for name, table in tables.items() if name != without
    ]
    return population(members, start, NOISE)


def fit_power(tables: dict[str, Table], without: str = "") -> Belief:
    """Belief in the power constants of a further device, from long kernels."""
    members = []
    for name, table in tables.items():
        if table.watts is not None and name != without:
            long = table.take(np.flatnonzero(table.seconds >= LONG_SECONDS))
            members.append((long.power_model(), np.log(long.watts)))
    return population(members, POWER_START, NOISE)


def gemm_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Matrix products in BF16 and FP8: time and power, each device left out in turn."""
    for precision, start in (("bf16", TENSOR_START), ("fp8", FP8_START)):
        tables = gemm_tables(data, precision, 300 if quick else 1500)
        for name, table in tables.items():
            task = f"{precision} GEMM time"
            kind = "kernels" if precision == "bf16" else "fp8 kernels"
            belief = prior_of(kind, table.device.name, partial(fit_times, tables, start, name))
            yield from _time_scores(task, name, table, belief)
            if len(tables) > 1:
                learners = precision == "bf16" and not quick
                yield from gemm_ablations(task, name, tables, learners=learners)
                yield _with_residual(task, name, tables, belief)
    tables = gemm_tables(data, "bf16", 1500 if quick else 4000)
    for name, table in tables.items():
        if table.watts is not None:
            fit = partial(fit_power, tables, name)
            yield from _power_scores(name, table, prior_of("kernel power", table.device.name, fit))


def _time_scores(task: str, name: str, table: Table, belief: Belief) -> Iterator[Score]:
    model, measured = table.model(), np.log(table.seconds)
    deviation = np.hypot(belief.spread(model), NOISE)
    yield scored((task, "specs", name, "ours"), model(belief.mean), measured, deviation)
    # What the constants leave unexplained, products of similar shapes have in common.
    shape = _features(table)[:, :3]
    unexplained = _UNEXPLAINED[task[:3]] ** 2 * _alike(shape, shape, _SHAPES)
    probes = best_probes(belief.covariance_of(model) + unexplained, PROBES, PROBE_NOISE)
    after = belief.update(table.take(np.array(probes)).model(), measured[probes], NOISE)
    predicted = model(after.mean)
    shared = unexplained[:, probes]
    shift, known = krige((measured - predicted)[probes], shared[probes], shared, PROBE_NOISE)
    rest = np.setdiff1d(np.arange(len(measured)), probes)
    left = after.spread(model) ** 2 + NOISE**2 + np.diag(unexplained) - known
    labels = (task, f"{PROBES} probes", name, "ours")
    yield scored(labels, (predicted + shift)[rest], measured[rest], np.sqrt(left[rest]))


def _with_residual(task: str, name: str, tables: dict[str, Table], belief: Belief) -> Score:
    """Ours plus what a learner (kernel ridge over shapes) makes of the other devices' residuals."""
    shapes, off = [], []
    for key, table in tables.items():
        if key != name:
            some = table.take(np.arange(min(300, len(table.seconds))))
            own = belief.update(some.model(), np.log(some.seconds), NOISE)
            shapes.append(_features(some))
            off.append(np.log(some.seconds) - some.model()(own.mean))
    known, target = np.concatenate(shapes), tables[name]
    ridge = _alike(known, known) + 0.5 * np.eye(len(known))
    weights = np.linalg.solve(ridge, np.concatenate(off))
    learned = target.model()(belief.mean) + _alike(_features(target), known) @ weights
    return scored((task, "specs", name, "ours and learner"), learned, np.log(target.seconds))


def _features(table: Table) -> Array:
    kernels = table.kernels
    tiles = kernels.rows * kernels.columns / table.device.units
    return np.log2(np.stack([kernels.rows, kernels.columns, kernels.inner, tiles**0.7], axis=1))


def _alike(first: Array, second: Array, octaves: float = 2.5) -> Array:
    return np.exp(-0.5 * (((first[:, None] - second[None]) / octaves) ** 2).sum(axis=2))


def _power_scores(name: str, table: Table, belief: Belief) -> Iterator[Score]:
    assert table.watts is not None
    task = "GEMM power"
    long = table.take(np.flatnonzero(table.seconds >= LONG_SECONDS))
    measured = np.log(long.watts)
    model = long.power_model()
    deviation = np.hypot(belief.spread(model), NOISE)
    yield scored((task, "specs", name, "ours"), model(belief.mean), measured, deviation)
    yield scored(
        (task, "specs", name, "TDP"),
        np.full(len(measured), np.log(table.device.limit_watts)),
        measured,
    )
    for seed in range(SEEDS):
        rows = np.random.default_rng(seed).permutation(len(measured))
        probes, rest = rows[:PROBES], rows[PROBES:]
        after = belief.update(long.take(probes).power_model(), measured[probes], NOISE)
        other = long.take(rest).power_model()
        deviation = np.hypot(after.spread(other), NOISE)
        yield scored(
            (task, f"{PROBES} probes", name, "ours"), other(after.mean), measured[rest], deviation
        )


# NeuSight: whole steps from operators.

_PASSES = {"add": 3.0, "div": 3.0, "mul": 3.0, "pow": 3.0, "softmax": 2.7, "ln": 4.0}
_LAYER = re.compile(r"_(h|layer|layers|block)_0_")
_AFTER_LAYERS = re.compile(r"ln_f|final_layer_norm|lm_head|pooler|classifier|cls|outputs?$|logits")


def operator_tables(data: Path, rows: int) -> dict[str, Table]:
    """FP32 operators of every device in the NeuSight tables."""
    parts: dict[str, list[Table]] = {}
    for file in sorted(data.glob("devices/neusight/ops/*.csv.gz")):
        kind = file.name.split(".")[0].removeprefix("amd_")
        if kind == "conv":
            continue
        by_device: dict[str, list[dict[str, str]]] = {}
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                by_device.setdefault(row["Device"], []).append(row)
        for name, found in by_device.items():
            if (board := known_device(name)) is not None:
                parts.setdefault(board.name, []).append(_operators(board, kind, found, rows))
    return {
        name: Table(
            tables[0].device,
            joined([table.kernels for table in tables]),
            np.concatenate([table.seconds for table in tables]),
        )
        for name, tables in parts.items()
    }


def _operators(board: Accelerator, kind: str, found: list[dict[str, str]], rows: int) -> Table:
    product = kind in ("linear", "bmm")
    wanted = np.random.default_rng(0).permutation(len(found))[: rows if product else rows // 4]
    some = [found[row] for row in wanted]

    def column(name: str) -> Array:
        return np.array([float(row[name]) for row in some])

    if product:  # the tables call the inner dimension N and the columns K
        shape = [column("B"), column("M"), column("K"), column("N")]
        kernels = matmuls(shape, 4.0, board.rates("fp32"), copies=1)
    else:
        kernels = streams(column("B") * column("H") * 4.0 * _PASSES.get(kind, 2.0))
    return Table(board, kernels, column("Latency") * 1e-3)


def step_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Whole forward and training steps on a device whose operators were left out."""
    tables = operator_tables(data, 100 if quick else 400)
    file = data / "devices/neusight/e2e_measured.csv"
    if not file.exists():
        return
    steps: dict[str, list[tuple[str, float, float]]] = {}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            graph = data / f"devices/neusight/opgraphs/{row['run']}.csv.gz"
            layers = float(row["num_layer"] or 0)
            if layers and graph.exists():
                steps.setdefault(row["device"], []).append(
                    (row["run"], layers, float(row["e2e_latency"]) * 1e-3)
                )
    for name, runs in steps.items():
        board = _configured(data, name)
        if board is not None:
            fit = partial(fit_times, tables, VECTOR_START, board.name)
            belief = prior_of("fp32 kernels", board.name, fit)
            yield from _step_scores(data, board, runs, belief)


def _configured(data: Path, name: str) -> Accelerator | None:
    """A device with what the data's own configuration says where it is more than the catalog's.

    AMD's boards compute FP32 products in matrix units, and some carry two dies, of which a process
    sees one.
    """
    board, file = known_device(name), data / f"devices/neusight/device_configs/{name}.json"
    if board is None or not file.exists():
        return board
    stated = json.loads(file.read_text(encoding="utf-8"))
    if "SingleFLOPsMM" not in stated:
        return board
    return replace(
        board,
        peaks={**board.peaks, "fp32": stated["SingleFLOPsMM"] * 1e9},
        bytes_per_second=stated["Mem_Bw"] * 1e9,
        l2_bytes=stated["L2Cache"] * 2.0**20,
        limit_watts=board.limit_watts * stated["Num_Sm"] / board.units,
        units=stated["Num_Sm"],
    )


def _step_scores(
    data: Path, board: Accelerator, runs: list[tuple[str, float, float]], belief: Belief
) -> Iterator[Score]:
    constants = in_step(belief.mean)
    predicted = []
    for run, layers, _ in runs:
        kernels = step_kernels(data / f"devices/neusight/opgraphs/{run}.csv.gz", board, layers)
        seconds = kernel_times(constants, board, kernels)[0]
        predicted.append(np.log((seconds * kernels.count).sum()))
    measured = np.log([seconds for _, _, seconds in runs])
    deviation = np.full(len(measured), 0.1)
    for kind in ("train", "inf"):
        rows = np.array([f"-{kind}-" in run for run, _, _ in runs])
        if rows.any():
            task = "training step from operators" if kind == "train" else "forward from operators"
            labels = (task, "specs", board.name)
            yield scored(
                (*labels, "ours"), np.array(predicted)[rows], measured[rows], deviation[rows]
            )


def step_kernels(file: Path, board: Accelerator, layers: float) -> Kernels:
    """Kernels of a step: the layer's ones as often as there are layers."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    inside = [index for index, row in enumerate(rows) if _LAYER.search(row["Name"])]
    end = next(
        index
        for index in range(inside[-1] + 1, len(rows))
        if _AFTER_LAYERS.search(rows[index]["Name"])
    )
    parts, counts = [], []
    columns = ("FwOps", "BwOps", "AccOps") if "-train-" in file.name else ("FwOps",)
    for index, row in enumerate(rows):
        for kind, shape in (pair for name in columns for pair in ast.literal_eval(row[name])):
            kernel = _graph_kernel(kind, shape, board)
            if kernel is not None:
                parts.append(kernel)
                counts.append(layers if inside[0] <= index < end else 1.0)
    kernels = joined(parts)
    kernels.count[:] = counts
    return kernels


def _graph_kernel(kind: str, shape: Any, board: Accelerator) -> Kernels | None:
    if kind in ("Linear", "BMM"):
        batch, rows, inner, columns = (1, *shape) if kind == "Linear" else shape
        sides = [np.array([float(side)]) for side in (batch, rows, columns, inner)]
        return matmuls(sides, 4.0, board.rates("fp32"))
    if kind == "MEM":
        return streams(np.array([4.0 * sum(np.prod(one) for one in shape)]))
    if kind.startswith("VEC"):
        passes = _PASSES.get(kind.removeprefix("VEC").lower(), 2.0)
        return streams(np.array([4.0 * np.prod(shape) * passes]))
    return None
