"""Fit the constants that ship in ``src/joulery/predict/fitted.json`` to measurements by others.

usage: PYTHONPATH=src python scripts/fit_predict.py [--data DIR]

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
    from collections.abc import Iterable

    from joulery.predict.models import (
        Belief,
    )


def main() -> None:
    """Fit every belief with all devices in, and write them."""
    from predict_kernels import (
        FP8_START,
        TENSOR_START,
        VECTOR_START,
        fit_power,
        fit_times,
        gemm_tables,
        operator_tables,
    )
    from predict_limits import fit_curves, limit_curves
    from predict_plans import cluster_runs, fit_cluster
    from predict_steps import CONSTANTS as STEP_CONSTANTS
    from predict_steps import fit_steps, step_tables

    from joulery.predict.models import (
        CONSTANTS,
        LIMIT_CONSTANTS,
        PLAN_CONSTANTS,
        POWER_CONSTANTS,
        fitted_belief,
    )

    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(ROOT.parent / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    data = parser.parse_args().data
    products, narrow = gemm_tables(data, "bf16", 3000), gemm_tables(data, "fp8", 2000)
    operators, curves, steps = operator_tables(data, 400), limit_curves(data), step_tables(data)
    powered = {name: one for name, one in products.items() if one.watts is not None}
    found = {
        "kernels": _entry(CONSTANTS, fit_times(products, TENSOR_START), products.values()),
        "fp8 kernels": _entry(CONSTANTS, fit_times(narrow, FP8_START), narrow.values()),
        "fp32 kernels": _entry(CONSTANTS, fit_times(operators, VECTOR_START), operators.values()),
        "kernel power": _entry(POWER_CONSTANTS, fit_power(powered), powered.values()),
        "limits": _entry(LIMIT_CONSTANTS, fit_curves(curves), curves),
        "short steps": _entry(STEP_CONSTANTS, fit_steps(steps), steps.values()),
    }
    _write(found)
    # Plans stand on the kernels' constants, so those must be in place first.
    fitted_belief.cache_clear()
    runs = cluster_runs(data)
    size = len(PLAN_CONSTANTS)
    plans = fit_cluster(runs, np.arange(len(runs.seconds)))
    plans = type(plans)(plans.mean[:size], plans.covariance[:size, :size])
    found["plans"] = _entry(PLAN_CONSTANTS, plans, ())
    found["plans"]["fitted_on"] = sorted(set(runs.groups["system"]) | set(runs.groups["model"]))
    _write(found)


# Standard deviations of log-predictions for what was left out: those at which 90 % of the errors
# that benchmarks/predict.py prints lie within 1.645 of them. "plan": a new system, without and with
# one measured step of the model; "step": operators of a step; "power": GEMM power.
DEVIATIONS = {
    "plan, specs": 0.24,
    "plan, measured": 0.19,
    "step, specs": 0.18,
    "power, specs": 0.11,
}


def _write(beliefs: dict[str, Any]) -> None:
    document = {
        "made_by": "scripts/fit_predict.py",
        "sources": "NeuSight (ASPLOS'25), AIConfigurator, Zeus (NSDI'23), Perseus (SOSP'24) and "
        "Emerald AI and Megatron-Bridge data; log-constants, natural logarithms",
        "deviations": DEVIATIONS,
        "beliefs": beliefs,
    }
    path = ROOT / "src/joulery/predict/fitted.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}")


def _entry(names: tuple[str, ...], belief: Belief, members: Iterable[Any]) -> dict[str, Any]:
    return {
        "fitted_on": sorted({one.device.name for one in members}),
        "constants": list(names),
        "mean": np.round(belief.mean, 4).tolist(),
        "covariance": np.round(belief.covariance, 6).tolist(),
    }


if __name__ == "__main__":
    main()
