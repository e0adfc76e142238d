"""Fit the constants of ``joulery.prediction`` to measurements, with or without a device.

Every fit leaves out what it is told: a board with all its operators, curves, steps and its energy
per operation, or a system with all its plans.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from predict_data import (
    Case,
    bridge_cases,
    known_device,
    mpt_cases,
    operator_cases,
    rows,
    short_cases,
)
from predict_runs import published_runs

from joulery.prediction import accelerator
from joulery.prediction.models import (
    CONSTANTS,
    CURVE_NOISE,
    LIMIT_CONSTANTS,
    PARTS,
    PLAN_CONSTANTS,
    PLAN_NOISE,
    POWER_CONSTANTS,
    STREAM,
    Belief,
    Kernels,
    assume,
    busy_seconds,
    fitted,
    job_curve,
    kernel_times,
    plan_seconds,
    step_parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from joulery.prediction import Accelerator

    Array = NDArray[np.float64]
    Model = Callable[[Array], Array]

# Added to variances, so that a population without any scatter still has an inverse.
_JITTER = 1e-6
# A member of a population counts for so many independent measurements at most.
_EFFECTIVE = 100
# AIConfigurator's loop uses some weight matrices in turn: L40S, whose cache is large and memory
# slow, shows the change at a fifth of its cache.
WEIGHT_COPIES = 5
KERNEL_NOISE = 0.1
# A system counts for so many plans at most, so that large tables do not outvote small ones.
_PLANS = 40

# First guesses of the constants and the smallest spread between devices to believe in; chosen on
# the devices in shared/data, leaving one out at a time.
TENSOR_START = Belief.independent(
    np.log([0.95, 0.8, 2.3, 0.12, 120, 0.9, 3.1, 2.5, 1.2, 0.6]),
    np.array([0.06, 0.06, 0.15, 0.1, 0.2, 0.08, 0.1, 0.2, 0.15, 0.3]),
)
VECTOR_START = Belief.independent(
    np.log([0.9, 0.85, 30, 0.12, 10, 0.9, 2.7, 15, 0.9, 0.6]),
    np.array([0.06, 0.08, 0.2, 0.3, 0.3, 0.2, 0.15, 0.3, 0.2, 0.3]),
)
CURVE_START = Belief.independent(
    np.log([1.0, 0.25, 0.3, 1e-4, 1e-4, 1e6, 0.6, 0.15, 0.045, 1.25, 0.2, 0.76, 0.76]),
    np.array([3.0, 0.7, 1.0, 0.01, 0.01, 0.01, 0.3, 0.25, 0.3, 0.12, 0.3, 0.05, 0.06]),
)
_PLAN_START = {
    "dense": (1.1, 0.08),
    "attention": (1.1, 0.3),
    "experts": (1.5, 0.3),
    "tensor": (1.0, 0.4),
    "expert_links": (0.7, 0.5),
    "context": (0.5, 0.7),
    "data": (1.0, 0.4),
    "bubble": (1.0, 0.15),
    "optimizer": (1.2, 0.4),
    "host": (1.5, 0.6),
    "fp32": (0.9, 0.15),
    "fp8": (0.9, 0.15),
    "mxfp8": (0.93, 0.15),
    "nvfp4": (0.95, 0.2),
    "compile": (1.02, 0.05),
    "eager": (1.05, 0.08),
    "transformers": (1.1, 0.1),
    "replay": (1.0, 0.05),
    "unfused": (1.1, 0.15),
    # Gated blocks come with root-mean-square norms and rotary embeddings: a captured block of Qwen
    # 2.5 has 115 operators, one of GPT-2 57.
    "gated": (2.0, 0.3),
    "narrow": (1.1, 0.1),
}
PLAN_START = Belief.independent(
    np.log([_PLAN_START[name][0] for name in PLAN_CONSTANTS]),
    np.array([_PLAN_START[name][1] for name in PLAN_CONSTANTS]),
)
POWER_START = Belief.independent(np.log([0.45, 0.6, 0.25, 0.32]), np.array([0.2, 0.2, 0.3, 0.3]))


def population(
    members: Sequence[tuple[Model, Array]],
    start: Belief,
    noise: float,
    *,
    weights: Sequence[float] | None = None,
    rounds: int = 4,
) -> Belief:
    """Belief in the constants of a further member of a population (empirical Bayes).

    Each round fits every member with the population as its prior, then takes mean and spread of
    the fits. The spread never falls below the starting one: few members say little about it.

    Args:
        members: A model and the logarithms of its measurements per device or run; without any, the
            first guess stands.
        start: First guess; its deviations are the smallest that the result may have.
        noise: Standard deviation of a measurement around the model.
        weights: How much each member counts; alike where None.
        rounds: Number of alternations.
    """
    if not members:
        return start
    share = np.ones(len(members)) if weights is None else np.asarray(weights, float)
    share = share / share.sum()
    belief = Belief.independent(start.mean, 2.0 * start.deviation)
    for _ in range(rounds):
        fits = np.array([own_fit(belief, member, noise) for member in members])
        mean = share @ fits
        away = fits - mean
        scatter = away.T @ (share[:, None] * away) / max(1 - (share**2).sum(), 1e-9)
        if len(fits) < 3 * len(mean):  # too few to tell how the constants hang together
            scatter = np.diag(np.diag(scatter))
        missing = np.maximum(start.deviation**2 - np.diag(scatter), 0.0)
        belief = Belief(mean, scatter + np.diag(missing + _JITTER))
    return belief


def own_fit(belief: Belief, member: tuple[Model, Array], noise: float) -> Array:
    """Constants of one member, with the population as its prior."""
    model, measured = member
    return belief.update(model, measured, noise * max(1.0, len(measured) / _EFFECTIVE) ** 0.5).mean


# Kernels.


class Table(NamedTuple):
    """Measured kernels of one device."""

    device: Accelerator
    kernels: Kernels
    seconds: Array

    def member(self) -> tuple[Model, Array]:
        """Log-seconds from log-constants, and as measured."""
        return (
            lambda constants: np.log(kernel_times(constants, self.device, self.kernels)[0]),
            np.log(self.seconds),
        )


@cache
def gemm_rows(data: Path, kind: str, count: int) -> list[tuple[str, dict[str, Array]]]:
    """Columns of some matrix products per device folder, the same shapes everywhere."""
    from pyarrow import parquet

    folders = []
    for file in sorted(data.glob("devices/aiconfigurator/*/gemm_perf.parquet")):
        table = parquet.read_table(file)
        column = {name: table[name].to_numpy() for name in table.column_names}
        mine = np.flatnonzero(column["gemm_dtype"] == kind)
        m, n, k = (column[letter][mine] for letter in "mnk")
        order = (m * 73856093 ^ n * 19349663 ^ k * 83492791) * 2654435761 % 2**32
        some = mine[np.argsort(order)][:count]
        if len(some):
            names = [*"mnk", "latency", *(["power"] if "power" in column else [])]
            columns = {name: column[name][some].astype(float) for name in names}
            folders.append((file.parent.name, columns))
    return folders


def gemm_tables(data: Path, count: int) -> list[Table]:
    """Matrix products in BF16 per device."""
    tables = []
    for name, column in gemm_rows(data, "bfloat16", count):
        board = known_device(name)
        if board is not None:
            shape = [np.ones(len(column["m"])), *(column[letter] for letter in "mnk")]
            kernels = matmuls(shape, 2.0, board.rates("bf16"), WEIGHT_COPIES)
            tables.append(Table(board, kernels, column["latency"] * 1e-3))
    return tables


_PASSES = {"add": 3.0, "div": 3.0, "mul": 3.0, "pow": 3.0, "softmax": 2.7, "ln": 4.0}


def operator_tables(data: Path, count: int) -> list[Table]:
    """FP32 operators of every device in the NeuSight tables."""
    parts: dict[str, list[Table]] = {}
    for name, kind, members in _operator_rows(data, count):
        if (board := known_device(name)) is not None:
            parts.setdefault(board.name, []).append(_operators(board, kind, members))
    return [
        Table(
            tables[0].device,
            joined([table.kernels for table in tables]),
            np.concatenate([table.seconds for table in tables]),
        )
        for tables in parts.values()
    ]


@cache
def _operator_rows(data: Path, count: int) -> list[tuple[str, str, list[dict[str, str]]]]:
    """Device, kind and some rows of each kind of operator."""
    parts = []
    for file in sorted(data.glob("devices/neusight/ops/*.csv.gz")):
        kind = file.name.split(".")[0].removeprefix("amd_")
        by_device: dict[str, list[dict[str, str]]] = {}
        for row in rows(file) if kind != "conv" else ():
            by_device.setdefault(row["Device"], []).append(row)
        for name, members in by_device.items():
            order = np.random.default_rng(0).permutation(len(members))
            some = order[: count if kind in ("linear", "bmm") else count // 4]
            parts.append((name, kind, [members[row] for row in some]))
    return parts


def _operators(board: Accelerator, kind: str, members: list[dict[str, str]]) -> Table:
    def column(name: str) -> Array:
        return np.array([float(row[name]) for row in members])

    if kind in ("linear", "bmm"):  # the tables call the inner dimension N and the columns K
        shape = [column("B"), column("M"), column("K"), column("N")]
        kernels = matmuls(shape, 4.0, board.rates("fp32"), copies=1)
    else:
        kernels = streams(column("B") * column("H") * 4.0 * _PASSES.get(kind, 2.0))
    return Table(board, kernels, column("Latency") * 1e-3)


def matmuls(
    shape: Sequence[Array],
    element_bytes: float,
    rates: tuple[float, float],
    copies: float = np.inf,
) -> Kernels:
    """Columns of plain matrix products.

    Args:
        shape: Batch, rows, columns and inner dimension of each.
        element_bytes: Bytes of an element.
        rates: Peak of single kernels and of long dense work, as ``Accelerator.rates``.
        copies: Number of weight matrices that are used in turn before one comes again.
    """
    batch, rows_, columns, inner = (np.asarray(part, float) for part in shape)
    weights = batch * columns * inner * element_bytes
    ones = np.ones_like(rows_)
    return Kernels(
        kind=0 * ones,
        batch=batch,
        rows=rows_,
        columns=columns,
        inner=inner,
        operations=2 * batch * rows_ * columns * inner,
        weight_bytes=weights,
        activation_bytes=batch * rows_ * (columns + inner) * element_bytes,
        weight_footprint=weights * copies,
        peak=rates[0] * ones,
        fed=rates[1] * ones,
        count=ones,
    )


def streams(activation_bytes: Array) -> Kernels:
    """Columns of operators that only move data."""
    traffic = np.asarray(activation_bytes, float)
    ones, zeros = np.ones_like(traffic), np.zeros_like(traffic)
    columns = [STREAM * ones, ones, *[zeros] * 5, traffic, np.inf * ones, *[ones] * 3]
    return Kernels(*columns)


def joined(parts: Sequence[Kernels]) -> Kernels:
    """Columns of several sets of operators, one below the other."""
    return Kernels(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Kernels.__slots__)
    )


def fit_kernels(tables: list[Table], start: Belief, without: str = "") -> dict[str, Any]:
    """Constants of a further device, and of the generations that were measured."""
    tables = [table for table in tables if table.device.name != without]
    belief = population([table.member() for table in tables], start, KERNEL_NOISE)
    generations: dict[str, list[Array]] = {}
    for table in tables:
        own = own_fit(belief, table.member(), KERNEL_NOISE)
        generations.setdefault(table.device.architecture, []).append(own)
    means = {
        name: np.round(np.mean(fits, axis=0), 4).tolist() for name, fits in generations.items()
    }
    return entry(CONSTANTS, belief, [table.device.name for table in tables]) | {
        "by_architecture": means
    }


# Power-limit curves.


class Curve(NamedTuple):
    """One job on one device: seconds and watts over limits, lowest first."""

    device: Accelerator
    job: str
    limit: Array
    seconds: Array
    watts: Array

    def member(self) -> tuple[Model, Array]:
        """Log-seconds and log-watts from log-constants, and as measured, in units of the last."""
        ones = np.ones(len(self.limit))
        measured = np.log(np.concatenate([self.seconds / self.seconds[-1], self.watts]))
        return (
            lambda constants: np.log(
                np.concatenate(job_curve(constants, self.device, ones, self.limit))
            ),
            measured,
        )


def limit_curves(data: Path) -> list[Curve]:
    """Every measured power-limit curve, at one batch size each."""
    curves = []
    for name, board, points in (*_zeus_curves(data), *_other_curves(data)):
        device = known_device(board)
        limit, seconds, watts = np.array(sorted(points)).T
        if device is not None and len(limit) >= 4:
            curves.append(Curve(device, name, limit, seconds, watts))
    return curves


_Points = list[tuple[float, float, float]]


def _zeus_curves(data: Path) -> Iterator[tuple[str, str, _Points]]:
    for file in sorted(data.glob("zeus/summary_power_*.csv")):
        jobs: dict[str, _Points] = {}
        for row in rows(file):
            job = f"{row['dataset']} {row['optimizer']} {row['batch_size']}"
            names = ("power_limit", "time_per_epoch", "average_power")
            limit, seconds, watts = (float(row[name]) for name in names)
            jobs.setdefault(job, []).append((limit, seconds, watts))
        board = file.stem.removeprefix("summary_power_")
        yield from ((job, board, points) for job, points in jobs.items())


def _other_curves(data: Path) -> Iterator[tuple[str, str, _Points]]:
    for file in sorted(data.glob("emerald/*_dvfs_sweep.csv")):
        jobs: dict[str, _Points] = {}
        for row in rows(file):
            point = float(row["GPU power cap"]), 1 / float(row["throughput"])
            jobs.setdefault(row["Workload"], []).append((*point, float(row["power per GPU"])))
        board = file.name.split("_")[1]
        yield from ((name, board, points) for name, points in jobs.items())
    for file in sorted(data.glob("devices/zeus_profiles/*gpu0.csv")):
        points = []
        for row in rows(file):
            limit = re.search(r"_(\d+)$", row["window_name"])
            if limit:
                seconds = float(row["elapsed_time"])
                points.append((float(limit[1]), seconds, float(row["gpu0_energy"]) / seconds))
        board, name, _ = file.stem.split("+")
        yield name, board, points
    for file in sorted(data.glob("pipeline/power_limit_sweeps/*_zeus_global.csv")):
        jobs = {}
        for row in rows(file):
            seconds = float(row["time"])
            ranks = sum(key.startswith("power_limit_") for key in row)
            watts = float(row["energy"]) / seconds / ranks
            point = (float(row["power_limit_0"]), seconds, watts)
            jobs.setdefault(row["model_name"], []).append(point)
        # Perseus's A100s are PCIe boards of 300 W.
        board = file.name.split("_")[0] + "-PCIe-80GB"
        yield from ((name, board, points) for name, points in jobs.items())


def fit_limits(curves: list[Curve], without: str = "") -> dict[str, Any]:
    """Constants of a further job on a further board; every board counts alike."""
    curves = [curve for curve in curves if curve.device.name[:4] != without[:4]]
    boards = Counter(curve.device.name for curve in curves)
    weights = [1 / boards[curve.device.name] for curve in curves]
    members = [curve.member() for curve in curves]
    belief = population(members, CURVE_START, CURVE_NOISE, weights=weights, rounds=3)
    return entry(LIMIT_CONSTANTS, belief, list(boards))


def clock_curves(data: Path) -> Iterator[tuple[Accelerator, _Points]]:
    """Median kernel of each table of locked clocks: clock in hertz, seconds, watts."""
    for file in sorted(data.glob("clocks/*.csv*")):
        board = known_device("a100-pcie-40gb" if "a100" in file.name else file.name.split("_")[0])
        if board is None:
            continue
        cases: dict[tuple[str, ...], _Points] = {}
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                key = tuple(v for k, v in row.items() if "per_" in k or k.startswith("block"))
                point = float(row["clock_mhz"]) * 1e6, float(row["milliseconds"]) * 1e-3
                cases.setdefault((*key, row.get("nbuffer", "")), []).append(
                    (*point, float(row["watts"]))
                )
        longest = max(len(points) for points in cases.values())
        whole = [points for points in cases.values() if len(points) == longest]
        whole.sort(key=lambda points: min(seconds for _, seconds, _ in points))
        yield board, sorted(whole[len(whole) // 2])


# Steps: one belief for plans on clusters, steps on one board, and captured operators.


@cache
def step_cases(data: Path) -> list[Case]:
    """Every measured step that the constants of plans are fitted to, published trainings too.

    SimuMax's and vTrain's nodes are not among them: with them in, systems that are left out are
    predicted worse.
    """
    readers = (bridge_cases, mpt_cases, short_cases, operator_cases)
    cases = [case for reader in readers for case in reader(data)]
    return cases + [
        Case("published", run.source, run.device, run.model, run.plan, run.seconds)
        for run in published_runs()
    ]


class Step(NamedTuple):
    """A measured step and its physical parts."""

    case: Case
    parts: Array


def steps_of(cases: list[Case]) -> list[Step]:
    """Steps with their parts under the constants in force."""
    return [Step(case, step_parts(case.model, case.plan, case.device)) for case in cases]


@cache
def _steps_under(data: Path, constants: str) -> list[Step]:
    """All steps under the constants in force, which are told apart by their text."""
    del constants
    return steps_of([replace(case, device=_again(case.device)) for case in step_cases(data)])


def fit_plans(steps: list[Step], without: str = "") -> dict[str, Any]:
    """Constants of a further system.

    Args:
        steps: Measured steps.
        without: System, model or device to leave out.
    """
    steps = [step for step in steps if not without or without not in names_of(step.case)]
    if not steps:
        return entry(PLAN_CONSTANTS, PLAN_START, [])
    cases = [step.case for step in steps]
    counts = Counter(case.system for case in cases)
    parts = np.array([step.parts for step in steps])
    noise = [PLAN_NOISE * max(1.0, counts[case.system] / _PLANS) ** 0.5 for case in cases]
    belief = PLAN_START.update(
        lambda constants: np.log(plan_seconds(constants, parts)),
        np.log([case.seconds for case in cases]),
        np.array(noise),
    )
    names = {name for case in cases for name in names_of(case)}
    return entry(PLAN_CONSTANTS, belief, sorted(names - {""}))


def names_of(case: Case) -> tuple[str, ...]:
    """Names by which a case can be left out."""
    return case.system, case.device.name, getattr(case.model, "name", ""), case.source


def fit_power(data: Path, steps: list[Step], plans: dict[str, Any], without: str = "") -> Any:
    """Power of kernels and of waiting, from steps and from matrix products."""
    members, boards = [], []
    by_board: dict[str, list[Step]] = {}
    for step in steps:
        case = step.case
        if case.watts is not None and (not without or without not in names_of(case)):
            by_board.setdefault(case.device.name, []).append(step)
    for name, board_steps in by_board.items():
        members.append(_power_member(_step_uses(board_steps, np.array(plans["mean"]))))
        boards.append(name)
    for name, column in gemm_rows(data, "bfloat16", 600):
        board = known_device(name)
        if board is not None and "power" in column and board.name != without:
            members.append(_power_member(_gemm_uses(board, column)))
            boards.append(board.name)
    return entry(POWER_CONSTANTS, population(members, POWER_START, 0.1), boards)


def _power_member(uses: Array) -> tuple[Model, Array]:
    """Shares of time in kernels, arithmetic, memory and waiting; power as a share of the limit."""
    *shares, watts = uses

    def model(constants: Array) -> Array:
        asked = sum(np.exp(c) * share for c, share in zip(constants, shares, strict=True))
        return np.asarray(np.log((np.asarray(asked) ** -8 + 1.05**-8) ** (-1 / 8)))

    return model, np.log(watts)


def _step_uses(steps: list[Step], constants: Array) -> Array:
    parts = np.array([step.parts for step in steps])
    part = dict(zip(PARTS, parts.T, strict=True))
    cases = [step.case for step in steps]
    total = np.array([case.seconds for case in cases])
    busy = np.minimum(busy_seconds(constants, parts), 0.98 * total)
    update = part["optimizer"] * np.exp(constants[PLAN_CONSTANTS.index("optimizer")])
    nominal = part["dense"] + part["attention"] + part["experts"]
    inside = np.maximum(busy - update, 0.0) / nominal
    memory = part["bandwidth"] * inside + 0.8 * update
    watts = np.array([(case.watts or np.nan) / case.device.limit_watts for case in cases])
    shares = (busy, part["operations"] * inside, memory, total - busy)
    return np.array([*(share / total for share in shares), watts])


def _gemm_uses(board: Accelerator, column: dict[str, Array]) -> Array:
    m, n, k, seconds = (column[name] for name in ("m", "n", "k", "latency"))
    seconds = seconds * 1e-3
    long = seconds > 1e-4  # readings of shorter kernels are averages over what ran around them
    used = np.minimum(2 * m * n * k / seconds / board.peak("bf16"), 1.0) ** 0.7
    moved = np.minimum(2 * (m * n + m * k + n * k) / seconds / board.bytes_per_second, 1.0)
    ones = np.ones_like(m)
    shares = (ones, used, moved, 0 * ones, column["power"] / board.limit_watts)
    return np.array(shares)[:, long]


# The document.


def entry(names: tuple[str, ...], belief: Belief, members: list[str]) -> dict[str, Any]:
    """A belief, ready for JSON."""
    return {
        "fitted_on": sorted(set(members)),
        "constants": list(names),
        "mean": np.round(belief.mean, 4).tolist(),
        "covariance": np.round(belief.covariance, 6).tolist(),
    }


@cache
def fit_all(data: Path, *, without: str = "", quick: bool = False) -> dict[str, Any]:
    """The document of constants, with everything of one device, system or source left out.

    What does not stand behind the shipped constants needs no fit: they are those without it.
    """
    document = dict(fitted()) | {"beliefs": dict(fitted()["beliefs"])}
    document["operation_picojoules"] = {
        name: values
        for name, values in fitted()["operation_picojoules"].items()
        if not values["boards"] or set(values["boards"]) != {without}
    }
    beliefs = document["beliefs"]

    def stands_behind(name: str) -> bool:
        return not without or without in beliefs.get(name, {}).get("fitted_on", ())

    with assume(document):
        if stands_behind("kernels") and (tables := gemm_tables(data, 300 if quick else 1500)):
            beliefs["kernels"] = fit_kernels(tables, TENSOR_START, without)
        if stands_behind("fp32 kernels") and (tables := operator_tables(data, 150)):
            beliefs["fp32 kernels"] = fit_kernels(tables, VECTOR_START, without)
        if stands_behind("limits") and (curves := limit_curves(data)):
            beliefs["limits"] = fit_limits(curves[:: 3 if quick else 1], without)
    with assume(document):
        if not without or any(without in names_of(case) for case in step_cases(data)):
            steps = _steps_under(data, json.dumps(document))
            beliefs["plans"] = fit_plans(steps, without)
            beliefs["power"] = fit_power(data, steps, beliefs["plans"], without)
    return document


def _again(board: Accelerator) -> Accelerator:
    """The catalog's device under the constants in force; others as they are."""
    same = accelerator(board.name)
    return same if same.memory_bytes == board.memory_bytes else board
