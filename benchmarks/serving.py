"""Serving: boards, simulator, controller and ledger against measurements and simulated truth.

Data (DATA/serving): real vLLM runs with time stamps (llmservingsim_vllm_*.jsonl.gz), request traces
(azure*, mooncake*); boards alone are scored by serving_boards.py. Lengths of
requests come from the traces, arrivals are Poisson at a share of the goodput at full clocks.

usage: python benchmarks/serving.py [--data DIR] [--quick|--smoke] [--seed N] [--json FILE]
"""

from __future__ import annotations

import math
import re
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import benchmark_parser, say, write_results
from serving_models import GPT_J, LLAMA_8B, LLAMA_70B, QWEN_32B, offline_rate

from joulery.serving import (
    ClockTable,
    EnergyLedger,
    EngineConfig,
    EngineState,
    LatencyObjective,
    ReactiveLadder,
    ServedModel,
    ServedRequest,
    ServingBoard,
    ServingCase,
    ServingController,
    ServingSimulation,
    calibrate_model,
    compare_policies,
    latency_errors,
    read_latencies,
    read_trace,
    served_model,
    serving_board,
    synthetic_trace,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

# Voltage curves and physics that the controller does not know: its prior is the catalog's.
PHYSICS: dict[str, dict[str, float]] = {
    "catalog": {},
    "steep": {"voltage_floor": 0.55, "knee_share": 0.4},
    "flat": {"voltage_floor": 0.85, "knee_share": 0.75, "issue_share": 0.75, "awake_watts": 90.0},
}
COMBINATIONS = (("a100", LLAMA_8B, 1), ("h100", LLAMA_8B, 1), ("h100", LLAMA_70B, 4))
# The controller's constants were chosen on arrivals by seeds 11, 301 to 302, 401 to 403 and 2024 to
# 2026 and on 701, the ledger's on seeds 1 and 2.
LEDGER_SEED = 7
# A ladder that takes its bounds to be tighter loses fewer requests.
LADDERS = (1.0, 0.7, 0.5, 0.35, 0.2)
LOADS, OBJECTIVES = (0.3, 0.6, 0.85), ("2x", "5x", "1s")
# Known settings of the real runs: boards of a group, most requests, tokens of an iteration.
REAL_ENGINE = EngineConfig(batched_tokens=2048, requests=128)
REAL_GROUPS = {"Qwen3-32B": (QWEN_32B, 2), "Llama-3.1-8B": (LLAMA_8B, 1)}
# NVIDIA's DGX H100 in MLPerf Inference v4.0: boards of a group, limit, beams; 99th percentiles of
# requests, or of TTFT and TPOT, at the limit and without (its logs); rates relative to no limit,
# offline and as a server. Bounds are 20 s per request, or 2 s and 0.2 s: the rates are choices of
# the submitter, at these latencies.
MLPERF = (
    ("GPT-J at 350 W", GPT_J, 1, 350.0, 4, ((5.41,), (12.43,)), (0.746, 0.653)),
    (
        "Llama-2-70B at 450 W",
        LLAMA_70B,
        2,
        450.0,
        1,
        ((0.466, 0.116), (0.568, 0.156)),
        (0.806, 0.753),
    ),
)
MLPERF_ENGINE = EngineConfig(batched_tokens=16384, requests=1024)


class Results:
    """Figures with their goals, printed as they come."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.details: list[dict[str, Any]] = []

    def add(self, name: str, value: float, goal: str = "") -> None:
        """Keep one figure and show it."""
        self.figures[name] = value
        print(f"{name:<66} {value:9.4g}  {goal}".rstrip(), flush=True)


def measure_simulator(results: Results, data: Path) -> None:
    """Simulated against real vLLM runs."""
    for path in sorted(data.glob("llmservingsim_vllm_*.jsonl.gz")):
        match = re.match(r"llmservingsim_vllm_([^_]+)_(.+)\.jsonl\.gz", path.name)
        if match is None or match[2] not in REAL_GROUPS:
            continue
        shape, count = REAL_GROUPS[match[2]]
        board = serving_board(match[1])
        table = board.within(board.limit_watts)
        requests, (ttft, tpot) = read_trace(path), read_latencies(path)
        model = served_model(shape, board, count)
        third = len(requests) // 3
        fitted = calibrate_model(model, table, requests, ttft[:third], tpot[:third], REAL_ENGINE)
        name = f"{match[2]} on {match[1]}"
        for label, trial in (("from specifications", model), ("calibrated", fitted)):
            run = ServingSimulation(requests, trial, [table], engine=REAL_ENGINE).run()
            part = slice(third if trial is fitted else 0, None)
            errors = latency_errors(run, ttft[part], tpot[part])
            last = max(a.arrival_seconds + b for a, b in zip(requests, _spans(path), strict=True))
            rate = abs(last / run.seconds - 1)
            goals = ("15 %", "5 %", "8 %") if trial is fitted else ("", "25 %", "25 %")
            for kind, value, goal in zip(
                ("TTFT", "TPOT", "throughput"), (*errors, rate), goals, strict=True
            ):
                results.add(f"{name}, {label}: error of {kind}", value, f"≤ {goal}" if goal else "")


def _spans(path: Path) -> Sequence[float]:
    """Seconds from arrival to last token of each request."""
    ttft, tpot = read_latencies(path)
    outputs = [request.output_tokens for request in read_trace(path)]
    return [a + b * max(0, n - 1) for a, b, n in zip(ttft, tpot, outputs, strict=True)]


def measure_mlperf(results: Results) -> None:
    """Retention under a limit, offline and under the objective."""
    board = serving_board("h100", "fp8")
    for name, shape, count, limit, beams, latencies, measured in MLPERF:
        model = served_model(shape, board, count, "fp8")
        trace = _mlperf_lengths(beams)
        rates = [
            (offline_rate(model, table, trace, MLPERF_ENGINE), table, latency)
            for watts, latency in zip((limit, board.limit_watts), latencies, strict=True)
            for table in (board.within(watts),)
        ]
        offline = rates[0][0] / rates[1][0]
        limited, full = (
            _server_rate(model, table, trace, beams, latency, 1.2 * most)
            for most, table, latency in rates
        )
        results.add(f"MLPerf {name} offline: retention off by", offline - measured[0], "≤ 0.08")
        results.add(
            f"MLPerf {name} server: retention off by", limited / full - measured[1], "≤ 0.08"
        )


def _mlperf_lengths(beams: int) -> list[tuple[int, int]]:
    """Prompts and answers of MLPerf's data sets: news to sum up by beams, or OpenOrca.

    Beams share their prompt: each computes a part of it.
    """
    rng = np.random.default_rng(0)
    if beams > 1:
        prompts = np.clip(rng.normal(870, 350, 12000), 200, 1919) / beams
        answers = np.clip(rng.normal(69, 17, 12000), 30, 128)
        return [
            (int(p), int(a)) for p, a in zip(prompts, answers, strict=True) for _ in range(beams)
        ]
    prompts = np.clip(rng.lognormal(np.log(200), 0.9, 15000), 8, 1024)
    # Quantiles of the runs' latencies over their times per token.
    quantiles, tokens = (0, 0.5, 0.9, 0.95, 0.97, 0.99, 1), (2, 254, 530, 655, 752, 966, 1024)
    answers = np.interp(rng.random(15000), quantiles, tokens)
    return [(int(p), int(a)) for p, a in zip(prompts, answers, strict=True)]


def _server_rate(
    model: ServedModel,
    table: ClockTable,
    trace: Sequence[tuple[int, int]],
    beams: int,
    latencies: tuple[float, ...],
    high: float,
) -> float:
    """Rate of Poisson arrivals at which the 99th percentiles of latencies are the run's own."""
    gaps = np.random.default_rng(1).exponential(1.0, len(trace) // beams)
    low = 0.0
    for _ in range(8):
        rate = 0.5 * (low + high)
        arrivals = np.repeat(np.cumsum(gaps) * beams / rate, beams)
        requests = [ServedRequest(float(a), *b) for a, b in zip(arrivals, trace, strict=True)]
        run = ServingSimulation(requests, model, [table], engine=MLPERF_ENGINE).run()
        times = (run.ttft_seconds, run.tpot_seconds)
        if len(latencies) == 1:
            times = (run.finish_seconds - run.arrival_seconds,)
        # After the first requests, which have met an empty engine.
        slowest = [float(np.quantile(column[len(column) // 3 :], 0.99)) for column in times]
        kept = all(a <= b for a, b in zip(slowest, latencies, strict=True))
        low, high = (rate, high) if kept else (low, rate)
    return low


def read_traces(data: Path) -> dict[str, list[ServedRequest]]:
    """Lengths of requests by trace: those of the data, and a synthetic chat."""
    traces = {}
    for path in sorted(data.glob("*.csv.gz")):
        if re.match(r"azure|mooncake|burst", path.name):
            traces[path.name.split("_")[0]] = read_trace(path)
    if not traces:
        say(f"skipped: no traces in {data}, only a synthetic chat")
    chat = synthetic_trace(lambda _: 4.0, 2000, prompt_tokens=600, output_tokens=200, seed=1)
    return {**traces, "chat": chat}


def poisson(
    trace: Sequence[ServedRequest],
    rate: Callable[[float], float] | float,
    seconds: float,
    seed: int,
) -> list[ServedRequest]:
    """Lengths of a part of a trace, with Poisson arrivals at a rate that may change."""
    rng = np.random.default_rng(seed)
    pace = rate if callable(rate) else lambda _: rate
    moment, arrivals = 0.0, []
    while moment < seconds and len(arrivals) < len(trace):
        moment += rng.exponential(1.0) / pace(moment)
        arrivals.append(moment)
    start = int(rng.integers(0, len(trace) - len(arrivals) + 1))
    lengths = trace[start : start + len(arrivals)]
    return [
        ServedRequest(float(moment), request.prompt_tokens, request.output_tokens)
        for moment, request in zip(arrivals, lengths, strict=True)
    ]


def make_cases(
    traces: dict[str, list[ServedRequest]],
    physics: str,
    seconds: float,
    stride: int,
    seed: int,
) -> Iterator[tuple[str, ServingCase]]:
    """Services on three combinations, all traces, three loads; objectives in turn."""
    number = 0
    for row, (name, shape, count) in enumerate(COMBINATIONS):
        prior = serving_board(name)
        board = replace(prior, **PHYSICS[physics])
        model = served_model(shape, board, count)
        for column, (label, trace) in enumerate(traces.items()):
            unloaded = None
            for level, load in enumerate(LOADS):
                number += 1
                if number % stride:
                    continue
                unloaded = unloaded or _unloaded(trace, model, board)
                kind = OBJECTIVES[(row + column + level) % 3]
                factor = 2.0 if kind == "2x" else 5.0
                least = 1.0 if kind == "1s" else 0.0
                objective = LatencyObjective(max(least, factor * unloaded[0]), factor * unloaded[1])
                case = ServingCase([], model, board, objective, prior=prior)
                rate = load * _goodput(trace, case, seconds)
                requests = poisson(trace, rate, max(seconds, 400 / rate), seed)
                title = f"{shape['name']} {name} {label} {load:g} {kind}"
                yield title, replace(case, requests=requests)


def _saturated(trace: Sequence[ServedRequest], model: ServedModel, board: ServingBoard) -> float:
    requests = [ServedRequest(0.0, r.prompt_tokens, r.output_tokens) for r in trace[:500]]
    run = ServingSimulation(requests, model, [board.within(board.limit_watts)]).run()
    return len(requests) / run.seconds


def _unloaded(
    trace: Sequence[ServedRequest], model: ServedModel, board: ServingBoard
) -> tuple[float, float]:
    """99th percentiles of TTFT and TPOT at a twentieth of what the service can do."""
    requests = poisson(trace, 0.05 * _saturated(trace, model, board), 1e6, 7)[:400]
    run = ServingSimulation(requests, model, [board.within(board.limit_watts)]).run()
    return float(np.quantile(run.ttft_seconds, 0.99)), float(np.quantile(run.tpot_seconds, 0.99))


def _goodput(trace: Sequence[ServedRequest], case: ServingCase, seconds: float) -> float:
    """Highest rate at which full clocks keep the bounds of 98 % of the requests."""
    bounds = case.objective.ttft_seconds, case.objective.tpot_seconds
    low, high = 0.0, _saturated(trace, case.model, case.board)
    for _ in range(7):
        rate = 0.5 * (low + high)
        run = replace(case, requests=poisson(trace, rate, seconds, 5)).run_at(-1)
        kept = run.attained(*bounds).mean() >= 0.98
        low, high = (rate, high) if kept else (low, rate)
    return low or 0.01 * high


def measure_policies(results: Results, traces: dict[str, Any], options: argparse.Namespace) -> None:
    """Saving and attainment of each policy, by physics; then with wrong times and a lag."""
    seconds = 5.0 if options.smoke else 300.0 if options.quick else 600.0
    stride = 36 if options.smoke else 5 if options.quick else 1
    policies = ("full", "fixed", "ladder", "tuner", "oracle")
    for physics in list(PHYSICS)[: 1 if options.smoke else 3]:
        table: dict[str, list[tuple[float, float]]] = {name: [] for name in policies}
        ladders = []
        for title, case in make_cases(traces, physics, seconds, stride, options.seed):
            outcomes = compare_policies(case, policies)
            for name, outcome in outcomes.items():
                table[name].append((outcome.saved, outcome.lost))
            ladders.append(_climb(case))
            results.details.append(
                {"case": title, "physics": physics}
                | {name: asdict(outcome) for name, outcome in outcomes.items()}
            )
        if any(table.values()):
            _summarise(results, physics, table)
            _compare_ladders(results, physics, np.array(ladders), table["tuner"])
    _measure_robustness(results, traces, seconds, stride, options.seed)


def _summarise(results: Results, physics: str, table: dict[str, list[tuple[float, float]]]) -> None:
    saved = {name: np.array(rows)[:, 0].mean() for name, rows in table.items()}
    for name in ("fixed", "ladder", "tuner", "oracle"):
        goal = "≥ 0.20 and ≥ fixed" if name == "tuner" else ""
        results.add(f"{physics}: saved by {name}", float(saved[name]), goal)
    results.add(f"{physics}: tuner / oracle", float(saved["tuner"] / saved["oracle"]), "≥ 0.65")
    for name in ("ladder", "tuner"):
        lost = np.array(table[name])[:, 1]
        results.add(
            f"{physics}: {name} loses ≤ 0.5 points in", float((lost <= 0.005).mean()), "≥ 0.95"
        )
        results.add(f"{physics}: {name} worst loss", float(lost.max()), "≤ 0.01")


def _climb(case: ServingCase) -> list[tuple[float, float]]:
    """Saving and loss of ladders that take the bounds to be tighter and tighter."""
    objective = case.objective
    bounds, full = (objective.ttft_seconds, objective.tpot_seconds), case.run_at(-1)
    rows = []
    for share in LADDERS:
        tighter = LatencyObjective(share * bounds[0], share * bounds[1])
        run = case.run(ReactiveLadder(tighter, len(case.positions())))
        lost = full.attained(*bounds).mean() - run.attained(*bounds).mean()
        rows.append((1 - run.joules / full.joules, float(lost)))
    return rows


def _compare_ladders(
    results: Results, physics: str, ladders: np.ndarray, tuner: list[tuple[float, float]]
) -> None:
    """Saving of the ladder whose mean loss is the tuner's, between the two nearest ladders."""
    saved, lost = ladders.mean(axis=0).T
    mean_loss = float(np.array(tuner)[:, 1].mean())
    order = np.argsort(lost)
    equal = float(np.interp(mean_loss, lost[order], saved[order]))
    results.add(f"{physics}: saved by a ladder at the tuner's attainment", equal, "< tuner")


def _measure_robustness(
    results: Results, traces: dict[str, Any], seconds: float, stride: int, seed: int
) -> None:
    """The tuner with a lag, and when settings also slow work down by a fifth more than believed."""
    rows = []
    for _, case in make_cases(traces, "catalog", seconds, stride, seed):
        bounds = case.objective.ttft_seconds, case.objective.tpot_seconds
        full, curves = case.run_at(-1), case.curves()
        wrong = replace(
            curves,
            prefill=1 + (curves.prefill - 1) / 1.2,
            decode=1 + (curves.decode - 1) / 1.2,
        )
        late = replace(case, lag_seconds=0.2)
        runs = [
            case.run(ServingController(case.objective, curves)),
            late.run(ServingController(case.objective, curves)),
            late.run(ServingController(case.objective, wrong)),
        ]
        kept = full.attained(*bounds).mean()
        rows.append(
            [(run.joules / full.joules, kept - run.attained(*bounds).mean()) for run in runs]
        )
    if rows:
        table = np.array(rows)
        spent, lost = table[:, :, 0].mean(axis=0), table[:, 2, 1]
        results.add("lag 0.2 s alone: saving lost", float(spent[1] - spent[0]))
        name = "slow-downs believed 20 % smaller, lag 0.2 s"
        results.add(f"{name}: saving lost", float(spent[2] - spent[0]), "≤ 0.02")
        results.add(f"{name}: loses ≤ 0.5 points in", float((lost <= 0.005).mean()), "≥ 0.95")
        results.add(f"{name}: worst loss", float(lost.max()), "≤ 0.01")


def measure_stress(results: Results, traces: dict[str, Any], options: argparse.Namespace) -> None:
    """Attainment against full clocks when the load jumps, swings, bursts or changes its prompts."""
    board = serving_board("h100")
    model = served_model(LLAMA_8B, board)
    trace = traces["chat"]
    light = _unloaded(trace, model, board)
    objective = LatencyObjective(5 * light[0], 5 * light[1])
    case = ServingCase([], model, board, objective, lag_seconds=0.1)
    base = 0.2 * _goodput(trace, case, 5.0 if options.smoke else 300.0)
    length = 20.0 if options.smoke else 1800.0
    rates: dict[str, Callable[[float], float]] = {
        "load jump of 4 ×": lambda t: base * (4.0 if t > length / 2 else 1.0),
        "diurnal": lambda t: base * (2.2 + 1.8 * math.sin(2 * math.pi * t / length)),
        "bursts": lambda t: base * (4.0 if (t % 120) < 15 else 1.0),
    }
    shapes = {name: poisson(trace, rate, length, 3) for name, rate in rates.items()}
    shapes["prompts that change"] = _changing_prompts(trace, base, length)
    for name, requests in shapes.items():
        trial = replace(case, requests=requests)
        full, tuned = trial.run_at(-1), trial.run(ServingController(objective, trial.curves()))
        share = _worst_window(full, tuned, objective)
        results.add(f"{name}: attainment of full clocks', worst 10 min", share, "≥ 0.985")
        results.add(f"{name}: saved", 1 - tuned.joules / full.joules)


def _changing_prompts(
    trace: Sequence[ServedRequest], rate: float, length: float
) -> list[ServedRequest]:
    requests = poisson(trace, 1.5 * rate, length, 4)
    return [
        replace(r, prompt_tokens=min(8000, 4 * r.prompt_tokens))
        if r.arrival_seconds > length / 2
        else r
        for r in requests
    ]


def _worst_window(full: Any, tuned: Any, objective: LatencyObjective) -> float:
    """Least ratio of attainments over windows of ten minutes."""
    bounds, worst = (objective.ttft_seconds, objective.tpot_seconds), 1.0
    for start in np.arange(0.0, max(1.0, full.arrival_seconds[-1] - 600.0), 60.0):
        part = (full.arrival_seconds >= start) & (full.arrival_seconds < start + 600.0)
        if part.sum() > 20:
            ratio = tuned.attained(*bounds)[part].mean() / full.attained(*bounds)[part].mean()
            worst = min(worst, float(ratio))
    return worst


class _Metered:
    """A policy that also keeps a ledger; it may wander between positions."""

    def __init__(self, ledger: EnergyLedger, case: ServingCase, *, moving: bool) -> None:
        self._ledger, self._curves, self._moving = ledger, case.curves(), moving
        self._top = self._position = len(case.positions()) - 1
        self._rng, self._ticks = np.random.default_rng(0), 0

    def decide(self, state: EngineState) -> int:
        """The position; every 20 readings another one where it moves."""
        curves, position = self._curves, self._position
        scale = float(curves.prefill_joules[position]), float(curves.decode_joules[position])
        self._ledger.add(state, scale)
        self._ticks += 1
        if self._moving and self._ticks % 20 == 0:
            self._position = int(self._rng.integers(3, self._top + 1))
        return self._position


def measure_ledger(results: Results, traces: dict[str, Any], options: argparse.Namespace) -> None:
    """Joules per token by the ledger against simulated truth, 120 s each."""
    for moving in (False, True):
        rows = []
        for physics in PHYSICS if not (options.quick or options.smoke) else ("catalog",):
            for name, shape, count in (COMBINATIONS[0], COMBINATIONS[2]):
                board = replace(serving_board(name), **PHYSICS[physics])
                model = served_model(shape, board, count)
                for trace in traces.values():
                    rows += [
                        (load, *_ledger_errors(trace, model, board, load, moving=moving))
                        for load in (0.25, 0.5, 0.8)
                    ]
        table = np.array([row for row in rows if not math.isnan(row[1])])
        word = "clock moving" if moving else "fixed clock"
        for column, kind in ((1, "prefill"), (2, "decode")):
            half = table[table[:, 0] == 0.5]
            goal = "≤ 8 %" if moving else "≤ 3 %"
            results.add(
                f"ledger, {word}, half load: {kind} median error",
                float(np.median(half[:, column])),
                goal,
            )
            results.add(
                f"ledger, {word}, any load: {kind} 90th percentile",
                float(np.quantile(table[:, column], 0.9)),
                "≤ 8 %",
            )
            results.add(
                f"ledger, {word}: {kind} 90 % interval covers",
                float((table[:, column + 2] < 1.645).mean()),
                "0.85–0.97",
            )


def _ledger_errors(
    trace: Sequence[ServedRequest],
    model: ServedModel,
    board: ServingBoard,
    load: float,
    *,
    moving: bool,
) -> tuple[float, float, float, float]:
    """Relative errors of both figures, and the same in standard errors."""
    rate = load * _saturated(trace, model, board)
    requests = [r for r in poisson(trace, rate, 130.0, LEDGER_SEED) if r.arrival_seconds < 120.0]
    if len(requests) < 10:
        return (math.nan,) * 4
    case = ServingCase(requests, model, board, LatencyObjective(10.0, 1.0), tick_seconds=0.2)
    ledger = EnergyLedger(board.awake_watts * model.boards)
    run = case.run(_Metered(ledger, case, moving=moving))
    account = ledger.account()
    truths = (
        run.prefill_joules / run.prompt_tokens,
        run.decode_joules / int(run.output_tokens.sum()),
    )
    figures = account.prefill_joules_per_token, account.decode_joules_per_token
    errors = [abs(figure.value / truth - 1) for figure, truth in zip(figures, truths, strict=True)]
    sigmas = [abs(f.value - truth) / f.error for f, truth in zip(figures, truths, strict=True)]
    return errors[0], errors[1], sigmas[0], sigmas[1]


def measure_speed(results: Results, traces: dict[str, Any], options: argparse.Namespace) -> None:
    """Requests per second of simulation, and the cost of a decision."""
    board = serving_board("h100")
    model = served_model(LLAMA_8B, board)
    trace = next(iter(traces.values()))
    rate = 0.5 * _saturated(trace, model, board)
    requests = poisson(trace, rate, 500 / rate if options.smoke else 1e6, 2)
    began = time.process_time()
    ServingSimulation(requests, model, [board.within(board.limit_watts)]).run()
    results.add(
        "requests simulated per second", len(requests) / (time.process_time() - began), "≥ 20000"
    )
    case = ServingCase(
        requests[:3000], model, board, LatencyObjective(1.0, 0.08), tick_seconds=0.25
    )
    controller = ServingController(case.objective, case.curves())
    times: list[float] = []

    class Timed:
        def decide(self, state: EngineState) -> int:
            start = time.thread_time()
            position = controller.decide(state)
            times.append(time.thread_time() - start)
            return position

    case.run(Timed())
    results.add("milliseconds of a decision, mean", 1e3 * float(np.mean(times)))
    results.add(
        "milliseconds of a decision, 99th percentile", 1e3 * float(np.quantile(times, 0.99)), "≤ 5"
    )
    results.add("share of a core at 4 decisions a second", 4 * float(np.mean(times)), "≤ 0.005")


def main() -> int:
    """Measure what the options ask for."""
    parser = benchmark_parser(__doc__, "every fifth case, under five minutes")
    parser.add_argument("--seed", type=int, default=111, help="of the arrivals (111)")
    options = parser.parse_args()
    results, data = Results(), options.data / "serving"
    traces = read_traces(data)
    say("simulator")
    measure_speed(results, traces, options)
    if not options.smoke:
        measure_simulator(results, data)
        say("MLPerf Inference")
        measure_mlperf(results)
    say("ledger")
    if not options.smoke:
        measure_ledger(results, traces, options)
    say("policies")
    measure_policies(results, traces, options)
    say("stress")
    measure_stress(results, traces, options)
    write_results(options.json, "serving", results.figures, results.details)
    return 0


if __name__ == "__main__":
    sys.exit(main())
