"""Planning the clocks of pipelines: time to plan, distance to the bound, compared with lowtime.

Every profile in DATA/pipeline/profiles, and random ones, as 1F1B. lowtime solves the same problem
on the same choices (time steps of 1 ms, its exponential cost model). "Realised" is what the chosen
clocks take and need by the measurements, not what a planner reports. "Rounded" is planning and then
rounding as many plans to real clocks as lowtime has points, which it rounds as it goes.

usage: python benchmarks/pipeline.py [--quick] [--large] [--huge] [--json FILE] [--data DIR]
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import print_figures, say, work, write_results
from pipeline_noise import noisy
from pipeline_problems import Case, cases, large_cases, published

from joulery.pipeline import PipelinePlan
from joulery.reports import table_text as table

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.pipelines import LinearProgram

if TYPE_CHECKING:
    from joulery.pipeline import PipelineProblem

WORKER = Path(__file__).with_name("pipeline_worker.py")
UNIT_SECONDS = 1e-3
# Points of lowtime's frontier whose clocks are looked at.
SAMPLES = 60
DEADLINES = 61
# Of the processor, for one problem of lowtime's; it grows faster than linearly.
QUICK_PEER_SECONDS, PEER_SECONDS = 9.0, 400.0
# Stages and microbatches for the growth of the time to plan: 1,024 to 32,768 instructions, in a
# quick run to 8,192.
GROWTH = ((16, 32), (16, 64), (32, 64), (32, 128), (32, 256), (32, 512))
QUICK_GROWTH = 4
# A quick run asks lowtime about this many problems.
QUICK_PEER_PROBLEMS = 2


def planned(problem: PipelineProblem, repeats: int) -> tuple[PipelinePlan, float]:
    """The frontier and the median CPU seconds of finding it."""
    spent = []
    for _ in range(repeats):
        begin = time.process_time()
        frontier = PipelinePlan(problem)
        spent.append(time.process_time() - begin)
    return frontier, statistics.median(spent)


def quality(frontier: PipelinePlan) -> dict[str, float]:
    """Gap of realised plans to the bound, and how late the latest is."""
    ends = frontier.fastest_seconds, frontier.slowest_seconds
    plans = [frontier.at(deadline) for deadline in np.linspace(*ends, DEADLINES).tolist()]
    return {
        "gap_mean": statistics.mean(found.gap for found in plans),
        "gap_worst": max(found.gap for found in plans),
        "overrun": max(found.seconds / found.deadline_seconds - 1 for found in plans),
    }


def relaxation_gap(frontier: PipelinePlan) -> float:
    """The continuous frontier against linear programs, relative, at its worst."""
    arrays = frontier.network
    program = LinearProgram(arrays)
    times = np.linspace(frontier.fastest_seconds, frontier.slowest_seconds, 13)[1:].tolist()
    return max(
        abs(frontier.bound_joules(seconds) / _joules(arrays, program, seconds) - 1)
        for seconds in times
    )


def _joules(arrays: Any, program: LinearProgram, seconds: float) -> float:
    return float(program.solve(seconds)[0] + arrays.blocking_watts * seconds)


def query_seconds(frontier: PipelinePlan) -> float:
    """The median CPU seconds of a straggler's query."""
    spent = []
    for factor in np.linspace(1.0, 1.2, 21).tolist():
        begin = time.process_time()
        frontier.for_straggler(factor)
        spent.append(time.process_time() - begin)
    return statistics.median(spent)


def rounded(frontier: PipelinePlan, count: int) -> dict[str, float]:
    """CPU seconds of rounding so many plans over the whole frontier, and their gap to the bound."""
    deadlines = np.linspace(frontier.fastest_seconds, frontier.slowest_seconds, count).tolist()
    spent = []
    for _ in range(3):
        begin = time.process_time()
        found = frontier.sweep(deadlines)
        spent.append(time.process_time() - begin)
    return {
        "plans": count,
        "rounding_cpu_seconds": statistics.median(spent),
        "rounded_gap_mean": statistics.mean(plan.gap for plan in found),
    }


def lowtime(frontier: PipelinePlan, seconds: float) -> dict[str, Any] | None:
    """What lowtime answers for the same choices, or None where it is not installed."""
    problem, arrays = frontier.problem, frontier.network
    choices = [
        [[t, c] for t, c in zip(curve.seconds.tolist(), curve.cost.tolist(), strict=True)]
        for curve in arrays.curves
    ]
    span = arrays.end_seconds(arrays.extreme(-1)) - arrays.end_seconds(arrays.extreme(0))
    task = {
        "unit_seconds": UNIT_SECONDS,
        "choices": choices,
        "choice_of": arrays.curve_of.tolist(),
        "edges": np.stack([problem.edge_from, problem.edge_to], axis=1).tolist(),
        "every": max(1, round(span / UNIT_SECONDS / SAMPLES)),
        "seconds": seconds,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(task, file)
        file.flush()
        (answer,) = work(WORKER, dict(os.environ), [{"file": file.name}])
    return answer


def against_lowtime(frontier: PipelinePlan, answer: dict[str, Any]) -> dict[str, float]:
    """What lowtime's clocks take and need by the measurements, and ours in the same time."""
    arrays = frontier.network
    gaps, late, ratios = [], [], []
    for reported, _, knobs in answer["points"]:
        if knobs is None:
            continue
        curves = [arrays.curves[which] for which in arrays.curve_of.tolist()]
        lasts = np.array([c.seconds[k] for c, k in zip(curves, knobs, strict=True)])
        cost = sum(float(c.cost[k]) for c, k in zip(curves, knobs, strict=True))
        real = arrays.end_seconds(lasts)
        joules = cost + arrays.blocking_watts * real
        gaps.append(joules / frontier.bound_joules(real) - 1)
        late.append(real / reported - 1)
        ratios.append(frontier.at(real).joules_until(real) / joules)
    return {
        "lowtime_cpu_seconds": answer["cpu_seconds"],
        "lowtime_finished": answer["finished"],
        "lowtime_gap_mean": statistics.mean(gaps),
        "lowtime_gap_worst": max(gaps),
        "lowtime_overrun": max(late),
        "joules_against_lowtime": max(ratios),
    }


def peer_columns(frontier: PipelinePlan, answer: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What lowtime did, if it did: some profiles it cannot fit, on some it stops at once."""
    if "failed" in answer:
        return {"lowtime_failed": answer["failed"]}
    reached = min((point[0] for point in answer["points"]), default=np.inf)
    span = frontier.slowest_seconds - frontier.fastest_seconds
    if answer["finished"] and reached > frontier.fastest_seconds + 0.1 * span:
        return {"lowtime_failed": f"stopped at {reached:g} s"}
    found = against_lowtime(frontier, answer) | rounded(frontier, len(answer["points"]))
    spent = answer["cpu_seconds"]
    return found | {
        "speedup": spent / seconds,
        "speedup_rounded": spent / (seconds + found["rounding_cpu_seconds"]),
    }


def compared(data: Path, *, quick: bool, most: int | None = None) -> list[dict[str, Any]]:
    """Every case of a size that lowtime and HiGHS manage."""
    rows = []
    asked = 0
    for case in itertools.islice(cases(data, quick=quick), most):
        say(str(case))
        problem = case.problem()
        frontier, seconds = planned(problem, 5)
        row = {"case": str(case), "instructions": len(problem), "cpu_seconds": seconds}
        row |= quality(frontier) | {"relaxation_gap": relaxation_gap(frontier)}
        row["query_seconds"] = query_seconds(frontier)
        if not quick or asked < QUICK_PEER_PROBLEMS:
            asked += 1
            answer = lowtime(frontier, QUICK_PEER_SECONDS if quick else PEER_SECONDS)
            if answer is not None:
                row |= peer_columns(frontier, answer, seconds)
        rows.append(row)
    return rows


def alone(case: Case) -> dict[str, Any]:
    """One large case, in a process of its own for its memory."""
    problem = case.problem()
    frontier, seconds = planned(problem, 1)
    row: dict[str, Any] = {
        "case": str(case),
        "instructions": len(problem),
        "cpu_seconds": seconds,
        "samples": len(frontier.relaxation.seconds),
        "query_seconds": query_seconds(frontier),
        "proven": proven_within(frontier),
        **quality(frontier),
    }
    if (case.stages, case.microbatches) == (8, 96):
        changed = case.problem(slower_stage=3)
        row["replan_seconds"] = planned(changed, 1)[1]
    row["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def proven_within(frontier: PipelinePlan) -> float:
    """How far the continuous frontier is above what is proven to be its bound, at its worst."""
    relaxation = frontier.relaxation
    found: list[float] = []
    for seconds, cost in zip(relaxation.seconds.tolist(), relaxation.cost.tolist(), strict=True):
        bound = frontier.bound_joules(seconds)
        found.append((cost - relaxation.bound(seconds)) / bound)
    return max(found)


def large(data: Path, *, quick: bool, huge: bool) -> list[dict[str, Any]]:
    """Every case that only we plan."""
    rows = []
    spawn = multiprocessing.get_context("spawn")
    for case in large_cases(data, quick=quick, huge=huge):
        say(str(case))
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            rows.append(pool.submit(alone, case).result())
    return rows


def against_published(data: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Our realised energy at every published time, or at a sample of them.

    Published times add up instruction times that were rounded down to whole steps: the published
    fastest is shorter than the fastest clocks take. So they are stretched until it is not.
    """
    rows = []
    for case, points in published(data):
        if quick and case.microbatches > 24:
            continue
        say(f"{case} as published")
        frontier = PipelinePlan(case.problem())
        stretch = max(1.0, frontier.fastest_seconds / points[0][0])
        watts = float(case.problem().blocking_watts.sum())
        every = max(1, len(points) // 100) if quick else 1
        ratios, impossible = [], 0
        for seconds, joules in points[::every]:
            real = max(seconds * stretch, frontier.fastest_seconds)
            theirs = joules + watts * (real - seconds)
            ratios.append(frontier.at(real).joules_until(real) / theirs)
            impossible += (
                seconds < frontier.fastest_seconds or frontier.bound_joules(seconds) > joules
            )
        rows.append(
            {
                "case": str(case),
                "points": len(ratios),
                "stretch": stretch,
                "impossible": impossible / len(ratios),
                "joules_against_published_mean": statistics.mean(ratios),
                "joules_against_published": max(ratios),
            }
        )
    return rows


def growing(*, quick: bool) -> list[dict[str, Any]]:
    """CPU time to plan made-up pipelines of 1,024 instructions, and of ever more."""
    rows = []
    for stages, microbatches in GROWTH[: QUICK_GROWTH if quick else None]:
        case = Case("random 1", stages, microbatches, seed=1)
        say(f"growth: {case}")
        problem = case.problem()
        seconds = planned(problem, 1)[1]
        rows.append({"case": str(case), "instructions": len(problem), "cpu_seconds": seconds})
    return rows


def growth(rows: list[dict[str, Any]]) -> float:
    """The power of the number of instructions with which the time to plan grows."""
    sizes = np.log([row["instructions"] for row in rows])
    return float(np.polyfit(sizes, np.log([row["cpu_seconds"] for row in rows]), 1)[0])


def show_growth(rows: list[dict[str, Any]]) -> None:
    """The table of how the time to plan grows."""
    print("\nGrowth of the time to plan")
    cells = [
        [row["case"], f"{row['instructions']:,}", f"{row['cpu_seconds']:.2f} s"] for row in rows
    ]
    print(table(["pipeline", "instructions", "CPU"], cells, "lrr"))


def figures(
    small: list[dict[str, Any]],
    big: list[dict[str, Any]],
    known: list[dict[str, Any]],
    blurred: list[dict[str, Any]],
) -> dict[str, float]:
    """One number for each question."""
    found = {
        "relaxation_gap": max(row["relaxation_gap"] for row in small),
        "gap_mean": max(row["gap_mean"] for row in (*small, *big)),
        "gap_worst": max(row["gap_worst"] for row in (*small, *big)),
        "overrun": max(row["overrun"] for row in (*small, *big)),
        "query_seconds": max(row["query_seconds"] for row in small),
        "peak_megabytes": max(row["peak_megabytes"] for row in big),
    }
    for name in ("gap_mean", "gap_worst", "overrun"):
        values = [row[f"lowtime_{name}"] for row in small if f"lowtime_{name}" in row]
        found |= {f"lowtime_{name}": max(values)} if values else {}
    for size in ("4 × 8", "8 × 16"):
        for name in ("speedup", "speedup_rounded"):
            values = [row[name] for row in small if row["case"].endswith(size) and name in row]
            found |= {f"{name}_{size.replace(' × ', 'x')}": min(values)} if values else {}
    values = [row["joules_against_lowtime"] for row in small if "joules_against_lowtime" in row]
    found |= {"joules_against_lowtime": max(values)} if values else {}
    for row in big:
        size = "x".join(row["case"].split()[-3::2])
        name = f"cpu_seconds_{size}"
        found[name] = max(found.get(name, 0.0), row["cpu_seconds"])
        if "replan_seconds" in row:
            found["replan_seconds_8x96"] = max(
                found.get("replan_seconds_8x96", 0.0), row["replan_seconds"]
            )
            name = "query_seconds_8x96"
            found[name] = max(found.get(name, 0.0), row["query_seconds"])
    if known:
        worst = max(row["joules_against_published"] for row in known)
        found["joules_against_published"] = worst
    for row in blurred:
        for name in ("smoothed", "raw"):
            found[f"{name}_excess_at_{100 * row['noise']:g}_per_cent_noise"] = row[f"{name}_mean"]
    return found


def _per_cent(row: dict[str, Any], *names: str) -> str:
    if names[0] not in row:
        return "–"
    return " / ".join(f"{100 * row[name]:.2f}" for name in names) + " %"


def show(
    small: list[dict[str, Any]],
    big: list[dict[str, Any]],
    known: list[dict[str, Any]],
    blurred: list[dict[str, Any]],
) -> None:
    """Tables for people."""
    print("\nWhole frontier, CPU time; realised energy above the bound, mean / worst; latest plan")
    heads = ["pipeline", "joulery", "plans", "rounded", "lowtime", "ratio", "rounded"]
    heads += ["gap", "rounded", "lowtime's", "late", "lowtime's"]
    print(
        table(
            [*heads, "joules / lowtime's", "to the LP"],
            [
                [
                    row["case"],
                    f"{1e3 * row['cpu_seconds']:.1f} ms",
                    f"{row['plans']:,}" if "plans" in row else "–",
                    _rounded_seconds(row),
                    _peer_seconds(row),
                    f"{row['speedup']:,.0f}" if "speedup" in row else "–",
                    f"{row['speedup_rounded']:,.0f}" if "speedup" in row else "–",
                    _per_cent(row, "gap_mean", "gap_worst"),
                    _per_cent(row, "rounded_gap_mean"),
                    _per_cent(row, "lowtime_gap_mean", "lowtime_gap_worst"),
                    _per_cent({"late": max(0.0, row["overrun"])}, "late"),
                    _per_cent(row, "lowtime_overrun"),
                    f"≤ {row['joules_against_lowtime']:.4f}" if "speedup" in row else "–",
                    f"{row['relaxation_gap']:.0e}",
                ]
                for row in small
            ],
            "lrrrrrrrrrrrrr",
        )
    )
    show_large(big)
    if known:
        print("\nAgainst published frontiers, realised energy at the published times, stretched")
        heads = ["pipeline", "points", "stretch", "below any plan's", "mean", "worst"]
        print(
            table(
                heads,
                [
                    [
                        row["case"],
                        str(row["points"]),
                        f"{row['stretch']:.4f}",
                        f"{100 * row['impossible']:.0f} %",
                        f"{row['joules_against_published_mean']:.4f}",
                        f"{row['joules_against_published']:.4f}",
                    ]
                    for row in known
                ],
                "lrrrrr",
            )
        )
    print("\nPlans on noisy profiles, energy above the noise-free bound, mean / worst")
    print(
        table(
            ["profiles with", "smoothed", "raw"],
            [
                [
                    row["case"],
                    _per_cent(row, "smoothed_mean", "smoothed_worst"),
                    _per_cent(row, "raw_mean", "raw_worst"),
                ]
                for row in blurred
            ],
            "lrr",
        )
    )


def show_large(big: list[dict[str, Any]]) -> None:
    """The table of what only we plan."""
    print("\nLarge pipelines")
    heads = [
        "pipeline",
        "instructions",
        "samples",
        "CPU",
        "gap",
        "query",
        "re-plan",
        "peak memory",
        "proven",
    ]
    print(
        table(
            heads,
            [
                [
                    row["case"],
                    f"{row['instructions']:,}",
                    f"{row['samples']:,}",
                    f"{row['cpu_seconds']:.3f} s",
                    _per_cent(row, "gap_mean", "gap_worst"),
                    f"{1e3 * row['query_seconds']:.2f} ms",
                    f"{row['replan_seconds']:.3f} s" if "replan_seconds" in row else "–",
                    f"{row['peak_megabytes']:.0f} MB",
                    f"{row['proven']:.0e}",
                ]
                for row in big
            ],
            "lrrrrrrrr",
        )
    )


def _rounded_seconds(row: dict[str, Any]) -> str:
    if "plans" not in row:
        return "–"
    return f"{1e3 * (row['cpu_seconds'] + row['rounding_cpu_seconds']):.1f} ms"


def _peer_seconds(row: dict[str, Any]) -> str:
    if "lowtime_cpu_seconds" not in row:
        return "fails" if "lowtime_failed" in row else "–"
    return f"{'' if row['lowtime_finished'] else '> '}{row['lowtime_cpu_seconds']:.1f} s"


def show_smoke(options: argparse.Namespace) -> None:
    """The first case that is compared, and one that only we plan."""
    small = compared(options.data, quick=True, most=1)
    show_large([alone(Case("random 1", 4, 8, seed=1))])
    write_results(options.json, "pipeline", {"cases": len(small)}, small)


def main() -> None:
    """Run everything."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JOULERY_DATA", shared)))
    parser.add_argument("--quick", action="store_true", help="small pipelines, under a minute")
    parser.add_argument("--huge", action="store_true", help="64 × 512 too, which takes long")
    parser.add_argument("--json", metavar="FILE", help="also write figures here")
    parser.add_argument("--large", action="store_true", help="nothing but the large pipelines")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    options = parser.parse_args()
    if options.smoke:
        show_smoke(options)
        return
    if options.large:
        big = large(options.data, quick=options.quick, huge=options.huge)
        larger = growing(quick=False)
        show_large(big)
        show_growth(larger)
        exponent = {"growth_exponent": growth(larger)}
        print_figures(exponent)
        write_results(options.json, "pipeline", exponent, big)
        return
    small = compared(options.data, quick=options.quick)
    big = large(options.data, quick=options.quick, huge=options.huge)
    larger = growing(quick=options.quick)
    known = against_published(options.data, quick=options.quick)
    blurred = noisy(quick=options.quick)
    show(small, big, known, blurred)
    show_growth(larger)
    found = figures(small, big, known, blurred) | {"growth_exponent": growth(larger)}
    print_figures(found)
    write_results(options.json, "pipeline", found, [*small, *big, *larger, *known, *blurred])


if __name__ == "__main__":
    main()
