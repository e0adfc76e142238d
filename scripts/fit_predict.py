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
    from joulery.predict import Belief


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

    from joulery.predict import CONSTANTS, LIMIT_CONSTANTS, PLAN_CONSTANTS, POWER_CONSTANTS

    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("JOULERY_DATA", str(ROOT.parent / "shared/data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    data = parser.parse_args().data
    products = gemm_tables(data, "bf16", 3000)
    found = {
        "kernels": (CONSTANTS, fit_times(products, TENSOR_START)),
        "fp8 kernels": (CONSTANTS, fit_times(gemm_tables(data, "fp8", 2000), FP8_START)),
        "fp32 kernels": (CONSTANTS, fit_times(operator_tables(data, 400), VECTOR_START)),
        "kernel power": (POWER_CONSTANTS, fit_power(products)),
        "limits": (LIMIT_CONSTANTS, fit_curves(limit_curves(data))),
    }
    _write({name: _entry(*pair) for name, pair in found.items()})
    # Plans stand on the kernels' constants, so those must be in place first.
    runs = cluster_runs(data)
    size = len(PLAN_CONSTANTS)
    plans = fit_cluster(runs, np.arange(len(runs.seconds)))
    plans = type(plans)(plans.mean[:size], plans.covariance[:size, :size])
    found["plans"] = (PLAN_CONSTANTS, plans)
    _write({name: _entry(*pair) for name, pair in found.items()})


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


def _entry(names: tuple[str, ...], belief: Belief) -> dict[str, Any]:
    return {
        "constants": list(names),
        "mean": np.round(belief.mean, 4).tolist(),
        "covariance": np.round(belief.covariance, 6).tolist(),
    }


if __name__ == "__main__":
    main()
