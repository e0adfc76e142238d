"""Boards under limits while they serve: predicted from specifications against measured sweeps.

Data (DATA/serving): decode and prefill under power limits (*limit_sweeps.csv), power of batches
(splitwise*.csv.gz), MLPerf Inference with wall meters (mlperf_inference_power.csv). Nothing is
fitted here, but the shares of power that all boards have in common were chosen on these data
(src/joulery/serving/_boards.py): other boards may be further off.

usage: python benchmarks/serving_boards.py [--data DIR] [--quick|--smoke] [--json FILE]
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import benchmark_parser, say, write_results
from serving_models import (
    BLOOM,
    GPT_J,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    offline_rate,
)

from joulery.hardware import catalog
from joulery.serving import (
    ServedRequest,
    ServingBoard,
    ServingSimulation,
    node_watts,
    served_model,
    serving_board,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Arithmetic, traffic and time that no clock changes, of a step as a board runs it alone.
MIXES = {
    "decode-single": (0.02, 1.0, 0.1),
    "decode": (0.08, 1.0, 0.1),
    "prefill": (1.0, 0.15, 0.05),
}
_OFFLINE_REQUESTS = 800  # by hand: the rate hardly changes with more
SPLITWISE = {"llama2-70b": LLAMA_70B, "bloom-176b": BLOOM}
# MLPerf's language models: shape, boards of a group, mean tokens of prompt and answer.
MLPERF: dict[str, tuple[dict[str, Any], int, tuple[int, int]]] = {
    "gptj": (GPT_J, 1, (900, 128)),
    "llama2-70b": (LLAMA_70B, 2, (294, 296)),
    "llama3.1-8b": (LLAMA_8B, 1, (870, 73)),
    "llama3.1-405b": (LLAMA_405B, 8, (9400, 684)),
    "mixtral-8x7b": (MIXTRAL, 1, (425, 145)),
}


def sweep_errors(path: Path) -> Iterator[tuple[str, float, float]]:
    """Work of a sweep, and its errors of kept speed and of power, means of absolute values."""
    groups = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["sm_clock_lock_mhz"]:
                groups[row["gpu"], row["model"], row["mode"]].append(row)
    for (gpu, model, mode), rows in groups.items():
        board = _board(gpu)
        mix = next((mix for name, mix in MIXES.items() if mode.startswith(name)), None)
        if board is None or mix is None:
            continue
        limits = [float(row["limit_watts"]) for row in rows]
        rates = np.array([_rate(row) for row in rows])
        seconds, joules = np.array([board.within(limit).cost(*mix) for limit in limits]).T
        watts = np.array([float(row["watts"]) for row in rows])
        kept = abs(seconds.min() / seconds - rates / rates.max()).mean()
        yield f"{gpu} {model} {mode}", float(kept), float(abs(joules / seconds / watts - 1).mean())


def _rate(row: dict[str, str]) -> float:
    return float(
        np.mean([float(row[name]) for name in row if "tokens_per_s" in name and row[name]])
    )


@cache
def _board(name: str, precision: str = "bf16") -> ServingBoard | None:
    """The board that a name of a system means, however it is spelt."""
    name = re.sub(r"[^a-z0-9]", "", name.lower())
    keys = {re.sub(r"[^a-z0-9]", "", board.lower()): board for board in catalog.names()}
    best = max((key for key in keys if key in name), key=len, default="")
    variants = [
        key for key in keys if key.startswith(best) and key[len(best) :] in {"pcie", "pcie80gb"}
    ]
    if best and variants and "pcie" in name and not best.endswith("pcie"):
        best = max(variants, key=len)
    if not best:
        say(f"skipped: the catalog has no board of {name!r}")
        return None
    return serving_board(keys[best], precision)


def decode_powers(path: Path) -> Iterator[tuple[str, float]]:
    """Predicted against measured mean power of batches of requests, by model and group.

    The time on the host of each token is the measured one: the engine of these runs was slow.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = {tuple(row.values()): row for row in csv.DictReader(file)}.values()
    for row in rows:
        board = _board(row["hardware"])
        if board is None or not float(row["average_power"]) or row["hardware"].startswith("h100"):
            continue  # of H100 the shares are computed, not measured
        count = int(row["tensor_parallel"])
        model = served_model(SPLITWISE[row["model"]], board, count)
        lengths = int(row["prompt_size"]), int(row["token_size"])
        requests = [ServedRequest(0.0, *lengths) for _ in range(int(row["batch_size"]))]
        table = [board.within(board.limit_watts)]
        run = ServingSimulation(requests, model, table).run()
        late = float(row["token_time"]) / 1000 - float(run.tpot_seconds.mean())
        slow = replace(model, host_seconds=max(0.0, model.host_seconds + late))
        run = ServingSimulation(requests, slow, table).run()
        share = run.joules / run.seconds / count / board.limit_watts
        yield f"{row['model']} on {count} × {row['hardware']}", share / float(row["average_power"])


def retentions(path: Path) -> Iterator[tuple[str, float, float]]:
    """Name of a capped result offline, its share of the uncapped rate, and the predicted share."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["counterpart"]]
    for row in rows:
        task = row["benchmark"]
        case = next((case for name, case in MLPERF.items() if task.startswith(name)), None)
        capped, uncapped = (
            float(row[name] or 0) for name in ("samples_per_s", "uncapped_samples_per_s")
        )
        told = capped and uncapped and row["power_limit_watts"] and row["scenario"] == "Offline"
        board = _board(row["system"], "fp8") if case and told else None
        if case is None or board is None:
            continue
        limit = float(row["power_limit_watts"])
        name = f"{board.name} {case[0]['name']} offline at {limit:.0f} W"
        yield name, capped / uncapped, _kept(task, board, limit)


@cache
def _kept(task: str, board: ServingBoard, limit: float) -> float:
    """Share of the rate without a limit that is left."""
    shape, count, lengths = next(case for name, case in MLPERF.items() if task.startswith(name))
    model = served_model(shape, board, count, "fp8")
    limited, full = (
        offline_rate(model, board.within(watts), [lengths] * _OFFLINE_REQUESTS)
        for watts in (limit, board.limit_watts)
    )
    return limited / full


def node_errors(path: Path) -> Iterator[float]:
    """Relative errors of the wall power of nodes whose limit is known, offline."""
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            limit, wall = row["power_limit_watts"], row["mean_wall_watts"]
            count = re.search(r"GBx(\d+)|x(\d+)_", row["system"])
            if limit and wall and count and row["scenario"] == "Offline":
                board = _board(row["system"])
                if board is not None:
                    boards = int(count[1] or count[2])
                    yield node_watts(board, boards, float(limit)) / float(wall) - 1


def score_sweeps(data: Path) -> Iterator[tuple[str, float, str]]:
    """Figures of decode and prefill under power limits, without goals."""
    for path in sorted(data.glob("*limit_sweeps.csv")):
        for work, kept, watts in sweep_errors(path):
            yield f"{work}: error of kept speed", kept, ""
            yield f"{work}: error of watts", watts, ""


def score_powers(data: Path) -> Iterator[tuple[str, float, str]]:
    """Figures of the power of batches, without goals."""
    powers = defaultdict(list)
    for path in sorted(data.glob("splitwise*.csv.gz")):
        for work, ratio in decode_powers(path):
            powers[work].append(abs(ratio - 1))
    for work, errors in powers.items():
        yield f"{work}: median error of mean power", float(np.median(errors)), ""


def score_mlperf(data: Path) -> Iterator[tuple[str, float, str]]:
    """Figures of MLPerf Inference, with their goals."""
    path = data / "mlperf_inference_power.csv"
    if not path.exists():
        return
    results = defaultdict(list)
    for name, measured, predicted in retentions(path):
        results[name].append((measured, predicted))
    for name, pairs in results.items():
        measured = float(np.median([measured for measured, _ in pairs]))
        yield f"MLPerf {name}: keeps {measured:.3f}, off by", pairs[0][1] - measured, "≤ 0.08"
    errors = [abs(error) for error in node_errors(path)]
    if errors:
        yield "MLPerf node watts: median error", float(np.median(errors)), "≤ 0.12"
        yield "MLPerf node watts: 90th percentile", float(np.quantile(errors, 0.9)), ""


def main() -> int:
    """Score what the data folder holds."""
    options = benchmark_parser(__doc__, "the same: it takes seconds").parse_args()
    data, figures = options.data / "serving", dict[str, float]()
    scores = score_sweeps(data)
    if not options.smoke:
        scores = chain(scores, score_powers(data), score_mlperf(data))
    for name, value, goal in scores:
        figures[name] = value
        print(f"{name:<76} {value:7.4f}  {goal}".rstrip(), flush=True)
    if not figures:
        say(f"skipped: no measurements of serving boards in {data}")
    write_results(options.json, "serving_boards", figures, [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
