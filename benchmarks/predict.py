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
from typing import TYPE_CHECKING, Any

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
from predict_scores import Score, pooled, summary
from predict_steps import training_scores

from joulery.reports import table_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PARTS: dict[str, Callable[..., Iterator[Score]]] = {
    "gemm": gemm_scores,
    "steps": step_scores,
    "limits": limit_scores,
    "surfaces": surface_scores,
    "training": training_scores,
    "node plans": node_scores,
    "cluster plans": cluster_scores,
    "memory": memory_scores,
    "energy": energy_scores,
    "convergence": convergence_scores,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every part that finds its data, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(Path(__file__).parents[2] / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="part whose name contains this")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    scores: list[Score] = []
    for name, part in PARTS.items():
        if options.only in name:
            began = time.monotonic()
            scores += part(options.data, quick=options.quick)
            say(f"{name}: {time.monotonic() - began:.0f} s")
    import os as _o, pickle
    if _o.environ.get("DUMP"):
        pickle.dump(scores, open(_o.environ["DUMP"], "wb"))
    rows = [summary(members) for members in pooled(scores).values()]
    print(report(rows))
    write_results(options.json, "predict", figures(rows), rows)


def report(rows: list[dict[str, Any]]) -> str:
    """One row per task, level and method; groups side by side."""
    heads = ["task", "evidence", "method", "error %", "covered %", "± %", "by what was left out"]
    return table_text(
        heads,
        [
            [
                row["task"],
                row["level"],
                row["method"],
                f"{row['error_per_cent']:.1f}",
                f"{row['covered_per_cent']:.0f}" if "covered_per_cent" in row else "",
                f"{row['half_width_per_cent']:.0f}" if "half_width_per_cent" in row else "",
                " ".join(f"{group} {value:.1f}" for group, value in row["groups"].items()),
            ]
            for row in rows
        ],
        "lllrrr",
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
