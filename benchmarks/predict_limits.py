"""Power-limit curves from few limits, and batch × limit surfaces from one probe."""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from predict_fitting import population
from predict_kernels import known_device
from predict_scores import Score, prior_of, scored

from joulery.prediction.models import (
    CURVE_NOISE,
    JOB_CONSTANTS,
    Belief,
    Load,
    at_scale,
    curve_after,
    job_curve,
    probe_values,
    response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from joulery.prediction import Accelerator

    Array = NDArray[np.float64]

# In the order of LIMIT_CONSTANTS. Chosen on V100, A40 and A100, leaving each out in turn.
CURVE_START = Belief.independent(
    np.log([1.0, 0.25, 0.3, 1e-4, 1e-4, 1e6, 0.6, 0.15, 0.045, 1.25, 0.2, 0.76, 0.76]),
    np.array([3.0, 0.7, 1.0, 0.01, 0.01, 0.01, 0.3, 0.25, 0.3, 0.12, 0.3, 0.05, 0.06]),
)
SURFACE_START = Belief.independent(
    np.log([0.5, 0.3, 30.0, 0.2, 2.0, 2000.0, 0.6, 0.15, 0.045, 1.25, 0.2, 0.76, 0.76]),
    np.array([3.0, 0.7, 2.5, 1.0, 0.7, 1.5, 0.3, 0.25, 0.3, 0.12, 0.3, 0.05, 0.06]),
)
PROBE_NOISE = 0.02


class Curves(NamedTuple):
    """One job on one device: seconds and watts over batch sizes and limits."""

    device: Accelerator
    source: str
    job: str
    batch: Array
    limit: Array
    seconds: Array
    watts: Array

    def model(self) -> Callable[[Array], Array]:
        """Log-seconds, then log-watts, from log-constants."""
        return lambda constants: np.log(
            np.concatenate(job_curve(constants, self.device, self.batch, self.limit))
        )

    def measured(self) -> Array:
        """What the model predicts, measured."""
        return np.log(np.concatenate([self.seconds, self.watts]))

    def take(self, rows: Array) -> Curves:
        """Some of the points."""
        parts = (part[rows] for part in (self.batch, self.limit, self.seconds, self.watts))
        return Curves(self.device, self.source, self.job, *parts)


def zeus_surfaces(data: Path) -> list[Curves]:
    """Seconds per epoch and watts by batch size and limit, one entry per workload and GPU."""
    found = []
    for file in sorted(data.glob("zeus/summary_power_*.csv")):
        board = known_device(file.stem.removeprefix("summary_power_"))
        rows: dict[str, list[list[float]]] = {}
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                names = ("batch_size", "power_limit", "time_per_epoch", "average_power")
                job = f"{row['dataset']} {row['optimizer']}"
                rows.setdefault(job, []).append([float(row[name]) for name in names])
        if board is not None:
            found += [
                Curves(board, board.name, job, *np.array(sorted(points)).T)
                for job, points in rows.items()
            ]
    return found


def limit_curves(data: Path) -> list[Curves]:
    """Every measured power-limit curve, at one batch size each."""
    found = []
    for surface in zeus_surfaces(data):
        for batch in np.unique(surface.batch):
            part = surface.take(np.flatnonzero(surface.batch == batch))
            if len(part.limit) >= 4:
                ones = np.ones(len(part.limit))
                found.append(part._replace(job=f"{part.job} {batch:g}", batch=ones))
    for name, board, points in _other_curves(data):
        device = known_device(board)
        limit, seconds, watts = np.array(sorted(points)).T
        if device is not None and len(limit) >= 4:
            found.append(Curves(device, board, name, np.ones(len(limit)), limit, seconds, watts))
    return found


def _other_curves(data: Path) -> Iterator[tuple[str, str, list[tuple[float, float, float]]]]:
    for file in sorted(data.glob("emerald/*_dvfs_sweep.csv")):
        rows: dict[str, list[tuple[float, float, float]]] = {}
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                point = float(row["GPU power cap"]), 1 / float(row["throughput"])
                rows.setdefault(row["Workload"], []).append((*point, float(row["power per GPU"])))
        board = file.name.split("_")[1]
        yield from ((name, board, points) for name, points in rows.items())
    for file in sorted(data.glob("devices/zeus_profiles/*gpu0.csv")):
        points = []
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                limit = re.search(r"_(\d+)$", row["window_name"])
                if limit:
                    seconds = float(row["elapsed_time"])
                    points.append((float(limit[1]), seconds, float(row["gpu0_energy"]) / seconds))
        board, name, _ = file.stem.split("+")
        yield name, board, points
    for file in sorted(data.glob("pipeline/power_limit_sweeps/*_zeus_global.csv")):
        rows = {}
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                seconds = float(row["time"])
                ranks = sum(key.startswith("power_limit_") for key in row)
                watts = float(row["energy"]) / seconds / ranks
                rows.setdefault(row["model_name"], []).append(
                    (float(row["power_limit_0"]), seconds, watts)
                )
        # Perseus's A100s are PCIe boards of 300 W.
        board = file.name.split("_")[0] + "-PCIe-80GB"
        yield from ((name, board, points) for name, points in rows.items())


def fit_curves(curves: list[Curves]) -> Belief:
    """Belief in the constants of a further job on a further board; every board counts alike."""
    members, boards = [], Counter(curve.device.name for curve in curves)
    for curve in curves:
        unit = curve._replace(seconds=curve.seconds / curve.seconds[-1])
        members.append((unit.model(), unit.measured()))
    weights = [1 / boards[curve.device.name] for curve in curves]
    return population(members, CURVE_START, CURVE_NOISE, weights=weights, rounds=3)


@cache
def fit_without(data: Path, family: str, every: int) -> Belief:
    """The same without boards of one family, from every so many of the curves."""
    others = [curve for curve in limit_curves(data) if curve.device.name[:4] != family]
    return fit_curves(others[::every])


def limit_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Whole curves from one, two and three limits, each board left out in turn."""
    curves = limit_curves(data)
    boards = sorted({curve.device.name for curve in curves})
    for board in boards:
        fit = partial(fit_without, data, board[:4], 3 if quick else 1)
        belief = prior_of("limits", board, fit)
        mine = [curve for curve in curves if curve.device.name == board]
        yield from _curve_scores(board, mine[:: 3 if quick else 1], belief)


def probes_of(curve: Curves, count: int) -> Array:
    """Positions of the limits to measure: four fifths up; both ends; those and the lower third.

    Curves bend at low limits.
    """
    low, last = curve.limit[0], len(curve.limit) - 1
    share = 4 / 5 if count == 1 else 1 / 3
    between = int(np.argmin(np.abs(curve.limit - low - share * (curve.limit[last] - low))))
    return np.array({1: [between], 2: [0, last], 3: sorted({0, between, last})}[count])


def _curve_scores(board: str, curves: list[Curves], belief: Belief) -> Iterator[Score]:
    for count in (1, 2, 3):
        gathered: dict[str, list[Array]] = {}
        chosen = []
        for curve in curves:
            rows = probes_of(curve, count)
            rest = np.setdiff1d(np.arange(len(curve.limit)), rows)
            few = curve.take(rows)
            seen = np.stack([few.limit, few.seconds, few.watts])
            found, claimed = curve_after(belief, curve.device, seen, curve.limit)
            predicted, spread = found.ravel(), claimed.ravel()
            size = len(curve.limit)
            joules = np.log(curve.seconds * curve.watts)
            chosen.append(joules[np.argmin(predicted[:size] + predicted[size:])] - joules.min())
            for name, offset in (("time", 0), ("power", size)):
                gathered.setdefault(name, []).append(
                    np.stack(
                        [
                            predicted[offset + rest],
                            curve.measured()[offset + rest],
                            spread[offset + rest],
                            _interpolated(curve, rows, offset)[rest],
                        ]
                    )
                )
        yield _regret(board, count, chosen)
        for name, parts in gathered.items():
            ours, measured, spread, simple = np.concatenate(parts, axis=1)
            labels = (f"power-limit curve, {name}", f"{count} limits", board)
            yield scored((*labels, "ours"), ours, measured, spread)
            yield scored((*labels, "interpolation"), simple, measured)


def _regret(group: str, count: int | str, lost: list[float]) -> Score:
    """Energy of the settings of least predicted energy above that of the best."""
    level = f"{count} limits" if isinstance(count, int) else count
    labels = ("energy regret of the setting chosen", level, group, "ours")
    return scored(labels, np.array(lost), np.zeros(len(lost)))


def _interpolated(curve: Curves, rows: Array, offset: int) -> Array:
    return np.interp(curve.limit, curve.limit[rows], curve.measured()[offset + rows])


# How far the constants of a job differ between two boards beyond what the specifications say.
_TRANSFER = np.array([0.35, 0.5, 0.2, 0.3, 0.3, 0.15, 0.25])
# What shows as arithmetic in a job's response to the clock is partly traffic in caches, which
# grows from board to board like the memory's bandwidth.
_ARITHMETIC = 0.6
SURFACE_NOISE = 0.08


def surface_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """A job's batch × limit surface on a board from its surface on another and one probe."""
    surfaces, every = zeus_surfaces(data), 3 if quick else 1
    boards = {
        name: prior_of("limits", name, partial(fit_without, data, name[:4], every))
        for name in {surface.device.name for surface in surfaces}
    }
    for target in surfaces:
        elsewhere = [
            one for one in surfaces if one.job == target.job and one.source != target.source
        ]
        for source in elsewhere:
            prior = transferred(source, target.device, boards[target.device.name])
            yield from _surface_scores(source, target, prior)


def transferred(source: Curves, device: Accelerator, boards: Belief) -> Belief:
    """Belief in the constants of a job on a board, from its surface on another."""
    prior = at_scale(SURFACE_START, float(np.median(source.seconds)))
    known = prior.update(source.model(), source.measured(), SURFACE_NOISE)
    mean, covariance = boards.mean.copy(), boards.covariance.copy()
    starved = np.log(source.device.bytes_per_second / device.bytes_per_second)
    slower = np.log(source.device.sustained("fp32") / device.sustained("fp32"))
    slower = _ARITHMETIC * slower + (1 - _ARITHMETIC) * starved
    shift = np.array([slower, starved - slower, -slower, -slower, 0.0, 0.0, 0.0])
    job = slice(0, JOB_CONSTANTS)
    mean[job] = known.mean[job] + shift
    covariance[job, :] = covariance[:, job] = 0.0
    covariance[job, job] = known.covariance[job, job] + np.diag(_TRANSFER**2)
    return Belief(mean, covariance)


def _surface_scores(source: Curves, target: Curves, belief: Belief) -> Iterator[Score]:
    model, measured, size = target.model(), target.measured(), len(target.limit)
    group = f"{source.source}→{target.source}"
    spread = np.hypot(belief.spread(model), SURFACE_NOISE)
    yield from _surface(("Zeus surface", "elsewhere", group), model(belief.mean), measured, spread)
    ratio = np.log(source.device.peak("fp32") / target.device.peak("fp32"))
    there = {
        (batch, limit): seconds
        for batch, limit, seconds in zip(source.batch, source.limit, source.seconds, strict=True)
    }
    same = [row for row in range(size) if (target.batch[row], target.limit[row]) in there]
    if same:
        simple = np.log([there[target.batch[row], target.limit[row]] for row in same]) + ratio
        labels = ("Zeus surface, time", "elsewhere", group, "FLOPS ratio")
        yield scored(labels, simple, measured[same])
    pairs = [(row, size + row) for row in range(size)]
    value = probe_values(belief.covariance_of(model), pairs, list(range(2 * size)), PROBE_NOISE)
    probe = target.take(np.array([int(np.argmin(value))]))
    after = belief.update(probe.model(), probe.measured(), PROBE_NOISE)
    spread = np.hypot(after.spread(model), SURFACE_NOISE)
    yield from _surface(("Zeus surface", "1 probe", group), model(after.mean), measured, spread)
    predicted, joules = model(after.mean), measured[:size] + measured[size:]
    best = int(np.argmin(predicted[:size] + predicted[size:]))
    yield _regret(group, "1 probe", [float(joules[best] - joules.min())])


def _surface(
    labels: tuple[str, str, str], predicted: Array, measured: Array, spread: Array
) -> Iterator[Score]:
    task, level, group = labels
    size = len(measured) // 2
    time, power = slice(0, size), slice(size, None)
    for name, rows in (("time", time), ("power", power)):
        yield scored(
            (f"{task}, {name}", level, group, "ours"), predicted[rows], measured[rows], spread[rows]
        )
    yield scored(
        (f"{task}, energy", level, group, "ours"),
        predicted[time] + predicted[power],
        measured[time] + measured[power],
        np.hypot(spread[time], spread[power]),
    )


# Locked clocks: one kernel on one board each.


# Kernels that compute: traffic hardly shows beside arithmetic.
_KERNEL_MEMORY = 0.1


def clock_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Time and power of a kernel at locked clocks from one measurement at the highest."""
    del quick
    for name, board, points in _clock_curves(data):
        clock, seconds, watts = np.array(sorted(points)).T
        load = Load(1.0, 0.0, _KERNEL_MEMORY, watts[-1] / board.limit_watts)
        slowdown, drawn = response(board, load, np.empty(0), np.minimum(clock, board.clock_hertz))
        simple = clock / clock[-1]
        for kind, measured, ours, plain in (
            ("time", seconds, slowdown, 1 / simple),
            ("power", watts, drawn, simple),
        ):
            labels = (f"locked clocks, {kind}", "1 clock", name)
            known = np.log(measured[-1])
            real = np.log(measured[:-1])
            noise = CURVE_NOISE * (0.5 - 3 * np.log(simple[:-1]))
            predicted = known + np.log(ours[:-1] / ours[-1])
            yield scored((*labels, "ours"), predicted, real, noise)
            yield scored((*labels, "proportional"), known + np.log(plain[:-1]), real)


def _clock_curves(
    data: Path,
) -> Iterator[tuple[str, Accelerator, list[tuple[float, float, float]]]]:
    """Median kernel of each table: clock in hertz, seconds, watts."""
    for file in sorted(data.glob("clocks/*.csv*")):
        board = known_device("a100-pcie-40gb" if "a100" in file.name else file.name.split("_")[0])
        if board is None:
            continue
        cases: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                key = tuple(v for k, v in row.items() if "per_" in k or k.startswith("block"))
                point = float(row["clock_mhz"]) * 1e6, float(row["milliseconds"]) * 1e-3
                cases.setdefault((*key, row.get("nbuffer", "")), []).append(
                    (*point, float(row["watts"]))
                )
        most = max(len(points) for points in cases.values())
        whole = [points for points in cases.values() if len(points) == most]
        whole.sort(key=lambda points: min(seconds for _, seconds, _ in points))
        yield board.name, board, whole[len(whole) // 2]
