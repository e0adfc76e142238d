"""How far predictions are from measurements on devices, systems and models that were left out.

Only public functions are scored (`predict`, `prediction`, `Calibration`, `limit_curve`,
`operator_seconds`, `plan_memory`, `Convergence`), with everything of the target left out of the
fit: its operators, curves, steps and the energy of its operations. `--data` may name any folder
laid out like `shared/data`; what is there is discovered.

usage: python benchmarks/predict.py [--data DIR] [--quick|--smoke] [--only WORD] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import say, write_results
from predict_data import (
    Case,
    bridge_cases,
    known_device,
    mpt_cases,
    number,
    operator_cases,
    product,
    rows,
    short_cases,
    simumax_cases,
    vtrain_cases,
)
from predict_fit import (
    WEIGHT_COPIES,
    Curve,
    clock_curves,
    fit_all,
    gemm_rows,
    limit_curves,
)
from predict_runs import further_runs, published_runs, whole_trainings
from predict_scores import Score, figures, report, scored, summaries

from joulery.errors import JouleryError
from joulery.prediction import (
    Calibration,
    Convergence,
    Graph,
    MeasuredStep,
    Operator,
    Plan,
    Work,
    accelerator,
    limit_curve,
    memory_verdict,
    operator_seconds,
    plan_memory,
    prediction,
    recommend,
)
from joulery.prediction.models import assume, best_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.prediction import Prediction

SEEDS = 3
NODE_PROBES, SYSTEM_PROBES = 20, 5


# Operators.


def operator_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Matrix products and attention that run alone, each device left out in turn."""
    for kind, precision in (("bfloat16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8")):
        folders = gemm_rows(data, kind, 200 if quick else 800)
        for name, column in folders:
            board = known_device(name)
            if board is None or precision not in board.peaks:
                continue
            with assume(fit_all(data, without=board.name, quick=quick)):
                graph = _gemms(column, precision)
                ours = operator_seconds(graph, board.name)
                task = f"{precision} GEMM time"
                measured = column["latency"] * 1e-3
                yield scored((task, "specs", f"{name} {kind}"[:24], "ours"), ours, measured)
                if precision == "bf16":
                    yield from _relative_scores(name, column, folders)
                    yield from _power_scores(name, column, board.name)
    yield from _attention_scores(data, quick=quick)


def _gemms(column: dict[str, Any], precision: str) -> Graph:
    element = 2.0 if precision == "bf16" else 1.0
    operators = [
        replace(
            product(1, m, n, k, element, precision), reuse_bytes=WEIGHT_COPIES * n * k * element
        )
        for m, n, k in zip(column["m"], column["n"], column["k"], strict=True)
    ]
    return Graph("products", tuple(operators), 0, 0.0, 0.0, 0.0, 0.0)


def _relative_scores(name: str, column: dict[str, Any], folders: Any) -> Iterator[Score]:
    """The nearest device of the same generation, by the ratio of peaks or bandwidths."""
    board = known_device(name)
    for other, there in folders:
        relative = known_device(other)
        if relative is None or other == name or relative.architecture != board.architecture:
            continue
        known = {
            shape: seconds
            for *shape, seconds in zip(
                there["m"], there["n"], there["k"], there["latency"], strict=True
            )
            for shape in [tuple(shape)]
        }
        pairs = [
            (seconds, known[shape])
            for *shape_, seconds in zip(
                column["m"], column["n"], column["k"], column["latency"], strict=True
            )
            for shape in [tuple(shape_)]
            if shape in known
        ]
        ratio = relative.peak("bf16") / board.peak("bf16")
        labels = ("bf16 GEMM time", "specs", f"{name} bfloat16"[:24], "relative's ratio")
        yield scored(labels, [ratio * far for _, far in pairs], [near for near, _ in pairs])


def _power_scores(name: str, column: dict[str, Any], board: str) -> Iterator[Score]:
    """Power of long products, repeated."""
    if "power" not in column:
        return
    long = np.flatnonzero(column["latency"] > 0.1)[:100]
    predicted, claimed = [], []
    for row in long:
        operator = product(1, *(column[letter][row] for letter in "mnk"), 2.0, "bf16")
        graph = Graph("product", (replace(operator, count=100),), 0, 0.0, 0.0, 0.0, 0.0)
        step = prediction(graph, board, Plan(framework="replay", shard=0))
        predicted.append(step.points[-1].watts)
        claimed.append(_power_error(step))
    yield scored(("GEMM power", "specs", name, "ours"), predicted, column["power"][long], claimed)


def _power_error(step: Prediction) -> float:
    """Deviation of the power: what the energy has beyond the time."""
    energy = step.points[-1].provenance.relative_error or 0.0
    return float(np.sqrt(max(energy**2 - step.deviation**2, 1e-6)))


def _attention_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    from pyarrow import parquet

    for file in sorted(data.glob("devices/aiconfigurator/*/context_attention_perf.parquet")):
        board = known_device(file.parent.name)
        table = parquet.read_table(file).to_pylist()
        table = [
            row
            for row in table
            if row["attn_dtype"] == row["kv_cache_dtype"] == "bfloat16"
            and not row.get("window_size")
            and not row["step"]
        ]
        order = np.random.default_rng(0).permutation(len(table))[: 300 if quick else 1500]
        if board is None or not len(order):
            continue
        some = [table[row] for row in order]
        graph = Graph("attention", tuple(map(_attention, some)), 0, 0.0, 0.0, 0.0, 0.0)
        with assume(fit_all(data, without=board.name, quick=quick)):
            ours = operator_seconds(graph, board.name)
        labels = ("prefill attention time", "specs", file.parent.name, "ours")
        yield scored(labels, ours, [row["latency"] * 1e-3 for row in some])


def _attention(row: dict[str, Any]) -> Operator:
    heads, length, width = row["batch_size"] * row["num_heads"], row["isl"], row["head_dim"]
    keys = row["batch_size"] * (row["num_key_value_heads"] or row["num_heads"])
    operations = 2.0 * heads * length * length * width
    traffic = 4.0 * (heads + keys) * length * width
    shape = (heads, length, width, length)
    return Operator("sdpa", "attention", "forward", shape, operations, traffic, "bf16")


# Steps of one board.


def step_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Steps from operators in FP32, and short steps of language models without and with a probe."""
    for name, cases in _by_device(operator_cases(data)).items():
        with assume(fit_all(data, without=name, quick=quick)):
            for kind in ("train", "inf"):
                mine = [case for case in cases if f"-{kind}-" in case.release]
                task = f"{'training step' if kind == 'train' else 'forward'} from operators"
                yield _scores((task, "specs", name), mine)[0]
    for name, cases in _by_device(short_cases(data)).items():
        with assume(fit_all(data, without=name, quick=quick)):
            yield from _scores(("LLM step", "specs", name), cases)
            for seed in range(SEEDS):
                probe = cases[int(np.random.default_rng(seed).integers(len(cases)))]
                rest = [case for case in cases if case is not probe]
                evidence = Calibration((_measured(probe),))
                yield from _scores(("LLM step", "1 probe", name), rest, evidence)


def _by_device(cases: Iterator[Case]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.device.name, []).append(case)
    return groups


def _measured(case: Case) -> MeasuredStep:
    return MeasuredStep(case.model, case.device.name, case.plan, case.seconds, case.watts)


def _scores(
    labels: tuple[str, str, str], cases: list[Case], evidence: Calibration | None = None
) -> list[Score]:
    """Time, and power where it was measured, of steps; those that are refused are left out."""
    steps = [(case, step) for case in cases if (step := _predicted(case, evidence)) is not None]
    task, level, group = labels
    seconds = [case.seconds for case, _ in steps]
    ours = [step.points[-1].seconds for _, step in steps]
    errors = [step.deviation for _, step in steps]
    scores = [scored((f"{task}, time", level, group, "ours"), ours, seconds, errors)]
    powered = [(case, step) for case, step in steps if case.watts]
    if powered:
        watts = [step.points[-1].watts / step.plan.devices for _, step in powered]
        errors = [_power_error(step) for _, step in powered]
        measured = [case.watts or 0.0 for case, _ in powered]
        scores.append(scored((f"{task}, power", level, group, "ours"), watts, measured, errors))
    return scores


def _predicted(case: Case, evidence: Calibration | None) -> Prediction | None:
    board = case.device if case.source == "published" else accelerator(case.device.name)
    ran = replace(board, memory_bytes=math.inf)  # whatever is predicted of its memory
    try:
        return prediction(case.model, ran, case.plan, calibration=evidence)
    except JouleryError:
        return None


# Plans.


def plan_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Plans on a device type, in a data set or of a model that was left out."""
    bridge = list(bridge_cases(data))
    for name, cases in _by_device(iter(bridge)).items():
        with assume(fit_all(data, without=name, quick=quick)):
            yield from _scores(("plans on a new system", "specs", name), cases)
            yield from _probed_scores(name, cases)
            yield from _model_scores(name, cases)
    for model in dict.fromkeys(getattr(case.model, "name", "") for case in bridge):
        mine = [case for case in bridge if getattr(case.model, "name", "") == model]
        with assume(fit_all(data, without=model, quick=quick)):
            yield from _scores(("plans of a new model", "specs", model), mine)
    for name, cases in _by_device(mpt_cases(data)).items():
        with assume(fit_all(data, without="mpt", quick=quick)):
            yield from _scores(("FSDP on A100", "specs", name), cases)


def _probed_scores(name: str, cases: list[Case]) -> Iterator[Score]:
    """Other plans after some random ones were measured."""
    if len(cases) <= 2 * SYSTEM_PROBES:
        return
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(cases))
        probes = [cases[row] for row in order[:SYSTEM_PROBES]]
        rest = [cases[row] for row in order[SYSTEM_PROBES:]]
        evidence = Calibration(tuple(map(_measured, probes)))
        labels = ("plans on a new system", f"{SYSTEM_PROBES} random probes", name)
        yield from _scores(labels, rest, evidence)


def _model_scores(name: str, cases: list[Case]) -> Iterator[Score]:
    """Other plans and releases of a model after one measured step of it."""
    for model in dict.fromkeys(case.model for case in cases):
        mine = [case for case in cases if case.model == model]
        for probe in mine[:SEEDS] if len(mine) > 2 else ():
            rest = [case for case in mine if case is not probe]
            evidence = Calibration((_measured(probe),))
            yield from _scores(("plans of a measured model", "1 probe", name), rest, evidence)


def node_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Plans on one node of old software after some random ones, and the regret of the choice."""
    cases = list(vtrain_cases(data))
    if not cases:
        return
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, case in enumerate(cases):
        key = (case.model, case.plan.devices, case.plan.batch_size)
        groups.setdefault(key, []).append(row)
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(cases))
        evidence = Calibration(tuple(_measured(cases[row]) for row in order[:NODE_PROBES]))
        rest = [cases[row] for row in order[NODE_PROBES :: 30 if quick else 3]]
        labels = (f"{NODE_PROBES} random probes", "A100")
        yield from _scores(("plans on one node", *labels), rest, evidence)
        some = list(groups.values())[:: 12 if quick else 3]
        yield _regret(cases, some, evidence, ("regret of the plan chosen", *labels, "ours"))
    yield from _advised_scores(cases, 20 if quick else 3)
    for case, *_ in simumax_cases(data):
        yield from _scores(("plans on one node", "specs", case.system), [case])


def _advised_scores(cases: list[Case], every: int) -> Iterator[Score]:
    """Plans after one step of the same model on the fewest devices, advised or drawn at random."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        groups.setdefault((case.model, case.plan.batch_size), []).append(case)
    random = np.random.default_rng(0)
    for members in groups.values():
        fewest = min(case.plan.devices for case in members)
        small = {case.plan: case for case in members if case.plan.devices == fewest}
        for target in members[::every] if len(small) > 1 else ():
            model, board, plans = target.model, target.device, list(small)
            if target.plan not in small:
                advised = best_probe(model, plans, target.plan, board, Calibration())[0]
                drawn = plans[int(random.integers(len(plans)))]
                for name, plan in (("advised", advised), ("random", drawn)):
                    evidence = Calibration((_measured(small[plan]),))
                    labels = ("plans on more devices", f"1 {name} probe", board.name)
                    yield from _scores(labels, [target], evidence)


def _regret(
    cases: list[Case],
    groups: list[list[int]],
    evidence: Calibration,
    labels: tuple[str, str, str, str],
) -> Score:
    chosen, best = [], []
    for members in groups:
        steps = {row: _predicted(cases[row], evidence) for row in members}
        times = {row: step.points[-1].seconds for row, step in steps.items() if step is not None}
        if times:
            chosen.append(cases[min(times, key=times.__getitem__)].seconds)
            best.append(min(cases[row].seconds for row in times))
    return scored(labels, chosen, best)


def run_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Published trainings, each source left out in turn, and those that no constant knows."""
    tables = {
        "published trainings": published_runs(),
        "further published trainings": further_runs(),
    }
    for task, table in tables.items():
        sources: dict[str, list[Case]] = {}
        for run in table:
            case = Case("published", run.source, run.device, run.model, run.plan, run.seconds)
            sources.setdefault(run.source, []).append(case)
        for source, cases in sources.items():
            with assume(fit_all(data, without=source, quick=quick)):
                yield from _scores((task, "specs", source), cases)


def whole_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Hours of whole trainings by `recommend`, with the lost time of all other sources.

    The constants of the steps are the shipped ones, which know some of these sources.
    """
    del data, quick
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for training in whole_trainings():
        work = Work(training.tokens, training.batch_size)
        answer = recommend(
            training.model, work, training.device, max_devices=training.devices, objective="time"
        )
        best, lost = answer.best, answer.to_dict()["lost_time"]
        seconds = (best.seconds - lost["start_seconds"]) / lost["factor"]
        hours = best.devices * seconds / 3600
        row = (hours, training.hours, best.relative_error_time)
        rows.setdefault(training.source, []).append(row)
    for source, members in rows.items():
        others = [row for name, column in rows.items() if name != source for row in column]
        factor = np.exp(np.mean([np.log(hours / steps) for steps, hours, _ in others]))
        steps, hours, errors = zip(*members, strict=True)
        labels = ("whole trainings, time", "specs", source, "ours")
        yield scored(labels, factor * np.array(steps), hours, errors)


# Memory.


def memory_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Peak memory of measured plans, and published plans that do not fit as described."""
    del quick
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for case, allocated, reserved, theirs in simumax_cases(data):
        memory = plan_memory(case.model, case.plan)  # type: ignore[arg-type]
        name = case.device.name
        pairs.setdefault(("memory allocated", name, "ours"), []).append(
            (memory.allocated, allocated)
        )
        pairs.setdefault(("memory reserved", name, "ours"), []).append((memory.reserved, reserved))
        if theirs:
            key = ("memory allocated", name, "SimuMax, calibrated there")
            pairs.setdefault(key, []).append((theirs, allocated))
    for (task, name, method), values in pairs.items():
        yield scored((task, "specs", name, method), *zip(*dict.fromkeys(values), strict=True))
    verdicts = [
        memory_verdict(case.model, case.plan, case.device)[1]  # type: ignore[arg-type]
        for case in (*bridge_cases(data), *mpt_cases(data))
    ]
    if verdicts:
        share = 100 * verdicts.count("does not fit") / len(verdicts)
        say(f"published plans that do not fit as described: {share:.0f} % of {len(verdicts)}")


# Power limits and clocks.


def limit_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Whole curves from one, two and three limits, each board left out in turn."""
    curves: dict[str, list[Curve]] = {}
    for curve in limit_curves(data):
        curves.setdefault(curve.device.name, []).append(curve)
    for name, mine in curves.items():
        with assume(fit_all(data, without=name, quick=quick)):
            for curve in mine[:: 12 if quick else 3]:
                for count in (1, 2, 3):
                    yield from _curve_scores(curve, count)


def _curve_scores(curve: Curve, count: int) -> Iterator[Score]:
    """One curve from the limits that are worth measuring: curves bend at low ones."""
    low, last = curve.limit[0], len(curve.limit) - 1
    share = 4 / 5 if count == 1 else 1 / 3
    between = int(np.argmin(np.abs(curve.limit - low - share * (curve.limit[last] - low))))
    probes = {1: [between], 2: [0, last], 3: sorted({0, between, last})}[count]
    measured = [(curve.limit[row], curve.seconds[row], curve.watts[row]) for row in probes]
    rest = np.setdiff1d(np.arange(last + 1), probes)
    points = [
        limit_curve(curve.device.name, measured, [float(limit)]).fastest
        for limit in curve.limit[rest]
    ]
    plain = [(f"{count} limits", curve.device.name, method) for method in ("ours", "interpolation")]
    for task, values, truth in (
        ("power-limit curve, time", [point.seconds for point in points], curve.seconds),
        ("power-limit curve, power", [point.watts for point in points], curve.watts),
    ):
        yield scored((task, *plain[0]), values, truth[rest])
        simple = np.exp(np.interp(curve.limit, curve.limit[probes], np.log(truth[probes])))
        yield scored((task, *plain[1]), simple[rest], truth[rest])
    joules = [point.joules for point in points]
    claimed = [point.provenance.relative_error or 0.0 for point in points]
    truth = (curve.seconds * curve.watts)[rest]
    yield scored(("power-limit curve, energy", *plain[0]), joules, truth, claimed)


def clock_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Time and power of one kernel at locked clocks, relative to the highest."""
    del quick
    for board, points in clock_curves(data):
        clock, seconds, watts = np.array(points).T
        operator = product(1, 8192, 8192, 8192, 4.0, "fp32")
        graph = Graph("kernel", (replace(operator, count=100),), 0, 0.0, 0.0, 0.0, 0.0)
        clocks = np.minimum(clock, board.clock_hertz).tolist()
        steps = prediction(
            graph, board.name, Plan(framework="replay", shard=0), limits=[], clocks=clocks
        ).points
        for task, ours, truth in (
            ("time", [point.seconds for point in steps], seconds),
            ("power", [point.watts for point in steps], watts),
        ):
            labels = (f"locked clocks, {task}", "1 clock", board.name)
            values = np.array(ours) * truth[-1] / ours[-1]
            yield scored((*labels, "ours"), values[:-1], truth[:-1])
            simple = truth[-1] * (clock / clock[-1]) ** (-1 if task == "time" else 1)
            yield scored((*labels, "proportional"), simple[:-1], truth[:-1])


# Samples to converge against batch size: MLPerf's reference points.


def convergence_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Samples to the target at a batch size that was left out."""
    del quick
    tables: dict[str, dict[str, dict[float, float]]] = {}
    for row in rows(data / "devices/mlperf/convergence_points.csv"):
        suites = tables.setdefault(row["benchmark"], {})
        suites.setdefault(row["suite"], {})[number(row["batch_size"])] = float(
            row["epochs_or_samples_mean"]
        )
    for name, suites in tables.items():
        points = sorted(max(suites.items(), key=lambda pair: (len(pair[1]), pair[0]))[1].items())
        if len(points) < 4:
            continue
        ours, simple = [], []
        for left in range(len(points)):
            rest = points[:left] + points[left + 1 :]
            fitted = Convergence.fit(rest)
            levels = [
                np.log(samples / fitted.factor(batch, points[left][0])) for batch, samples in rest
            ]
            ours.append(float(np.exp(np.mean(levels))))
            simple.append(float(np.exp(np.mean(np.log([samples for _, samples in rest])))))
        truth = [samples for _, samples in points]
        labels = ("samples to converge", "other batches", name)
        yield scored((*labels, "ours"), ours, truth)
        yield scored((*labels, "constant"), simple, truth)


PARTS: dict[str, Callable[..., Iterator[Score]]] = {
    "operators": operator_scores,
    "steps": step_scores,
    "plans": plan_scores,
    "node": node_scores,
    "published": run_scores,
    "whole": whole_scores,
    "memory": memory_scores,
    "limits": limit_scores,
    "clocks": clock_scores,
    "convergence": convergence_scores,
}
SMOKE = ("memory", "convergence", "clocks")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every part that finds its data, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(Path(__file__).parents[2] / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="part whose name contains this")
    parser.add_argument("--json")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    options = parser.parse_args(arguments)
    scores: list[Score] = []
    for name, part in PARTS.items():
        if options.only in name and (not options.smoke or name in SMOKE):
            began = time.monotonic()
            scores += part(options.data, quick=options.quick)
            say(f"{name}: {time.monotonic() - began:.0f} s")
    table = summaries(scores)
    if not table:
        say(f"skipped: nothing to compare with in {options.data}")
    else:
        print(report(table))
    write_results(options.json, "predict", figures(table), table)


if __name__ == "__main__":
    main()
