"""How far predictions are from measurements on devices, models and plans that were left out.

Every figure leaves something out: a device's own measurements never enter its prior. Baselines
stand beside ours. `--data` may name any folder laid out like `shared/data`; what is there is
discovered.

usage: python benchmarks/predict.py [--data DIR] [--quick] [--only WORD] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from peers import say, write_results
from predict_kernels import gemm_scores, step_scores
from predict_limits import limit_scores, surface_scores
from predict_plans import (
    cluster_scores,
    convergence_scores,
    energy_scores,
    memory_scores,
    node_scores,
)
from predict_scores import Score, pooled

from joulery.cli.table import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTS: dict[str, Callable[..., Iterator[Score]]] = {
    "gemm": gemm_scores,
    "steps": step_scores,
    "limits": limit_scores,
    "surfaces": surface_scores,
    "node plans": node_scores,
    "cluster plans": cluster_scores,
    "memory": memory_scores,
    "energy": energy_scores,
    "convergence": convergence_scores,
}


def main() -> None:
    """Run every part that finds its data, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(Path(__file__).parents[2] / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="part whose name contains this")
    parser.add_argument("--json")
    options = parser.parse_args()
    scores: list[Score] = []
    for name, part in PARTS.items():
        if options.only in name:
            began = time.monotonic()
            scores += part(options.data, quick=options.quick)
            say(f"{name}: {time.monotonic() - began:.0f} s")
    print(report(scores))
    write_results(options.json, "predict", figures(scores), [one.to_dict() for one in scores])


def report(scores: list[Score]) -> str:
    """One row per task, level and method; groups side by side."""
    rows = []
    for (task, level, method), members in pooled(scores).items():
        groups: dict[str, list[float]] = {}
        for one in members:
            groups.setdefault(one.group, []).append(one.mean)
        means = {group: float(np.mean(values)) for group, values in groups.items()}
        cover = [one.covered for one in members if one.covered is not None]
        rows.append(
            [
                task,
                level,
                method,
                f"{np.mean(list(means.values())):.1f}",
                f"{100 * np.mean(np.concatenate(cover)):.0f}" if cover else "",
                f"{100 * np.mean([one.width for one in members]):.0f}" if cover else "",
                " ".join(f"{group} {value:.1f}" for group, value in means.items()),
            ]
        )
    heads = ["task", "evidence", "method", "error %", "covered %", "± %", "by what was left out"]
    return table(heads, rows)


def figures(scores: list[Score]) -> dict[str, float]:
    """Mean error per task, level and method, and the coverage of our intervals."""
    found: dict[str, float] = {}
    for (task, level, method), members in pooled(scores).items():
        groups: dict[str, list[float]] = {}
        for one in members:
            groups.setdefault(one.group, []).append(one.mean)
        name = f"{task}, {level}, {method}"
        found[name] = round(float(np.mean([np.mean(one) for one in groups.values()])), 2)
        cover = [one.covered for one in members if one.covered is not None]
        if cover:
            found[f"{name}, covered"] = round(100 * float(np.mean(np.concatenate(cover))), 1)
    return found


if __name__ == "__main__":
    main()
