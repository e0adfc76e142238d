"""How far predictions are from measurements on devices, models and plans that were left out.

Every figure leaves something out: a device's own measurements never enter its prior. Baselines
stand beside ours. `--data` may name any folder laid out like `shared/data`; what is there is
discovered.

usage: python benchmarks/predict.py [--data DIR] [--quick] [--only WORD] [--json FILE] [--html FILE]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from peers import say, write_results
from predict_chart import error_report
from predict_kernels import gemm_scores, step_scores
from predict_limits import clock_scores, limit_scores, surface_scores
from predict_plans import (
    cluster_scores,
    convergence_scores,
    energy_scores,
    memory_scores,
    node_scores,
)
from predict_scores import Score, pooled, sum_row, summary
from predict_steps import training_scores

from joulery.reports import table_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PARTS: dict[str, Callable[..., Iterator[Score]]] = {
    "gemm": gemm_scores,
    "steps": step_scores,
    "limits": limit_scores,
    "clocks": clock_scores,
    "surfaces": surface_scores,
    "training": training_scores,
    "node plans": node_scores,
    "cluster plans": cluster_scores,
    "memory": memory_scores,
    "energy": energy_scores,
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
    parser.add_argument("--html", type=Path, help="page with the errors per device and method")
    parser.add_argument("--smoke", action="store_true", help="seconds, to see that it runs")
    options = parser.parse_args(arguments)
    scores = all_scores(options)
    if not scores:
        say(f"skipped: nothing to compare with in {options.data}")
        write_results(options.json, "predict", {}, [])
        return
    members = pooled(scores)
    rows = [summary(one) for one in members.values()]
    sums = [row for one in members.values() if (row := sum_row(one)) is not None]
    print(f"{report(rows)}\n\n{coverage(rows)}\n\n{sum_report(sums)}")
    if options.html is not None:
        options.html.write_text(error_report(rows).html(), encoding="utf-8")
    write_results(options.json, "predict", figures(rows), rows + sums)


def all_scores(options: argparse.Namespace) -> list[Score]:
    """Scores of every part that was asked for."""
    scores: list[Score] = []
    for name, part in PARTS.items():
        if options.only in name and (not options.smoke or name in SMOKE):
            began = time.monotonic()
            scores += part(options.data, quick=options.quick)
            say(f"{name}: {time.monotonic() - began:.0f} s")
    return scores


def coverage(rows: list[dict[str, Any]]) -> str:
    """Coverage of 90 % intervals per level of evidence, every task counting alike."""
    ours = [row for row in rows if row["method"] == "ours" and "covered_per_cent" in row]
    lines = []
    for level in dict.fromkeys(row["level"] for row in ours):
        mine = [row for row in ours if row["level"] == level]
        inside, kept = (fmean(row[key] for row in mine) for key in _SHARES)
        lines.append(f"{level}: {inside:.0f} % inside, {kept:.0f} % below the one-sided bound")
    return "90 % intervals, mean over tasks\n" + "\n".join(lines)


def sum_report(sums: list[dict[str, Any]]) -> str:
    """Coverage of intervals of sums, such as of a week of steps."""
    heads = ["sum", "evidence", "correlation", "covered %", "if taken as independent %"]
    cells = [
        [
            row["task"],
            row["level"],
            f"{row['correlation']:.2f}",
            f"{row['covered_per_cent']:.0f}",
            f"{row['covered_as_if_independent']:.0f}",
        ]
        for row in sums
    ]
    return table_text(heads, cells, "llrrr")


_SHARES = ("covered_per_cent", "kept_per_cent")


def report(rows: list[dict[str, Any]]) -> str:
    """One row per task, level and method; groups side by side."""
    heads = [
        "task",
        "evidence",
        "method",
        "error %",
        "covered %",
        "kept %",
        "± %",
        "by what was left out",
    ]
    return table_text(
        heads,
        [
            [
                row["task"],
                row["level"],
                row["method"],
                f"{row['error_per_cent']:.1f}",
                f"{row['covered_per_cent']:.0f}" if "covered_per_cent" in row else "",
                f"{row['kept_per_cent']:.0f}" if "kept_per_cent" in row else "",
                f"{row['half_width_per_cent']:.0f}" if "half_width_per_cent" in row else "",
                " ".join(f"{group} {value:.1f}" for group, value in row["groups"].items()),
            ]
            for row in rows
        ],
        "lllrrrr",
    )


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean error per task, level and method, and the coverage of our intervals."""
    found: dict[str, float] = {}
    for row in rows:
        name = f"{row['task']}, {row['level']}, {row['method']}"
        found[name] = row["error_per_cent"]
        if "covered_per_cent" in row:
            found[f"{name}, covered"] = row["covered_per_cent"]
    return found


if __name__ == "__main__":
    main()
