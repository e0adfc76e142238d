"""Deciding the pace of data-parallel pipelines: CPU time per iteration of the whole job.

Every rank of every pipeline reports every iteration, with the times of its instructions; one
pipeline is late for a while. Decisions are asked for when they are due, as the coordinator does.
What a coordinator needs to take a report off its connection and read it is timed apart.

usage: python benchmarks/pipeline_stragglers.py [--quick] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from peers import print_figures, say, write_results

from joulery.pipeline import (
    Coordinator,
    IterationTimes,
    PipelineConfig,
    PlanCache,
    StragglerPolicy,
    plan_pipeline,
    profiles_from_rows,
)
from joulery.reports import table_text

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.pipelines import random_rows

STAGES = 16
SIZES, QUICK_SIZES, SMOKE_SIZES = (64, 256, 1024), (64, 1024), (4,)
ITERATIONS = 16
# Iterations in which one pipeline is late, and by how much.
LATE, FACTOR = range(6, 11), 1.2
# Reports of each rank whose reading is timed.
SENT, SMOKE_SENT = 200, 5
TOKEN = "benchmark"  # noqa: S105 - of this process alone


def prepared() -> PlanCache:
    """Plans of sixteen unequal stages, ready for a change of pace."""
    profiles = profiles_from_rows(random_rows(STAGES, 5, clocks=6), smooth=False)
    config = PipelineConfig(blocking_watts=60.0)
    plans = PlanCache(plan_pipeline(profiles, microbatches=8, config=config))
    plans.prepare(1.3)
    return plans


def reports(number: int, pipelines: int, draw: random.Random) -> list[tuple[int, int, Any]]:
    """The reports of one iteration, rank by rank."""
    return [
        (
            pipeline,
            rank,
            IterationTimes(
                number,
                draw.gauss(1.0, 0.003) * (FACTOR if pipeline == 3 and number in LATE else 1.0),
                1.0,
                {
                    (rank, kind): tuple(draw.gauss(1.0, 0.01) for _ in range(8))
                    for kind in ("forward", "backward")
                },
            ),
        )
        for rank in range(STAGES)
        for pipeline in range(pipelines)
    ]


def measured(plans: PlanCache, pipelines: int) -> dict[str, float]:
    """CPU milliseconds per iteration, and iterations until all had their pace back."""
    policy, draw = StragglerPolicy(plans, pipelines), random.Random(1)  # noqa: S311 - no secret
    spent, paces = [], []
    for number in range(ITERATIONS):
        arriving = reports(number, pipelines, draw)
        begin = time.process_time()
        for pipeline, rank, times in arriving:
            looks = policy.report(pipeline, rank, times)
            if policy.due:
                policy.decide()
            if looks:
                policy.drifted(pipeline)
        spent.append(1e3 * (time.process_time() - begin))
        paces.append(max(policy.factors))
    free = next(n for n, pace in enumerate(paces) if n >= LATE.stop - 1 and pace == 1.0)
    return {
        "pipelines": pipelines,
        "milliseconds": statistics.median(spent),
        "microseconds_per_report": 1e3 * statistics.median(spent) / pipelines / STAGES,
        "iterations_to_recover": free - LATE.stop + 1,
    }


def received(plans: PlanCache, count: int) -> float:
    """CPU microseconds of a coordinator per report that it takes off a connection, decision too."""
    draw = random.Random(1)  # noqa: S311 - no secret
    lines = [
        [message(times) for _, _, times in reports(number, 1, draw)] for number in range(count)
    ]
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(StragglerPolicy(plans), TOKEN))
        ranks = []
        for rank in range(STAGES):
            ranks.append(stack.enter_context(socket.create_connection(coordinator.address)))
            hello = {"op": "hello", "version": 2, "token": TOKEN, "pipeline": 0, "rank": rank}
            ranks[rank].sendall(json.dumps(hello).encode() + b"\n")
            ranks[rank].recv(1)  # it is welcome
        begin = time.process_time()
        for number, iteration in enumerate(lines):
            for connection, line in zip(ranks, iteration, strict=True):
                connection.sendall(line)
            # No rank gets far ahead of the others, as in a real job.
            while number % 10 == 9 or number == count - 1:
                if coordinator.state().iteration == number:
                    break
                time.sleep(0.001)
        return 1e6 * (time.process_time() - begin) / count / STAGES


def message(times: IterationTimes) -> bytes:
    """A report as a rank sends it."""
    ratios = [[stage, kind, values] for (stage, kind), values in times.ratios.items()]
    figures = {"seconds": times.seconds, "planned": times.planned_seconds, "ratios": ratios}
    return json.dumps({"op": "done", "iteration": times.iteration, **figures}).encode() + b"\n"


def main() -> None:
    """Run all sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="not needed: these pipelines are made up")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="also write figures here")
    options = parser.parse_args()
    sizes = SMOKE_SIZES if options.smoke else QUICK_SIZES if options.quick else SIZES
    plans, rows = prepared(), []
    for pipelines in sizes:
        say(f"{pipelines} × {STAGES}")
        rows.append(measured(plans, pipelines))
    print(
        table_text(
            ["pipelines", "stages", "CPU per iteration", "per report", "recovers in"],
            [
                [
                    f"{row['pipelines']:,}",
                    str(STAGES),
                    f"{row['milliseconds']:.1f} ms",
                    f"{row['microseconds_per_report']:.2f} µs",
                    f"{row['iterations_to_recover']} iterations",
                ]
                for row in rows
            ],
            "rrrrr",
        )
    )
    figures = {f"milliseconds_{row['pipelines']}x{STAGES}": row["milliseconds"] for row in rows} | {
        "iterations_to_recover": max(row["iterations_to_recover"] for row in rows)
    }
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        growth = math.log(last["milliseconds"] / first["milliseconds"])
        figures["growth_exponent"] = growth / math.log(last["pipelines"] / first["pipelines"])
    sent = SMOKE_SENT if options.smoke else SENT
    figures["microseconds_to_receive_a_report"] = received(plans, sent)
    print_figures(figures)
    write_results(options.json, "pipeline_stragglers", figures, rows)


if __name__ == "__main__":
    main()
