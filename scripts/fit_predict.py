"""Fit the constants that ship in ``src/joulery/prediction/fitted.json`` to measurements by others.

usage: PYTHONPATH=src python scripts/fit_predict.py [--data DIR] [--only WORD]

Only means and covariances of constants are written, never rows of the data.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulery.prediction.models import (
        Belief,
    )


FILE = ROOT / "src/joulery/prediction/fitted.json"
SOURCES = (
    "NeuSight (ASPLOS'25), AIConfigurator, Zeus (NSDI'23), Perseus (SOSP'24), Emerald AI, "
    "gpu_power_benchmark and Megatron-Bridge data; log-constants, natural logarithms"
)


def main() -> None:
    """Fit every belief with all devices in, then the intervals with each left out in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(ROOT.parent / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--only", default="", help="part whose name contains this; rest stays")
    options = parser.parse_args()
    for name, fit in FITS.items():
        if options.only in name:
            _write("beliefs", fit(options.data))
    _write("intervals", _intervals(options))


def _kernels(data: Path) -> dict[str, Any]:
    from predict_kernels import FP8_START, TENSOR_START, fit_power, fit_times, gemm_tables

    from joulery.prediction.models import CONSTANTS, POWER_CONSTANTS

    products, narrow = gemm_tables(data, "bf16", 3000), gemm_tables(data, "fp8", 2000)
    powered = {name: one for name, one in products.items() if one.watts is not None}
    return {
        "kernels": _entry(CONSTANTS, fit_times(products, TENSOR_START), products.values()),
        "fp8 kernels": _entry(CONSTANTS, fit_times(narrow, FP8_START), narrow.values()),
        "kernel power": _entry(POWER_CONSTANTS, fit_power(powered), powered.values()),
    }


def _operators(data: Path) -> dict[str, Any]:
    from predict_kernels import VECTOR_START, fit_times, operator_tables

    from joulery.prediction.models import CONSTANTS

    operators = operator_tables(data, 400)
    fitted = fit_times(operators, VECTOR_START)
    return {"fp32 kernels": _entry(CONSTANTS, fitted, operators.values())}


def _limits(data: Path) -> dict[str, Any]:
    from predict_limits import fit_curves, limit_curves

    from joulery.prediction.models import LIMIT_CONSTANTS

    curves = limit_curves(data)
    return {"limits": _entry(LIMIT_CONSTANTS, fit_curves(curves), curves)}


def _short_steps(data: Path) -> dict[str, Any]:
    from predict_steps import CONSTANTS, fit_steps, step_tables

    steps = step_tables(data)
    return {"short steps": _entry(CONSTANTS, fit_steps(steps), steps.values())}


def _plans(data: Path) -> dict[str, Any]:
    """Plans stand on the kernels' constants, so those must be in place before."""
    from predict_plans import cluster_runs, fit_cluster

    from joulery.prediction.models import PLAN_CONSTANTS

    runs = cluster_runs(data)
    size = len(PLAN_CONSTANTS)
    plans = fit_cluster(runs, np.arange(len(runs.seconds)))
    plans = type(plans)(plans.mean[:size], plans.covariance[:size, :size])
    entry = _entry(PLAN_CONSTANTS, plans, ())
    entry["fitted_on"] = sorted(set(runs.groups["system"]) | set(runs.groups["model"]))
    return {"plans": entry}


# By the names of the benchmark's parts that judge them.
FITS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "gemm": _kernels,
    "steps": _operators,
    "limits": _limits,
    "training": _short_steps,
    "cluster plans": _plans,
}


def _intervals(options: argparse.Namespace) -> dict[str, Any]:
    """Scale and correlation of claimed deviations per task and evidence, from left-out groups."""
    from predict import all_scores
    from predict_fitting import conformal_scale, shared_correlation
    from predict_scores import by_claim, family

    options.quick = False
    claimed: dict[str, list[Any]] = {}
    for score in all_scores(options):
        if score.method == "ours" and score.deviation is not None:
            claimed.setdefault(family(score), []).append(score)
    return {
        name: {
            "scale": round(conformal_scale(by_claim(scores)), 3),
            "correlation": round(shared_correlation(by_claim(scores)), 3),
            "groups": sorted({score.group for score in scores}),
        }
        for name, scores in claimed.items()
    }


def _write(kind: str, entries: dict[str, Any]) -> None:
    from joulery.prediction.models import fitted, fitted_belief

    document = json.loads(FILE.read_text(encoding="utf-8"))
    document |= {"made_by": "scripts/fit_predict.py", "sources": SOURCES}
    document[kind] = document.get(kind, {}) | entries
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    fitted.cache_clear()
    fitted_belief.cache_clear()
    print(f"wrote {', '.join(entries)} to {FILE.relative_to(ROOT)}")


def _entry(names: tuple[str, ...], belief: Belief, members: Iterable[Any]) -> dict[str, Any]:
    return {
        "fitted_on": sorted({one.device.name for one in members}),
        "constants": list(names),
        "mean": np.round(belief.mean, 4).tolist(),
        "covariance": np.round(belief.covariance, 6).tolist(),
    }


if __name__ == "__main__":
    main()
