"""The cost of choosing batch sizes until the best is found, next to Zeus.

Every workload and GPU type that the traces have, eta 0.5, 2·|B|·|P| recurrences. Our ``zeus``
policy against Zeus's own simulator (is it the same algorithm?), our ``joulery`` policy against
``zeus``, both against no change; then drift, overlapping submissions, short series (on drawn jobs,
too) and speed. Regret is the cost beyond that of the best fixed setting, in units of that
cost.

usage: python benchmarks/recurring.py [--data DIR] [--quick] [--json FILE]
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from peers import benchmark_parser, print_figures, say, write_results
from recurring_drawn import drawn_workloads
from recurring_peer import ETA, compared_with_peer

from joulery.errors import JouleryError
from joulery.jobs.policies import make_policy, policy_names
from joulery.reports import table_text as table
from joulery.simulate import (
    SimulationConfig,
    discarded_becomes_best,
    horizon,
    optimum_moves,
    read_traces,
    scale_epochs,
    simulate,
    summaries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.simulate import PolicySummary, SimulationLog, TracedWorkload

POLICIES = ("zeus", "joulery", "default")
# Standard error below which a ratio to Zeus's own regret says something.
RESOLVED = 0.03

SHORT, ALLOWED = (2, 8, 12, 24), 0.01
DRAWN, DRAWN_SEED = 60, 77  # jobs that no constant was chosen on

AT = 50
OVERLAP = 10
AFTER = 100
# Settled: five recurrences in a row whose setting is expected to cost at most a tenth more.
RUN, WITHIN = 5, 0.10

DRIFTS: dict[str, Callable[[TracedWorkload], TracedWorkload]] = {
    "all need twice the epochs": lambda load: scale_epochs(load, AT, 2.0),
    "all need a third of the epochs": lambda load: scale_epochs(load, AT, 1.0 / 3.0),
    "the optimum moves": lambda load: optimum_moves(load, AT),
    "the optimum moves unannounced": lambda load: optimum_moves(load, AT, announced=False),
    "a discarded size becomes best": lambda load: discarded_becomes_best(load, AT),
    "a discarded size becomes best unannounced": lambda load: discarded_becomes_best(
        load, AT, factor=1.0
    ),
}


def compared(
    loads: Sequence[TracedWorkload], seeds: int
) -> tuple[dict[str, list[PolicySummary]], dict[str, float]]:
    """Summaries per policy, and recurrences per CPU second."""
    found, speed = {}, {}
    for name in (name for name in POLICIES if name in policy_names()):
        say(f"{name}: {len(loads)} workloads, {seeds} seeds")
        started = time.process_time()
        log = simulate(loads, make_policy(name), None, range(seeds), SimulationConfig(eta=ETA))
        speed[name] = float(log.recurrences.sum()) / (time.process_time() - started)
        found[name] = summaries(log)
    return found, speed


def scenes(loads: Sequence[TracedWorkload], seeds: int) -> list[dict[str, Any]]:
    """Drift and overlap, both policies."""
    rows = []
    for policy in ("zeus", "joulery"):
        for name in DRIFTS:
            say(f"{policy}: {name}")
            rows.append(drift_scene(loads, name, policy, seeds))
        say(f"{policy}: overlapping submissions")
        rows.append(overlap_scene(loads, policy, seeds))
    return rows


def drift_scene(
    loads: Sequence[TracedWorkload], name: str, policy: str, seeds: int
) -> dict[str, Any]:
    """Regret after the change, and recurrences until settled."""
    drifting = [DRIFTS[name](load) for load in loads]
    log = simulate(drifting, make_policy(policy), AT + AFTER, range(seeds))
    after = (log.cost / log.optimal - 1.0)[:, AT:].sum(axis=1)
    settled = _settled(log)
    return {
        "scene": name,
        "policy": policy,
        "regret_after": float(after.mean()),
        "settled_median": float(np.median(settled)),
        "settled_p90": float(np.quantile(settled, 0.9)),
        "never": float((settled >= AFTER).mean()),
        "failed": float((~log.reached[:, AT:]).mean()),
    }


def _settled(log: SimulationLog) -> Any:
    """(jobs,), recurrences after the change until settled; AFTER where never."""
    ratio = log.expected[:, AT:] / log.optimal[:, AT:]
    good = (ratio <= 1 + WITHIN) & log.reached[:, AT:]
    runs = np.lib.stride_tricks.sliding_window_view(good, RUN, axis=1).all(axis=2)
    return np.where(runs.any(axis=1), runs.argmax(axis=1), AFTER)


def overlap_scene(loads: Sequence[TracedWorkload], policy: str, seeds: int) -> dict[str, Any]:
    """Regret with overlapping submissions."""
    log = simulate(
        loads, make_policy(policy), None, range(seeds), SimulationConfig(overlap=OVERLAP)
    )
    return {
        "scene": "ten overlapping submissions",
        "policy": policy,
        "regret": [float(part.final_regret().mean()) for part in log.by_workload()],
        "failed": float(1.0 - np.mean([part.reached.mean() for part in log.by_workload()])),
    }


def short_series(name: str, loads: Sequence[TracedWorkload], seeds: int) -> list[dict[str, Any]]:
    """Cost of jobs over that of the default: 24 recurrences and fewer."""
    say(f"short series: {len(loads)} {name}")
    ours, default = (
        simulate(loads, make_policy(policy), SHORT[-1], range(seeds)).cost.reshape(
            len(loads), seeds, SHORT[-1]
        )
        for policy in ("joulery", "default")
    )
    total = ours.mean(axis=1).cumsum(axis=1) / default.mean(axis=1).cumsum(axis=1)
    return [
        {
            "jobs": name,
            "recurrences": count,
            "workloads": len(loads),
            "within_1_per_cent": float((total[:, count - 1] <= 1 + ALLOWED).mean()),
            "mean": float(total[:, count - 1].mean()),
            "worst": float(total[:, count - 1].max()),
        }
        for count in SHORT
    ]


def _pairs(load: TracedWorkload) -> list[TracedWorkload]:
    """Every two batch sizes next to each other or next but one, with at most six power limits.

    Each of the two is the default once, if it always reaches the target.
    """
    watts = len(load.limits_watts)
    limits = np.unique(np.linspace(0, watts - 1, min(6, watts)).round().astype(int))
    always = np.isfinite(load.epochs).sum(axis=1) == load.runs
    found = []
    for gap in (1, 2):
        for low in range(len(load.batch_sizes) - gap):
            kept = np.array([low, low + gap])
            sizes = tuple(load.batch_sizes[arm] for arm in kept)
            found += [
                replace(
                    load,
                    batch_sizes=sizes,
                    epochs=load.epochs[kept],
                    runs=load.runs[kept],
                    limits_watts=load.limits_watts[limits],
                    epoch_seconds=load.epoch_seconds[np.ix_(kept, limits)],
                    watts=load.watts[np.ix_(kept, limits)],
                    default=load.batch_sizes[arm],
                )
                for arm in kept
                if always[arm]
            ]
    return found


def figures_of(
    same: list[dict[str, Any]],
    found: dict[str, list[PolicySummary]],
    scene_rows: list[dict[str, Any]],
) -> dict[str, float]:
    """The numbers that goals are about."""
    zeus, ours = found["zeus"], found["joulery"]
    ratios = [o.regret_mean / z.regret_mean for o, z in zip(ours, zeus, strict=True)]
    figures = {
        "regret_sum_zeus": sum(one.regret_mean for one in zeus),
        "regret_sum_joulery": sum(one.regret_mean for one in ours),
        "regret_ratio_sum": sum(o.regret_mean for o in ours) / sum(z.regret_mean for z in zeus),
        # Chance can bring a regret below zero; a hundredth stands for that.
        "regret_ratio_geomean": math.exp(float(np.mean(np.log(np.maximum(ratios, 0.01))))),
        "regret_ratio_max": max(ratios),
    }
    for name, rows in (("zeus", zeus), ("joulery", ours)):
        last = np.mean([one.cost_last5_vs_optimal for one in rows])
        figures[f"last5_cost_over_optimum_{name}"] = float(last) - 1.0
        choice = np.mean([one.choice_last5_vs_optimal for one in rows])
        figures[f"last5_choice_over_optimum_{name}"] = float(choice) - 1.0
        figures[f"pairs_worse_than_default_{name}"] = sum(
            one.cost_total_vs_default > 1.0 for one in rows
        )
        figures[f"cost_total_vs_default_max_{name}"] = max(o.cost_total_vs_default for o in rows)
    return figures | _peer_figures(same) | _scene_figures(scene_rows)


def _peer_figures(same: list[dict[str, Any]]) -> dict[str, float]:
    rows = [row for row in same if "peer" in row]
    if not rows:
        return {}
    decisions = sum(row["exploring_decisions"] for row in rows)
    figures = {
        "zeus_vs_peer_regret_sum_ratio": sum(r["ours"] for r in rows)
        / sum(r["peer"] for r in rows),
        "zeus_vs_peer_exploring_decisions": decisions,
        "zeus_vs_peer_exploring_decisions_same": sum(r["exploring_decisions_same"] for r in rows)
        / decisions,
    }
    # With few seeds of Zeus a ratio is mostly chance.
    resolved = [row for row in rows if row["ratio_error"] < RESOLVED]
    figures["zeus_vs_peer_pairs_resolved"] = len(resolved)
    if resolved:
        worst = max(resolved, key=lambda row: abs(row["ratio"] - 1))
        figures["zeus_vs_peer_worst_ratio"] = worst["ratio"]
        figures["zeus_vs_peer_worst_ratio_error"] = worst["ratio_error"]
    return figures


def _scene_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    figures = {}
    for zeus, ours in ((z, o) for z in rows for o in rows if z["policy"] == "zeus"):
        if ours["policy"] != "joulery" or ours["scene"] != zeus["scene"]:
            continue
        key = zeus["scene"].replace(" ", "_")
        if "regret" in zeus:
            figures[f"{key}_regret_ratio"] = sum(ours["regret"]) / sum(zeus["regret"])
        else:
            figures[f"{key}_regret_ratio"] = ours["regret_after"] / zeus["regret_after"]
            figures[f"{key}_settled_median_joulery"] = ours["settled_median"]
            figures[f"{key}_settled_median_zeus"] = zeus["settled_median"]
    return figures


def show(
    same: list[dict[str, Any]],
    found: dict[str, list[PolicySummary]],
    scene_rows: list[dict[str, Any]],
) -> None:
    """Tables for people."""
    rows = []
    for row, zeus, ours, default in zip(same, *(found[name] for name in POLICIES), strict=True):
        known = row.get("ratio_error", math.inf) < math.inf
        ratio = f"{row['ratio']:.3f} ± {row['ratio_error']:.3f}" if known else "–"
        rows.append(
            [
                *(
                    row["gpu"],
                    row["dataset"],
                    str(zeus.recurrences),
                    f"{row.get('peer', math.nan):.2f}",
                ),
                *(f"{zeus.regret_mean:.2f}", ratio, f"{ours.regret_mean:.2f}"),
                f"{ours.regret_mean / zeus.regret_mean:.2f}",
                f"{default.regret_mean:.2f}",
                *(f"{100 * (one.choice_last5_vs_optimal - 1):.2f}" for one in (zeus, ours)),
                *(f"{one.cost_total_vs_default:.3f}" for one in (zeus, ours)),
            ]
        )
    headers = (
        *(
            "GPU",
            "dataset",
            "recurrences",
            "Zeus",
            "zeus",
            "zeus/Zeus",
            "joulery",
            "/zeus",
            "default",
        ),
        *("last 5 %: zeus", "joulery", "cost/default: zeus", "joulery"),
    )
    print("\nRegret in units of the optimal cost; Zeus is its own simulator, zeus our policy")
    print(table(headers, rows, "llrrrrrrrrrrr"))
    print(f"\nChange at recurrence 50; settled within {AFTER} or never")
    print(table(*_scene_table(scene_rows), "llrrrrr"))


def _scene_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    headers = ("scene", "policy", "regret", "settled, median", "p90", "never", "failed")
    cells = []
    for row in sorted(rows, key=lambda row: row["scene"]):
        regret = sum(row["regret"]) if "regret" in row else row["regret_after"]
        when = [
            f"{row[key]:.0f}" if key in row else "–" for key in ("settled_median", "settled_p90")
        ]
        never = f"{100 * row['never']:.0f} %" if "never" in row else "–"
        failed = f"{100 * row['failed']:.1f} %"
        cells.append([row["scene"], row["policy"], f"{regret:.2f}", *when, never, failed])
    return headers, cells


def _short_table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    headers = ("jobs", "recurrences", "workloads", "at most 1 % above", "mean", "worst")
    return headers, [
        [
            row["jobs"],
            str(row["recurrences"]),
            str(row["workloads"]),
            f"{100 * row['within_1_per_cent']:.1f} %",
            f"{row['mean']:.3f}",
            f"{row['worst']:.3f}",
        ]
        for row in rows
    ]


def main() -> None:
    """Measure, print, write."""
    arguments = benchmark_parser(__doc__, "fewer seeds, within 50 seconds").parse_args()
    try:
        loads = read_traces(arguments.data).workloads
    except JouleryError as error:
        say(f"skipped: {error}")
        write_results(arguments.json, "recurring", {}, [])
        return
    if arguments.smoke:
        rows, speed = compared([loads[0], *drawn_workloads(1, DRAWN_SEED)], 2)
        write_results(arguments.json, "recurring", {f"speed_{n}": v for n, v in speed.items()}, [])
        print(len(rows), "policies")
        return
    seeds, scene_seeds = (30, 4) if arguments.quick else (400, 60)
    found, speed = compared(loads, seeds)
    scene_rows = scenes(loads, scene_seeds)
    short = short_series("two batch sizes", [pair for load in loads for pair in _pairs(load)], 20)
    short += short_series("drawn", drawn_workloads(DRAWN, DRAWN_SEED), 20)
    same, peer = compared_with_peer(loads, 10 * seeds, quick=arguments.quick)
    figures = figures_of(same, found, scene_rows)
    figures |= {f"recurrences_per_second_{name}": speed[name] for name in ("zeus", "joulery")}
    spent = sum(answer["seconds"] for answer in peer)
    if spent:
        done = sum(len(a["runs"]) * horizon(load) for a, load in zip(peer, loads, strict=True))
        figures["recurrences_per_second_peer"] = done / spent
    for row in short:
        name = f"{row['jobs'].replace(' ', '_')}_{row['recurrences']}"
        figures[f"short_series_within_1_per_cent_{name}"] = row["within_1_per_cent"]
        figures[f"short_series_worst_{name}"] = row["worst"]
    show(same, found, scene_rows)
    print("\nShort series: total cost over the default's, means over seeds")
    print(table(*_short_table(short), "lrrrrr"))
    print_figures(figures)
    details = [
        *short,
        *same,
        *(asdict(one) for rows in found.values() for one in rows),
        *scene_rows,
    ]
    write_results(arguments.json, "recurring", figures, details)


if __name__ == "__main__":
    main()
